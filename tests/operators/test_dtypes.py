"""Every dtype, and every bit of it, through every operator that moves data."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits, bits
from cases import BATCH_MAJOR, MOVES, Case, numbers, window, windows
from dtypes import DTYPES, FLOATS, X64_ONLY, dtype_of, random_elements
from sampling import default_of

import dml_jax
from dml_jax import reference

# One of each kind of movement is enough for a dtype; the cases replay the rest.
_NAMES = {
    *["reverse_subsequences-length-per-line", "reverse_sequence-batch-major-features"],
    *["slice-strided", "slice1-inexact-window", "slice_grad-backwards"],
}
KINDS = [case for case in MOVES if str(case) in _NAMES]
# The default run has one dtype of each width and kind.
_DEFAULT = {"bool", "int4", "uint8", "float8_e4m3fn", "bfloat16", "float32"}
_DEFAULT |= {"int64", "float64", "complex64"}


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(
            *(case, name),
            id=f"{case}-{name}",
            marks=() if name in _DEFAULT else pytest.mark.exhaustive,
        )
        for case in KINDS
        for name in DTYPES
        if case.operator != "slice_grad" or name != "float8_e8m0fnu"  # has no zero
    ],
)
def test_every_dtype_keeps_every_bit(case: Case, name: str) -> None:
    with jax.enable_x64(name in X64_ONLY):
        (data,) = case.linear
        shape = case.arrays[data].shape
        dtype = dtype_of(name)
        array = random_elements(dtype, case.arrays[data].size).reshape(shape)
        result = case.run(**{data: array})
        assert_same_bits(result, case.expected(**{data: array}))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("implementation", ["gather", "scatter"])
def test_all_65536_patterns_of_16_bits(name: str, implementation: str) -> None:
    array = np.arange(65536, dtype=np.uint16).view(dtype_of(name)).reshape(2, -1)
    lengths = np.array([[30001], [32768]])
    result = dml_jax.reverse_subsequences(
        array, lengths, 1, implementation=implementation
    )
    assert_same_bits(result, reference.reverse_subsequences(array, lengths, 1))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    "name", [n for n in FLOATS if n not in ("float64", "float8_e8m0fnu")]
)
def test_signalling_nans_survive_slices_and_their_adjoint(name: str) -> None:
    dtype = dtype_of(name)
    array = random_elements(dtype, 999)
    forward = windows([3], [990], [-2])
    case = window("slice1", "all", (999,), **forward)
    assert_same_bits(case.run(input=array), case.expected(input=array))
    adjoint = window(
        "slice_grad", "all", (495,), **forward, output_gradient_sizes=[999]
    )
    array = array[:495]
    assert_same_bits(
        adjoint.run(input_gradient=array), adjoint.expected(input_gradient=array)
    )


@pytest.mark.parametrize("implementation", ["gather", "scatter"])
@pytest.mark.parametrize("impl", default_of(["threefry2x32", "rbg"], "rbg"))
def test_prng_keys(impl: str, implementation: str) -> None:
    keys = jax.random.split(jax.random.key(0, impl=impl), (3, 4))
    lengths = jnp.array([4, 2, 3])
    result = dml_jax.reverse_sequence(
        keys, lengths, **BATCH_MAJOR, implementation=implementation
    )
    position = reference.reverse_sequence(
        np.arange(12).reshape(3, 4), lengths, **BATCH_MAJOR
    )
    assert result.dtype == keys.dtype
    np.testing.assert_array_equal(bits(result), bits(keys.reshape(12)[position]))
    sliced = dml_jax.slice1(keys, (0, 1), (3, 3), (1, -2))
    np.testing.assert_array_equal(bits(sliced), bits(keys[:, 3::-2]))
    constant = dml_jax.slice(keys, (1, 0), (2, 2))
    np.testing.assert_array_equal(bits(constant), bits(keys[1:, :2]))


# NumPy data that only exists on the host ----------------------------------------------

TEXT = [
    np.array([["a", "bc", ""], ["d", "e", "fgh"]]),
    np.array([[b"a", b"bc", b""], [b"d", b"e", b"f"]]),
    np.array([["a", None, 3], [(1,), "e", 2.5]], object),
    np.array([["a", "bc", ""], ["d", "e", "fgh"]], np.dtypes.StringDType()),
]


@pytest.mark.parametrize("array", TEXT, ids=lambda a: a.dtype.kind)
@pytest.mark.parametrize("lens", [[2, 3], [7, -1], np.array([0, 2], np.uint8)])
def test_strings_and_objects_stay_on_the_host(array: np.ndarray, lens: Any) -> None:
    result = dml_jax.reverse_sequence(array, lens, **BATCH_MAJOR)
    assert isinstance(result, np.ndarray)
    assert result.dtype == array.dtype
    expected = reference.reverse_sequence(array, lens, **BATCH_MAJOR)
    assert result.tolist() == expected.tolist()


def test_strings_along_an_axis_longer_than_the_lengths_dtype() -> None:
    array = np.arange(600).reshape(300, 2).astype(str)
    lengths = np.array([3, 4]).astype(dtype_of("int4"))
    expected = reference.reverse_sequence(array, [3, 4])
    assert dml_jax.reverse_sequence(array, lengths).tolist() == expected.tolist()


def test_strings_time_major_from_a_list() -> None:
    result = dml_jax.reverse_sequence([["a", "b"], ["c", "d"]], jnp.array([2, 1]))
    assert result.tolist() == [["c", "b"], ["a", "d"]]


# Lengths ------------------------------------------------------------------------------

LENGTH_DTYPES = [
    *["int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32"],
    *["int64", "uint64"],
]


def extreme_lengths(dtype: np.dtype) -> list[int]:
    """Python ints around 0, around the axis size 4 and around every width."""
    info = jnp.iinfo(dtype)
    values = {-(2**32), -4, -1, 0, 1, 3, 4, 5, info.min, info.max}
    values |= {2**bits + offset for bits in (31, 32, 63) for offset in (-1, 0, 1, 2)}
    return sorted(v for v in values if info.min <= v <= info.max)


@pytest.mark.parametrize("of", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    "name", default_of(LENGTH_DTYPES, "int4", "uint8", "int32", "uint32", "int64")
)
@pytest.mark.usefixtures("x64")
def test_lengths_of_every_integer_dtype(name: str, of: Any) -> None:
    values = extreme_lengths(dtype_of(name))
    with jax.enable_x64(True):  # an array keeps its dtype outside of this mode
        lengths = of(np.array(values, object).astype(dtype_of(name)))
    x = numbers(len(values), 4)
    expected = reference.reverse_sequence(x, values, **BATCH_MAJOR)
    result = dml_jax.reverse_sequence(x, lengths, **BATCH_MAJOR)
    assert_same_bits(result, expected)
    lines = lengths.reshape(-1, 1)
    assert_same_bits(dml_jax.reverse_subsequences(x, lines, 1), expected)


@pytest.mark.parametrize("length", [-(2**40), -(2**32) + 1, 2**32 + 1, 2**63 - 1])
def test_a_length_of_64_bits_alone(length: int) -> None:
    """With nothing beside it that fits 32 bits."""
    x = numbers(4)
    expected = x[::-1] if length > 0 else x
    for lengths in (np.array([length]), [length]):
        assert_same_bits(dml_jax.reverse_subsequences(x, lengths, 0), expected)


def test_lengths_of_64_bits_in_numpy_below_jit() -> None:
    lengths = np.array([2**32 + 1, -(2**40), 2])
    x = numbers(3, 4)
    result = jax.jit(lambda x: dml_jax.reverse_sequence(x.T, lengths))(x)
    assert_same_bits(result, reference.reverse_sequence(x.T, lengths))
