"""Meshes with automatic, explicit and manual axes, whose collectives XLA may refuse.

Where XLA cannot partition an operation, it ends the process.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import numbers
from devices import AUTO, EXPLICIT
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax
from dml_jax import reference

LENGTH = np.array([[17]])
WINDOW = dict(input_window_offsets=(3, 0), input_window_strides=(-2, 1))


def reverse(module: Any, x: Any, **options: Any) -> Any:
    return module.reverse_subsequences(x, LENGTH, 0, **options)


def slice_grad(module: Any, x: Any) -> Any:
    window = 2 * len(x) - 1
    return module.slice_grad(x, (40, 8), **WINDOW, input_window_sizes=(window, 8))


def gather(x: Any) -> Any:
    return reverse(dml_jax, x, implementation="gather")


def gradient(x: Any) -> Any:
    """The gradient of a function whose gradient is the reversal."""
    return jax.grad(lambda x: (reverse(dml_jax, x) * x).sum() / 2)(x)


# The function, its reference, and the first size of its input.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "reverse": (partial(reverse, dml_jax), reverse, 40),
    "gradient": (gradient, reverse, 40),
    "gather": (gather, reverse, 40),
    "slice_grad": (partial(slice_grad, dml_jax), slice_grad, 16),
    "slice_grad-of-few": (partial(slice_grad, dml_jax), slice_grad, 2),
}
ALONG = (("c", "b"),)


@pytest.mark.parametrize(
    ("case", "kinds", "spec"),
    [
        ("reverse", "aae", ALONG),
        ("gradient", "aae", (*ALONG, "a")),
        ("gather", "aea", (("b", "a"),)),
        ("slice_grad", "eaa", (("a", "b"),)),
        ("reverse", "maa", ("b", "c")),
        ("gather", "mae", ("b", "c")),
        ("gradient", "mae", ALONG),
        ("slice_grad", "mae", ALONG),
        ("slice_grad-of-few", "maa", ("b", "c")),
        ("slice_grad-of-few", "mee", ("b", "c")),
    ],
)
def test_kinds_of_axes(case: str, kinds: str, spec: Any) -> None:
    """Each axis is automatic, explicit or manual; each manual device has its data."""
    function, expected, size = CASES[case]
    axis_types = tuple(EXPLICIT if kind == "e" else AUTO for kind in kinds)
    devices = np.array(jax.devices()).reshape(2, 2, 2)
    mesh = Mesh(devices, ("a", "b", "c"), axis_types=axis_types)
    x = numbers(2, size, 8)
    with jax.set_mesh(mesh):
        if kinds[0] != "m":
            result = jax.jit(function)(put(x[0], mesh, *spec))
            assert_same_bits(result, expected(reference, x[0]))
            return

        @jax.jit
        @partial(jax.shard_map, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
        def of_shards(x: jax.Array) -> jax.Array:
            return jnp.expand_dims(function(x.squeeze(0)), 0)

        result = np.asarray(of_shards(put(x, mesh, "a", *spec)))
    assert_same_bits(result, np.stack([expected(reference, shard) for shard in x]))


def put(x: np.ndarray, mesh: Mesh, *spec: Any) -> jax.Array:
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))
