"""The command line, `python -m dml_jax`."""

from dml_jax.cli.command_line import main

__all__ = ["main"]
