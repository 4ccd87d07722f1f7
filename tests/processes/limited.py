"""Asks for more memory than a limit leaves, and then for what fits.

Prints the outcomes, one a line. The limit is set once JAX has its threads, whose memory
depends on the machine.
"""

import contextlib
import json
import pathlib
import resource
import sys
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from models import bind, buffer, floats, model, save

import dml_jax
from dml_jax import cli

MORE = 2**30  # bytes that the limit leaves
SMALL, LARGE = 2**10, 2**29  # elements of four bytes
REQUESTS: dict[str, Callable[[int], jax.Array]] = {
    "slice_grad": lambda n: dml_jax.slice_grad(
        jnp.ones(1), (n,), (n - 1,), (1,), (-1,)
    ),
    "fill_value_sequence": lambda n: dml_jax.fill_value_sequence((n,), "float32", 1, 0),
    "fill_value_constant": lambda n: dml_jax.fill_value_constant((n,), "float32", 1),
}


def dispatch(count: int) -> str:
    """Holds the elements in a buffer of a model, and again on the device."""
    result = pathlib.Path("r.npy")
    result.unlink(missing_ok=True)
    desc = {
        "OutputTensor": floats(count),
        "ValueDataType": "FLOAT32",
        "ValueStart": 1,
        "ValueDelta": 0,
    }
    given = model(
        {"r": buffer({"valueCount": count, "value": 0})},
        {"fill": {"type": "FILL_VALUE_SEQUENCE", "desc": desc}},
        [bind("fill", OutputTensor="r"), save("r", "r.npy")],
    )
    pathlib.Path("model.json").write_text(json.dumps(given))
    with contextlib.redirect_stdout(sys.stderr):
        status = cli.main(["dispatch", "model.json"])
    return f"{status} {np.load(result).size if result.exists() else 0}"


def attempt(request: Callable[[int], jax.Array], count: int) -> str:
    try:
        return str(jnp.sum(jax.block_until_ready(request(count)) == 1))
    except RuntimeError as error:
        return "Out of memory" if "Out of memory" in str(error) else ""


def main() -> None:
    requests: dict[str, Callable[[int], str]]
    requests = {name: partial(attempt, call) for name, call in REQUESTS.items()}
    requests["dispatch"] = dispatch
    for request in requests.values():
        request(SMALL)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MORE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name, request in requests.items():
        for count in (LARGE, SMALL):
            print(name, request(count), flush=True)


main()
