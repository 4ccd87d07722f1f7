"""Models at the edges: widths, strings, versions, files and odd Python objects."""

import jax
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import COPY, LENGTHS, ONE, REVERSAL, X, parse, prepared, require

from dml_jax import onnx_backend

ROW = X[0, :3]
WIDTH = "…needs 64-bit mode…"


def with_initializer():
    """A model that gives its initializer, w."""
    model = parse("=> float[4] y {y = Identity(w)}")
    model.graph.initializer.append(helper.make_tensor("w", 1, [4], [0, 1, 2, 3]))
    return model


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(
    "text",
    [
        "int64[3] x => float[3] y {y = Cast<to = 1>(x)}",
        "float[3] x => int64[3] y {y = Cast<to = 7>(x)}",
        "float[3] x => double[3] y {y = Cast<to = 11>(x)}",
        "float[3] x => uint64[3] y {y = Cast<to = 13>(x)}",
    ],
)
def test_cast_never_narrows_in_silence(text):
    x = (ROW + 2**33).astype(np.int64 if text.startswith("int64") else np.float32)
    model = prepared(text)
    require(ValueError, f"Cast 'y': Cast: {WIDTH}", lambda: model.jax_fn(x))
    with jax.enable_x64(True):
        (y,) = model.jax_fn(x)
    np.testing.assert_array_equal(np.float64(y), np.float64(x))


@pytest.mark.parametrize("given", ["bfloat16", "uint16", "float8_e5m2"])
def test_bits_are_not_taken_for_another_type(given):
    x = ROW.astype(ml_dtypes.bfloat16 if given == "bfloat16" else np.uint16)
    if given == "float8_e5m2":
        x = ROW.astype(ml_dtypes.float8_e5m2)
    for wanted in ("float16", "float8e4m3fn"):
        model = prepared(f"{wanted}[3] x => {wanted}[3] y {{y = Identity(x)}}")
        message = f"onnx: `x` must have dtype …; got {given}"
        require(TypeError, message, lambda model=model: model.run([x]))
    untyped = ROW.astype(ml_dtypes.bfloat16).view("V2")  # as .npy files have it
    model = prepared("bfloat16[3] x => bfloat16[3] y {y = Identity(x)}")
    np.testing.assert_array_equal(model.run([untyped]).y.astype(np.float32), ROW)


def test_results_are_the_callers_own():
    model = onnx_backend.prepare(with_initializer())
    model.run([]).y[0] = 99
    assert model.run([]).y.tolist() == [0, 1, 2, 3]
    x = ROW.copy()
    prepared(COPY).run([x]).y[0] = 99
    np.testing.assert_array_equal(x, ROW)


def test_a_prepared_model_stays_what_it_is():
    model = parse("float[3] x => float[3] y {y = Cast<to = 1>(x)}")
    made = onnx_backend.prepare(model)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    model.graph.node[0].attribute[0].i = TensorProto.INT64
    np.testing.assert_array_equal(made.run([ROW]).y, ROW)


def test_casts_of_integers_saturate():
    model = prepared("int32[4] x => float8e4m3fn[4] y {y = Cast<to = 17>(x)}")
    (y,) = model.run([np.array([1000, -1000, 449, 5], np.int32)])
    assert y.astype(np.float32).tolist() == [448, -448, 448, 5]


def test_data_of_other_files_is_loaded_before(tmp_path, monkeypatch):
    model = with_initializer()
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    loaded = onnx_backend.prepare(onnx_backend.load_model(tmp_path / "m.onnx"))
    assert loaded.run([]).y.tolist() == [0, 1, 2, 3]
    monkeypatch.chdir(tmp_path)
    bare = onnx.load("m.onnx", load_external_data=False)
    message = "onnx: `w` must be loaded, as `load_model` does; got data in another file"
    require(ValueError, message, lambda: onnx_backend.prepare(bare))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"training": "no"}, "prepare: `training` must be a bool; got str 'no'"),
        ({"lda_coeff": "a"}, "prepare: `lda_coeff` must be a real scalar; got str 'a'"),
    ],
)
def test_options_are_checked_at_once(options, message):
    require(TypeError, message, lambda: prepared(COPY, options=options))


@pytest.mark.usefixtures("x32", "with_jit")
def test_lengths_that_jit_has_narrowed():
    message = (
        "onnx: `l` must have dtype int64; got int32, to which JAX narrows it outside "
        "of 64-bit mode"
    )
    require(TypeError, message, lambda: jax.jit(prepared(REVERSAL).jax_fn)(X, LENGTHS))


@pytest.mark.parametrize("opset", [onnx.defs.onnx_opset_version() + 1, 999])
def test_opsets_to_come(opset):
    newest = onnx.defs.onnx_opset_version()
    message = f"onnx: `opset_import` must be at most {newest}; got {opset}"
    require(ValueError, message, lambda: prepared(COPY, opset=opset))


def test_strings_of_constants():
    for text in ('value_strings = ["a"]', 'value = string[1] {"a"}'):
        text = text.replace("value =", "value: tensor =")
        model = prepared(f"=> string[1] y {{y = Constant<{text}>()}}")
        assert model.run([]).y.tolist() == ["a"]
    scalar = prepared('=> string y {y = Constant<value_string = "ü">()}')
    assert scalar.run([]).y.item() == "ü"


@pytest.mark.parametrize("x64", [False, True])
def test_strings_beside_a_jitted_path(x64):
    model = parse(
        "@9 float[3] x => float[3] y "
        "{t = Slice<starts = [0], ends = [1]>(w) y = Identity(x)}"
    )
    model.graph.initializer.append(helper.make_tensor("w", 8, [2], [b"a", b"b"]))
    with jax.enable_x64(x64):
        (y,) = jax.jit(onnx_backend.prepare(model).jax_fn)(ROW)
    np.testing.assert_array_equal(y, ROW)


def test_text_that_is_not_utf8():
    model = parse('=> string[1] y {y = Constant<value: tensor = string[1] {"a"}>()}')
    model.graph.node[0].attribute[0].t.string_data[0] = b"\xff"
    require(ValueError, "Constant 'y': …", lambda: onnx_backend.prepare(model).run([]))
    model = with_initializer()
    model.graph.initializer[0].CopyFrom(helper.make_tensor("w", 8, [4], [b"\xff"] * 4))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    message = "onnx: `w` must have a value (…"
    require(ValueError, message, lambda: onnx_backend.prepare(model))


def test_initializers_of_the_wrong_size():
    model = with_initializer()
    model.graph.initializer[0].ClearField("float_data")
    model.graph.initializer[0].raw_data = bytes(20)
    require(ValueError, "onnx: …w…", lambda: onnx_backend.prepare(model))


@pytest.mark.parametrize("kind", [0, 99])
def test_inputs_without_a_data_type(kind):
    model = parse(COPY)
    model.graph.input.append(model.graph.input[0])
    model.graph.input[1].name = "z"
    model.graph.input[1].type.tensor_type.elem_type = kind
    require(
        ValueError,
        "onnx: `z` must be a data type; got …",
        lambda: onnx_backend.prepare(model),
    )


def test_cast_to_what_is_no_type():
    undefined = prepared('@1 float[3] x => float[3] y {y = Cast<to = "UNDEFINED">(x)}')
    message = "Cast 'y': `to` must be a data type; got 0"
    require(ValueError, message, lambda: undefined.run([ROW]))
    text = "float[3] x => float[3] y {y = Cast<to = 0>(x)}"
    require(ValueError, "onnx: …", lambda: prepared(text))


def test_cast_of_what_jax_does_not_know():
    model = prepared("@28 float[3] x => float6e2m3[3] y {y = Cast<to = 27>(x)}")
    known = "a dtype that JAX knows; got float6_e2m3fn"
    message = f"Cast 'y': Cast: `to` must be {known}"
    require(TypeError, message, lambda: model.run([ROW]))
    model = prepared("@28 float6e2m3[3] x => float[3] y {y = Cast<to = 1>(x)}")
    x = ROW.astype(ml_dtypes.float6_e2m3fn)
    message = (
        "Cast 'y': Cast: `input` must have a dtype that JAX knows; got float6_e2m3fn"
    )
    require(TypeError, message, lambda: model.run([x]))


@pytest.mark.parametrize("model", [None, "m.onnx", b"", 1])
def test_what_is_no_model(model):
    message = "prepare: `model` must be an onnx.ModelProto; got …"
    require(TypeError, message, lambda: onnx_backend.prepare(model))


@pytest.mark.parametrize("device", [None, 1])
def test_what_is_no_device(device):
    message = "onnx: `device` must be a string; got …"
    require(TypeError, message, lambda: prepared(COPY, options=dict(device=device)))


def test_what_is_no_array():
    masked = np.ma.array(ROW, mask=True)
    message = "onnx: `x` must be an array without a mask; got one"
    require(TypeError, message, lambda: prepared(COPY).run([masked]))
    ragged = [[1], [1, 2]]
    message = "onnx: `x` must be an array; got list [[1], [1, 2]]"
    require(TypeError, message, lambda: prepared(COPY).run([ragged]))
    message = "onnx: `x` must have dtype string; got int64"
    text = "string[1] x => string[1] y {y = Identity(x)}"
    require(TypeError, message, lambda: prepared(text).run([ONE]))


@pytest.mark.parametrize(
    ("kind", "inputs", "options", "error", "message"),
    [
        (
            "ReverseSequence",
            [X, LENGTHS],
            dict(opset_version=9),
            NotImplementedError,
            "onnx: …ReverseSequence 'y' of opset 9",
        ),
        ("Frob", [X], {}, NotImplementedError, "onnx: …Frob 'y'"),
        (
            "Identity",
            [],
            {},
            TypeError,
            "onnx: `inputs` must be arrays for a; got list []",
        ),
        (
            "Identity",
            [ROW.astype("M8[s]")],
            {},
            TypeError,
            "onnx: `a` must have a dtype of ONNX; got datetime64[s]",
        ),
    ],
    ids=["opset", "operator", "count", "dtype"],
)
def test_nodes_that_cannot_run(kind, inputs, options, error, message):
    node = helper.make_node(kind, list("ab"[: max(len(inputs), 1)]), ["y"])
    require(error, message, lambda: onnx_backend.run_node(node, inputs, **options))


@pytest.mark.parametrize("name", ["m.json", "m.onnxtxt", "m.textproto", "m.onnx"])
def test_files_are_protobuf_whatever_their_name(tmp_path, name):
    onnx.save(parse(COPY), tmp_path / "model.onnx")
    (tmp_path / "model.onnx").rename(tmp_path / name)
    assert onnx_backend.load_model(tmp_path / name) == parse(COPY)
    (tmp_path / name).write_text("{]")
    message = f"{tmp_path / name}: …"
    require(ValueError, message, lambda: onnx_backend.load_model(tmp_path / name))


def test_messages_are_whole_sentences():
    message = (
        "onnx: Nodes in a graph must be topologically sorted, however input 'z' of …"
    )
    text = "float[3] x => float[3] y {y = Identity(z)}"
    require(ValueError, message, lambda: prepared(text))
    with pytest.raises(ValueError, match="sorted") as caught:
        prepared(text)
    assert not str(caught.value).endswith(":")
