"""Data of ONNX models in other files: read where a model is loaded, or refused."""

import os
import pathlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import LOCAL, X, parse, require

from dml_jax import onnx_backend

DATA = np.arange(4, dtype=np.float32)
PLACES = """
g.initializer.append(w)
g.sparse_initializer.add().values.CopyFrom(w)
g.sparse_initializer.add().indices.CopyFrom(w)
attribute(g, 4).t.CopyFrom(w)
attribute(g, 1).t.CopyFrom(w)
attribute(g, 9).tensors.extend([in_memory, w])
attribute(g, 11).sparse_tensor.values.CopyFrom(w)
attribute(g, 12).sparse_tensors.add().indices.CopyFrom(w)
attribute(g, 5).g.initializer.append(w)
attribute(g, 10).graphs.add().sparse_initializer.add().values.CopyFrom(w)
attribute(attribute(attribute(g, 5).g, 10).graphs.add(), 4).t.CopyFrom(w)
attribute(f, 4).t.CopyFrom(w)
attribute(f, 5).g.initializer.append(w)
attribute(f, 11).sparse_tensor.indices.CopyFrom(w)
f.attribute_proto.add(name="a", type=4).t.CopyFrom(w)
f.attribute_proto.add(name="a", type=5).g.initializer.append(w)
m.training_info.add().initialization.initializer.append(w)
attribute(m.training_info.add().algorithm, 4).t.CopyFrom(w)
""".strip().splitlines()


def attribute(part, kind):
    """Of a new node of a graph or a function."""
    node = part.node.add(op_type="Constant", output=["c"])
    return node.attribute.add(name="value", type=kind)


def external(location="w.bin"):
    tensor = TensorProto(name="w", data_type=1, dims=[4], data_location=1)
    tensor.external_data.add(key="location", value=location)
    return tensor


def model_with(place, tensor):
    """A model and a function, and a tensor in one of them."""
    model = parse(f"float[3] x => float[3] y {{y = local.f(x)}} {LOCAL} Identity(p)}}")
    parts = {"m": model, "g": model.graph, "f": model.functions[0]}
    other = onnx.numpy_helper.from_array(DATA)
    exec(place, {**parts, "w": tensor, "in_memory": other, "attribute": attribute})
    return model


def constant(tensor):
    model = parse("=> float[4] y {y = Constant<value_int = 1>()}")
    member = helper.make_attribute("value", tensor)
    model.graph.node[0].attribute[0].CopyFrom(member)
    return model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with data of a model and a link to it, in another folder."""
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    for path in ("w.bin", "../outside.bin"):
        pathlib.Path(path).write_bytes(DATA.tobytes())
    os.symlink("w.bin", "link.bin")
    os.symlink("../outside.bin", "outside.bin")
    return inside


NOT_LOADED = "must be loaded, as `load_model` does; got data in another file"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("place", PLACES)
def test_data_that_is_not_loaded_is_refused(place):
    for location in ("w.bin", "link.bin", "../outside.bin", "none.bin", ""):
        model = model_with(place, external(location))
        message = f"onnx: `w` {NOT_LOADED}"
        require(ValueError, message, lambda m=model: onnx_backend.prepare(m))
        require(ValueError, message, lambda m=model: onnx_backend.run_model(m, [X[0]]))
        assert not onnx_backend.is_compatible(model)


@pytest.mark.parametrize("place", PLACES)
def test_data_is_loaded_from_the_folder_of_the_model(place, folder, monkeypatch):
    onnx.save(model_with(place, external()), "m.onnx")
    in_memory = TensorProto(name="w", data_type=1, dims=[4], data_location=0)
    in_memory.raw_data = DATA.tobytes()
    expected = model_with(place, in_memory)
    assert onnx_backend.load_model("m.onnx") == expected
    monkeypatch.chdir("/")
    assert onnx_backend.load_model(folder / "m.onnx") == expected


@pytest.mark.parametrize("place", PLACES)
def test_data_outside_of_that_folder_is_refused(place, folder):
    for location in ("../outside.bin", "outside.bin", str(folder / "w.bin"), ""):
        onnx.save(model_with(place, external(location)), "m.onnx")
        require(ValueError, "m.onnx: …", lambda: onnx_backend.load_model("m.onnx"))


@pytest.mark.usefixtures("folder")
def test_nodes_read_no_files():
    for attributes in ({"value": external()}, {"tensors": [external()]}):
        node = helper.make_node("Constant", [], ["y"], **attributes)
        message = f"onnx: `w` {NOT_LOADED}"
        require(ValueError, message, lambda n=node: onnx_backend.run_node(n, []))


def test_constants_are_read_once(folder, monkeypatch):
    onnx.save(constant(external()), "m.onnx")
    prepared = onnx_backend.prepare(onnx_backend.load_model("m.onnx"))
    (folder / "w.bin").unlink()
    monkeypatch.chdir("/")
    for _ in range(2):
        assert prepared.run([]).y.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["", "a\nb"])
def test_tensors_without_a_printable_name_are_told_by_their_place(name):
    tensor = external()
    tensor.name = name
    message = f"onnx: `graph.node[0].attribute[0].t` {NOT_LOADED}"
    require(ValueError, message, lambda: onnx_backend.prepare(constant(tensor)))
