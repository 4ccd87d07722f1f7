"""The process of the command line: `python -m dml_jax`, and the script `dml-jax`."""

import os
import signal
import sys
from typing import NoReturn

from dml_jax.cli import main as run_command

_SIGNALS = [getattr(signal, n) for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]


def main() -> NoReturn:
    """Runs the command line, and ends the process with its exit status."""
    for number in _SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _exit)
    status = run_command()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream:
                stream.flush()
    except OSError:  # the status tells; Python would fail to flush once more
        os._exit(status)
    sys.exit(status)


def _exit(number: int, _: object) -> NoReturn:
    """Raises an exception, so that no unfinished file is left behind."""
    for other in _SIGNALS:  # another one would stop the clean-up
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
