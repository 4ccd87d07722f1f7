"""Validates ONNX models, and converts their graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import onnx
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.shape_inference

from dml_jax.onnx_backend._analysis import captured_names
from dml_jax.onnx_backend._errors import as_value_error
from dml_jax.onnx_backend._evaluation import (
    Graph,
    Node,
    Operator,
    Scope,
    modes,
    run_graph,
)
from dml_jax.onnx_backend._functions import (
    Inlined,
    defaults_of,
    expand,
    inline,
    set_defaults,
)
from dml_jax.onnx_backend._operators import ATTRIBUTES_OF, MICROSOFT, OPERATORS, REFUSED
from dml_jax.onnx_backend._operators._arrays import dtype_of, is_quantized
from dml_jax.onnx_backend._protos import (
    all_graphs,
    all_nodes,
    array_of,
    graphs_of,
    initializers,
    is_weight,
    path_of,
    require_loaded,
)

# An operator that a later opset changes is refused.
NEWEST_OPSET = 28
_DOMAINS = ("", "ai.onnx")
_LOOPS = ("Loop", "Scan")
_VALUES = ("tensor_type", None)
_VALUES_OF_BODIES = (*_VALUES, "sequence_type", "optional_type")
_MICROSOFT = "com.microsoft"  # whose operators have one version
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
    require_supported(inlined, functions)
    with as_value_error("onnx"):
        _check(model, inlined, functions)
    return inlined


def split_shared(graph: onnx.GraphProto) -> None:
    """Copies the arrays that running statistics share with weights.

    Exporters merge equal arrays, such as the scale and the variance of a new layer.
    """
    roots, others = {}, set()
    statistics: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        operator, places = _known(node), range(len(node.input))
        for i in places:
            root = roots.get(node.input[i], node.input[i])
            if node.op_type == "Identity":
                roots |= dict.fromkeys(node.output, root)
            elif operator is not None and i in places[operator.statistics]:
                statistics.setdefault(root, []).append((node, i))
            else:
                others.add(root)
    others -= {info.name for info in graph.input}
    for tensor in [*graph.initializer]:
        if tensor.name in others and tensor.name in statistics:
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name += ".statistics"
            for node, i in statistics[tensor.name]:
                node.input[i] = graph.initializer[-1].name


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
        checked = _with_known_operators(inlined, functions)
        onnx.checker.check_model(checked, full_check=True)
        return
    onnx.checker.check_model(
        model, full_check=True, skip_opset_compatibility_check=True
    )
    for node in all_nodes(inlined.model.graph.node):
        if not any(graphs_of(node)) and not _function_of(node, functions):
            context = onnx.checker.C.CheckerContext()
            context.ir_version = model.ir_version
            context.opset_imports = dict.fromkeys(_DOMAINS, inlined.opset(node))
            onnx.checker.check_node(node, context)


def _with_known_operators(inlined: Inlined, functions: Functions) -> onnx.ModelProto:
    """A model for ONNX's checker.

    It refuses new and deprecated operators in ONNX's domain, and bodies without
    default attributes.
    """
    checked = onnx.ModelProto()
    checked.CopyFrom(inlined.model)
    added = onnx.helper.make_opsetid("dml_jax.unknown", 1)
    for node in all_nodes(checked.graph.node):
        if node.domain not in _DOMAINS:
            continue
        opset, is_custom = inlined.opset(node), bool(_function_of(node, functions))
        is_known = bool(_version(node, opset))
        schema: Any = onnx.defs.get_schema(node.op_type, opset) if is_known else None
        if schema.deprecated if is_known else is_custom:
            node.domain = added.domain
            if added not in checked.opset_import:
                checked.opset_import.append(added)
        elif is_known:
            set_defaults(node, defaults_of(schema))
    return checked


def require_supported(inlined: Inlined, functions: Functions) -> None:
    """Refuses a model with unsupported parts; the message lists all of them."""
    graph = inlined.model.graph
    missing, others, kinds = [], [], {}
    for node in all_nodes(graph.node):
        fault = _fault(node, inlined.opset(node), functions)
        if fault is not None:
            missing.append(f"{_label(node)}{fault}")
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
    if _function_of(node, functions) is not None:
        return None
    operator = _known(node)
    if operator is None:
        reason = REFUSED.get(node.op_type) if node.domain in _DOMAINS else None
        return f", because {reason}" if reason else ""
    if not operator.since <= _version(node, opset) <= NEWEST_OPSET:
        return f" of opset {opset}"
    if any(a.name == "sparse_value" for a in node.attribute):
        return " with a sparse value"
    return None


def _known(node: onnx.NodeProto) -> Operator | None:
    """The operator of a node, None if it is not supported."""
    if node.domain == _MICROSOFT:
        return MICROSOFT.get(node.op_type)
    return OPERATORS.get(node.op_type) if node.domain in _DOMAINS else None


def _function_of(
    node: onnx.NodeProto, functions: Functions
) -> Callable[..., Any] | None:
    """The function that is passed for a node."""
    domains = _DOMAINS if node.domain in _DOMAINS else (node.domain,)
    keys = [*((domain, node.op_type) for domain in domains), node.op_type]
    return next((functions[key] for key in keys if key in functions), None)


def convert(inlined: Inlined, functions: Functions) -> Graph:
    """Converts the graph of a model.

    The outer graph gets the initializers of all graphs, by names that are unique, and
    the Constant nodes that hold weights.
    """
    inlined = inlined._replace(model=_with_shapes_of_bodies(inlined))
    has_functions = inlined.is_recorded
    found = initializers(inlined.model.graph, has_functions)
    unique: dict[str, dict[str, str]] = {}
    for path, own_name, name, _ in found:
        unique.setdefault(path, {})[own_name] = name

    def graph_of(
        graph: onnx.GraphProto, path: str, outer: Mapping[str, str], constants: Any
    ) -> Graph:
        own = unique.get(path, {})
        names = {**outer, **own, **{info.name: info.name for info in graph.input}}
        nodes = (n for n in graph.node if has_functions or not is_weight(n))
        return Graph(
            inputs=tuple(info.name for info in graph.input),
            outputs=tuple(names.get(info.name, info.name) for info in graph.output),
            constants=constants,
            nodes=tuple(node_of(node, path, names) for node in nodes),
            types={
                names.get(info.name, info.name): _type_of(info)
                for info in graph.output
                if info.type.tensor_type.HasField("shape")
            },
        )

    def node_of(node: onnx.NodeProto, path: str, names: Mapping[str, str]) -> Node:
        opset = inlined.opset(node)
        version = _version(node, opset)
        operator = _operator_of(node, opset, functions)
        is_custom = not operator.since
        defaults = [] if is_custom else _defaults(node.domain, node.op_type, version)
        parts = *defaults, *node.attribute  # the last one of a name counts
        return Node(
            kind=node.op_type,
            label=_label(node),
            version=version,
            attributes={a.name: value_of(node, a, path, names) for a in parts},
            inputs=tuple(names.get(name, name) for name in node.input),
            outputs=tuple(node.output),
            operator=operator,
        )

    def value_of(
        node: onnx.NodeProto,
        attribute: onnx.AttributeProto,
        path: str,
        names: Mapping[str, str],
    ) -> Any:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            return array_of(value, _label(node))
        if isinstance(value, onnx.GraphProto):
            return graph_of(value, path_of(path, node, attribute), names, {})
        with as_value_error(_label(node)):
            if isinstance(value, bytes):
                return value.decode()
            is_text = attribute.type == onnx.AttributeProto.STRINGS
            return [text.decode() for text in value] if is_text else value

    constants = {
        name: array_of(tensor, f"onnx: `{own_name}`")
        for _, own_name, name, tensor in found
    }
    graph = graph_of(inlined.model.graph, "", {}, constants)
    return graph if has_functions else _with_float_weights(graph)


def _with_float_weights(graph: Graph) -> Graph:
    """The graph with floats in place of nodes that make them of quantized weights."""
    constants = graph.constants.items()
    values: dict[str, Any] = {n: x for n, x in constants if n not in graph.inputs}
    floats = {}
    for node in graph.nodes:
        if not node.operator.since:  # a function in `operators`
            continue
        if node.kind == "Constant":
            values[node.outputs[0]] = node.operator.evaluate(node)
        if node.kind == "Dropout" and node.inputs[2:]:  # an error in training mode
            part = Graph(node.inputs, (), {}, (node,), {})
            run_graph(part, [*map(values.get, node.inputs)], Scope({}, {}, True))
        given: list[Any] = [values.get(name) for name in node.inputs if name]
        if any(x is None for x in given):
            continue
        is_cast = node.kind == "Cast" and is_quantized(given[0])
        if is_cast or node.kind == "DequantizeLinear":
            part = Graph((), node.outputs, {}, (node,), {})
            with modes():
                (array,) = run_graph(part, (), Scope(values, {}, True))
            if jnp.issubdtype(array.dtype, jnp.floating):
                floats[node.outputs[0]] = array
    nodes = tuple(n for n in graph.nodes if floats.keys().isdisjoint(n.outputs))
    unread = captured_names(graph._replace(constants={}))
    unread -= captured_names(graph._replace(constants={}, nodes=nodes))
    kept = {name: x for name, x in constants if name not in unread}
    return graph._replace(constants={**kept, **floats}, nodes=nodes)


@functools.cache
def _defaults(domain: str, kind: str, version: int) -> list[onnx.AttributeProto]:
    """The default attributes of an operator, the ones of a later version first.

    With those that a version adds, an operator does what it did before. Lists are left
    out, since their lengths vary.
    """
    if domain == _MICROSOFT:
        kind, version = ATTRIBUTES_OF.get(kind, kind), NEWEST_OPSET
    if not onnx.defs.has(kind):
        return []
    schemas = onnx.defs.get_schema(kind), onnx.defs.get_schema(kind, version)
    values = [value for schema in schemas for value in defaults_of(schema)]
    return [value for value in values if not (value.ints or value.strings)]


def _with_shapes_of_bodies(inlined: Inlined) -> onnx.ModelProto:
    """The model, in which outputs of loop bodies have shapes.

    ONNX infers those that are missing.
    """
    has_loops = any(n.op_type in _LOOPS for n in all_nodes(inlined.model.graph.node))
    # ONNX infers by one opset, and none of 2 GB or more.
    if not has_loops or inlined.is_mixed() or inlined.model.ByteSize() >= 2**31:
        return inlined.model
    return onnx.shape_inference.infer_shapes(inlined.model)


def _type_of(info: onnx.ValueInfoProto) -> jax.ShapeDtypeStruct:
    """The type of an output, with 0 for sizes that are not known."""
    tensor = info.type.tensor_type
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    return jax.ShapeDtypeStruct(
        shape, dtype_of(f"onnx: `{info.name}`", tensor.elem_type)
    )


def _operator_of(node: onnx.NodeProto, opset: int, functions: Functions) -> Operator:
    function = _function_of(node, functions)
    if function is not None:
        return _custom(function)
    operator = cast(Operator, _known(node))  # `require_supported` refuses the others
    if operator.check is None:
        return operator
    return operator._replace(evaluate=_expanded(node, opset, operator.check))


def _expanded(
    proto: onnx.NodeProto, opset: int, check: Callable[..., None]
) -> Callable[..., list[Any]]:
    """Evaluates the body that ONNX defines for an operator."""

    def evaluate(node: Node, *inputs: Any) -> list[Any]:
        check(node, *inputs)
        graph = convert(expand(proto, opset, inputs), {})
        given = [x for x in inputs if x is not None]
        results = iter(run_graph(graph, given, node.scope._replace(is_expanded=True)))
        return [next(results) if name else None for name in node.outputs]

    return evaluate


def _custom(function: Callable[..., Any]) -> Operator:
    """An operator from a function of a node's attributes and inputs."""

    def evaluate(node: Node, *inputs: Any) -> list[Any]:
        attributes = {
            name: node.body(name) if isinstance(value, Graph) else value
            for name, value in node.attributes.items()
        }
        with jax.enable_x64(node.scope.is_wide):
            outputs = function(attributes, *inputs)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        if len(outputs) != len(node.outputs):
            raise ValueError(
                f"the function in `operators` must return {len(node.outputs)} outputs; "
                f"got {len(outputs)}"
            )
        return outputs

    return Operator(evaluate, is_folded=False)


def _label(node: onnx.NodeProto) -> str:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{kind} '{node.name or ', '.join(node.output)}'"


def _version(node: onnx.NodeProto, opset: int) -> int:
    """The version of a node's operator in an opset, 0 if the opset has none."""
    if node.domain == _MICROSOFT:
        return 1
    try:
        return onnx.defs.get_schema(node.op_type, opset).since_version
    except (onnx.defs.SchemaError, TypeError):  # TypeError: beyond 32 bits
        return 0
