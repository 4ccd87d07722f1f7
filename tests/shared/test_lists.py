"""Lists and other sequences of numbers instead of arrays: numbers count by value."""

import array
import collections
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, numbers
from sampling import default_of

import dml_jax
from dml_jax import reference

X = numbers(3, 4)
reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR)
SIZES = [0, 3, 5, 2**31, 2**32 + 1, 2**40, 2**63, 2**64 - 1, -1, -(2**40), -(2**63)]


def expected(lengths: Any) -> np.ndarray:
    clamped = np.array([min(max(int(n), 0), 4) for n in lengths])
    return reference.reverse_sequence(X, clamped, **BATCH_MAJOR)


@pytest.mark.parametrize("other", SIZES)
@pytest.mark.usefixtures("x64")
def test_integers_of_every_size_and_sign(other: int):
    check_list([3, other, 2])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "convert", [list, functools.partial(np.array, dtype=np.uint64)]
)
@pytest.mark.parametrize("other", [2**32, 2**40, 2**63])
def test_lengths_that_are_all_beyond_32_bits(other: int, convert: Callable[..., Any]):
    check_list(convert([2**33, other, 2**32 + 1]))


def check_list(lengths: Any) -> None:
    assert_same_bits(reverse(X, lengths), expected(lengths))
    columns = [[n] for n in lengths]
    lines = dml_jax.reverse_subsequences(X, columns, 1)
    assert_same_bits(lines, expected(lengths))
    if not all(0 <= n <= 4 for n in lengths):
        extremes = f"got {min(lengths)} to {max(lengths)}$"
        with pytest.raises(ValueError, match=extremes):
            dml_jax.checked(lambda: reverse(X, lengths))()


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64])
@pytest.mark.parametrize("other", [3, -5, 2**40, 2**63, -(2**63)])
@pytest.mark.usefixtures("x64")
def test_integers_of_python_and_numpy(kind: type, other: int):
    lengths = [kind(2), other, 4]
    assert_same_bits(reverse(X, lengths), expected(lengths))


@pytest.mark.parametrize("largest", [2**64, 2**70, 10**5000], ids=["64", "70", "long"])
@pytest.mark.usefixtures("x64")
def test_lengths_beyond_64_bits(largest: int):
    for lengths in ([largest, -1, 0], [1, 2, -largest]):
        with pytest.raises(OverflowError, match=r"must fit int64 or uint64; got -?\d"):
            reverse(X, lengths)


def test_no_lengths_in_a_list():
    assert dml_jax.reverse_sequence(numbers(2, 0), []).shape == (2, 0)


class Numbers(collections.UserList):
    pass


SEQUENCES = {
    "range": range(1, 4),
    "deque": collections.deque([1, 2, 3]),
    "user": Numbers([1, 2, 3]),
    "tuple": (1, 2, 3),
    "buffer": array.array("i", [1, 2, 3]),
}


@pytest.mark.parametrize("kind", SEQUENCES)
@pytest.mark.usefixtures("x64")
def test_sequences_that_are_no_lists(kind: str):
    sequence = SEQUENCES[kind]
    assert_same_bits(reverse(X, sequence), expected([1, 2, 3]))
    traced = jax.jit(lambda: reverse(X, sequence))()
    assert_same_bits(traced, expected([1, 2, 3]))
    lines = dml_jax.reverse_subsequences(X, [range(n, n + 1) for n in (1, 2, 3)], 1)
    assert_same_bits(lines, expected([1, 2, 3]))


@pytest.mark.parametrize("kind", [*SEQUENCES][:-1])
def test_inputs_that_are_no_lists(kind: str, x64: bool):
    sequence = SEQUENCES[kind]
    dtype = np.int64 if x64 else np.int32
    whole = np.array([[1, 2, 3]] * 2, dtype)
    assert_same_bits(dml_jax.slice(sequence, (1,), (2,)), whole[0, 1:])
    rows = (sequence, collections.deque([1, 2, 3]))
    assert_same_bits(dml_jax.slice1(rows, (0, 1), (2, 2), (1, 1)), whole[:, 1:])
    put = dml_jax.slice_grad(sequence, (5,), (0,), (5,), (2,))
    assert_same_bits(put, np.array([1, 0, 2, 0, 3], dtype))
    turned = dml_jax.reverse_subsequences(rows, [[2], [3]], 1)
    assert_same_bits(turned, np.array([[2, 1, 3], [3, 2, 1]], dtype))


def test_integers_of_numpy_that_have_no_dtype_in_common(x64: bool):
    numbers = [np.uint64(3), 4, np.int8(-1)]
    dtype = np.int64 if x64 else np.int32
    whole = dml_jax.slice(numbers, (0,), (3,))
    assert_same_bits(whole, np.array([3, 4, -1], dtype))


# With arrays of JAX among the numbers -------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("other", [3, 300, 2**31, 2**40, 2**63, -(2**40)])
@pytest.mark.parametrize("as_other", default_of([np.int64, int, np.uint64], np.int64))
@pytest.mark.parametrize(
    "dtype", default_of([np.uint32, np.uint8, np.int32], np.uint32)
)
def test_lengths_beside_traced_ones(dtype: Any, as_other: Any, other: int):
    if not np.iinfo(np.uint64 if as_other is int else as_other).min <= other < 2**63:
        as_other = int
    lengths = [2, as_other(other), 4]
    run = jax.jit(lambda n: reverse(X, [n, *lengths[1:]]))
    assert_same_bits(run(jnp.asarray(2, dtype)), expected(lengths))


@pytest.mark.usefixtures("x32")
def test_inputs_beside_arrays_are_not_narrowed():
    one = jnp.float32(1)
    for wide in (np.float64(1e300), np.int64(2**40)):
        with pytest.raises(ValueError, match=r"^slice: `input` has dtype .*64, which"):
            dml_jax.slice([one, wide], (0,), (2,))
    for number in (1e39, 10**39):
        with pytest.raises(OverflowError, match=r"^slice: `input` must fit the dtype"):
            dml_jax.slice([one, number], (0,), (2,))
    with pytest.raises(OverflowError, match=r"^slice: `input` must fit the dtype"):
        dml_jax.slice([jnp.int8(1), 300], (0,), (2,))
