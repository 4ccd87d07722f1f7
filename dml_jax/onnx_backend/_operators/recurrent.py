"""RNN, GRU and LSTM.

One matrix product multiplies the inputs of all steps by the weights. A scan of this
package computes the recurrent products. Both directions are in one loop if they have
the same activations: a GPU takes as long for one as for two.

In training mode, the gradient that reaches the input through the reverse direction is
multiplied by `lda_coeff`, as that of a ReverseSequence in its place.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

import dml_jax
from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators import elementwise
from dml_jax.onnx_backend._operators._arrays import clamped, option, require_axes
from dml_jax.onnx_backend._values import Array

# Functions with the defaults of alpha and beta.
ACTIVATIONS: dict[str, tuple[Callable[..., jax.Array], tuple[float, ...]]] = {
    "relu": (jax.nn.relu, ()),
    "tanh": (jnp.tanh, ()),
    "sigmoid": (jax.nn.sigmoid, ()),
    "affine": (lambda x, alpha, beta: alpha * x + beta, (1.0, 0.0)),
    "leakyrelu": (elementwise.leaky_relu, (0.01,)),
    # Unlike in the operator of this name, an element that is alpha remains.
    "thresholdedrelu": (lambda x, alpha: jnp.where(x >= alpha, x, 0), (1.0,)),
    "scaledtanh": (lambda x, alpha, beta: alpha * jnp.tanh(beta * x), (1.0, 1.0)),
    "hardsigmoid": (elementwise.hard_sigmoid, (0.2, 0.5)),
    "elu": (jax.nn.elu, (1.0,)),
    "softsign": (jax.nn.soft_sign, ()),
    "softplus": (jax.nn.softplus, ()),
}


@functools.cache  # cells are static, and those of the same functions are equal
def _activation(name: str, parameters: tuple[float, ...]) -> Callable[..., jax.Array]:
    function, _ = ACTIVATIONS[name]
    return lambda x: function(x, *parameters)


class Kind(NamedTuple):
    """An operator: its gates, states, and default activations for one direction."""

    step: Callable[..., Any]
    gates: int
    states: int
    activations: tuple[str, ...]
    flag: str  # an attribute


class Cell(NamedTuple):
    """What is static in one direction of an operator."""

    kind: Kind
    activations: tuple[Callable[..., jax.Array], ...]
    clip: float | None
    flag: bool  # GRU's linear_before_reset, LSTM's input_forget
    dtype: Any  # of the factors of products

    def clipped(self, x: jax.Array) -> jax.Array:
        return x if self.clip is None else jnp.clip(x, -self.clip, self.clip)

    def product(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        """A product with weights, in the dtype of `x`."""
        factors = x.astype(self.dtype), weight.astype(self.dtype)
        return jnp.matmul(*factors, preferred_element_type=x.dtype)


class Weights(NamedTuple):
    """The weights of one direction, for G gates and H hidden units."""

    recurrent: jax.Array  # [H, G * H]
    bias: jax.Array | None  # of the recurrent products, [G * H]
    peepholes: jax.Array | None  # [3 * H]


# The products with the inputs, an array for each gate. With one array for all gates, a
# step of a GRU takes more than twice as long on CPU.
Gates: TypeAlias = tuple[jax.Array, ...]


def _rnn_step(cell: Cell, weights: Weights, state: Any, x: Gates) -> Any:
    (h,) = state
    h = cell.activations[0](cell.clipped(x[0] + cell.product(h, weights.recurrent)))
    return (h,), h


def _gru_step(cell: Cell, weights: Weights, state: Any, x: Gates) -> Any:
    (h,) = state
    size = h.shape[-1]
    gate, output = cell.activations
    # The bias of the last gate is inside the product with the reset gate, if any.
    bias = 0 if weights.bias is None else weights.bias[2 * size :]
    count = 3 if cell.flag else 2  # products that do not need the reset gate
    products = cell.product(h, weights.recurrent[:, : count * size])
    products = jnp.split(products, count, -1)
    z, r = (gate(cell.clipped(x[i] + products[i])) for i in range(2))
    if cell.flag:
        product = r * (products[2] + bias)
    else:
        product = cell.product(r * h, weights.recurrent[:, 2 * size :]) + bias
    h = (1 - z) * output(cell.clipped(x[2] + product)) + z * h
    return (h,), h


def _lstm_step(cell: Cell, weights: Weights, state: Any, x: Gates) -> Any:
    h, c = state
    gate, candidate, output = cell.activations
    products = jnp.split(cell.product(h, weights.recurrent), 4, -1)
    sum_i, sum_o, sum_f, sum_c = (x + y for x, y in zip(x, products, strict=True))
    to_i = to_o = to_f = None
    if weights.peepholes is not None:
        to_i, to_o, to_f = jnp.split(weights.peepholes, 3)

    def activated(total: jax.Array, peephole: Any, c: jax.Array) -> jax.Array:
        return gate(cell.clipped(total if peephole is None else total + peephole * c))

    i = activated(sum_i, to_i, c)
    f = 1 - i if cell.flag else activated(sum_f, to_f, c)
    c = f * c + i * candidate(cell.clipped(sum_c))
    h = activated(sum_o, to_o, c) * output(cell.clipped(c))
    return (h, c), h


KINDS = {
    "RNN": Kind(_rnn_step, 1, 1, ("Tanh",), ""),
    "GRU": Kind(_gru_step, 3, 1, ("Sigmoid", "Tanh"), "linear_before_reset"),
    "LSTM": Kind(_lstm_step, 4, 2, ("Sigmoid", "Tanh", "Tanh"), "input_forget"),
}


# For each direction, whether it is the reverse one.
_ORDERS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@functools.cache  # one function for equal cells, as scans compare their steps
def _step_of(cell: Cell) -> Callable[..., Any]:
    return functools.partial(cell.kind.step, cell)


def _projected(
    cell: Cell, x: Any, weight: Any, recurrent: Any, biases: Any, peepholes: Any
) -> tuple[Weights, Gates]:
    """What each step reads, and the products with the inputs of all steps."""
    inner, size = None, recurrent.shape[-1]
    inputs = cell.product(x, weight.T)
    if biases is not None:
        outer, inner = jnp.split(biases, 2)
        # A GRU adds the recurrent bias of its last gate in each step instead.
        last = 2 * size if cell.kind is KINDS["GRU"] else inner.shape[0]
        inputs = inputs + outer.at[:last].add(inner[:last])
    gates = tuple(jnp.split(inputs, cell.kind.gates, -1))
    return Weights(recurrent.T, inner, peepholes), gates


def recurrence(
    kind: Kind,
    node: Node,
    x: Array,
    w: Array,
    r: Array,
    b: Any = None,
    sequence_lens: Any = None,
    *more: Any,
) -> list[Any]:
    """RNN, GRU and LSTM, which have the same first inputs."""
    is_batch_first = node.attributes["layout"]
    *initial, peepholes = (*more, None, None, None)[: kind.states + 1]
    order = _ORDERS[option(node, "direction", [*_ORDERS])]
    dtype = node.scope.product_dtype if x.dtype == np.float32 else x.dtype
    cells = _cells(kind, node.attributes, len(order), dtype)
    hidden = node.attributes.get("hidden_size", np.shape(r)[-1])
    count, rows = len(order), kind.gates * hidden
    states = ("batch", count) if is_batch_first else (count, "batch")
    require_axes(
        X=(x, "batch time inputs" if is_batch_first else "time batch inputs"),
        W=(w, (count, rows, "inputs")),
        R=(r, (count, rows, hidden)),
        B=(b, (count, 2 * rows)),
        P=(peepholes, (count, 3 * hidden)),
        initial_h=(initial[0], (*states, hidden)),
        initial_c=(initial[-1], (*states, hidden)),
        sequence_lens=(sequence_lens, "batch"),
    )
    x = jnp.swapaxes(x, 0, 1) if is_batch_first else jnp.asarray(x)
    time, batch, _ = x.shape
    if time == 0 and sequence_lens is None:
        sequence_lens = jnp.zeros(batch, jnp.int32)
    lengths = is_read = None
    if sequence_lens is not None:
        lengths = clamped("sequence_lens", sequence_lens, time)
        is_read = jnp.arange(time, dtype=jnp.int32)[:, None] < lengths
        x = _masked(x, is_read)

    def exchanged(states: Array) -> jax.Array:
        """The states with the batch first, or with the directions first again."""
        return jnp.swapaxes(states, 0, 1) if is_batch_first else jnp.asarray(states)

    def first(states: Any) -> jax.Array:
        if states is None:
            return jnp.zeros((count, batch, hidden), x.dtype)
        states = exchanged(states)
        return states if lengths is None else _masked(states, lengths > 0)

    inputs = [_scaled(node, x, lengths) if back else x for back in order]
    parts = jax.tree.map(jnp.asarray, (w, r, b, peepholes)), tuple(map(first, initial))
    last, outputs = _scanned(cells, order, inputs, parts, is_read)
    axes = (2, 1, 0, 3) if is_batch_first else (1, 0, 2, 3)
    states = (exchanged(jnp.stack(parts)) for parts in zip(*last, strict=True))
    return [jnp.stack(outputs).transpose(axes), *states]


def _scanned(
    cells: Sequence[Cell], order: Sequence[bool], inputs: Any, parts: Any, is_read: Any
) -> Any:
    """The last states and the outputs of each direction; the same cells in one loop."""
    options, directions = {"axis": 0, "segment_ids": is_read}, []
    for d, cell in enumerate(cells):
        arrays, state = jax.tree.map(lambda part, d=d: part[d], parts)
        weights, gates = _projected(cell, inputs[d], *arrays)
        directions.append((weights, state, gates))
    if len({*cells}) < len(cells):
        step, (weights, init, xs) = _step_of(cells[0]), zip(*directions, strict=True)
        return dml_jax.bidirectional_scan(step, weights, init, xs, **options)
    rows = zip(cells, directions, order, strict=True)
    results = (
        dml_jax.padded_scan(_step_of(cell), *direction, reverse=reverse, **options)
        for cell, direction, reverse in rows
    )
    return zip(*results, strict=True)


def _masked(x: jax.Array, is_read: Any) -> jax.Array:
    """`x` with zeros where no sequence reads it.

    Padding may hold NaN or infinities. Its products do not reach the outputs, but their
    gradients, 0 * NaN, would reach those of the weights.
    """
    return jnp.where(is_read[..., None], x, 0)


def _cells(
    kind: Kind, attributes: Mapping[str, Any], count: int, dtype: Any
) -> list[Cell]:
    """The static parts of the directions.

    Their activation functions take alphas and betas from lists in order.
    """
    each = len(kind.activations)
    names = attributes.get("activations", kind.activations * count)
    if len(names) != each * count:
        raise ValueError(
            f"`activations` must have {each * count} names; got {len(names)}"
        )
    lists = [list(attributes.get(f"activation_{n}", ())) for n in ("alpha", "beta")]
    functions = []
    for given_name in names:
        name = given_name.lower()
        if name not in ACTIVATIONS:
            raise ValueError(f"`activations` must be known; got {given_name!r}")
        pairs = zip(lists, ACTIVATIONS[name][1], strict=False)
        parameters = tuple(given.pop(0) if given else n for given, n in pairs)
        functions.append(_activation(name, parameters))
    clip, flag = attributes.get("clip"), bool(attributes.get(kind.flag, 0))
    return [
        Cell(kind, tuple(functions[i * each :][:each]), clip, flag, dtype)
        for i in range(count)
    ]


def _scaled(node: Node, x: jax.Array, lengths: Any) -> jax.Array:
    """The input, with its gradient multiplied by `lda_coeff` in training mode.

    Two reversals cancel, and the backward pass of the first one is scaled.
    """
    if not node.scope.options["training"]:
        return x
    if lengths is None:
        lengths = np.full(x.shape[1], x.shape[0], np.int32)
    reverse = functools.partial(
        dml_jax.reverse_sequence, batch_axis=1, time_axis=0, sequence_lens=lengths
    )
    return reverse(reverse(x, **node.scope.options), training=False)


OPERATORS = {
    name: Operator(functools.partial(recurrence, kind), 7, states=slice(5, 7))
    for name, kind in KINDS.items()
}
