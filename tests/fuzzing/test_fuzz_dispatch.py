"""DxDispatch models of every operator, changed: they run right, or are refused.

A model and its files lie in a folder beside which others lie that it must not touch.
"""

import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest
from descriptions import expected_of
from folders import SECRET, model_folder
from hypothesis import strategies as st
from models import bind, buffer, floats, model, reversal, save, show
from mutations import changed_bytes, changed_trees
from outcomes import Refusal, outcome_of
from wrong_calls.models import MODEL

from dml_jax.directml import dxdispatch
from dml_jax.directml.dxdispatch._model import Dispatch

MOST_BYTES = 65536


def of(
    kind: str, inputs: dict[str, Any], output: dict[str, Any], **desc: Any
) -> dict[str, Any]:
    """A model of an operator on buffers of numbers."""
    tensors = inputs | output
    resources = {
        name: buffer(list(range(math.prod(tensor["Sizes"]))), tensor["DataType"])
        for name, tensor in tensors.items()
    }
    operator = {"type": f"DML_OPERATOR_{kind}", "desc": {**tensors, **desc}}
    (written,) = output
    commands = [
        bind("operator", **{name: name for name in tensors}),
        show(written, verbose=True),
        save(written, "out.npy", dimensions=[2, 1]),
        save(written, "new/out.bin"),
    ]
    return model(resources, {"operator": operator}, commands)


MODELS = {
    "reverse_subsequences": reversal(),
    "slice": of(
        *("SLICE", {"InputTensor": floats(2, 4)}, {"OutputTensor": floats(2, 2)}),
        **dict(DimensionCount=2, Offsets=[0, 1], Sizes=[2, 2], Strides=[1, 2]),
    ),
    "slice_grad": of(
        "SLICE_GRAD",
        {"InputGradientTensor": floats(2, 2)},
        {"OutputGradientTensor": floats(2, 4)},
        DimensionCount=2,
        InputWindowOffsets=[0, 1],
        InputWindowSizes=[2, 3],
        InputWindowStrides=[-1, 2],
    ),
    "fill_value_sequence": of(
        "FILL_VALUE_SEQUENCE",
        {},
        {"OutputTensor": floats(2, 2)},
        **dict(ValueDataType="FLOAT32", ValueStart=3, ValueDelta={"Float32": 0.5}),
    ),
    "resources": MODEL,  # of all kinds
}


def outcome(text: bytes) -> Any:
    """Runs a model, which gives what the reference does or is refused."""
    with model_folder() as folder:
        path = folder / "model.json"
        path.write_bytes(text)
        result = outcome_of(lambda: run(path), f"{path}: `")
        if isinstance(result, Refusal):
            assert not (folder / "new").exists()
        else:
            assert not any(SECRET in bytes(r.data) for r in result.resources.values())
    return result


def run(path: pathlib.Path) -> Any:
    """Runs a model command by command, each operator compared with the reference."""
    loaded = dxdispatch.load_model(path, MOST_BYTES)
    assert sum(r.data.nbytes for r in loaded.resources.values()) <= MOST_BYTES + 64
    resources = {name: r.data.copy() for name, r in loaded.resources.items()}
    initial = {name: data.copy() for name, data in resources.items()}
    lines = []
    dxdispatch.run_model(loaded, report=lines.append)
    firsts = [line for line in lines if line.startswith(("Dispatch '", "Resource '"))]
    assert len(firsts) == len(loaded.commands)
    assert all(line.replace("\n", "").isprintable() for line in lines)
    for command in loaded.commands:
        if isinstance(command, Dispatch):
            dispatchable = loaded.dispatchables[command.dispatchable]
            dispatch(dispatchable, command, resources, initial)
    for name, resource in loaded.resources.items():
        np.testing.assert_array_equal(resource.data, resources[name])
    return loaded


def dispatch(dispatchable: Any, command: Any, resources: Any, initial: Any) -> None:
    """Does in the resources what a dispatch does."""
    operator = dispatchable.operator

    def view(tensor: Any, where: Any, data: Any) -> np.ndarray:
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
    previous[:] = expected_of(operator.steps[0].operator, inputs, previous)


PIECES = [b'"', b",", b"{}", b"]", b"[", b"1e9", b"null", b"//", b"/*", b"\xff", b"-"]
PIECES += [b"NaN", b"1e999", b'{"a":']


def as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


every_model = pytest.mark.parametrize("name", MODELS)


@every_model
def test_changed_values(name: str, fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        outcome(as_json(data.draw(changed_trees(MODELS[name]))))


@every_model
def test_changed_text(name: str, fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        outcome(data.draw(changed_bytes(as_json(MODELS[name]), PIECES)))


@pytest.mark.parametrize("prefix", ["./", "sub/../", "../inside/"])
def test_paths_inside_of_the_folder_are_accepted(prefix: str) -> None:
    x = buffer({"sourcePath": f"{prefix}in.bin"}, "UINT8")
    result = outcome(as_json(model({"x": x}, {}, [save("x", f"{prefix}a/out.bin")])))
    assert not isinstance(result, Refusal)
