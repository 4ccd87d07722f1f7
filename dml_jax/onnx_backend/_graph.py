"""Validates ONNX models, and converts their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.checker
import onnx.defs
import onnx.helper

from dml_jax.onnx_backend._errors import as_value_error, is_printable
from dml_jax.onnx_backend._functions import Inlined, inline
from dml_jax.onnx_backend._operators import OPERATORS, Node
from dml_jax.onnx_backend._tensors import array_of, require_loaded

_DOMAINS = ("", "ai.onnx")


def validate_model(model: onnx.ModelProto) -> Inlined:
    """Checks that a model is valid and supported, and inlines its functions."""
    _require_printable(model)
    require_loaded(model)
    newest = onnx.defs.onnx_opset_version()
    for part in (model, *model.functions):
        for opset in part.opset_import:
            if opset.domain in _DOMAINS and opset.version > newest:
                raise ValueError(
                    f"onnx: `opset_import` must be at most {newest}; got "
                    f"{opset.version}"
                )
    with as_value_error("onnx"):
        inlined = inline(model)
    require_supported(inlined)
    with as_value_error("onnx"):
        _check(model, inlined)
    return inlined


def _check(model: onnx.ModelProto, inlined: Inlined) -> None:
    """Runs ONNX's checker; nodes of another opset are checked one by one."""
    if not inlined.is_mixed:
        onnx.checker.check_model(inlined.model, full_check=True)
        return
    onnx.checker.check_model(
        model, full_check=True, skip_opset_compatibility_check=True
    )
    for node, opset in zip(inlined.model.graph.node, inlined.opsets, strict=True):
        context = onnx.checker.C.CheckerContext()
        context.ir_version = model.ir_version
        context.opset_imports = dict.fromkeys(_DOMAINS, opset)
        onnx.checker.check_node(node, context)


def require_supported(inlined: Inlined) -> None:
    """Refuses a model with unsupported parts; the message lists all of them."""
    _require_printable(inlined.model)
    graph = inlined.model.graph
    missing = []
    for node, opset in zip(graph.node, inlined.opsets, strict=True):
        operator = OPERATORS.get(node.op_type)
        if operator is None or node.domain not in _DOMAINS:
            missing.append(_label(node))
        elif _version(node, opset) not in operator.versions:
            missing.append(f"{_label(node)} of opset {opset}")
        elif any(a.name == "sparse_value" for a in node.attribute):
            missing.append(f"{_label(node)} with a sparse value")
    if graph.sparse_initializer:
        missing.append("sparse initializers")
    for info in (*graph.input, *graph.output):
        if info.type.WhichOneof("value") not in ("tensor_type", None):
            missing.append(f"'{info.name}', which is not a tensor")
    if missing:
        raise NotImplementedError(
            f"onnx: the model must have only tensors and {', '.join(OPERATORS)}; got "
            f"{', '.join(missing)}"
        )


def _require_printable(model: onnx.ModelProto) -> None:
    """Refuses names that would break the lines of messages, or control a terminal."""
    graph = model.graph
    names = [v.name for v in (*graph.input, *graph.output, *graph.initializer)]
    for part in (graph, *model.functions):
        for node in part.node:
            names += [node.op_type, node.domain, node.name, *node.input, *node.output]
    for name in names:
        if not is_printable(name):
            raise ValueError(f"onnx: names must be printable; got {name!a}")


def node_of(node: onnx.NodeProto, opset: int, options: Mapping[str, Any]) -> Node:
    """Converts a node that follows an opset."""
    return Node(
        kind=node.op_type,
        label=_label(node),
        version=_version(node, opset),
        attributes={a.name: _value(node, a) for a in node.attribute},
        inputs=tuple(node.input),
        output=node.output[0],
        options=options,
    )


def _value(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    is_tensor = isinstance(value, onnx.TensorProto)
    return array_of(value, _label(node)) if is_tensor else value


def _label(node: onnx.NodeProto) -> str:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{kind} '{node.name or ', '.join(node.output)}'"


def _version(node: onnx.NodeProto, opset: int) -> int:
    """The version of a node's operator in an opset, 0 if the opset has none."""
    try:
        return onnx.defs.get_schema(node.op_type, opset).since_version
    except (onnx.defs.SchemaError, TypeError):  # TypeError: beyond 32 bits
        return 0


def static_names(nodes: Sequence[Node]) -> frozenset[str]:
    """The values that determine shapes, and all that they are computed from."""
    static: set[str] = set()
    for node in reversed(nodes):
        if node.output in static:
            static.update(node.inputs)
        indices = OPERATORS[node.kind].static
        static.update(node.inputs[i] for i in indices if i < len(node.inputs))
    return frozenset(static - {""})
