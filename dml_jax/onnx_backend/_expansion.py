"""Expands nodes whose operators ONNX defines as functions of other operators.

The body of a function may depend on the types of the inputs, so that nodes are expanded
when they are evaluated. ONNX's inliner renames the values of the body.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx.defs
import onnx.helper
import onnx.inliner

from dml_jax.onnx_backend._functions import set_defaults

_DOMAIN = "dml_jax.expanded"  # a function must not have the name of an operator


def expand(
    node: onnx.NodeProto, opset: int, inputs: Any
) -> tuple[onnx.ModelProto, int]:
    """A model of the nodes that stand for one, and their opset."""
    schema = onnx.defs.get_schema(node.op_type, opset)
    function, version = _body_of(schema, node, inputs)
    function.domain = _DOMAIN
    call = onnx.NodeProto()
    call.CopyFrom(node)
    call.domain = _DOMAIN
    set_defaults(call, defaults_of(schema))
    graph = onnx.helper.make_graph(
        [call],
        node.op_type,
        [onnx.helper.make_empty_tensor_value_info(name) for name in node.input if name],
        [onnx.helper.make_empty_tensor_value_info(n) for n in node.output if n],
    )
    imports = [onnx.helper.make_opsetid("", version)]
    imports.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    del function.opset_import[:]
    function.opset_import.extend(imports)
    model = onnx.helper.make_model(graph, functions=[function], opset_imports=imports)
    return onnx.inliner.inline_local_functions(model), version


def defaults_of(schema: onnx.defs.OpSchema) -> list[onnx.AttributeProto]:
    """The default attributes of an operator, which ONNX omits in bodies."""
    values = [attribute.default_value for attribute in schema.attributes.values()]
    return [value for value in values if value.type]


def _body_of(
    schema: Any, node: onnx.NodeProto, inputs: Any
) -> tuple[onnx.FunctionProto, int]:
    """The newest body of an operator, and the opset of its nodes."""
    function = onnx.FunctionProto()
    if not schema.has_context_dependent_function:
        version = schema.function_opset_versions[-1]
        function.ParseFromString(schema.get_function_with_opset_version(version))
        return function, version
    version = schema.context_dependent_function_opset_versions[-1]
    types = [_type_of(x).SerializeToString() for x in inputs]
    function.ParseFromString(
        schema.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), types
        )
    )
    return function, version


def _type_of(x: Any) -> onnx.TypeProto:
    if x is None:
        return onnx.TypeProto()
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    sizes = [size if isinstance(size, int) else None for size in x.shape]
    return onnx.helper.make_tensor_type_proto(kind, sizes)
