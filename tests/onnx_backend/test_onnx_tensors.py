"""Files of ONNX models, and their external data, which `load_model` alone reads."""

import os
import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from assertions import assert_same_bits
from onnx import TensorProto, helper
from onnx_models import (
    COPY,
    LOCAL,
    external_tensor,
    parse,
    require_error,
    type_of,
    with_external_data,
)

from dml_jax import onnx_backend

DATA = np.arange(4, dtype=np.float32)
# Where the tensor `w` is put: m is the model, g its graph, f a function of it.
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
NOT_LOADED = "must be loaded, as `load_model` does; got data in another file$"


def attribute(part: Any, kind: int) -> onnx.AttributeProto:
    """That of a new node of a graph or a function."""
    node = part.node.add(op_type="Constant", output=["c"])
    return node.attribute.add(name="value", type=kind)


def external(location: str = "w.bin", name: str = "w") -> TensorProto:
    return external_tensor(4, name, location=location)


def model_with(place: str, tensor: TensorProto) -> onnx.ModelProto:
    """A model with a function, and a tensor in one of them."""
    model = parse(f"float[3] x => float[3] y {{y = local.f(x)}} {LOCAL} Identity(p)}}")
    parts = {"m": model, "g": model.graph, "f": model.functions[0]}
    other = onnx.numpy_helper.from_array(DATA)
    exec(place, {**parts, "w": tensor, "in_memory": other, "attribute": attribute})
    return model


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current folder, with a file of data, and links inside and outside it."""
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    for path in ("w.bin", "../outside.bin"):
        pathlib.Path(path).write_bytes(DATA.tobytes())
    os.symlink("w.bin", "link.bin")
    os.symlink("../outside.bin", "outside.bin")
    return inside


@pytest.mark.parametrize("place", PLACES)
def test_external_data(
    place: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load_model` reads it from the folder of the model alone, and `prepare` never."""
    for location in ("w.bin", "link.bin", "../outside.bin", "none.bin", ""):
        model = model_with(place, external(location))
        message = f"onnx: `w` {NOT_LOADED}"
        require_error(ValueError, message, onnx_backend.prepare, model)
        assert not onnx_backend.is_compatible(model)
    for location in ("../outside.bin", "outside.bin", str(folder / "w.bin"), ""):
        onnx.save(model_with(place, external(location)), "m.onnx")
        require_error(ValueError, "m.onnx: ", onnx_backend.load_model, "m.onnx")
    onnx.save(model_with(place, external()), "m.onnx")
    in_memory = TensorProto(name="w", data_type=1, dims=[4], data_location="DEFAULT")
    in_memory.raw_data = DATA.tobytes()
    monkeypatch.chdir("/")
    loaded = onnx_backend.load_model(folder / "m.onnx")
    assert loaded == model_with(place, in_memory)


# Links in the folder of a model, what they lead to, and whether the model may read it.
# The model is a link to store/m, as in the cache of Hugging Face, or a file.
LINKS = [
    ("link", "w.bin", "../store/w", True),
    ("link", "sub/w.bin", "../../store/w", True),
    ("link", "w.bin", "beside.bin", True),
    ("link", "beside.bin", None, True),
    ("link", "w.bin", "../store/link", False),
    ("link", "w.bin", "../store/sub/w", False),
    ("link", "w.bin", "../outside.bin", False),
    ("link", "../inside/w.bin", "../outside.bin", False),
    ("link", "../store/w", None, False),
    ("link", "/store/w", None, False),
    ("file", "w.bin", "beside.bin", True),
    ("file", "w.bin", "../store/w", False),
    ("file", "/inside/w.bin", "beside.bin", False),
]


@pytest.mark.parametrize(("kind", "location", "target", "is_read"), LINKS)
def test_links_to_external_data(
    tmp_path: pathlib.Path, kind: str, location: str, target: str | None, is_read: bool
) -> None:
    """Those that lead to the folder of the model or of the file that it links to."""
    (tmp_path / "inside" / "sub").mkdir(parents=True)
    (tmp_path / "store" / "sub").mkdir(parents=True)
    for path in ("inside/beside.bin", "store/w", "store/sub/w", "outside.bin"):
        (tmp_path / path).write_bytes(DATA.tobytes())
    (tmp_path / "store" / "link").symlink_to("../outside.bin")
    if location.startswith("/"):
        location = f"{tmp_path}{location}"
    if target:
        (tmp_path / "inside" / location).symlink_to(target)
    model, path = with_external_data(4, location=location), tmp_path / "inside/m.onnx"
    onnx.save(model, tmp_path / "store/m" if kind == "link" else path)
    if kind == "link":
        path.symlink_to("../store/m")
    if is_read:
        assert_same_bits(onnx_backend.prepare(path).run([])[0], DATA)
    else:
        require_error(ValueError, f"{path}: ", onnx_backend.load_model, path)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bool, "bfloat16", "int4"])
@pytest.mark.usefixtures("folder")
def test_external_data_without_a_length(dtype: Any) -> None:
    """It begins at an offset, and has as many bytes as its tensor."""
    wanted = np.array([1, 0, 1]).astype(dtype)
    tensor = onnx.numpy_helper.from_array(wanted, "w")
    data = tensor.raw_data
    pathlib.Path("w.bin").write_bytes(bytes(8) + data + bytes(8))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "8")):
        tensor.external_data.add(key=key, value=value)
    kind = type_of(wanted.dtype)
    model = parse(f"{kind}[3] x => {kind}[3] y {{y = Identity(w)}}")
    model.graph.initializer.append(tensor)
    onnx.save(model, "m.onnx")
    assert_same_bits(onnx_backend.prepare("m.onnx").run([wanted])[0], wanted)


def test_models_from_files_and_bytes(folder: pathlib.Path) -> None:
    """A path also gives the data of its folder, and bytes do not."""
    source = parse("float[4] x => float[4] y {y = Add(x, w)}", w=DATA)
    path = folder / "m.onnx"
    onnx.save(source, path)
    for given in (path, str(path), path.read_bytes(), source):
        assert onnx_backend.is_compatible(given)
        assert_same_bits(onnx_backend.prepare(given).run([DATA])[0], DATA + DATA)
        assert_same_bits(onnx_backend.run_model(given, [DATA])[0], DATA + DATA)
    save = {"save_as_external_data": True, "size_threshold": 0}
    onnx.save(source, path, **save, location="weights.bin")
    assert_same_bits(onnx_backend.prepare(path).run([DATA])[0], DATA + DATA)
    message = f"onnx: `w` {NOT_LOADED}"
    require_error(ValueError, message, onnx_backend.prepare, path.read_bytes())
    with pytest.raises(FileNotFoundError):
        onnx_backend.prepare(folder / "none.onnx")


@pytest.mark.usefixtures("folder")
def test_run_node_reads_no_files() -> None:
    members: list[dict[str, Any]] = [{"value": external()}, {"tensors": [external()]}]
    for attributes in members:
        node = helper.make_node("Constant", [], ["y"], **attributes)
        message = f"onnx: `w` {NOT_LOADED}"
        require_error(ValueError, message, onnx_backend.run_node, node, [])


def test_the_message_names_the_path_to_a_tensor_without_a_name() -> None:
    model = model_with("attribute(g, 4).t.CopyFrom(w)", external(name=""))
    message = rf"onnx: `graph.node\[1\].attribute\[0\].t` {NOT_LOADED}"
    require_error(ValueError, message, onnx_backend.prepare, model)


@pytest.mark.parametrize("name", ["m.json", "m.textproto"])
def test_files_are_protobuf_whatever_their_name(
    tmp_path: pathlib.Path, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(parse(COPY).SerializeToString())
    assert onnx_backend.load_model(path) == parse(COPY)
    path.write_text("{]")
    require_error(ValueError, f"{path}: ", onnx_backend.load_model, path)
    path.write_bytes(b"")
    message = f"{path}: must have a graph; got none"
    require_error(ValueError, message, onnx_backend.load_model, path)
