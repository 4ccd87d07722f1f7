"""Graphs, nodes and tensors of an ONNX model, at every depth.

A tensor may have its data in another file. Only `load` reads such files. All other
functions refuse these tensors, because ONNX would search the files in the current
folder.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.helper
import onnx.numpy_helper
from google.protobuf.message import Message

from dml_jax._shared import bitwise
from dml_jax.onnx_backend._errors import as_value_error


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from all_nodes(attribute.g.node)  # none if it is not a graph


def all_graphs(
    graph: onnx.GraphProto, path: str = ""
) -> Iterator[tuple[str, onnx.GraphProto]]:
    """A graph, and those in the attributes of its nodes, with their paths."""
    yield path, graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_graphs(attribute.g, path_of(path, node, attribute))


def read_names(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """The tensors that nodes read, and the graphs in their attributes."""
    return {name for node in all_nodes(nodes) for name in node.input if name}


def import_microsoft(model: onnx.ModelProto) -> None:
    """Adds an import that a model lacks; ONNX Runtime reads such a model."""
    domain = "com.microsoft"
    is_used = any(node.domain == domain for node in all_nodes(model.graph.node))
    if is_used and domain not in (opset.domain for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))


def remove(parts: Any, names: Set[str]) -> None:
    for i in reversed(range(len(parts))):
        if parts[i].name in names:
            del parts[i]


def load(model: onnx.ModelProto, path: str) -> None:
    """Reads external data from the folder of a model, or of the file it is a link to.

    ONNX refuses links, as all files in Hugging Face's cache are.
    """
    own = os.path.dirname(os.path.abspath(path))
    folders = [os.path.realpath(own), os.path.dirname(os.path.realpath(path))]
    for _, tensor in _external_tensors(model):
        folder = own
        for entry in tensor.external_data:
            link = f"{own}/{entry.value}"  # `join` would return an absolute path
            if entry.key == "location" and os.path.islink(link):
                parent, name = os.path.split(os.path.realpath(link))
                if parent in folders:
                    folder, entry.value = parent, name
        has_length = any(entry.key == "length" for entry in tensor.external_data)
        onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
        if not has_length:  # the rest of the file
            tensor.raw_data = tensor.raw_data[: _byte_count(tensor)]


def _byte_count(tensor: onnx.TensorProto) -> int:
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    # Those of ml_dtypes may be packed.
    bits = bitwise.width(dtype) if dtype.kind == "V" else 8 * dtype.itemsize
    return -(-math.prod(tensor.dims) * bits // 8)


def require_loaded(model: onnx.ModelProto) -> None:
    """Refuses tensors with external data, even if no node uses them."""
    for path, tensor in _external_tensors(model):
        raise ValueError(
            f"onnx: `{tensor.name or path}` must be loaded, as `load_model` does; got "
            "data in another file"
        )


def array_of(tensor: onnx.TensorProto, prefix: str) -> np.ndarray:
    """The value of a loaded tensor, read-only; errors start with `prefix`."""
    with as_value_error(prefix, TypeError):
        array = onnx.numpy_helper.to_array(tensor)
    array.flags.writeable = False
    return array


_FLOATS = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
}


class Initializer(NamedTuple):
    """An initializer of a graph, or of one in it, or a Constant node's tensor."""

    path: str  # of its graph, "" for the outer one
    is_node: bool
    own_name: str  # in that graph
    name: str  # unique in the model
    tensor: onnx.TensorProto


def initializers(graph: onnx.GraphProto, has_functions: bool) -> list[Initializer]:
    """The initializers at every depth, and the Constant nodes of several floats.

    Branches may have initializers of the same name. Theirs get the paths of the
    branches in front. Constant nodes count only in a model without functions, because
    inlining adds those of its functions.
    """
    found = []
    for path, inner in all_graphs(graph):
        for tensor in inner.initializer:
            found.append(Initializer(path, False, tensor.name, tensor.name, tensor))
        for node in inner.node:
            if not has_functions and is_weight(node):
                name, tensor = node.output[0], node.attribute[0].t
                found.append(Initializer(path, True, name, name, tensor))
    counts = Counter(part.name for part in found)
    taken = {*counts, *(name for n in all_nodes(graph.node) for name in n.output)}
    taken.update(info.name for _, inner in all_graphs(graph) for info in inner.input)
    for i, part in enumerate(found):
        if part.path and counts[part.own_name] > 1:
            name = part.path + part.own_name
            while name in taken:
                name += "_"
            taken.add(name)
            found[i] = part._replace(name=name)
    return found


def is_weight(node: onnx.NodeProto) -> bool:
    """Whether a node is a Constant of several floats, which may be weights."""
    is_known = node.op_type == "Constant" and node.domain in ("", "ai.onnx")
    if not is_known or [a.name for a in node.attribute] != ["value"]:
        return False
    tensor = node.attribute[0].t
    return tensor.data_type in _FLOATS and math.prod(tensor.dims) > 1


def path_of(outer: str, node: onnx.NodeProto, attribute: onnx.AttributeProto) -> str:
    """The path of a graph in an attribute, from that of the graph of its node."""
    output = next(filter(None, node.output), "")
    return f"{outer}{output}.{attribute.name}."


def _external_tensors(
    message: Message, path: str = ""
) -> Iterator[tuple[str, onnx.TensorProto]]:
    """All tensors in a message whose data is external, with the paths to them."""
    if isinstance(message, onnx.TensorProto):
        if message.data_location == onnx.TensorProto.EXTERNAL:
            yield path, message
        return
    for field, value in message.ListFields():
        name = f"{path}.{field.name}" if path else field.name
        if isinstance(value, Message):
            yield from _external_tensors(value, name)
        elif field.message_type is not None:
            for i, part in enumerate(value):
                yield from _external_tensors(part, f"{name}[{i}]")
