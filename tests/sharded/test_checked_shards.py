"""`checked` around operators of shards; random programs have it around any."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import numbers
from devices import AUTO, EXPLICIT, MODES, mesh_of, put
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import dml_jax
from dml_jax import reference

X = numbers(16, 4)
GOOD = np.arange(16, dtype=np.int32) % 5
# The extremes are on different devices, and some devices have no bad length.
BAD = np.where(np.arange(16) == 3, 9, np.where(np.arange(16) == 12, -2, GOOD))
BAD = BAD.astype(np.int32)
EXPECTED = reference.reverse_sequence(X, GOOD, batch_axis=0, time_axis=1)
ERROR = r"^reverse_sequence: `sequence_lens` must be in \[0, 4\]; got -2 to 9$"

reverse = partial(dml_jax.reverse_sequence, batch_axis=0, time_axis=1)


@pytest.mark.parametrize("mode", MODES)
def test_operators_inside_and_outside_of_shard_map(mode: AxisType) -> None:
    mesh, spec = mesh_of(mode, a=4, b=2), P(("a", "b"))
    inner = jax.shard_map(reverse, mesh=mesh, in_specs=spec, out_specs=spec)

    @dml_jax.checked
    @jax.jit
    def run(x: Any, inside: Any, before: Any, after: Any) -> jax.Array:
        return reverse(inner(reverse(x, before), inside), after)

    x, good, bad = (put(array, mesh, *spec) for array in (X, GOOD, BAD))
    assert_same_bits(run(x, good, good, good), EXPECTED)
    for lengths in [(bad, good, good), (good, bad, good), (good, good, bad)]:
        with pytest.raises(ValueError, match=ERROR):
            run(x, *lengths)


def test_constants_beyond_32_bits() -> None:
    lengths: Any = [2**40, -(2**35), 2]
    mesh = mesh_of(EXPLICIT, a=4, b=2)
    run = jax.shard_map(
        lambda x: reverse(x, lengths), mesh=mesh, in_specs=P(), out_specs=P()
    )
    with pytest.raises(ValueError, match=f"got {-(2**35)} to {2**40}$"):
        dml_jax.checked(run)(X[:3])


def test_transformed_by_jit() -> None:
    mesh = mesh_of(AUTO, a=4, b=2)
    function = jax.shard_map(reverse, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(TypeError, match=r"^checked: .* outside of transformations"):
        jax.jit(lambda: dml_jax.checked(function)(X, GOOD))()
