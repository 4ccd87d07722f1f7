"""What random arguments found: each of these was wrong once."""

import pathlib
import struct
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from assertions import assert_same_bits
from forms import Arrayed
from onnx import helper
from onnx_models import external_tensor

import dml_jax
from dml_jax import onnx_backend


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int4, jnp.float8_e4m3fn])
def test_objects_and_lists_of_narrow_dtypes(dtype: Any) -> None:
    array = np.arange(4).astype(dtype)
    for value in (Arrayed(array), list(array)):
        assert_same_bits(dml_jax.slice(value, (1,), (2,)), array[1:3])
    with pytest.raises(TypeError, match=r"^slice: `input` must be an array or conv"):
        dml_jax.slice(Arrayed(np.zeros(4, "V4")), (1,), (2,))


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.int4])
def test_constants_of_jax_are_static_inside_of_jit(dtype: Any) -> None:
    sizes = jnp.array([2, 3], dtype)
    result = jax.jit(lambda: dml_jax.fill_value_constant(sizes, "int8", 1))()
    assert_same_bits(result, np.ones((2, 3), np.int8))


def test_a_list_with_a_signalling_nan() -> None:
    (nan,) = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000001))
    assert np.isnan(dml_jax.slice([nan], (0,), (1,))).all()  # without a warning


IDENTITY = helper.make_node("Identity", ["x"], ["y"])
NEWEST = onnx.defs.onnx_opset_version()


@pytest.mark.parametrize(
    ("opset", "error"),
    [
        *[(n, ValueError) for n in (0, -1, NEWEST + 1, 2**31, 2**64)],
        *[(n, TypeError) for n in (None, "21", 21.0, True)],
    ],
)
def test_opsets_that_no_operator_has(opset: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^run_node: `opset_version` must be"):
        onnx_backend.run_node(IDENTITY, [np.ones(1)], opset_version=opset)


def model_of(node: onnx.NodeProto, opset: int = 21) -> onnx.ModelProto:
    names = *node.input, *node.output
    x, y = (helper.make_tensor_value_info(name, 1, [1]) for name in names)
    graph = helper.make_graph([node], "g", [x], [y])
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def test_a_model_of_an_opset_far_below_the_first() -> None:
    with pytest.raises(NotImplementedError, match=r"^onnx: the model .*Identity 'y'"):
        onnx_backend.prepare(model_of(IDENTITY, -(2**40)))


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J"])
@pytest.mark.parametrize("place", ["kind", "input", "output"])
def test_names_that_are_more_than_a_line(name: str, place: str) -> None:
    parts = {"kind": "Identity", "input": "x", "output": "y", place: name}
    node = helper.make_node(parts["kind"], [parts["input"]], [parts["output"]])
    model = model_of(node)
    with pytest.raises(ValueError, match=r"^onnx: names must be printable"):
        onnx_backend.prepare(model)


def test_names_that_are_not_utf_8() -> None:
    node = helper.make_node("Identity", ["NAME"], ["y"])
    data = model_of(node).SerializeToString().replace(b"NAME", b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match=r"^onnx: names must be printable"):
        onnx_backend.prepare(onnx.load_from_string(data))


def test_data_in_a_file_whose_name_is_too_long(tmp_path: pathlib.Path) -> None:
    model = model_of(IDENTITY)
    model.graph.initializer.append(external_tensor(1, "x", location="n" * 300))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=f"^{path}: .*File name too long"):
        onnx_backend.load_model(path)
