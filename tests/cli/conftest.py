from collections.abc import Callable
from typing import Any

import pytest

from dml_jax import cli


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str, str]]:
    """Runs the command line, and returns its exit status and both outputs."""

    def run(*words: str) -> tuple[Any, str, str]:
        try:
            status = cli.main(words)
        except SystemExit as error:
            status = error.code
        out, err = capsys.readouterr()
        return status, out, err

    return run
