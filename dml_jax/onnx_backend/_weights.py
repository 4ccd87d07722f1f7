"""The weights of a model: which they are, and other ones in their place."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
from onnx.numpy_helper import from_array

from dml_jax._shared import arguments
from dml_jax.onnx_backend._inputs import as_numpy
from dml_jax.onnx_backend._nodes import Graph, names_of, shape_names
from dml_jax.onnx_backend._protos import initializers, read_names, remove


def weights_of(source: onnx.ModelProto, graph: Graph) -> dict[str, np.ndarray]:
    """The constants that are trained, by name."""
    others = shape_names(graph.nodes) | names_of("statistics", graph.nodes)
    states = names_of("states", graph.nodes)
    weights = {
        name: array
        for name, array in graph.constants.items()
        if array.ndim
        and jnp.issubdtype(array.dtype, jnp.floating)
        and name not in others
        and (name not in states or array.any())
    }
    found = initializers(source.graph, bool(source.functions))
    nodes = {part.name for part in found if part.is_node}
    # Some exporters write all weights as Constant nodes, and others write tables.
    parameters = {n: x for n, x in weights.items() if n not in nodes}
    return parameters or weights


def with_weights(
    source: onnx.ModelProto,
    params: Mapping[str, Any],
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    """A model with other initializers, and without nodes that made some of them."""
    model = onnx.ModelProto()
    model.CopyFrom(source)
    found = initializers(model.graph, bool(model.functions))
    tensors = {part.name: part.tensor for part in found}
    nodes = {name: node for node in model.graph.node for name in node.output}
    read = read_names(model.graph.node)
    for name, value in params.items():
        array = as_numpy(name, value).astype(constants[name].dtype)
        if name in tensors:
            tensor = tensors[name]
            new = from_array(array, tensor.name)
            new.doc_string = tensor.doc_string
            new.metadata_props.extend(tensor.metadata_props)
            tensor.CopyFrom(new)
        elif name in nodes:
            model.graph.initializer.append(from_array(array, name))
            model.graph.node.remove(nodes[name])
        else:
            rule = "not have initializers of branches inside functions"
            got, kind = arguments.describe(name), NotImplementedError
            raise arguments.error(kind, "params", rule, got)
    remove(model.graph.initializer, read - read_names(model.graph.node))
    return model
