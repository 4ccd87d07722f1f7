"""If, Loop and Scan.

A loop is iterated in Python if all that it reads is concrete; its values may then
change their shapes. Otherwise it becomes a loop of XLA. If the condition depends on
constants only, the nodes that compute it are evaluated first, which gives the number of
iterations. Such a loop can be differentiated, and may have scan outputs.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from dml_jax._shared import scans
from dml_jax.onnx_backend._evaluation import Body
from dml_jax.onnx_backend._nodes import Node, Operator, are_random, shape_names
from dml_jax.onnx_backend._operators._arrays import (
    integer,
    normalized,
    numpy_or_jax,
    positions,
)
from dml_jax.onnx_backend._range_checks import are_collected, note, with_check
from dml_jax.onnx_backend._values import Array, is_constant, traced

MOST_ITERATIONS = 2**20
_CLOSE = (
    "Close over the inputs that it depends on instead of passing them to the function "
    "that is transformed"
)
_REACH = (
    "A body is traced even if it is never reached, where M or the condition is traced. "
    f"{_CLOSE}"
)
_COUNTER = jax.ShapeDtypeStruct((), np.int64)


def _if(node: Node, condition: Array) -> list[Any]:
    branches = Body.of(node, "then_branch"), Body.of(node, "else_branch")
    if not isinstance(condition, Tracer):
        return branches[0 if _concrete_condition(condition) else 1]()
    then, otherwise = map(_checked, branches)
    with _hint_of_reach():
        first, second = (_types(jax.eval_shape(f)[0]) for f in (then, otherwise))
    if first != second:
        raise TypeError(
            "the branches must have outputs of the same shapes and dtypes if the "
            f"condition is traced; got {first} and {second}"
        )
    outputs, is_outside = lax.cond(jnp.reshape(condition, ()), then, otherwise)
    note(is_outside)
    return list(outputs)


def _checked(body: Body) -> Callable[..., Any]:
    """A function of the outputs of a body, and whether a check in it has failed."""
    return with_check(lambda *inputs: _arrays(body(*inputs)))


def _arrays(values: Iterable[Any]) -> tuple[Any, ...]:
    """Values as arrays, and sequences as tuples of arrays."""
    return jax.tree.map(lambda x: jnp.asarray(traced(x)), tuple(values))


@contextlib.contextmanager
def _hint_of_reach() -> Iterator[None]:
    """Adds to errors in a body that it is traced even if it is never reached."""
    try:
        yield
    except jax.errors.JAXTypeError:
        raise
    except (NotImplementedError, OverflowError, TypeError, ValueError) as error:
        is_told = _REACH in str(error)  # by an inner body
        raise error if is_told else type(error)(f"{error}. {_REACH}") from None


# Loop ---------------------------------------------------------------------------------


def _loop(node: Node, limit: Any, condition: Any, *initial: Any) -> list[Any]:
    body = Body.of(node, "body")
    count = len(initial)
    if _has_no_iterations(limit, condition):
        return [*initial, *_no_rows(body, 1 + count, _COUNTER, True, *initial)]
    if not _is_compiled(body, limit, condition, *initial):
        return _iterate(body, limit, condition, initial)
    body, kept = _without_invariants(body, initial)
    varying = tuple(itertools.compress(initial, kept))
    times = _constant_trip_count(body, limit, condition, varying)
    has_scan_outputs = len(body.graph.outputs) > 1 + len(varying)
    if times is not None:
        last, scanned = _known_loop(body, times, varying)
    elif has_scan_outputs:
        raise TypeError(
            "the number of iterations must not depend on traced values, since the "
            f"shape of a scan output depends on it. {_CLOSE}"
        )
    else:
        last, scanned = _while_loop(body, limit, condition, varying), []
    values = iter(last)
    carried = [next(values) if kept[i] else initial[i] for i in range(count)]
    return [*carried, *scanned]


def _is_compiled(body: Body, *values: Any) -> bool:
    """Whether a loop reads traced values, and its iterations have the same shapes."""
    captured = [body.scope.values.get(n) for n in body.graph.captured_names()]
    keys = [*map(body.scope.options.get, ("key", "entropy"))]
    read = values, captured, keys if are_random(body.graph.nodes) else ()
    leaves = jax.tree.leaves(read)
    are_fixed = shape_names(body.graph.nodes).isdisjoint(body.graph.inputs)
    return are_fixed and any(isinstance(leaf, Tracer) for leaf in leaves)


def _has_no_iterations(limit: Any, condition: Any) -> bool:
    """Whether a loop is known to end before its first iteration."""
    is_known = limit is not None and not isinstance(limit, Tracer)
    if is_known and integer("M", limit) <= 0:
        return True
    is_known = condition is not None and not isinstance(condition, Tracer)
    return is_known and not _concrete_condition(condition)


def _iterate(body: Body, limit: Any, condition: Any, initial: Sequence[Any]) -> Any:
    """Iterates in Python, at least once."""
    carried, rows, iteration = list(initial), [], 0
    most = MOST_ITERATIONS + 1 if limit is None else integer("M", limit)
    is_running = condition is None or _concrete_condition(condition)
    while iteration < most and is_running:
        if iteration == MOST_ITERATIONS:
            raise _too_many(most)
        number = np.array(iteration, np.int64)
        outputs = body.at(iteration)(number, np.array(True), *carried)
        is_running = _concrete_condition(outputs[0])
        carried = outputs[1 : 1 + len(initial)]
        rows.append(outputs[1 + len(initial) :])
        iteration += 1
    return [*carried, *map(_stacked, zip(*rows, strict=True))]


def _too_many(got: Any) -> ValueError:
    return ValueError(f"must have at most {MOST_ITERATIONS} iterations; got {got}")


def _concrete_condition(value: Any) -> bool:
    if isinstance(value, Tracer):
        raise TypeError(
            "the condition must not depend on traced values, since shapes in the body "
            f"depend on the iteration. {_CLOSE}"
        )
    return bool(np.asarray(value).reshape(()))  # `jnp.reshape` would trace it


def _stacked(rows: Sequence[Any]) -> Array:
    return (np if all(map(is_constant, rows)) else jnp).stack(rows)


def _no_rows(body: Body, first: int, *inputs: Any) -> list[Array]:
    """The scan outputs of no iterations, which are the body's outputs from `first` on.

    The body is not evaluated, since it may fail without an element to read. Where ONNX
    infers no shapes of these outputs, they are those that tracing finds.
    """
    names = body.graph.outputs[first:]
    types: Any = [body.graph.types.get(name) for name in names]
    if None in types:
        types = jax.eval_shape(_checked(body), *inputs)[0][first:]
    return [np.zeros((0, *kind.shape), kind.dtype) for kind in types]


def _body_arrays(body: Body, iteration: Any, carried: Sequence[Any]) -> Any:
    """The outputs of a body, and whether a check in it has failed."""
    number = jnp.asarray(iteration, jnp.int64)
    return _checked(body.at(number))(number, np.array(True), *carried)


def _without_invariants(body: Body, initial: Sequence[Any]) -> tuple[Body, list[bool]]:
    """A body that carries only the values that iterations change.

    The other values are in its scope. The second result tells which are carried.
    """
    graph, scope = body
    inputs, outputs = graph.inputs[2:], graph.outputs[1 : 1 + len(initial)]
    rows = zip(inputs, outputs, initial, strict=True)
    fixed = {name: value for name, new, value in rows if name == new}
    kept = [name not in fixed for name in inputs]
    scanned = graph.outputs[1 + len(initial) :]
    graph = graph._replace(
        inputs=(*graph.inputs[:2], *itertools.compress(inputs, kept)),
        outputs=(graph.outputs[0], *itertools.compress(outputs, kept), *scanned),
    )
    return Body(graph, scope._replace(values={**scope.values, **fixed})), kept


def _constant_trip_count(
    body: Body, limit: Any, condition: Any, initial: Sequence[Any]
) -> int | None:
    """The number of iterations, if the condition is constant in each of them.

    Only the nodes that the condition depends on are evaluated. It may be constant if
    they are not, such as the length of a sequence of traced arrays.
    """
    if isinstance(limit, Tracer) or isinstance(condition, Tracer):
        return None
    most = None if limit is None else integer("M", limit)
    condition_body = _condition_of(body, len(initial))
    graph = condition_body.graph
    if graph.outputs[0] == graph.inputs[1]:  # the condition stays true
        if most is None or most > MOST_ITERATIONS:
            raise _too_many("no limit" if most is None else most)
        return most
    given = dict(zip(body.graph.inputs[2:], initial, strict=True))
    carried = [given[name] for name in graph.inputs[2:]]
    times = 0
    while most is None or times < most:
        if times == MOST_ITERATIONS:
            raise _too_many(times + 1)
        number = np.array(times, np.int64)
        outputs = condition_body.at(times)(number, np.array(True), *carried)
        if isinstance(outputs[0], Tracer):
            return None
        times += 1
        carried = outputs[1:]
        if not _concrete_condition(outputs[0]):
            break
    return times


def _condition_of(body: Body, count: int) -> Body:
    """The part of a body that its condition depends on, over all iterations."""
    graph = body.graph
    new_names = dict(zip(graph.inputs[2:], graph.outputs[1 : 1 + count], strict=True))
    needed, before = {graph.outputs[0]}, 0
    while len(needed) > before:
        before = len(needed)
        for node in reversed(graph.nodes):
            if needed & {*node.outputs}:
                needed |= node.read_names()
        needed |= {new for old, new in new_names.items() if old in needed}
    carried = [name for name in new_names if name in needed]
    graph = graph._replace(
        inputs=(*graph.inputs[:2], *carried),
        outputs=(graph.outputs[0], *(new_names[name] for name in carried)),
        nodes=tuple(node for node in graph.nodes if needed & {*node.outputs}),
    )
    return Body(graph, body.scope)


def _known_loop(body: Body, times: int, initial: Sequence[Any]) -> Any:
    """A loop with a known number of iterations, which can be differentiated."""
    count = len(initial)

    def step(_: Any, carried: Any, iteration: Any) -> Any:
        outputs, is_outside = _body_arrays(body, iteration, carried)
        return outputs[1 : 1 + count], (outputs[1 + count :], is_outside)

    first = _arrays(initial)
    if _types(first) != _types(jax.eval_shape(step, None, first, np.int64(0))[0]):
        outputs = _iterate(body, times, None, initial)
        return outputs[:count], outputs[count:]
    iterations = np.arange(times, dtype=np.int64)
    last, (rows, is_outside) = scans.scan(step, None, first, iterations, 1)
    note(is_outside)
    return last, rows


def _while_loop(body: Body, limit: Any, condition: Any, initial: Sequence[Any]) -> Any:
    """A loop whose condition depends on traced values."""
    first = _arrays(initial)

    def is_running(state: Any) -> Any:
        iteration, is_true, *_ = state
        return is_true if limit is None else is_true & (iteration < bound)

    def is_bounded(state: Any) -> Any:
        return is_running(state) & (state[0] < MOST_ITERATIONS)

    def step(state: Any) -> Any:
        iteration, _, carried, is_outside = state
        outputs, is_new = _body_arrays(body, iteration, carried)
        is_true = jnp.reshape(outputs[0], ())
        return iteration + 1, is_true, outputs[1:], is_outside | is_new

    bound = None if limit is None else jnp.reshape(limit, ())
    start = jnp.asarray(True if condition is None else condition).reshape(())
    state = jnp.zeros((), jnp.int64), start, first, jnp.zeros((), bool)
    with _hint_of_reach():
        types = jax.eval_shape(step, state)[2]
    when = " if the number of iterations depends on traced values"
    _require_same_types(first, types, when, f". {_CLOSE}")
    # A loop that is ended too early is noted, and iterated in Python for the error.
    last = lax.while_loop(is_bounded if are_collected() else is_running, step, state)
    note(is_running(last) | last[3])
    return last[2]


def _types(values: Iterable[Any]) -> list[str]:
    return [_type(value) for value in values]


def _type(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_type, value))})"
    return "none" if value is None else f"{value.dtype}{[*value.shape]}"


def _require_same_types(
    before: Sequence[Any], after: Sequence[Any], when: str = "", hint: str = ""
) -> None:
    """Refuses loops that XLA cannot compile."""
    for old, new in zip(_types(before), _types(after), strict=True):
        if old != new:
            raise TypeError(
                f"values that a loop carries must keep their shapes and dtypes{when}; "
                f"got {old}, then {new}{hint}"
            )


# Scan ---------------------------------------------------------------------------------


def _scan(node: Node, *inputs: Any) -> list[Any]:
    body, attributes = Body.of(node, "body"), node.attributes
    count = attributes["num_scan_inputs"]
    split = len(inputs) - count
    initial, scanned = inputs[:split], inputs[split:]
    if count < 1 or split < 0:
        raise ValueError(f"`num_scan_inputs` must be 1 to {len(inputs)}; got {count}")
    axes = attributes.get("scan_input_axes", [0] * count)
    flips = attributes.get("scan_input_directions", [0] * count)
    given = zip(scanned, axes, flips, strict=True)
    rows = [_moved(x, axis, 0, flip) for x, axis, flip in given]
    lengths = [row.shape[0] for row in rows]
    if len({*lengths}) != 1:
        raise ValueError(f"scan inputs must have the same length; got {lengths}")
    if lengths[0] == 0:
        types = (jax.ShapeDtypeStruct(row.shape[1:], row.dtype) for row in rows)
        last, results = initial, _no_rows(body, split, *initial, *types)
    elif _is_compiled(body, *inputs):
        last, results = _compiled_scan(body, initial, rows)
    else:
        last, results = _scan_in_python(body, initial, rows)
    count = len(results)
    axes = attributes.get("scan_output_axes", [0] * count)
    flips = attributes.get("scan_output_directions", [0] * count)
    found = zip(results, axes, flips, strict=True)
    return [*last, *(_moved(x, 0, axis, flip) for x, axis, flip in found)]


def _compiled_scan(body: Body, initial: Sequence[Any], rows: Sequence[Any]) -> Any:
    count = len(initial)

    def step(_: Any, carried: Any, numbered: Any) -> Any:
        number, *row = numbered
        outputs, is_outside = _checked(body.at(number))(*carried, *row)
        return outputs[:count], (outputs[count:], is_outside)

    first = _arrays(initial)
    numbered = [positions(rows[0].shape[:1], 0), *rows]
    row = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in numbered]
    _require_same_types(first, jax.eval_shape(step, None, first, row)[0])
    last, (results, is_outside) = scans.scan(step, None, first, numbered, 1)
    note(is_outside)
    return last, results


def _scan_in_python(body: Body, initial: Sequence[Any], rows: Sequence[Any]) -> Any:
    carried, results = list(initial), []
    for i in range(len(rows[0])):
        outputs = body.at(i)(*carried, *(row[i, ...] for row in rows))
        carried = outputs[: len(initial)]
        results.append(outputs[len(initial) :])
        _require_same_types(initial, carried)
    return carried, [_stacked(parts) for parts in zip(*results, strict=True)]


def _moved(x: Array, start: int, end: int, is_flipped: int) -> Array:
    """Moves an axis, and reverses it if `is_flipped`."""
    namespace = numpy_or_jax(x)
    start, end = (normalized("axes", axis, np.ndim(x)) for axis in (start, end))
    return namespace.moveaxis(namespace.flip(x, start) if is_flipped else x, start, end)


OPERATORS = {
    "If": Operator(_if, 1, is_folded=False),
    "Loop": Operator(_loop, 1, is_folded=False),
    "Scan": Operator(_scan, 9, is_folded=False),
}
