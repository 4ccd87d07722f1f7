"""Formulations that XLA partitions by itself, as it does for TPUs.

XLA has the same partitioner on CPUs, where their bits are compared with the reference.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from devices import AUTO, compile_for, mesh_of, put, sent_bytes
from formulations import data
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

from dml_jax import reference
from dml_jax._reverse import xla as reverse_xla
from dml_jax._shared import bitwise
from dml_jax._slice import xla as slice_xla
from dml_jax._slice.window import StridedWindow

DEVICES = 8


def reverse(axis: int, x: jax.Array, lengths: jax.Array) -> jax.Array:
    return reverse_xla.rotate_and_flip(x, lengths, axis, DEVICES)


def bits_of(x: np.ndarray) -> np.ndarray:
    """XLA on CPU would widen bfloat16 where it changes a sharding."""
    return x.view(np.uint16) if x.dtype == jnp.bfloat16 else x


# Mesh, spec, shape of the input, shape of the lengths, axis.
REVERSALS: dict[str, tuple[Any, ...]] = {
    "rows": (dict(a=8), (None, "a"), (5, 40), (5, 1), 1),
    "features": (dict(a=8), (None, "a"), (5, 40, 128), (5, 1, 1), 1),
    "columns": (dict(a=8), ("a",), (40, 5), (1, 5), 0),
    "one-length": (dict(a=8), (None, "a"), (5, 40), (1, 1), 1),
    "batch-too": (dict(a=2, b=4), ("a", "b"), (6, 40, 3), (6, 1, 1), 1),
    "features-too": (dict(a=2, b=4), (None, "b", "a"), (5, 40, 6), (5, 1, 1), 1),
    "two-mesh-axes": (dict(a=2, b=4), (None, ("a", "b")), (5, 40, 2), (5, 1, 1), 1),
    "axes-swapped": (dict(a=2, b=4), (None, ("b", "a")), (5, 40, 2), (5, 1, 1), 1),
    "padded": (dict(a=2, b=4), ("a", "b"), (6, 44), (6, 1), 1),
    "short": (dict(a=2, b=4), ("a", "b"), (6, 12), (6, 1), 1),
    "uneven": (dict(a=8), (None, "a"), (5, 43), (5, 1), 1),
    "uneven-short": (dict(a=8), (None, "a"), (5, 13), (5, 1), 1),
    "not-sharded": (dict(a=8), ("a",), (8, 43), (8, 1), 1),
}
SAMPLE = ["features", "batch-too", "padded"]


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    ("name", "dtype"),
    default_of(
        [
            *[(name, "uint8") for name in REVERSALS],
            # Only the bits that are moved depend on the dtype.
            *[(name, dtype) for name in SAMPLE for dtype in ("bfloat16", "float32")],
        ],
        *[(name, "uint8") for name in SAMPLE],
    ),
)
def test_reversal(name: str, dtype: str) -> None:
    sizes, spec, shape, of_lengths, axis = REVERSALS[name]
    mesh, size = mesh_of(AUTO, **sizes), shape[axis]
    sharding = NamedSharding(mesh, P(*spec))
    x, x_dtype = data(shape, dtype), jnp.dtype(dtype)
    lengths = np.resize([size - 1, 0, size // 2, size, 1], of_lengths).astype(np.int32)

    @jax.jit
    def run(bits: jax.Array, lengths: jax.Array) -> jax.Array:
        # JAX takes arguments with even shards only; constraints may be uneven.
        x = bitwise.from_bits(lax.with_sharding_constraint(bits, sharding), x_dtype)
        y = bitwise.to_bits(reverse(axis, x, lengths))
        y = lax.with_sharding_constraint(y, sharding)
        return lax.with_sharding_constraint(y, NamedSharding(mesh, P()))

    y = run(put(bits_of(x), mesh), lengths)
    assert_same_bits(y, bits_of(reference.reverse_subsequences(x, lengths, axis)))


@pytest.mark.parametrize("shape", [(16, 1024, 128), (64, 1024)])
def test_a_reversal_exchanges_shards(shape: tuple[int, ...]) -> None:
    mesh = mesh_of(a=2, b=4)
    x = put(np.zeros(shape, np.float32), mesh, "a", "b")
    lengths = put(np.full((shape[0],) + (1,) * (len(shape) - 1), 700, np.int32), mesh)
    compiled = compile_for(partial(reverse, 1), x, lengths, out_shardings=x.sharding)
    assert sent_bytes(compiled).keys() == {"collective-permute"}


# Sizes, and the starts, sizes and strides of windows.
WINDOWS = {
    "shifted": (48, 5, 40, 1),
    "uneven": (48, 1, 47, 1),
    "tail": (48, 36, 12, 1),
    "strided": (48, 3, 15, 3),
    "aligned": (48, 0, 24, 2),
    "few": (24, 11, 2, 1),
    "few-strided": (48, 3, 5, 3),
}


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("dtype", default_of(["uint8", "bfloat16", "float32"], "uint8"))
@pytest.mark.parametrize("name", default_of(WINDOWS, "uneven", "strided"))
def test_transpose_of_a_slice(name: str, dtype: str, is_reversed: bool) -> None:
    extent, start, size, stride = WINDOWS[name]
    sharding = NamedSharding(mesh_of(a=8), P(None, "a"))
    reversed_dims = (1,) if is_reversed else ()
    window = StridedWindow("slice1", (0, start), (3, size), (1, stride), reversed_dims)
    x = data((3, size), dtype)
    expected = np.zeros((3, extent), x.dtype)

    @partial(jax.jit, out_shardings=sharding)
    def run(bits: jax.Array) -> jax.Array:
        x = lax.with_sharding_constraint(bits, sharding)
        x = bitwise.from_bits(x, expected.dtype)
        return bitwise.to_bits(slice_xla.spread(x, (3, extent), window, DEVICES))

    places = slice(start, start + stride * (size - 1) + 1, stride)
    expected[:, places] = x[:, ::-1] if is_reversed else x
    assert_same_bits(run(bits_of(x)), bits_of(expected))
