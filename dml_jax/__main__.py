"""The command line: python -m dml_jax."""

import sys

from dml_jax.cli.command_line import main

sys.exit(main())
