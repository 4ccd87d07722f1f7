"""Validates ONNX models: what `prepare` refuses, and why."""

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import onnx.checker
import onnx.defs
import onnx.helper

from dml_jax.onnx_backend._errors import as_value_error
from dml_jax.onnx_backend._functions import Inlined, defaults_of, inline, set_defaults
from dml_jax.onnx_backend._nodes import Operator
from dml_jax.onnx_backend._operators import ATTRIBUTES_OF, MICROSOFT, OPERATORS, REFUSED
from dml_jax.onnx_backend._protos import all_graphs, all_nodes, require_loaded

# An operator that a later opset changes is refused.
NEWEST_OPSET = 28
_DOMAINS = ("", "ai.onnx")
_VALUES = ("tensor_type", None)
_VALUES_OF_BODIES = (*_VALUES, "sequence_type", "optional_type")
MICROSOFT_DOMAIN = "com.microsoft"  # whose operators have one version
# Functions by the name of an operator, or by its domain and name.
Functions = Mapping[Any, Callable[..., Any]]


def validate_model(model: onnx.ModelProto, functions: Functions) -> Inlined:
    """Checks that a model is valid and supported, and inlines its functions."""
    require_loaded(model)
    _require_shapes(model.graph)
    model = _without_negative_sizes(model)
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
    _require_supported(inlined, functions)
    with as_value_error("onnx"):
        _check(model, inlined, functions)
    return inlined


def _require_shapes(graph: onnx.GraphProto) -> None:
    """Refuses what has no type or no shape, as ONNX does without the names."""
    for info in (*graph.input, *graph.output):
        kind = info.type
        if kind.WhichOneof("value") is None:
            raise ValueError(f"onnx: `{info.name}` must have a type; got none")
        if kind.HasField("tensor_type") and not kind.tensor_type.HasField("shape"):
            raise ValueError(
                f"onnx: `{info.name}` must have a shape, whose sizes may be unknown; "
                "got none"
            )


def _without_negative_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which sizes below 0, as old exporters write them, are unknown."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _, graph in all_graphs(changed.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")
    return changed


def _check(model: onnx.ModelProto, inlined: Inlined, functions: Functions) -> None:
    """Runs ONNX's checker; nodes of another opset are checked one by one."""
    if not inlined.is_mixed():
        onnx.checker.check_model(_with_known_operators(inlined), full_check=True)
        return
    onnx.checker.check_model(
        model, full_check=True, skip_opset_compatibility_check=True
    )
    for node in all_nodes(inlined.model.graph.node):
        has_graph = any(attribute.HasField("g") for attribute in node.attribute)
        if not has_graph and not function_of(node, functions):
            context = onnx.checker.C.CheckerContext()
            context.ir_version = model.ir_version
            context.opset_imports = dict.fromkeys(_DOMAINS, inlined.opset(node))
            onnx.checker.check_node(node, context)


def _with_known_operators(inlined: Inlined) -> onnx.ModelProto:
    """The model as ONNX's checker accepts it.

    The checker refuses new and deprecated operators in ONNX's domain and those of ONNX
    Runtime, and bodies without default attributes.
    """
    checked = onnx.ModelProto()
    checked.CopyFrom(inlined.model)
    added = onnx.helper.make_opsetid("dml_jax.unknown", 1)
    for node in all_nodes(checked.graph.node):
        if node.domain not in _DOMAINS:
            continue
        schema = _schema_of(node, inlined.opset(node))
        if schema is None or schema.deprecated:
            node.domain = added.domain
            if added not in checked.opset_import:
                checked.opset_import.append(added)
        else:
            set_defaults(node, defaults_of(schema))
    return checked


def _require_supported(inlined: Inlined, functions: Functions) -> None:
    """Refuses a model with unsupported parts; the message lists all of them."""
    graph = inlined.model.graph
    missing, others, kinds = [], [], {}
    for node in all_nodes(graph.node):
        fault = _fault(node, inlined.opset(node), functions)
        if fault is not None:
            missing.append(f"{label_of(node)}{fault}")
            kinds[node.op_type] = None
    for _, inner in all_graphs(graph):
        if inner.sparse_initializer:
            others.append("sparse initializers")
        kinds_of_values = _VALUES if inner is graph else _VALUES_OF_BODIES
        for info in (*inner.input, *inner.output):
            if info.type.WhichOneof("value") not in kinds_of_values:
                others.append(f"'{info.name}', which is not a tensor")
    if missing or others:
        functions_help = missing and not others
        hint = ", ".join(f"{kind!r}: function" for kind in kinds)
        hint = f". Functions for operators can be passed: operators={{{hint}}}"
        raise NotImplementedError(
            "onnx: the model must have only tensors and supported operators; got "
            f"{', '.join([*missing, *others])}{hint if functions_help else ''}"
        )


def _fault(node: onnx.NodeProto, opset: int, functions: Functions) -> str | None:
    """Why a node is not supported, None if it is."""
    if function_of(node, functions) is not None:
        return None
    operator = known_operator(node)
    if operator is None:
        reason = REFUSED.get(node.op_type if node.domain in _DOMAINS else node.domain)
        return f", because {reason}" if reason else ""
    if not operator.since <= version_of(node, opset) <= NEWEST_OPSET:
        return f" of opset {opset}"
    if any(a.name == "sparse_value" for a in node.attribute):
        return " with a sparse value"
    return None


def known_operator(node: onnx.NodeProto) -> Operator | None:
    """The operator of a node, None if it is not supported."""
    if node.domain == MICROSOFT_DOMAIN:
        return MICROSOFT.get(node.op_type)
    return OPERATORS.get(node.op_type) if node.domain in _DOMAINS else None


def function_of(
    node: onnx.NodeProto, functions: Functions
) -> Callable[..., Any] | None:
    domains = _DOMAINS if node.domain in _DOMAINS else (node.domain,)
    keys = [*((domain, node.op_type) for domain in domains), node.op_type]
    return next((functions[key] for key in keys if key in functions), None)


def label_of(node: onnx.NodeProto) -> str:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{kind} '{node.name or ', '.join(node.output)}'"


def version_of(node: onnx.NodeProto, opset: int) -> int:
    """The version of a node's operator in an opset, 0 if the opset has none."""
    if node.domain == MICROSOFT_DOMAIN:
        return 1
    schema = _schema_of(node, opset)
    if schema is None:  # ONNX Runtime may have it from opset 1
        return int(node.op_type in ATTRIBUTES_OF)
    return schema.since_version


def _schema_of(node: onnx.NodeProto, opset: int) -> Any:
    """ONNX's definition of the operator of a node, None if the opset has none."""
    try:
        return onnx.defs.get_schema(node.op_type, opset)
    except (onnx.defs.SchemaError, TypeError):  # TypeError: beyond 32 bits
        return None
