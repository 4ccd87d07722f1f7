"""The tests of this folder need eight devices, set up before JAX starts.

Unless its files are named on the command line, as `test_on_eight_devices.py` does in
a child process, only that file is collected.
"""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("random programs over meshes")
    group.addoption("--programs", metavar="COUNT", type=int, default=240)
    group.addoption("--first-program", metavar="SEED", type=int, default=60)


def pytest_ignore_collect(
    collection_path: pathlib.Path, config: pytest.Config
) -> bool | None:
    if collection_path.is_dir() or collection_path.name == "test_on_eight_devices.py":
        return None
    named = (pathlib.Path(arg.partition("::")[0]).absolute() for arg in config.args)
    return None if any(path.is_relative_to(HERE) for path in named) else True
