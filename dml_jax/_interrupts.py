"""What Ctrl-C and other signals do to a process of the command line.

`import dml_jax` imports JAX, which takes most of the time of a short command. An
interrupt during that import would be a long traceback. This module imports as little as
possible itself, because an interrupt before it installs its handler is one as well.

While a command runs, SIGTERM and SIGHUP raise exceptions as SIGINT does, so that no
unfinished file is left behind.
"""

import os
import signal
import sys

TYPE_CHECKING = False  # that of `typing`, which takes time to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

STATUS = 130
MESSAGE = "dml_jax: interrupted"
_SIGNALS = [getattr(signal, n) for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]


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


def raise_on_signals() -> None:
    """Makes the signals exceptions, so that a command can clean up.

    An interrupt is a KeyboardInterrupt, the others are a SystemExit.
    """
    sys.unraisablehook = _exit_if_dropped
    if signal.getsignal(signal.SIGINT) is exit_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _replace_handler(signal.SIG_DFL, _raise_exit)


def exit_on_signals() -> None:
    """Makes the signals end the process at once again."""
    exit_on_interrupt()
    _replace_handler(_raise_exit, signal.SIG_DFL)


def _replace_handler(old: object, new: "Callable[..., Any] | signal.Handlers") -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is old:
            signal.signal(number, new)


def _raise_exit(number: int, _: object) -> "NoReturn":
    """Ends the command with the status that a shell gives to the signal."""
    _replace_handler(_raise_exit, signal.SIG_IGN)  # another one would stop the clean-up
    raise SystemExit(128 + number)


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
    if isinstance(unraisable.exc_value, SystemExit):
        code = unraisable.exc_value.code
        os._exit(code if isinstance(code, int) else 1)
    sys.__unraisablehook__(unraisable)
