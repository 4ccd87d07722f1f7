"""What Ctrl-C does to a process of the command line before and after it runs a command.

`import dml_jax` imports JAX, which takes most of the time of a short command. An
interrupt during that import would be a long traceback. This module imports as little as
possible itself, because an interrupt before it installs its handler is one as well.
"""

import os
import signal
import sys

TYPE_CHECKING = False  # that of `typing`, which takes time to import
if TYPE_CHECKING:
    from typing import NoReturn

STATUS = 130
MESSAGE = "dml_jax: interrupted"


def is_command() -> bool:
    """Whether this process is `python -m dml_jax`, or the console script."""
    path = sys.argv[0] if sys.argv else ""
    program, _ = os.path.splitext(os.path.basename(path))
    # Python puts "-m" there while it imports the package of the module to be run.
    return program == "dml-jax" or (program == "-m" and "dml_jax" in sys.orig_argv)


def exit_on_interrupt() -> None:
    """Makes an interrupt end the process at once, unless interrupts are ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_at_once)


def raise_on_interrupt() -> None:
    """Makes an interrupt a KeyboardInterrupt, so that a command can clean up."""
    if signal.getsignal(signal.SIGINT) is exit_at_once:
        sys.unraisablehook = _exit_if_dropped
        signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_at_once(*_: object) -> "NoReturn":
    """Ends the process with one line and the status of an interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        os.write(2, f"{MESSAGE}\n".encode())
    finally:
        os._exit(STATUS)


def _exit_if_dropped(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python drops exceptions in callbacks, for example of its garbage collector."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        exit_at_once()
    sys.__unraisablehook__(unraisable)
