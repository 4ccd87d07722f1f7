"""Inlines the functions of an ONNX model, and those that define ONNX's operators.

A function of a model imports opsets of its own, which may differ from the model's. ONNX
does not inline such a function, so all are given the same imports first. Each node
keeps the opset of its function.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import onnx
import onnx.defs
import onnx.helper
import onnx.inliner

from dml_jax.onnx_backend._protos import all_nodes


class Inlined(NamedTuple):
    """A model without functions."""

    model: onnx.ModelProto
    own_opset: int  # the version that the model imports
    is_recorded: bool = False  # whether the nodes have opset versions of their own

    def opset(self, node: onnx.NodeProto) -> int:
        """The opset version that a node follows."""
        return int(node.metadata_props[0].value) if self.is_recorded else self.own_opset

    def is_mixed(self) -> bool:
        """Whether any node follows another opset than the model's."""
        nodes = all_nodes(self.model.graph.node)
        return any(self.opset(node) != self.own_opset for node in nodes)


def inline(model: onnx.ModelProto) -> Inlined:
    """Replaces all calls of functions, nested ones too, by the functions' nodes."""
    versions = _versions(model)
    own = versions.get("", 1)
    if not model.functions:
        return Inlined(model, own)
    model, original = onnx.ModelProto(), model
    model.CopyFrom(original)
    _record_opset(model.graph.node, own)
    _set_all_defaults(model)
    for function in model.functions:
        imported = _versions(function)
        _record_opset(function.node, imported.get("", own))
        versions = imported | versions
    imports = [onnx.helper.make_opsetid(*pair) for pair in versions.items()]
    for part in (model, *model.functions):
        del part.opset_import[:]
        part.opset_import.extend(imports)
    model = onnx.inliner.inline_local_functions(model)
    return Inlined(model, own, is_recorded=True)


def _versions(part: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """The opset versions that a model or a function imports, by domain."""
    return {_own_domain(opset.domain): opset.version for opset in part.opset_import}


def _own_domain(domain: str) -> str:
    """ONNX's domain, which has two names, as ""."""
    return "" if domain == "ai.onnx" else domain


def _record_opset(nodes: Iterable[onnx.NodeProto], opset: int) -> None:
    """Writes the opset into the metadata of nodes, which the inliner preserves."""
    for node in all_nodes(nodes):
        del node.metadata_props[:]
        node.metadata_props.add(key="opset", value=str(opset))


def _set_all_defaults(model: onnx.ModelProto) -> None:
    """Adds default attributes to calls of functions; the inliner ignores them."""
    defaults = {
        (_own_domain(part.domain), part.name, part.overload): part.attribute_proto
        for part in model.functions
    }
    for part in (model.graph, *model.functions):
        for node in all_nodes(part.node):
            key = _own_domain(node.domain), node.op_type, node.overload
            set_defaults(node, defaults.get(key, ()))


def set_defaults(node: onnx.NodeProto, defaults: Iterable[onnx.AttributeProto]) -> None:
    """Adds those of the default attributes that a node does not have."""
    given = {attribute.name for attribute in node.attribute}
    node.attribute.extend(a for a in defaults if a.name not in given)


def expand(node: onnx.NodeProto, opset: int, inputs: Any) -> Inlined:
    """A model of the nodes that stand for one, whose operator ONNX defines by them.

    They may depend on the types of the inputs.
    """
    schema: Any = onnx.defs.get_schema(node.op_type, opset)
    if not (schema.has_function or schema.has_context_dependent_function):
        schema = onnx.defs.get_schema(node.op_type)  # earlier versions have no body
    *_, newest = (
        *schema.function_opset_versions,
        *schema.context_dependent_function_opset_versions,
    )
    infos = [info_of(name, x) for name, x in zip(node.input, inputs, strict=True)]
    graph = onnx.helper.make_graph(
        [node],
        node.op_type,
        [info for info in infos if info.name],
        [onnx.helper.make_empty_tensor_value_info(n) for n in node.output if n],
        # The inliner asks for the types of omitted inputs, too.
        value_info=[info for info in infos if not info.name],
    )
    (call,) = graph.node
    call.domain = ""
    set_defaults(call, defaults_of(schema))
    imports = [onnx.helper.make_opsetid("", newest)]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    expanded = onnx.inliner.inline_selected_functions(
        model, [("", node.op_type)], inline_schema_functions=True
    )
    return Inlined(expanded, newest)


def defaults_of(schema: onnx.defs.OpSchema) -> list[onnx.AttributeProto]:
    """The default attributes of an operator, which ONNX omits in bodies."""
    values = [attribute.default_value for attribute in schema.attributes.values()]
    return [value for value in values if value.type]


def info_of(name: str, x: Any) -> onnx.ValueInfoProto:
    """The name and the type of an input, which has none if it is omitted."""
    if x is None:
        return onnx.helper.make_value_info(name, onnx.TypeProto())
    try:
        kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    except (TypeError, ValueError):
        raise TypeError(
            f"onnx: `{name}` must have a dtype of ONNX; got {x.dtype}"
        ) from None
    sizes = [size if isinstance(size, int) else None for size in x.shape]
    return onnx.helper.make_tensor_value_info(name, kind, sizes)
