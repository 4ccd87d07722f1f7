"""The process of the command line: `python -m dml_jax`, and the script `dml-jax`."""

import os
import sys
from typing import NoReturn

from dml_jax.cli import main as run_command


def main() -> NoReturn:
    """Runs the command line, and ends the process with its exit status."""
    status = run_command()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream:
                stream.flush()
    except OSError:  # the status tells; Python would fail to flush once more
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
