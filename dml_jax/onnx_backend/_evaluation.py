"""Evaluates the graphs of ONNX models.

Constant values, which depend only on initializers and shapes, are NumPy arrays; all
others are JAX arrays. A node whose inputs are all constant is computed at once, while
JAX traces the rest. Nodes can therefore compute shapes under JAX's transformations.
Integers among which are symbolic sizes are NumPy arrays of objects.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import onnx.defs
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer
from jax.extend.core import InconclusiveDimensionOperation

from dml_jax._shared import arguments

Array: TypeAlias = jax.Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rounded:
    """Integers, which have no derivatives in JAX, and equal floats that have them."""

    integers: jax.Array
    numbers: jax.Array  # with the derivative of what was rounded


# The value of a name: an array, a sequence of arrays, or None if it is omitted.
Value: TypeAlias = Array | Rounded | tuple[Array, ...] | None


@jax.custom_jvp
def with_derivative(x: jax.Array, smooth: jax.Array) -> jax.Array:
    """`x` with the derivative of `smooth`, an array of the same type."""
    del smooth
    return x


@with_derivative.defjvp
def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return primals[0], tangents[1]


class Operator(NamedTuple):
    """An operator of ONNX."""

    evaluate: Any  # gives the outputs from a node and its inputs
    since: int = 0  # the first version of it that `evaluate` implements
    static: tuple[int, ...] = ()  # inputs whose values determine the outputs' shapes
    is_folded: bool = True  # computed at once if the inputs are constant
    is_elementwise: bool = False  # on single elements, with broadcasting
    of_floats: bool = False  # it can be evaluated on the floats of `Rounded`
    of_images: bool = False  # it computes with the channels last, and transposes
    of_shapes: bool = False  # it reads no values, but shapes or numbers of arrays
    is_copy: bool = False  # of its first input, perhaps in another dtype or shape
    statistics: slice = slice(0)  # inputs that are running means and variances
    states: slice = slice(0)  # inputs that are initial states
    # Refuses inputs of an operator that ONNX's body of it computes, not `evaluate`.
    check: Callable[..., None] | None = None


class Scope(NamedTuple):
    """What a node can read."""

    values: Mapping[str, Value]
    options: Mapping[str, Any]  # `training` and `lda_coeff` of ReverseSequence
    is_wide: bool  # whether the caller is in 64-bit mode
    product_dtype: Any = np.float32  # in which products of float32 are computed
    is_expanded: bool = False  # whether nodes stand for one node of the model


class Node(NamedTuple):
    """A node of a graph."""

    kind: str  # the name of its operator
    label: str  # its name in messages
    version: int  # of the operator
    attributes: Mapping[str, Any]  # those that are set, and defaults of others
    inputs: tuple[str, ...]  # names, "" for an optional input that is omitted
    outputs: tuple[str, ...]  # names, "" for an optional output that is omitted
    operator: Operator
    scope: Scope = Scope({}, {}, True)  # while the node is evaluated

    def body(self, name: str) -> Body:
        """The graph in an attribute, as a function."""
        return Body(self.attributes[name], self.scope)

    def graphs(self) -> list[Graph]:
        """The graphs in all attributes."""
        return [value for value in self.attributes.values() if isinstance(value, Graph)]


class Graph(NamedTuple):
    """A graph, or the body of a node."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray]
    nodes: tuple[Node, ...]
    types: Mapping[str, jax.ShapeDtypeStruct]  # of outputs; unknown sizes are 0


class Body(NamedTuple):
    """The body of a node, as a function of its inputs."""

    graph: Graph
    scope: Scope

    def __call__(self, *inputs: Value) -> list[Any]:
        """The outputs of the graph."""
        return run_graph(self.graph, inputs, self.scope)


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
    """The outputs of a graph."""
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
        pairs = zip(node.outputs, _evaluate(node, inner), strict=False)
        values.update({name: _named_value(name, value) for name, value in pairs})
    return [_in_mode(_integers(values[name]), scope) for name in graph.outputs]


def _with_channels_last(operator: Operator) -> Operator:
    """An elementwise operator that computes with the channels last while JAX traces.

    Convolutions and pools do so, too. XLA cancels a transpose and its inverse if they
    are adjacent, but does not move a transpose past an operation.
    """

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


def _named_value(name: str, value: Value) -> Value:
    """A traced float array with the name that policies of `jax.checkpoint` know."""
    if isinstance(value, Tracer) and jnp.issubdtype(value.dtype, jnp.floating):
        return checkpoint_name(value, name)
    return value


# Subclasses first. Errors of other types cannot always be made from a message.
_OTHERS = LookupError, ArithmeticError, InconclusiveDimensionOperation
_KINDS = (NotImplementedError, OverflowError, TypeError, ValueError, RuntimeError)


def _evaluate(node: Node, scope: Scope) -> Sequence[Value]:
    """The outputs of a node; its errors name the node."""
    given = [scope.values[name] if name else None for name in node.inputs]
    inputs = [*map(_integers, given)]
    node = node._replace(scope=scope)
    try:
        outputs = _outputs(node, [*inputs])
        if node.operator.of_floats and any(isinstance(x, Rounded) for x in given):
            outputs = map(_joined, outputs, _outputs(node, [*map(_numbers, given)]))
        return [*outputs]
    except jax.errors.JAXTypeError:
        raise
    except (*_KINDS, *_OTHERS) as error:
        raise _named(error, node, inputs, scope) from None


def _integers(value: Value) -> Any:
    return value.integers if isinstance(value, Rounded) else value


def _numbers(value: Value) -> Any:
    return value.numbers if isinstance(value, Rounded) else value


def _joined(exact: Any, smooth: Any) -> Value:
    """An output of rounded inputs, with the derivative of the one of floats."""
    exact, smooth = _integers(exact), _numbers(smooth)
    if not jnp.issubdtype(smooth.dtype, jnp.floating):
        return exact
    joined = with_derivative(exact.astype(smooth.dtype), smooth)
    return joined if exact.dtype == smooth.dtype else Rounded(exact, joined)


def _named(
    error: Exception, node: Node, inputs: Sequence[Value], scope: Scope
) -> Exception:
    """The error with the name of its node in front, and with names of inputs.

    Messages of this package have their own, in backquotes; to those of JAX and NumPy
    the shapes of all inputs are added.
    """
    kind = next((k for k in _KINDS if isinstance(error, k)), ValueError)
    text = (str(error).splitlines() or [type(error).__name__])[0]
    text = text.removeprefix(f"{node.kind}: ")  # which the label begins with
    is_custom = not node.operator.since
    if scope.is_expanded:
        if kind is ValueError:  # the model does not have these names
            text = text.replace("`", "")
    elif kind in (TypeError, ValueError) and not (
        "`" in text or node.graphs() or is_custom
    ):
        kind = ValueError
        got = _shapes(node, inputs)
        text = f"the inputs must fit {node.kind}; got {got}: {text}"
    return kind(f"{node.label}: {text}")


def _shapes(node: Node, inputs: Sequence[Value]) -> str:
    """The shapes of a node's inputs, by ONNX's names."""
    try:
        schema = onnx.defs.get_schema(node.kind, node.version)
        names = [parameter.name for parameter in schema.inputs]
    except onnx.defs.SchemaError:
        names = [*node.inputs]
    names += names[-1:] * (len(inputs) - len(names))  # of an input that is repeated
    shapes = (
        f"`{name}` {[*map(np.shape, x)] if isinstance(x, tuple) else np.shape(x)}"
        for name, x in zip(names, inputs, strict=False)
        if x is not None
    )
    return ", ".join(shapes)


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
            return [jax.tree.map(np.asarray, _integers(value)) for value in outputs]
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
    """The outputs of an operator as a list; a single output may come without one."""
    # A tuple is one output, a sequence of arrays.
    return outputs if isinstance(outputs, list) else [outputs]


def is_symbolic(value: Value) -> bool:
    """Whether symbolic sizes are among the elements of an array."""
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return False
    return any(map(jax.export.is_symbolic_dim, value.flat))


def traced(value: Any) -> Any:
    """An array whose symbolic sizes are traced integers."""
    if not is_symbolic(value):
        return value
    return jnp.reshape(jnp.array([*value.flat], np.int64), value.shape)


def as_sizes(value: Any) -> Value:
    """A constant of which NumPy may have returned the only element."""
    if value is None or isinstance(value, (jax.Array, tuple, Rounded)):
        return value
    array = np.asarray(value)
    is_known = array.dtype == object and not is_symbolic(array)
    return array.astype(np.int64) if is_known else array


def traced_shape(name: str, value: Any) -> TypeError:
    """The error for a traced value that a shape or an option depends on."""
    return TypeError(
        f"`{name}` must be a constant, since a shape or an option depends on it; got "
        f"{arguments.describe(value)}. Close over it instead of passing it to the "
        "function that is transformed"
    )


def is_constant(value: Value) -> bool:
    """Whether a value is constant while JAX traces."""
    return all(isinstance(array, np.ndarray) for array in jax.tree.leaves(value))


def is_text(value: Any) -> bool:
    """Whether an array or a dtype is one of NumPy's for strings."""
    dtype = getattr(value, "dtype", value)
    is_kind = isinstance(dtype, np.dtype) and dtype.kind in "OSUT"
    return is_kind and not is_symbolic(value)
