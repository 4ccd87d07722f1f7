"""Asks for more memory than a limit leaves, and then for what it does leave.

Prints what came of it, one line each. The limit is set once JAX has its threads, whose
memory depends on the machine.
"""

import contextlib
import json
import pathlib
import re
import resource
import sys

import jax
import jax.numpy as jnp
import numpy as np
from models import bind, buffer, floats, model, save

import dml_jax
from dml_jax import cli

ROOM = 2**30
SMALL, LARGE = 2**10, 2**29  # elements of four bytes
REQUESTS = {
    "slice_grad": lambda n: dml_jax.slice_grad(
        jnp.ones(1), (n,), (n - 1,), (1,), (-1,)
    ),
    "fill_value_sequence": lambda n: dml_jax.fill_value_sequence((n,), "float32", 1, 0),
    "fill_value_constant": lambda n: dml_jax.fill_value_constant((n,), "float32", 1),
}


def dispatch(count):
    """Holds the elements in a buffer of a model, and again on the device."""
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
        return cli.main(["dispatch", "model.json"])


def attempt(request, count):
    try:
        return int(jnp.sum(jax.block_until_ready(request(count)) == 1))
    except RuntimeError as error:
        return re.search("Out of memory|$", str(error))[0]


def limit(room):
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main():
    for request in REQUESTS.values():
        attempt(request, SMALL)
    dispatch(SMALL)
    limit(ROOM)
    for name, request in REQUESTS.items():
        for count in (LARGE, SMALL):
            print(name, attempt(request, count), flush=True)
    for count in (LARGE, SMALL):
        pathlib.Path("r.npy").unlink(missing_ok=True)
        status = dispatch(count)
        written = np.load("r.npy").size if pathlib.Path("r.npy").exists() else 0
        print("dispatch", status, written)


main()
