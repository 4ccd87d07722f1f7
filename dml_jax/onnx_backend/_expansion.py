"""Expands nodes whose operators ONNX defines as functions of other operators.

The body of a function may depend on the types of the inputs, so that nodes are expanded
when they are evaluated.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx.defs
import onnx.helper
import onnx.inliner

from dml_jax.onnx_backend._functions import set_defaults


def expand(
    node: onnx.NodeProto, opset: int, inputs: Any
) -> tuple[onnx.ModelProto, int]:
    """A model of the nodes that stand for one, and their opset."""
    schema: Any = onnx.defs.get_schema(node.op_type, opset)
    *_, newest = (
        *schema.function_opset_versions,
        *schema.context_dependent_function_opset_versions,
    )
    call = onnx.NodeProto()
    call.CopyFrom(node)
    call.domain = ""
    set_defaults(call, defaults_of(schema))
    pairs = zip(node.input, map(_type_of, inputs), strict=True)
    infos = [onnx.helper.make_value_info(*pair) for pair in pairs]
    graph = onnx.helper.make_graph(
        [call],
        node.op_type,
        [info for info in infos if info.name],
        [onnx.helper.make_empty_tensor_value_info(n) for n in node.output if n],
        value_info=[info for info in infos if not info.name],  # which ONNX looks up
    )
    imports = [onnx.helper.make_opsetid("", newest)]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    kinds = [("", node.op_type)]
    return onnx.inliner.inline_selected_functions(
        model, kinds, inline_schema_functions=True
    ), newest


def defaults_of(schema: onnx.defs.OpSchema) -> list[onnx.AttributeProto]:
    """The default attributes of an operator, which ONNX omits in bodies."""
    values = [attribute.default_value for attribute in schema.attributes.values()]
    return [value for value in values if value.type]


def _type_of(x: Any) -> onnx.TypeProto:
    if x is None:
        return onnx.TypeProto()
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    sizes = [size if isinstance(size, int) else None for size in x.shape]
    return onnx.helper.make_tensor_type_proto(kind, sizes)
