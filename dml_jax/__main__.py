"""python -m dml_jax: the command line."""

import sys

from dml_jax.cli.command_line import main

sys.exit(main())
