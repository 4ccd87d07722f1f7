"""ONNX models: whether they are valid, and the nodes in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.shape_inference

from dml_jax.onnx_backend._functions import Inlined, inline
from dml_jax.onnx_backend._operators import OPERATORS, Node
from dml_jax.onnx_backend._tensors import array_of, require_loaded


def checked(model: onnx.ModelProto) -> Inlined:
    """A valid model without functions, all of whose nodes have an operator here."""
    _require_printable(model)
    require_loaded(model)
    newest = onnx.defs.onnx_opset_version()
    for part in (model, *model.functions):
        for opset in part.opset_import:
            if opset.domain in ("", "ai.onnx") and opset.version > newest:
                raise ValueError(
                    f"onnx: `opset_import` must be at most {newest}; got "
                    f"{opset.version}"
                )
    try:
        inlined = inline(model)
        require_supported(inlined)
        _require_valid(inlined, model)
    except NotImplementedError:
        raise
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        RuntimeError,
        ValueError,
    ) as error:
        raise ValueError(f"onnx: {first_line(error)}") from None
    return inlined


def _require_valid(inlined, model):
    """Has ONNX check nodes and types, those of several opsets in their functions."""
    if not inlined.is_mixed:
        onnx.checker.check_model(inlined.model, full_check=True)
        return
    onnx.checker.check_model(
        model, full_check=True, skip_opset_compatibility_check=True
    )
    for node, opset in zip(inlined.model.graph.node, inlined.opsets, strict=True):
        context = onnx.checker.C.CheckerContext()
        context.ir_version = model.ir_version
        context.opset_imports = {"": opset, "ai.onnx": opset}
        onnx.checker.check_node(node, context)  # with the attributes of its call


def require_supported(inlined: Inlined) -> None:
    """Refuses all nodes that have no operator here, at once."""
    _require_printable(inlined.model)
    graph = inlined.model.graph
    missing = []
    for node, opset in zip(graph.node, inlined.opsets, strict=True):
        operator = OPERATORS.get(node.op_type)
        if operator is None or node.domain not in ("", "ai.onnx"):
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
            f"onnx: the model must be of tensors and {', '.join(OPERATORS)}; got "
            f"{', '.join(missing)}"
        )


def _require_printable(model: onnx.ModelProto) -> None:
    """Refuses names that would break the lines of messages, or a terminal."""
    graph = model.graph
    names = [v.name for v in (*graph.input, *graph.output, *graph.initializer)]
    for part in (graph, *model.functions):
        for node in part.node:
            names += [node.op_type, node.domain, node.name, *node.input, *node.output]
    for name in names:  # protobuf gives bytes that are not UTF-8 as bytes
        if not (isinstance(name, str) and name.isprintable()):
            raise ValueError(f"onnx: names must be printable; got {name!a}")


def node_of(node: onnx.NodeProto, opset: int, options: Mapping[str, Any]) -> Node:
    """A node of an opset, with its version and its attributes' values."""
    return Node(
        kind=node.op_type,
        label=_label(node),
        version=_version(node, opset) or 0,
        attributes={a.name: _value(node, a) for a in node.attribute},
        inputs=tuple(node.input),
        output=node.output[0],
        options=options,
    )


def _value(node, attribute):
    value = onnx.helper.get_attribute_value(attribute)
    if not isinstance(value, onnx.TensorProto):
        return value
    try:
        return array_of(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_label(node)}: {first_line(error)}") from None


def _label(node: onnx.NodeProto) -> str:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{kind} '{node.name or ', '.join(node.output)}'"


def _version(node: onnx.NodeProto, opset: int) -> int | None:
    """The version of a node's operator; None where its opset has none."""
    try:
        return onnx.defs.get_schema(node.op_type, opset).since_version
    except (onnx.defs.SchemaError, TypeError):  # which opsets beyond 32 bits give
        return None


def static_names(nodes: Sequence[Node]) -> frozenset[str]:
    """The values on which shapes depend, and all that they are computed from."""
    static: set[str] = set()
    for node in reversed(nodes):
        if node.output in static:
            static.update(node.inputs)
        indices = OPERATORS[node.kind].static
        static.update(node.inputs[i] for i in indices if i < len(node.inputs))
    return frozenset(static - {""})


def first_line(error: BaseException) -> str:
    """What an error of ONNX says, without the dump of the model that may follow."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    for line in lines[1:3]:
        text = f"{text} {line}" if text.endswith(":") else text
    return text if text.isprintable() else ascii(text)
