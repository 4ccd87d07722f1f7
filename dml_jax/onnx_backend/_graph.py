"""Converts the graphs of validated ONNX models."""

import collections
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import onnx
import onnx.defs
import onnx.helper
import onnx.shape_inference

from dml_jax.onnx_backend import _protos
from dml_jax.onnx_backend._errors import as_value_error
from dml_jax.onnx_backend._evaluation import Body, modes, run_graph
from dml_jax.onnx_backend._functions import Inlined, defaults_of, expand
from dml_jax.onnx_backend._nodes import Graph, Node, Operator, Scope
from dml_jax.onnx_backend._operators import ATTRIBUTES_OF
from dml_jax.onnx_backend._operators._arrays import dtype_of, is_quantized
from dml_jax.onnx_backend._validation import (
    MICROSOFT_DOMAIN,
    NEWEST_OPSET,
    Functions,
    function_of,
    known_operator,
    label_of,
    version_of,
)


def split_shared(graph: onnx.GraphProto) -> None:
    """Copies the arrays that running statistics share with weights.

    Exporters merge equal arrays, such as the scale and the variance of a new layer.
    """
    roots, others = {}, set()
    statistics: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        operator, places = known_operator(node), range(len(node.input))
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


def convert(inlined: Inlined, functions: Functions) -> Graph:
    """Converts the graph of a model.

    The outer graph gets the initializers of all graphs, by names that are unique, and
    the Constant nodes of several floats.
    """
    inlined = inlined._replace(model=_with_shapes_of_bodies(inlined))
    found = _protos.initializers(inlined.model.graph, inlined.is_recorded)
    unique: dict[str, dict[str, str]] = collections.defaultdict(dict)
    constants = {}
    for path, _, own_name, name, tensor in found:
        unique[path][own_name] = name
        constants[name] = _protos.array_of(tensor, f"onnx: `{own_name}`")
    converter = _Converter(inlined, functions, unique, itertools.count())
    graph = converter.graph(inlined.model.graph, "", {})._replace(constants=constants)
    return graph if inlined.is_recorded else _with_float_weights(graph)


class _Converter(NamedTuple):
    """Converts graphs and their nodes.

    A graph is known by its path from the outer one. `names` are those of constants that
    it can read, with the unique ones.
    """

    inlined: Inlined
    functions: Functions
    unique: Mapping[str, Mapping[str, str]]  # names of each path's own constants
    places: Iterator[int]  # of the nodes

    def graph(
        self, graph: onnx.GraphProto, path: str, outer: Mapping[str, str]
    ) -> Graph:
        inputs = tuple(info.name for info in graph.input)
        own = {**self.unique.get(path, {}), **{name: name for name in inputs}}
        names = {**outer, **own}
        has_functions = self.inlined.is_recorded
        nodes = (n for n in graph.node if has_functions or not _protos.is_weight(n))
        return Graph(
            inputs=inputs,
            outputs=tuple(names.get(info.name, info.name) for info in graph.output),
            constants={},
            nodes=tuple(self.node(node, path, names) for node in nodes),
            types={
                names.get(info.name, info.name): _type_of(info)
                for info in graph.output
                if info.type.tensor_type.HasField("shape")
            },
        )

    def node(self, node: onnx.NodeProto, path: str, names: Mapping[str, str]) -> Node:
        opset = self.inlined.opset(node)
        version = version_of(node, opset)
        operator = _operator_of(node, opset, self.functions)
        parts = [*node.attribute]
        if not operator.is_custom:  # the last one of a name counts
            parts = [*_defaults(node.domain, node.op_type, version), *parts]
        return Node(
            kind=node.op_type,
            label=label_of(node),
            version=version,
            attributes={a.name: self.attribute(node, a, path, names) for a in parts},
            inputs=tuple(names.get(name, name) for name in node.input),
            outputs=tuple(node.output),
            operator=operator,
            place=next(self.places),
        )

    def attribute(
        self,
        node: onnx.NodeProto,
        attribute: onnx.AttributeProto,
        path: str,
        names: Mapping[str, str],
    ) -> Any:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            return _protos.array_of(value, label_of(node))
        if isinstance(value, onnx.GraphProto):
            return self.graph(value, _protos.path_of(path, node, attribute), names)
        with as_value_error(label_of(node)):
            if isinstance(value, bytes):
                return value.decode()
            is_text = attribute.type == onnx.AttributeProto.STRINGS
            return [text.decode() for text in value] if is_text else value


def _with_float_weights(graph: Graph) -> Graph:
    """The graph with floats in place of nodes that make them of quantized weights."""
    constants = graph.constants.items()
    values: dict[str, Any] = {n: x for n, x in constants if n not in graph.inputs}
    floats = {}
    for node in graph.nodes:
        if node.operator.is_custom:
            continue
        if node.kind == "Constant":
            values[node.outputs[0]] = node.operator.evaluate(node)
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
    unread = graph._replace(constants={}).captured_names()
    unread -= graph._replace(constants={}, nodes=nodes).captured_names()
    kept = {name: x for name, x in constants if name not in unread}
    return graph._replace(constants={**kept, **floats}, nodes=nodes)


@functools.cache
def _defaults(domain: str, kind: str, version: int) -> list[onnx.AttributeProto]:
    """The default attributes of an operator, the ones of a later version first.

    With those that a version adds, an operator does what it did before. Lists are left
    out, since their lengths vary.
    """
    if domain == MICROSOFT_DOMAIN or kind in ATTRIBUTES_OF:
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
    nodes = _protos.all_nodes(inlined.model.graph.node)
    has_loops = any(node.op_type in ("Loop", "Scan") for node in nodes)
    # ONNX infers by one opset, and none of 2 GB or more.
    if not has_loops or inlined.is_mixed() or inlined.model.ByteSize() >= 2**31:
        return inlined.model
    return onnx.shape_inference.infer_shapes(inlined.model)


def _type_of(info: onnx.ValueInfoProto) -> jax.ShapeDtypeStruct:
    """The type of an output, with 0 for sizes that are not known."""
    tensor = info.type.tensor_type
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    dtype = dtype_of(f"onnx: `{info.name}`", tensor.elem_type)
    return jax.ShapeDtypeStruct(shape, dtype)


def _operator_of(node: onnx.NodeProto, opset: int, functions: Functions) -> Operator:
    function = function_of(node, functions)
    if function is not None:
        return _custom(function)
    operator = cast(Operator, known_operator(node))  # it is supported
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
            name: Body.of(node, name) if isinstance(value, Graph) else value
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
