"""Lengths count by value, in every dtype and as sequences of numbers of any size.

`test_random_calls.py` has arrays of lengths under every transformation.
"""

import array
import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, numbers
from dtypes import INTEGERS, dtype_of
from sampling import default_of, sampled_x64

import dml_jax
from dml_jax import reference

# 64-bit mode off, and on in exhaustive runs.
pytestmark = [sampled_x64, pytest.mark.usefixtures("x64")]
reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR)
COUNT = 24  # of lengths, so that most calls are of one program


def reversed_by(lengths: list[int]) -> np.ndarray:
    return reference.reverse_sequence(numbers(len(lengths), 4), lengths, 0, 1)


def column(lengths: Any) -> Any:
    """One length for each line."""
    if isinstance(lengths, jax.Array):
        return jax.lax.expand_dims(lengths, [1])  # indexing would narrow it
    return (
        lengths[:, None] if isinstance(lengths, np.ndarray) else [[n] for n in lengths]
    )


def require_reversed(lengths: Any, values: list[int]) -> None:
    """By both functions; `checked` names the extremes, if one is wrong."""
    x, expected = numbers(len(values), 4), reversed_by(values)
    assert_same_bits(reverse(x, lengths), expected)
    lines = dml_jax.reverse_subsequences(x, column(lengths), 1)
    assert_same_bits(lines, expected)
    checked = dml_jax.checked(lambda: reverse(x, lengths))
    if all(0 <= n <= 4 for n in values):
        assert_same_bits(checked(), expected)
        return
    with pytest.raises(ValueError, match=f"got {min(values)} to {max(values)}$"):
        checked()


@pytest.mark.parametrize("name", INTEGERS[2:])  # int2 has no 4
def test_arrays_of_numbers_at_the_ends_of_every_width(name: str) -> None:
    info = jnp.iinfo(dtype_of(name))
    ends = {-(2**32), -4, -1, 0, 1, 3, 4, 5, info.min, info.max}
    ends |= {2**bits + offset for bits in (31, 32, 63) for offset in (-1, 0, 1, 2)}
    values = [n for n in ends if info.min <= n <= info.max]
    values = (COUNT * values)[:COUNT]
    lengths = np.array(values, object).astype(dtype_of(name))
    require_reversed(lengths, values)
    with jax.enable_x64(True):
        lengths = jnp.asarray(lengths)
    require_reversed(lengths, values)


FAR = [0, 3, 5, 2**31, 2**32 + 1, 2**40, 2**63, 2**64 - 1, -1, -(2**40), -(2**63)]
SEQUENCES = {
    "list": FAR,
    "tuple": tuple(FAR),
    "far": [2**33, 2**63, 2**32 + 1],
    "one": [2**32 + 1],
    "range": range(1, 4),
    "array": array.array("i", [1, 2, 3]),
    "deque": collections.deque([1, 2, 2**40]),
    "user": collections.UserList([1, 2, -3]),
    "none": [],
    **{
        f"beside-{kind.__name__}": [kind(2), 3, other, kind(4)]
        for kind in (np.int8, np.int64, np.uint64, jnp.int32)
        for other in (2**64 - 1, -(2**40))
    },
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_of_numbers_of_any_size(name: str) -> None:
    lengths = SEQUENCES[name]
    values = [int(n) for n in lengths]
    if name == "none":
        lengths = np.zeros(0, int)  # as a column too
    require_reversed(lengths, values)


@pytest.mark.parametrize("other", [3, 300, 2**31, 2**40, 2**63, -(2**40)])
@pytest.mark.parametrize("dtype", default_of(["uint32", "uint8", "int32"], "uint32"))
def test_numbers_beside_traced_ones(dtype: str, other: int) -> None:
    kinds = [int, *[kind for kind in (np.int64, np.uint64) if holds(kind, other)]]
    for kind in kinds:
        run = jax.jit(lambda n, kind=kind: reverse(numbers(3, 4), [n, kind(other), 4]))
        expected = reversed_by([2, other, 4])
        assert_same_bits(run(jnp.asarray(2, dtype)), expected)


def holds(kind: Any, number: int) -> bool:
    return np.iinfo(kind).min <= number < 2**63
