"""These tests need eight devices, which JAX must be told of before it starts.

An ordinary run therefore passes this directory by, and `test_on_eight_devices.py`
names the files in a process of its own.
"""

import pathlib

HERE = pathlib.Path(__file__).parent


def pytest_addoption(parser):
    group = parser.getgroup("random programs over meshes")
    group.addoption(
        "--programs", metavar="COUNT", type=int, default=250, help="how many to run"
    )
    group.addoption(
        "--first-program", metavar="SEED", type=int, default=0, help="the first seed"
    )


def pytest_ignore_collect(collection_path, config):
    if collection_path.is_dir() or collection_path.name == "test_on_eight_devices.py":
        return None
    named = (pathlib.Path(arg.partition("::")[0]).absolute() for arg in config.args)
    return None if any(path.is_relative_to(HERE) for path in named) else True
