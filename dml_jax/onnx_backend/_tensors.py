"""The tensors of an ONNX model, whichever message they are in.

A tensor may name a file that has its data. Those files are read once, where a model is
loaded from its own file; anywhere else they would be looked for in the current folder.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.numpy_helper
from google.protobuf.message import Message


def load(model: onnx.ModelProto, folder: str) -> None:
    """Reads the data of a model's tensors that is in other files of a folder."""
    for _, tensor in _tensors(model):
        if _is_external(tensor):
            onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)


def require_loaded(model: onnx.ModelProto) -> None:
    """Refuses tensors whose data is in other files, used or not."""
    for place, tensor in _tensors(model):
        if _is_external(tensor):
            is_named = isinstance(tensor.name, str) and tensor.name.isprintable()
            name = tensor.name if is_named and tensor.name else place
            raise ValueError(
                f"onnx: `{name}` must be loaded, as `load_model` does; got data in "
                "another file"
            )


def array_of(tensor: onnx.TensorProto) -> np.ndarray:
    """The value of a tensor that is loaded; not to be written to."""
    array = onnx.numpy_helper.to_array(tensor)
    array.flags.writeable = False
    return array


def _is_external(tensor):
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def _tensors(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """All tensors below a model, and where they are."""
    rest: list[tuple[str, Message]] = [("", model)]
    while rest:
        place, message = rest.pop()
        if isinstance(message, onnx.TensorProto):
            yield place, message
            continue
        for field, value in reversed(message.ListFields()):
            if field.message_type is None:
                continue
            name = f"{place}.{field.name}" if place else field.name
            if isinstance(value, Message):
                rest.append((name, value))
            else:
                parts = [(f"{name}[{i}]", part) for i, part in enumerate(value)]
                rest.extend(reversed(parts))
