"""ONNX's Cast: floats are rounded once, and subnormal numbers are kept.

The inputs are every number of the narrow types, and of the others those at the ends of
the subnormal numbers and between the numbers of a narrower type.
"""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest
from assertions import assert_same_bits, assert_same_floats
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import parse, type_of

from dml_jax import onnx_backend

# What overflows in NumPy, for the expected numbers.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NAMES = "float16 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
NARROW = [np.dtype(name) for name in (*NAMES.split(), "float4_e2m1fn")]
F32, F64, BOOL = map(np.dtype, ("float32", "float64", "bool"))
POWERS_OF_TWO = np.dtype("float8_e8m0fnu")
SOURCES = [*NARROW, POWERS_OF_TWO, F32, F64]
TARGETS = [*NARROW, F32, F64, BOOL]


def pairs(givens: Iterable[Any], tos: Iterable[Any]) -> list[Any]:
    """All pairs of dtypes; those from float32 are not exhaustive."""
    return [
        pytest.param(
            np.dtype(given),
            np.dtype(to),
            id=f"{given}-{to}",
            marks=() if given == F32 else pytest.mark.exhaustive,
        )
        for given in givens
        for to in tos
    ]


def model_of(given: Any, to: Any, **attributes: Any) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    options = ", ".join(f"{k} = {v}" for k, v in {"to": kind, **attributes}.items())
    types = f"{type_of(given)}[n] x => {type_of(to)}[n] y"
    return parse(f"{types} {{y = Cast<{options}>(x)}}")


def cast(x: np.ndarray, to: Any, **attributes: Any) -> np.ndarray:
    return onnx_backend.run_model(model_of(x.dtype, to, **attributes), [x])[0]


def of_reference(x: np.ndarray, to: Any, **attributes: Any) -> Any:
    evaluator = ReferenceEvaluator(model_of(x.dtype, to, **attributes))
    outputs: Any = evaluator.run(None, {"x": x})
    return outputs[0]


@functools.cache
def numbers(dtype: np.dtype) -> np.ndarray:
    """All of a narrow dtype; of others those around the numbers of all dtypes."""
    if dtype not in (F32, F64):
        count = 16 if dtype.name.startswith("float4") else 2 ** (8 * dtype.itemsize)
        return np.arange(count).astype(f"u{dtype.itemsize}").view(dtype)
    powers = 2.0 ** np.arange(-1074, 1024)
    edges = [powers, 1.5 * powers, 1.25 * powers, 1.75 * powers, 3e-320 + 0 * powers]
    for narrow in NARROW:
        ordered = ordered_numbers(narrow)
        edges += [ordered, ordered[1:] / 2 + ordered[:-1] / 2]
    edges = np.concatenate(edges).astype(dtype)
    around = [np.nextafter(edges, dtype.type(end)) for end in (-np.inf, np.inf)]
    special = np.array([np.nan, np.inf, 0], dtype)
    positive = np.concatenate([edges, *around, special])
    bits = np.concatenate([positive, -positive]).view(f"u{dtype.itemsize}")
    return np.unique(bits).view(dtype)


def ordered_numbers(dtype: np.dtype) -> np.ndarray:
    values = numbers(dtype).astype(F64)
    return np.unique(values[np.isfinite(values)])


@pytest.mark.parametrize(("given", "to"), pairs(SOURCES, TARGETS))
def test_floats_as_the_reference(given: np.dtype, to: np.dtype) -> None:
    x = numbers(given)
    if given == F64 and to in NARROW and to != np.float16:
        x = x[~np.isfinite(x) | (x == x.astype(F32))]  # others it rounds twice
    if to == ml_dtypes.float4_e2m1fn:
        x = x[~np.isnan(x)]  # it has none
    via = x.astype(F32) if given == POWERS_OF_TWO else x  # NumPy has not all of them
    assert_same_floats(cast(x, to), of_reference(via, to))


@pytest.mark.parametrize(("given", "to"), pairs([F32, F64], NARROW))
def test_without_saturation(given: np.dtype, to: np.dtype) -> None:
    x = numbers(given)
    x = x[~np.isnan(x) & (~np.isfinite(x) | (x == x.astype(F32)))]
    assert_same_floats(cast(x, to, saturate=0), of_reference(x, to, saturate=0))


@pytest.mark.parametrize("to", [F32, *NARROW], ids=str)
def test_doubles_are_rounded_once(to: np.dtype) -> None:
    """Numbers just beside the middle of two are rounded to the nearer one."""
    low, high = neighbours(to)
    middle = low / 2 + high / 2
    assert_same_values(cast(np.nextafter(middle, -np.inf), to), low.astype(to))
    assert_same_values(cast(np.nextafter(middle, np.inf), to), high.astype(to))
    even = np.where(low.astype(to).view(f"u{to.itemsize}") % 2, high, low)
    assert_same_values(cast(middle, to), even.astype(to))


def neighbours(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of a dtype as doubles, and the next larger ones."""
    if dtype in NARROW:
        ordered = ordered_numbers(dtype)
        return ordered[:-1], ordered[1:]
    random = np.random.default_rng(0).integers(0, (255 << 23) - 1, 10_000, np.uint32)
    low = np.concatenate([random, np.arange(255, dtype=np.uint32) << 23])
    return low.view(dtype).astype(F64), (low + 1).view(dtype).astype(F64)


def assert_same_values(actual: np.ndarray, expected: np.ndarray) -> None:
    """Compares numbers: those that are rounded to zero keep their sign here."""
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual.astype(F64), expected.astype(F64))


HALF = 2**30 + 2**22  # in the middle of two numbers of bfloat16
TIES = [2**24 + 2**16 + 1, HALF + 1, -HALF - 1, HALF, 2**30 + 3 * 2**22, -5]
ROUNDED = [2**24 + 2**17, 2**30 + 2**23, -(2**30) - 2**23, 2**30, 2**30 + 2**24, -5]
ENDS = [-(2**63), -(2**31), 2**63 - 1]
INTEGERS = [
    ("int32", "float8_e4m3fn", [1000, -1000, 449, 5], [448, -448, 448, 5]),
    ("int32", "bfloat16", TIES, ROUNDED),
    ("int64", "bfloat16", TIES, ROUNDED),
    ("int64", "bfloat16", ENDS, [-(2.0**63), -(2.0**31), 2.0**63]),
]


@pytest.mark.parametrize(("given", "to", "numbers", "wanted"), INTEGERS)
def test_integers_saturate_and_are_rounded_once(
    given: str, to: str, numbers: list[int], wanted: list[float]
) -> None:
    assert cast(np.array(numbers, given), to).astype(F64).tolist() == wanted


@pytest.mark.parametrize(
    ("given", "to"),
    pairs([*NARROW, F32, F64], ("i1", "u1", "i4", "u4", "i8", "u8")),
)
def test_fractions_are_cut(given: np.dtype, to: np.dtype) -> None:
    x, info = numbers(given), np.iinfo(to)
    whole = np.trunc(x.astype(F64))
    least, beyond = float(info.min), 2.0 ** (info.bits - (info.min < 0))
    x = x[(least <= whole) & (whole < beyond)]
    assert_same_bits(cast(x, to), np.trunc(x.astype(F64)).astype(to))


@pytest.mark.parametrize(
    ("given", "to"), pairs([F64, F32, NARROW[0]], [F64, F32, *NARROW[:2]])
)
def test_derivatives_are_casts(given: np.dtype, to: np.dtype) -> None:
    with jax.enable_x64(True):
        fn = onnx_backend.prepare(model_of(given, to)).jax_fn
        x, t = jnp.array([1.5, -2.0], given), jnp.array([0.5, 3.0], given)
        y, tangent = jax.jvp(lambda x: fn(x)[0], (x,), (t,))
        assert_same_bits(tangent, t.astype(to))
        _, pullback = jax.vjp(lambda x: fn(x)[0], x)
        assert_same_bits(pullback(y)[0], x)


def test_saturated_numbers_have_no_derivative() -> None:
    fn = onnx_backend.prepare(model_of(F32, "float8_e4m3fn")).jax_fn
    x = jnp.array([448.0, 449.0, -1e6, -3.0], F32)
    _, tangent = jax.jvp(lambda x: fn(x)[0], (x,), (jnp.ones_like(x),))
    assert tangent.astype(F32).tolist() == [1, 0, 0, 1]
