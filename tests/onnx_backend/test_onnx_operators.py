"""Single operators of ONNX: exact ranges, clamped slices, and every data type."""

from fractions import Fraction
from typing import Any

import jax
import ml_dtypes
import numpy as np
import onnx
import pytest
from assertions import assert_same_bits
from onnx import helper
from onnx_models import prepared

from dml_jax import onnx_backend, reference

RANGE = helper.make_node("Range", ["start", "limit", "delta"], ["y"])
RANGES = {
    "rounded once": (np.float32, 0, 1, 0.1),
    "cancelling": (np.float64, 0.1, 0.7, 0.2),
    "beyond doubles": (np.int64, -(2**63), 5 - 2**63, 2),
    "a count beyond doubles": (np.int64, 0, 2**62 + 1, 2**62),
    "a difference that overflows": (np.float64, -1.7e308, 1.7e308, 1e308),
    "half": (np.float16, 0, 3000, 1),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges_are_exact(name: str) -> None:
    dtype, *numbers = RANGES[name]
    start, limit, delta = (np.array(number, dtype) for number in numbers)
    (y,) = onnx_backend.run_node(RANGE, [start, limit, delta])
    span = Fraction(limit.item()) - Fraction(start.item())
    count = -(-span // Fraction(delta.item()))
    wanted = reference.fill_value_sequence((count,), dtype, start[()], delta[()])
    assert_same_bits(y, wanted)


@pytest.mark.usefixtures("x32")
def test_full_width_outside_of_64_bit_mode() -> None:
    numbers = [np.array(n) for n in (2**60, 2**60 + 3, 1)]
    (y,) = onnx_backend.run_node(RANGE, numbers)
    assert_same_bits(y, 2**60 + np.arange(3))
    assert not jax.config.jax_enable_x64  # type: ignore[attr-defined]


SLICES = {
    "a start before the axis": ([-9], [-99], [-1], [0]),
    "an end after the axis": ([3], [2**63 - 1], [-1], []),
    "an end before the axis": ([3], [-(2**63)], [-2], [3, 1]),
    "a start after the axis": ([99], [0], [-3], [4, 1]),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_are_clamped(name: str) -> None:
    *indices, rows = SLICES[name]
    node = helper.make_node("Slice", ["x", "starts", "ends", "", "steps"], ["y"])
    starts, ends, steps = map(np.array, indices)
    for x in (np.arange(10.0).reshape(5, 2), np.array([["a", "b"]] * 5, object)):
        (y,) = onnx_backend.run_node(node, [x, starts, ends, None, steps])
        np.testing.assert_array_equal(y, x[rows])


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "bfloat16"])
def test_reversals_of_dtypes_that_onnx_runtime_has_not(dtype: str) -> None:
    x = np.arange(8).reshape(4, 2).astype(getattr(ml_dtypes, dtype, dtype))
    node = helper.make_node("ReverseSequence", ["x", "lens"], ["y"])
    (y,) = onnx_backend.run_node(node, [x, np.array([3, 4])])
    order = np.array([[4, 7], [2, 5], [0, 3], [6, 1]])
    assert_same_bits(y, x.reshape(-1)[order])


@pytest.mark.parametrize("dtype", [object, str])
def test_strings(dtype: Any) -> None:
    x = np.array([["a", "b"], ["c", ""], ["longer", "ü"]], dtype)
    text = """string[3,2] x => string[2,2] y {
      r = ReverseSequence(x, lens)
      i = Identity(r)
      y = Slice(i, starts, ends)
    }"""
    constants = {"lens": [3, 2], "starts": [1], "ends": [3]}
    arrays = {name: np.array(numbers) for name, numbers in constants.items()}
    assert prepared(text, **arrays).run([x])[0].tolist() == [["c", "b"], ["a", "ü"]]


@pytest.mark.parametrize(
    ("kind", "attribute", "expected"),
    [
        ("string[1]", 'value_strings = ["a"]', ["a"]),
        ("string[1]", 'value: tensor = string[1] {"a"}', ["a"]),
        ("string", 'value_string = "ü"', "ü"),
        ("float", "value_float = 1.5", 1.5),
        ("float[1]", "value_floats = [1.5]", [1.5]),
        ("int64", "value_int = 7", 7),
        ("int64[1]", "value_ints = [7]", [7]),
    ],
)
def test_constants(kind: str, attribute: str, expected: Any) -> None:
    text = f"=> {kind} y {{y = Constant<{attribute}>()}}"
    assert prepared(text).run([])[0].tolist() == expected


def test_constant_of_shape_keeps_bits() -> None:
    payload = np.array([0x7FA00001], np.uint32).view(np.float32)
    tensor = onnx.numpy_helper.from_array(payload)
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"], value=tensor)
    with jax.debug_nans(True):
        (y,) = onnx_backend.run_node(node, [np.array([2, 3])])
    assert_same_bits(y, np.broadcast_to(payload, (2, 3)))
