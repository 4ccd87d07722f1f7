"""python -m dml_jax: the command line."""

import sys

from dml_jax.cli import main

sys.exit(main())
