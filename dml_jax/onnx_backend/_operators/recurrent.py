"""RNN, GRU and LSTM.

One matrix product multiplies the inputs of all steps by the weights. `lax.scan`
computes the recurrent products. A state changes only at the steps within its sequence,
so the reverse direction starts at each sequence's last step without a reversal of the
data.

In training mode, the gradient that reaches the input through the reverse direction is
multiplied by `lda_coeff`, as that of a ReverseSequence in its place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import dml_jax
from dml_jax.onnx_backend._evaluation import Array, Node, Operator
from dml_jax.onnx_backend._operators import elementwise
from dml_jax.onnx_backend._operators._arrays import clamped_lengths


class Activation(NamedTuple):
    """An activation function and its parameters."""

    name: str
    parameters: tuple[float, ...]

    def __call__(self, x: jax.Array) -> jax.Array:
        """The activation of each element."""
        return ACTIVATIONS[self.name][0](x, *self.parameters)


# Functions with the defaults of alpha and beta.
ACTIVATIONS: dict[str, tuple[Callable[..., jax.Array], tuple[float, ...]]] = {
    "relu": (jax.nn.relu, ()),
    "tanh": (jnp.tanh, ()),
    "sigmoid": (jax.nn.sigmoid, ()),
    "affine": (lambda x, alpha, beta: alpha * x + beta, (1.0, 0.0)),
    "leakyrelu": (elementwise.leaky_relu, (0.01,)),
    "thresholdedrelu": (elementwise.thresholded_relu, (1.0,)),
    "scaledtanh": (lambda x, alpha, beta: alpha * jnp.tanh(beta * x), (1.0, 1.0)),
    "hardsigmoid": (elementwise.hard_sigmoid, (0.2, 0.5)),
    "elu": (elementwise.elu, (1.0,)),
    "softsign": (jax.nn.soft_sign, ()),
    "softplus": (jax.nn.softplus, ()),
}


class Cell(NamedTuple):
    """What is static in one direction of an operator."""

    kind: str
    is_reversed: bool
    activations: tuple[Activation, ...]
    clip: float | None
    flag: bool  # GRU's linear_before_reset, LSTM's input_forget

    def clipped(self, x: jax.Array) -> jax.Array:
        """The inputs of the activation functions, within the threshold."""
        return x if self.clip is None else jnp.clip(x, -self.clip, self.clip)


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
    return (cell.activations[0](cell.clipped(x[0] + h @ weights.recurrent)),)


def _gru_step(cell: Cell, weights: Weights, state: Any, x: Gates) -> Any:
    (h,) = state
    size = h.shape[-1]
    gate, output = cell.activations
    # The bias of the last gate is inside the product with the reset gate, if any.
    bias = 0 if weights.bias is None else weights.bias[2 * size :]
    count = 3 if cell.flag else 2  # products that do not need the reset gate
    products = jnp.split(h @ weights.recurrent[:, : count * size], count, -1)
    z, r = (gate(cell.clipped(x[i] + products[i])) for i in range(2))
    if cell.flag:
        product = r * (products[2] + bias)
    else:
        product = (r * h) @ weights.recurrent[:, 2 * size :] + bias
    new = output(cell.clipped(x[2] + product))
    return ((1 - z) * new + z * h,)


def _lstm_step(cell: Cell, weights: Weights, state: Any, x: Gates) -> Any:
    h, c = state
    gate, candidate, output = cell.activations
    products = jnp.split(h @ weights.recurrent, 4, -1)
    sum_i, sum_o, sum_f, sum_c = (x + y for x, y in zip(x, products, strict=True))
    to_i = to_o = to_f = None
    if weights.peepholes is not None:
        to_i, to_o, to_f = jnp.split(weights.peepholes, 3)

    def activated(total: jax.Array, peephole: Any, c: jax.Array) -> jax.Array:
        return gate(cell.clipped(total if peephole is None else total + peephole * c))

    i = activated(sum_i, to_i, c)
    f = 1 - i if cell.flag else activated(sum_f, to_f, c)
    c = f * c + i * candidate(cell.clipped(sum_c))
    return activated(sum_o, to_o, c) * output(c), c


class Kind(NamedTuple):
    """An operator: its gates, states, and default activations for one direction."""

    step: Callable[..., Any]
    gates: int
    states: int
    activations: tuple[str, ...]
    flag: str  # an attribute


KINDS = {
    "RNN": Kind(_rnn_step, 1, 1, ("Tanh",), ""),
    "GRU": Kind(_gru_step, 3, 1, ("Sigmoid", "Tanh"), "linear_before_reset"),
    "LSTM": Kind(_lstm_step, 4, 2, ("Sigmoid", "Tanh", "Tanh"), "input_forget"),
}


class Direction(NamedTuple):
    """The inputs of one direction."""

    x: jax.Array  # [time, batch, inputs]
    weight: jax.Array  # [G * H, inputs]
    recurrent: jax.Array  # [G * H, H]
    biases: jax.Array | None  # [2 * G * H]
    peepholes: jax.Array | None  # [3 * H]
    states: tuple[jax.Array, ...]  # [batch, H]


@functools.partial(jax.jit, static_argnums=0)
def _scan(
    cells: tuple[Cell, ...], directions: tuple[Direction, ...], lengths: Any
) -> tuple[list[jax.Array], tuple[Any, ...]]:
    """The outputs [time, batch, H] of each direction, and its last states.

    Both directions are in one loop, two steps at a time, because each iteration of a
    loop has a cost of its own.
    """
    projected = list(map(_projected, cells, directions))
    weights = [part for _, part in projected]
    times = jnp.arange(directions[0].x.shape[0], dtype=jnp.int32)
    is_reversed = cells[0].is_reversed  # the other direction is flipped
    flips = [cell.is_reversed != is_reversed for cell in cells]
    rows = [(x, times) for x, _ in projected]
    rows = [
        jax.tree.map(_flipped, row) if is_flipped else row
        for row, is_flipped in zip(rows, flips, strict=True)
    ]

    def step(states: Any, rows: Any) -> Any:
        parts = zip(cells, weights, states, rows, strict=True)
        results = [_step(*part, lengths) for part in parts]
        return tuple(new for new, _ in results), [output for _, output in results]

    first = tuple(direction.states for direction in directions)
    states, outputs = lax.scan(step, first, rows, reverse=is_reversed, unroll=2)
    if lengths is not None:  # as in ONNX Runtime, an empty sequence ends in zeros
        is_empty = (lengths == 0)[:, None]
        states = jax.tree.map(lambda state: jnp.where(is_empty, 0, state), states)
    pairs = zip(outputs, flips, strict=True)
    return [_flipped(y) if is_flipped else y for y, is_flipped in pairs], states


def _flipped(x: jax.Array) -> jax.Array:
    """`x`, whose rows are steps, from the last step to the first."""
    return jnp.flip(x, 0)


def _projected(cell: Cell, direction: Direction) -> tuple[Gates, Weights]:
    """The products with the inputs of all steps, and what each step reads."""
    inner, size = None, direction.recurrent.shape[-1]
    inputs = direction.x @ direction.weight.T
    if direction.biases is not None:
        outer, inner = jnp.split(direction.biases, 2)
        # A GRU adds the recurrent bias of its last gate in each step instead.
        last = 2 * size if cell.kind == "GRU" else inner.shape[0]
        inputs = inputs + outer.at[:last].add(inner[:last])
    gates = tuple(jnp.split(inputs, KINDS[cell.kind].gates, -1))
    return gates, Weights(direction.recurrent.T, inner, direction.peepholes)


def _step(cell: Cell, weights: Weights, state: Any, row: Any, lengths: Any) -> Any:
    """The states after a step, and its output, which is zero after a sequence's end."""
    inputs, time = row
    new = KINDS[cell.kind].step(cell, weights, state, inputs)
    if lengths is None:
        return new, new[0]
    is_valid = (time < lengths)[:, None]
    pairs = zip(new, state, strict=True)
    kept = tuple(jnp.where(is_valid, after, before) for after, before in pairs)
    return kept, jnp.where(is_valid, new[0], 0)


def _recurrence(
    node: Node,
    x: Array,
    w: Array,
    r: Array,
    b: Any = None,
    sequence_lens: Any = None,
    *more: Any,
) -> list[Any]:
    """RNN, GRU and LSTM, which have the same first inputs."""
    kind, is_batch_first = KINDS[node.kind], node.attributes.get("layout", 0)
    initial, peepholes = more[: kind.states], (*more[kind.states :], None)[0]
    cells = _cells(node.kind, node.attributes)
    x = jnp.swapaxes(x, 0, 1) if is_batch_first else jnp.asarray(x)
    time, batch, hidden = x.shape[0], x.shape[1], np.shape(r)[-1]
    _require_shapes(node, x, w, r, b, len(cells))
    lengths = None
    if sequence_lens is not None:
        if np.shape(sequence_lens) != (batch,):
            raise ValueError(
                f"`sequence_lens` must have shape ({batch},); got "
                f"{np.shape(sequence_lens)}"
            )
        lengths = clamped_lengths(sequence_lens, time)
    zeros = jnp.zeros((batch, hidden), x.dtype)
    directions = []
    for i, cell in enumerate(cells):
        states = [_initial(state, i, is_batch_first) for state in initial]
        states += [None] * (kind.states - len(states))
        directions.append(
            Direction(
                _scaled(node, x, lengths) if cell.is_reversed else x,
                w[i],
                r[i],
                None if b is None else b[i],
                None if peepholes is None else peepholes[i],
                tuple(zeros if state is None else state for state in states),
            )
        )
    outputs, last = _scan(tuple(cells), tuple(directions), lengths)
    states = [jnp.stack(parts) for parts in zip(*last, strict=True)]
    if not is_batch_first:
        return [jnp.stack(outputs, 1), *states]
    outputs = [jnp.swapaxes(output, 0, 1) for output in outputs]
    return [jnp.stack(outputs, 2), *(jnp.swapaxes(state, 0, 1) for state in states)]


def _cells(name: str, attributes: Mapping[str, Any]) -> list[Cell]:
    """The static parts of the directions."""
    direction = attributes.get("direction", "forward")
    is_reversed = {
        "forward": [False],
        "reverse": [True],
        "bidirectional": [False, True],
    }
    if direction not in is_reversed:
        raise ValueError(
            f"`direction` must be one of {', '.join(is_reversed)}; got {direction!r}"
        )
    kind, count = KINDS[name], len(is_reversed[direction])
    names = attributes.get("activations", kind.activations * count)
    if len(names) != len(kind.activations) * count:
        raise ValueError(
            f"`activations` must have {len(kind.activations) * count} names; got "
            f"{len(names)}"
        )
    functions = _activations(names, attributes)
    each, flag = len(kind.activations), bool(attributes.get(kind.flag, 0))
    return [
        Cell(
            name, backwards, functions[i * each :][:each], attributes.get("clip"), flag
        )
        for i, backwards in enumerate(is_reversed[direction])
    ]


def _activations(
    names: tuple[str, ...], attributes: Mapping[str, Any]
) -> tuple[Activation, ...]:
    """The activation functions, which take alphas and betas from lists in order."""
    lists = [list(attributes.get(f"activation_{n}", ())) for n in ("alpha", "beta")]
    functions = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise ValueError(f"`activations` must be known; got {name!r}")
        defaults = ACTIVATIONS[name.lower()][1]
        pairs = zip(lists, defaults, strict=False)
        parameters = tuple(given.pop(0) if given else n for given, n in pairs)
        functions.append(Activation(name.lower(), parameters))
    return tuple(functions)


def _require_shapes(
    node: Node, x: Array, w: Array, r: Array, b: Any, directions: int
) -> None:
    hidden, gates = np.shape(r)[-1], KINDS[node.kind].gates
    wanted = {
        "W": (w, (directions, gates * hidden, np.shape(x)[-1])),
        "R": (r, (directions, gates * hidden, hidden)),
        "B": (b, (directions, 2 * gates * hidden)),
    }
    for name, (array, shape) in wanted.items():
        if array is not None and np.shape(array) != shape:
            raise ValueError(f"`{name}` must have shape {shape}; got {np.shape(array)}")


def _initial(states: Any, direction: int, is_batch_first: bool) -> Any:
    """The initial state of a direction, None if it is omitted."""
    if states is None:
        return None
    return jnp.asarray(states[:, direction] if is_batch_first else states[direction])


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
    name: Operator(_recurrence, frozenset({7, 14, 22}), indices=(4,)) for name in KINDS
}
