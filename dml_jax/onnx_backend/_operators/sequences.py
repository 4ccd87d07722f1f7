"""Sequences of arrays, which are tuples, and optional values, which may be None."""

from typing import Any

import numpy as np

from dml_jax.onnx_backend._evaluation import Body
from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    axis_of,
    integer,
    integers,
    numpy_or_jax,
)
from dml_jax.onnx_backend._operators.shapes import consecutive
from dml_jax.onnx_backend._values import Array


def _sequence_insert(_: Node, sequence: Any, x: Array, place: Any = None) -> Any:
    index = _position(sequence, place, len(sequence) + 1)
    return (*sequence[:index], x, *sequence[index:])


def _sequence_erase(_: Node, sequence: Any, place: Any = None) -> Any:
    index = _position(sequence, place, len(sequence))
    return (*sequence[:index], *sequence[index + 1 :])


def _position(sequence: Any, place: Any, count: int) -> int:
    """An index in a sequence, from its end if negative; the last one by default."""
    index = count - 1 if place is None else integer("position", place)
    size = len(sequence)
    if not -size <= index < count:
        raise ValueError(f"`position` must be in [{-size}, {count}); got {index}")
    return index + size if index < 0 else index


def _split_to_sequence(node: Node, x: Array, split: Any = None) -> list[Any]:
    axis = axis_of(node, x)
    size = np.shape(x)[axis]
    if split is None:
        parts = consecutive(x, axis, [1] * size)
        if not node.attributes["keepdims"]:
            parts = [part.squeeze(axis) for part in parts]
        return [tuple(parts)]
    if np.ndim(split) == 0:
        part = integer("split", split)
        if part < 1:
            raise ValueError(f"`split` must be at least 1; got {part}")
        sizes = [min(part, size - start) for start in range(0, size, part)]
    else:
        sizes = integers("split", split)
    return [tuple(consecutive(x, axis, sizes))]


def _concat_from_sequence(node: Node, sequence: Any) -> Array:
    if not sequence:
        raise ValueError("`input_sequence` must have an array; got an empty sequence")
    is_stacked = node.attributes["new_axis"]
    namespace, axis = numpy_or_jax(*sequence), node.attributes["axis"]
    return (namespace.stack if is_stacked else namespace.concatenate)(sequence, axis)


def _sequence_map(node: Node, sequence: Any, *others: Any) -> list[Any]:
    body, count = Body.of(node, "body"), len(sequence)
    columns = [x if isinstance(x, tuple) else (x,) * count for x in (sequence, *others)]
    rows = [body.at(i)(*row) for i, row in enumerate(zip(*columns, strict=True))]
    return [tuple(row[i] for row in rows) for i in range(len(node.outputs))]


def _optional_element(_: Node, value: Any) -> Any:
    if value is None:
        raise ValueError("`input` must have an element; got none")
    return value


OPERATORS = {
    "SequenceEmpty": Operator(lambda _: (), 11),
    "SequenceConstruct": Operator(lambda _, *inputs: [inputs], 11),
    "SequenceLength": Operator(lambda _, x: np.array(len(x)), 11, of_shapes=True),
    "SequenceAt": Operator(lambda _, x, i: x[_position(x, i, len(x))], 11, static=(1,)),
    "SplitToSequence": Operator(_split_to_sequence, 11, static=(1,)),
    "ConcatFromSequence": Operator(_concat_from_sequence, 11),
    "SequenceInsert": Operator(_sequence_insert, 11, static=(2,)),
    "SequenceErase": Operator(_sequence_erase, 11, static=(1,)),
    "SequenceMap": Operator(_sequence_map, 17),
    "Optional": Operator(lambda _, value=None: value, 15),
    "OptionalGetElement": Operator(_optional_element, 15),
    "OptionalHasElement": Operator(
        lambda _, x=None: np.array(x is not None), 15, of_shapes=True
    ),
}
