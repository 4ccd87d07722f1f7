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
from onnx_models import external_tensor, parse

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


IDENTITY = "float[1] x => float[1] y {y = Identity(x)}"


def test_a_model_of_an_opset_far_below_the_first() -> None:
    with pytest.raises(NotImplementedError, match=r"^onnx: the model .*Identity 'y'"):
        onnx_backend.prepare(parse(IDENTITY, -(2**40)))


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J"])
@pytest.mark.parametrize("place", ["op_type", "input", "output"])
def test_names_that_are_more_than_a_line(name: str, place: str) -> None:
    model = parse(IDENTITY)
    node = model.graph.node[0]
    if place == "op_type":
        node.op_type = name
    else:
        getattr(node, place)[0] = name
    with pytest.raises(ValueError, match=r"^onnx: names must be printable"):
        onnx_backend.prepare(model)


def test_names_that_are_not_utf_8() -> None:
    data = (
        parse(IDENTITY.replace("x", "NAME"))
        .SerializeToString()
        .replace(b"NAME", b"\xff" * 4)
    )
    with pytest.raises(ValueError, match=r"^onnx: names must be printable"):
        onnx_backend.prepare(onnx.load_from_string(data))


def test_data_in_a_file_whose_name_is_too_long(tmp_path: pathlib.Path) -> None:
    model = parse(IDENTITY)
    model.graph.initializer.append(external_tensor(1, "x", location="n" * 300))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=f"^{path}: .*File name too long"):
        onnx_backend.load_model(path)
