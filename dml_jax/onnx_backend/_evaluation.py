"""Evaluates the graphs of ONNX models.

A node whose inputs are all constant is computed during tracing. Nodes can therefore
compute shapes under JAX's transformations.

Convolutions and pools compute with the channels last, and so do the elementwise
operators that read their outputs. XLA cancels a transpose and its inverse if they are
adjacent, but does not move a transpose past an operation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer

from dml_jax.onnx_backend._errors import OF_NODES, of_node
from dml_jax.onnx_backend._nodes import Graph, Node, Operator, Scope
from dml_jax.onnx_backend._values import (
    Rounded,
    Value,
    as_sizes,
    integers,
    is_constant,
    is_symbolic,
    is_text,
    joined,
    numbers,
    traced,
    traced_shape,
)


class Body(NamedTuple):
    """The body of a node, as a function of its inputs."""

    graph: Graph
    scope: Scope

    @classmethod
    def of(cls, node: Node, name: str) -> Body:
        """The graph in an attribute of a node."""
        return cls(node.attributes[name], node.scope)

    def __call__(self, *inputs: Value) -> list[Any]:
        return run_graph(self.graph, inputs, self.scope)

    def at(self, iteration: Any) -> Body:
        """The body in an iteration, in which it draws random numbers of its own."""
        iterations = (*self.scope.iterations, iteration)
        return self._replace(scope=self.scope._replace(iterations=iterations))


@contextlib.contextmanager
def modes() -> Iterator[None]:
    """The modes of JAX in which nodes are evaluated, whatever the caller's are."""
    with (
        jax.enable_x64(True),  # shapes and indices have 64 bits
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        yield


def run_graph(graph: Graph, inputs: Sequence[Value], scope: Scope) -> list[Any]:
    given = dict(zip(graph.inputs, inputs, strict=True))
    values = {**scope.values, **graph.constants, **given}
    inner = scope._replace(values=values)
    images: set[str] = set()
    for node in graph.nodes:
        is_image = node.operator.of_images
        if node.operator.is_elementwise and not images.isdisjoint(node.inputs):
            is_image = True
            node = node._replace(operator=_with_channels_last(node.operator))
        images.update(filter(None, node.outputs) if is_image else ())
        for name, value in zip(node.outputs, _evaluate(node, inner), strict=False):
            if isinstance(value, Tracer) and jnp.issubdtype(value.dtype, jnp.floating):
                value = checkpoint_name(value, name)  # for policies of `jax.checkpoint`
            values[name] = value
    return [_in_mode(integers(values[name]), scope) for name in graph.outputs]


def _with_channels_last(operator: Operator) -> Operator:
    """An elementwise operator that computes with the channels last while JAX traces."""

    def evaluate(node: Node, *inputs: Any) -> Any:
        rank = max(map(np.ndim, inputs))
        if rank < 3 or not any(isinstance(x, Tracer) for x in inputs):
            return operator.evaluate(node, *inputs)
        try:
            outputs = operator.evaluate(node, *(_moved(x, rank) for x in inputs))
        except (TypeError, ValueError):  # an error must have the shapes of the inputs
            return operator.evaluate(node, *inputs)
        return jax.tree.map(lambda y: jnp.moveaxis(y, -1, 1), outputs)

    return operator._replace(evaluate=evaluate)


def _moved(x: Any, rank: int) -> Any:
    """`x` with `rank` axes, the second one last. None and scalars are unchanged."""
    if np.shape(x) in ((), (1,)):
        return x
    x = x.reshape(*[1] * (rank - x.ndim), *x.shape)
    return x.transpose(0, *range(2, rank), 1)


def _evaluate(node: Node, scope: Scope) -> Sequence[Value]:
    """The outputs of a node; its errors name the node."""
    given = [scope.values[name] if name else None for name in node.inputs]
    inputs = [*map(integers, given)]
    node = node._replace(scope=scope)
    try:
        outputs = _outputs(node, [*inputs])
        if node.operator.of_floats and any(isinstance(x, Rounded) for x in given):
            outputs = map(joined, outputs, _outputs(node, [*map(numbers, given)]))
        return [*outputs]
    except jax.errors.JAXTypeError:
        raise
    except OF_NODES as error:
        raise of_node(error, node, inputs) from None


def _outputs(node: Node, inputs: list[Any]) -> Sequence[Value]:
    operator = node.operator
    for i in operator.static:
        if i < len(inputs) and inputs[i] is not None:
            if isinstance(inputs[i], Tracer):
                raise traced_shape(node.inputs[i], inputs[i])
            inputs[i] = np.asarray(inputs[i])
    if any(is_text(value) for value in inputs):
        inputs = [None if value is None else np.asarray(value) for value in inputs]
    is_folded = operator.is_folded and all(map(is_constant, inputs))
    has_sizes = any(map(is_symbolic, inputs))
    if is_folded and not has_sizes:
        with jax.ensure_compile_time_eval(), np.errstate(all="ignore"):
            outputs = _as_list(operator.evaluate(node, *inputs))
            return [jax.tree.map(np.asarray, integers(value)) for value in outputs]
    if not is_folded:
        numbered = enumerate(_in_mode(value, node.scope) for value in inputs)
        inputs = [x if i in operator.static else traced(x) for i, x in numbered]
    outputs = _as_list(operator.evaluate(node, *inputs))
    if has_sizes:
        outputs = map(as_sizes, outputs)
    return [_in_mode(value, node.scope) for value in outputs]


_NARROW = {np.dtype(np.float64): np.float32, np.dtype(np.complex128): np.complex64}


def _in_mode(value: Any, scope: Scope) -> Any:
    """The value, without floats of 64 bits if the caller is not in 64-bit mode.

    JAX would narrow their derivatives. Integers have none, and keep their width.
    """
    if isinstance(value, tuple):
        return tuple(_in_mode(array, scope) for array in value)
    dtype = None if scope.is_wide else _NARROW.get(getattr(value, "dtype", None))
    return value.astype(dtype) if dtype else value


def _as_list(outputs: Any) -> list[Value]:
    """The outputs of an operator. A tuple is a single one, a sequence of arrays."""
    return outputs if isinstance(outputs, list) else [outputs]
