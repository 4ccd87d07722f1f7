"""DxDispatch models of every operator, changed: they run right, or are refused.

A model and its files lie in a folder beside which others lie that it must not touch.
"""

import contextlib
import math
import os
import pathlib
import tempfile

import numpy as np
import pytest
from accesses import only_below
from arguments import choice
from descriptions import expected_of
from hypothesis import given
from hypothesis import strategies as st
from models import bind, buffer, floats, model, reversal, save, show
from mutations import as_json, changed_bytes, changed_trees
from outcomes import Refusal, outcome_of

from dml_jax.directml import dxdispatch
from dml_jax.directml.dxdispatch._commands import Dispatch

MOST_BYTES = 65536
SECRET = b"\xa5\x5a\xc3\x3c" * 8


def of(kind, inputs, output, **desc):
    """A model of an operator on buffers of random numbers."""
    tensors = inputs | output
    resources = {
        name: buffer(list(range(math.prod(tensor["Sizes"]))), **{
            "data_type": tensor["DataType"]})
        for name, tensor in tensors.items()
    }  # fmt: skip
    operator = {"type": f"DML_OPERATOR_{kind}", "desc": {**tensors, **desc}}
    (written,) = output
    commands = [
        bind("operator", **{name: name for name in tensors}),
        show(written, verbose=True),
        save(written, "out.npy", dimensions=[2, 1]),
        save(written, "new/out.bin"),
    ]
    return model(resources, {"operator": operator}, commands)


WINDOW = {
    "DimensionCount": 2,
    "InputWindowOffsets": [0, 1],
    "InputWindowSizes": [2, 3],
    "InputWindowStrides": [-1, 2],
}
FILES = model(
    {
        "x": {"initialValues": {"sourcePath": "in.npy"}},
        "y": buffer({"sourcePath": "in.bin"}, "UINT16", sizeInBytes=40),
        "z": buffer({"valueCount": 3, "valueStart": 1, "valueDelta": 0.25}),
        "n": {
            "initialValues": [
                {"type": "UINT32", "value": 2},
                {"type": "INT8", "value": 1},
            ]
        },
    },
    {
        "fill": {
            "type": "FILL_VALUE_CONSTANT",
            "ValueDataType": "UINT16",
            "Value": {"UInt16": 7},
            "OutputTensor": {
                "Desc": {"DataType": "UINT16", "Sizes": [2], "Strides": [3]}
            },
            "dmlCompileType": "DmlCompileGraph",
        }
    },
    [
        bind("fill", OutputTensor={"name": "y", "offset": 16}),
        save("y", "out.dat"),
        show("z"),
    ],
)
BASES = {
    "reverse_subsequences": reversal(),
    "slice": of(
        *("SLICE", {"InputTensor": floats(2, 4)}, {"OutputTensor": floats(2, 2)}),
        **{"DimensionCount": 2, "Offsets": [0, 1], "Sizes": [2, 2], "Strides": [1, 2]},
    ),
    "slice1": of(
        *("SLICE1", {"InputTensor": floats(2, 4)}, {"OutputTensor": floats(2, 2)}),
        **WINDOW,
    ),
    "slice_grad": of(
        "SLICE_GRAD",
        {"InputGradientTensor": floats(2, 2)},
        {"OutputGradientTensor": floats(2, 4)},
        **WINDOW,
    ),
    "fill_value_sequence": of(
        "FILL_VALUE_SEQUENCE",
        {},
        {"OutputTensor": floats(2, 2)},
        **{"ValueDataType": "FLOAT32", "ValueStart": 3, "ValueDelta": {"Float32": 0.5}},
    ),
    "files": FILES,
}


@contextlib.contextmanager
def folders():
    """The folder of a model, in one with files that are not the model's."""
    with tempfile.TemporaryDirectory() as parent:
        outside = pathlib.Path(parent)
        inside = outside / "inside"
        inside.mkdir()
        (outside / "outside.bin").write_bytes(SECRET)
        np.save(outside / "outside.npy", np.frombuffer(SECRET, np.uint8))
        (inside / "in.bin").write_bytes(bytes(range(12)))
        np.save(inside / "in.npy", np.arange(6, dtype=np.int32).reshape(2, 3))
        (inside / "link.bin").symlink_to("../outside.bin")
        (inside / "loop.bin").symlink_to("loop.bin")
        (inside / "up").symlink_to("..")
        with contextlib.chdir(inside):
            yield outside, inside


def require(text):
    """The model runs as the reference does or is refused, and stays in its folder."""
    with folders() as (outside, inside):
        path = inside / "model.json"
        path.write_bytes(text)
        before = {p: p.read_bytes() for p in outside.glob("outside.*")}
        with only_below(inside):
            result = outcome_of(lambda: run(path), f"{path}: `")
        assert {p: p.read_bytes() for p in outside.glob("outside.*")} == before
        assert sorted(os.listdir(outside)) == ["inside", "outside.bin", "outside.npy"]
        if isinstance(result, Refusal):
            assert not (inside / "new").exists()
        else:
            assert not any(SECRET in bytes(r.data) for r in result.resources.values())
    return result


def run(path):
    """Runs a model command by command, each operator compared with the reference."""
    loaded = dxdispatch.load_model(path, MOST_BYTES)
    assert sum(r.data.nbytes for r in loaded.resources.values()) <= MOST_BYTES + 64
    resources = {name: r.data.copy() for name, r in loaded.resources.items()}
    lines = []
    dxdispatch.run_model(loaded, report=lines.append)
    assert len(lines) == len(loaded.commands)
    assert all(line.replace("\n", "").isprintable() for line in lines)
    initial = {name: data.copy() for name, data in resources.items()}
    for command in loaded.commands:
        if isinstance(command, Dispatch):
            require_dispatch(
                loaded.dispatchables[command.dispatchable], command, resources, initial
            )
    for name, resource in loaded.resources.items():
        np.testing.assert_array_equal(resource.data, resources[name])
    return loaded


def require_dispatch(dispatchable, command, resources, initial):
    """Does in the resources what a dispatch does."""
    operator = dispatchable.operator
    desc = operator.steps[0].operator

    def view(tensor, where, data):
        dtype = tensor.data_type.dtype
        size = tensor.total_tensor_size_in_bytes // dtype.itemsize * dtype.itemsize
        return data[where.resource][where.offset : where.offset + size].view(dtype)

    inputs = [
        view(tensor, dispatchable.owned[name], initial)
        if name in dispatchable.owned
        else view(tensor, command.views[name], resources)
        for name, tensor in operator.inputs
    ]
    (binding,) = operator.outputs
    previous = view(binding.tensor, command.views[binding.name], resources)
    previous[:] = expected_of(desc, inputs, previous)


@pytest.mark.parametrize("base", BASES)
@given(data=st.data())
def test_changed_values(base, data):
    require(as_json(data.draw(changed_trees(BASES[base], 2))))


@pytest.mark.parametrize("base", BASES)
@given(data=st.data())
def test_changed_text(base, data):
    require(data.draw(changed_bytes(as_json(BASES[base]))))


READ = {"in.bin", "in.bin/", "./in.bin", "new/../in.bin", "../inside/in.bin"}
WRITTEN = {
    "out.bin",
    "in.bin/",
    "a/b/out.DAT",
    "./out.npy",
    "in.bin",
    "../inside/out.bin",
}
OUTSIDE = ["../outside.bin", "link.bin", "up/outside.bin", "new/../../outside.bin"]
OUTSIDE += ["../outside.npy", "/etc/passwd", "/dev/zero", "..", ".", "", "/"]
OUTSIDE += ["in.bin\0", "é" * 300, "in.bin/x.bin", "loop.bin", "../new.bin"]


@given(choice([*READ, *OUTSIDE]), choice([*WRITTEN, *OUTSIDE]))
def test_paths(source, target):
    tree = model(
        {"x": buffer({"sourcePath": source}, "UINT8")}, {}, [save("x", target)]
    )
    result = require(as_json(tree))
    assert isinstance(result, Refusal) == (source not in READ or target not in WRITTEN)


# What takes far more memory than is allowed, if it is made before it is looked at.
BOMBS = {
    "size": buffer([1], sizeInBytes=2**40),
    "offset": buffer([1], initialValuesOffsetInBytes=2**40),
    "constant": buffer({"valueCount": 2**32 - 1, "value": 1}, "FLOAT64"),
    "sequence": buffer({"valueCount": 2**32 - 1, "valueStart": 1, "valueDelta": 1}),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_buffers_that_are_too_large(bomb):
    assert isinstance(require(as_json(model({"x": BOMBS[bomb]}))), Refusal)


@pytest.mark.parametrize(
    "text", [b"[" * 2**24, b'{"a":' * 2**18, b"[" + b"9" * 2**23, b"/*" * 2**19]
)
def test_texts_that_are_too_deep_or_long(text):
    assert isinstance(require(text), Refusal)
