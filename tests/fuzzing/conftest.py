"""Counts what the examples of each test did, and keeps the counts in a file."""

import datetime
import json
import pathlib
import platform
import time

import jax
import outcomes
import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--figures",
        metavar="FILE",
        type=pathlib.Path,
        help="keep the counts of outcomes in this JSON file, beside those in it",
    )


@pytest.fixture(autouse=True)
def any_bits_are_drawn(nans_are_data):
    """Those of NaNs, too."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    outcomes.COUNTS.clear()
    start = time.perf_counter()
    result = yield  # where a test fails, its counts are none
    if outcomes.COUNTS:
        figures = {
            "examples": outcomes.COUNTS.total(),
            "outcomes": dict(sorted(outcomes.COUNTS.items())),
            "seconds": round(time.perf_counter() - start, 1),
            "jax": jax.__version__,
            "python": platform.python_version(),
            "date": datetime.date.today().isoformat(),
        }
        keep(item, figures)
        if outcomes.COUNTS.total() > 1000:
            jax.clear_caches()  # programs of a long run would take gigabytes
    return result


def keep(item, figures):
    path = item.config.getoption("--figures", None)
    if path:
        known = json.loads(path.read_text()) if path.exists() else {}
        known[f"{item.path.stem}.{item.name}"] = figures
        path.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
