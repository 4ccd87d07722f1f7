"""Tensors of an ONNX model, in any of its messages.

A tensor may have its data in another file. Only `load` reads such files, and only from
the folder of the model. All other functions refuse these tensors, because ONNX would
search the files in the current folder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.numpy_helper
from google.protobuf.message import Message

from dml_jax.onnx_backend._errors import as_value_error, is_printable


def load(model: onnx.ModelProto, folder: str) -> None:
    """Reads the external data of a model's tensors from files in a folder."""
    for _, tensor in _external_tensors(model):
        onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)


def require_loaded(model: onnx.ModelProto) -> None:
    """Refuses tensors with external data, even if no node uses them."""
    for path, tensor in _external_tensors(model):
        name = tensor.name if tensor.name and is_printable(tensor.name) else path
        raise ValueError(
            f"onnx: `{name}` must be loaded, as `load_model` does; got data in another "
            "file"
        )


def array_of(tensor: onnx.TensorProto, prefix: str) -> np.ndarray:
    """The value of a loaded tensor, read-only; errors start with `prefix`."""
    with as_value_error(prefix, TypeError):
        array = onnx.numpy_helper.to_array(tensor)
    array.flags.writeable = False
    return array


def _external_tensors(model: Message) -> Iterator[tuple[str, onnx.TensorProto]]:
    """All tensors in a model whose data is external, with the paths to them."""
    queue = deque([("", model)])
    while queue:
        path, message = queue.popleft()
        if isinstance(message, onnx.TensorProto):
            if message.data_location == onnx.TensorProto.EXTERNAL:
                yield path, message
            continue
        for field, value in message.ListFields():
            name = f"{path}.{field.name}" if path else field.name
            if isinstance(value, Message):
                queue.append((name, value))
            elif field.message_type is not None:
                queue += [(f"{name}[{i}]", part) for i, part in enumerate(value)]
