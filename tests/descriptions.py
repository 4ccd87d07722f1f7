"""Random operator descriptions and arrays for them, and their oracle in NumPy.

NumPy's strided views give the positions of the elements of a tensor.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dml_jax import reference
from dml_jax.directml import (
    BufferTensorDesc,
    DataType,
    FillValueConstantOperatorDesc,
    FillValueSequenceOperatorDesc,
    OperatorDesc,
    ReverseSubsequencesOperatorDesc,
    ScalarUnion,
    Slice1OperatorDesc,
    SliceGradOperatorDesc,
    SliceOperatorDesc,
    compile_operator,
)

LARGEST_UINT = 2**32 - 1
Types = list[DataType]

# The oracle ---------------------------------------------------------------------------


def packed(sizes: Any) -> tuple[int, ...]:
    return tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def is_packed(tensor: BufferTensorDesc) -> bool:
    triples = zip(tensor.sizes, strides_of(tensor), packed(tensor.sizes), strict=True)
    return all(size == 1 or given == wanted for size, given, wanted in triples)


def strides_of(tensor: BufferTensorDesc) -> tuple[int, ...]:
    return packed(tensor.sizes) if tensor.strides is None else tensor.strides


def extent(tensor: BufferTensorDesc) -> int:
    pairs = zip(tensor.sizes, strides_of(tensor), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def buffer_size(tensor: BufferTensorDesc) -> int:
    return tensor.total_tensor_size_in_bytes // tensor.data_type.dtype.itemsize


def elements(tensor: BufferTensorDesc, bound: np.ndarray) -> np.ndarray:
    """The elements of a tensor, as a view of what is bound to it."""
    buffer = bound.reshape(-1)
    strides = [stride * buffer.itemsize for stride in strides_of(tensor)]
    return np.lib.stride_tricks.as_strided(buffer, tensor.sizes, strides)


def computed(desc: OperatorDesc, inputs: Any) -> Any:
    """The elements of the output, from those of the inputs."""
    dtype, sizes = desc.output.data_type.dtype, desc.output.sizes

    def number(union: ScalarUnion) -> Any:
        return np.frombuffer(union.bytes, dtype, count=1)[0]

    def window(desc: Any) -> list[Any]:
        parts = ("offsets", "sizes", "strides")
        return [getattr(desc, f"input_window_{part}") for part in parts]

    match desc:
        case ReverseSubsequencesOperatorDesc():
            return reference.reverse_subsequences(*inputs, desc.axis)
        case SliceOperatorDesc():
            return reference.slice(*inputs, desc.offsets, desc.sizes, desc.strides)
        case Slice1OperatorDesc():
            return reference.slice1(*inputs, *window(desc), sizes)
        case SliceGradOperatorDesc():
            return reference.slice_grad(*inputs, sizes, *window(desc))
        case FillValueConstantOperatorDesc():
            return np.full(sizes, number(desc.value), dtype)
        case FillValueSequenceOperatorDesc():
            values = number(desc.value_start), number(desc.value_delta)
            return reference.fill_value_sequence(sizes, dtype, *values)


def expected_of(
    desc: OperatorDesc, inputs: Any, previous: np.ndarray | None = None
) -> np.ndarray:
    """The output buffer of an operator."""
    views = map(elements, desc.inputs, inputs)
    if previous is None:
        flat = (buffer_size(desc.output),)
        shape = desc.output.sizes if is_packed(desc.output) else flat
        previous = np.zeros(shape, desc.output.data_type.dtype)
    result = previous.copy()
    elements(desc.output, result)[...] = computed(desc, list(views))
    return result


def copy_of(
    given: BufferTensorDesc, wanted: BufferTensorDesc | None = None
) -> SliceOperatorDesc:
    """An operator that copies a tensor to one of equal sizes."""
    zeros, ones = (0,) * given.dimension_count, (1,) * given.dimension_count
    return SliceOperatorDesc(given, wanted or given, zeros, given.sizes, ones)


def with_buffer(desc: OperatorDesc) -> Callable[..., Any]:
    """The compiled operator as a function of the inputs and the previous output."""
    compiled = compile_operator(desc)
    return lambda *arrays: compiled(*arrays[:-1], outputs=arrays[-1:])


def adjoint(
    desc: OperatorDesc, lengths: list[np.ndarray], cotangent: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The cotangents of the input and of the previous output: sums by position."""
    source, output = desc.input_members[0], desc.output_member
    of_positions = {}
    for member in (source, output):
        tensor = getattr(desc, member)
        total = buffer_size(tensor) * 8
        of_positions[member] = dataclasses.replace(
            tensor, data_type=DataType.INT64, total_tensor_size_in_bytes=total
        )
    moving: Any = dataclasses.replace(desc, **of_positions)
    positions, before = (
        1 + np.arange(buffer_size(tensor)) for tensor in of_positions.values()
    )
    # Those of the previous output are negative, and 0 is what `slice_grad` adds.
    sources = expected_of(moving, [positions, *lengths], -before).reshape(-1)
    cotangent = cotangent.reshape(-1)
    by_input = np.zeros(positions.size, cotangent.dtype)
    by_output = np.zeros(before.size, cotangent.dtype)
    np.add.at(by_input, sources[sources > 0] - 1, cotangent[sources > 0])
    np.add.at(by_output, -sources[sources < 0] - 1, cotangent[sources < 0])
    return by_input, by_output


# Random descriptions ------------------------------------------------------------------


def types(names: str) -> list[DataType]:
    return [DataType[name] for name in names.split()]


INTEGERS = types("INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64")
FLOATS = types("FLOAT32 FLOAT16 FLOAT64")

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def shapes(draw: Any) -> tuple[int, ...]:
    room, sizes = 200, []
    for _ in range(draw(st.integers(1, 8))):
        sizes.append(draw(st.integers(1, min(room, 9))))
        room //= sizes[-1]
    return tuple(draw(st.permutations(sizes)))


def positions_overlap(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements have the same position, by enumerating all of them."""
    pairs = [(n, s) for n, s in zip(sizes, strides, strict=True) if n > 1]
    if any(stride == 0 for _, stride in pairs):
        return True
    positions = np.zeros((), np.int64)
    for size, stride in pairs:
        positions = np.add.outer(positions, np.arange(size) * stride)
    return np.unique(positions).size < positions.size


@st.composite
def layouts(draw: Any, sizes: Any, is_output: bool) -> tuple[int, ...] | None:
    """Strides: none, nested ones in any order with any gaps, or arbitrary ones."""
    kind = draw(st.sampled_from(["none", "packed", "nested", "nested", "arbitrary"]))
    if kind == "none":
        return None
    strides, reach = list(packed(sizes)), 1
    if kind == "arbitrary":
        most = draw(st.sampled_from([1, 2, 9]))  # 1 and 2 are windows that overlap
        strides = [draw(st.integers(1, most)) for _ in sizes]
    if kind == "nested" or (is_output and positions_overlap(sizes, strides)):
        for d in draw(st.permutations(range(len(sizes)))):
            strides[d] = reach + draw(st.sampled_from([0, 0, 0, 1, 2, 5]))
            reach += (sizes[d] - 1) * strides[d]
    if not is_output and draw(st.booleans()):
        strides = [s if draw(st.integers(0, 2)) else 0 for s in strides]
    ignored = st.sampled_from([0, 1, 7, LARGEST_UINT])
    return tuple(
        draw(ignored) if size == 1 and draw(st.booleans()) else stride
        for size, stride in zip(sizes, strides, strict=True)
    )


@st.composite
def tensors(
    draw: Any, data_type: DataType, sizes: Any, is_output: bool = False
) -> BufferTensorDesc:
    strides = draw(layouts(sizes, is_output))
    tensor = BufferTensorDesc(data_type, sizes, strides)
    more = draw(st.sampled_from([None, 0, 4, 8, 36]))
    if more is None:
        return tensor
    total = -(-extent(tensor) * data_type.bits // 32) * 4 + more
    return dataclasses.replace(tensor, total_tensor_size_in_bytes=total)


@st.composite
def reversals(draw: Any, data_types: Types) -> ReverseSubsequencesOperatorDesc:
    data_type, sizes = draw(st.sampled_from(data_types)), draw(shapes())
    axis = draw(st.integers(0, len(sizes) - 1))
    lengths_sizes = (*sizes[:axis], 1, *sizes[axis + 1 :])
    lengths_type = draw(st.sampled_from([DataType.UINT32, DataType.UINT64]))
    lengths = tensors(lengths_type, lengths_sizes)
    output = tensors(data_type, sizes, is_output=True)
    source = draw(tensors(data_type, sizes))
    return ReverseSubsequencesOperatorDesc(source, draw(lengths), draw(output), axis)


@st.composite
def slices(draw: Any, data_types: Types) -> SliceOperatorDesc:
    data_type, whole = draw(st.sampled_from(data_types)), draw(shapes())
    strides = [draw(st.sampled_from([1, 1, 2, 3, LARGEST_UINT])) for _ in whole]
    sizes = [
        draw(st.integers(1, 1 + (n - 1) // stride))
        for n, stride in zip(whole, strides, strict=True)
    ]
    offsets = [
        draw(st.integers(0, n - 1 - (size - 1) * stride))
        for n, size, stride in zip(whole, sizes, strides, strict=True)
    ]
    source = draw(tensors(data_type, whole))
    output = draw(tensors(data_type, sizes, is_output=True))
    return SliceOperatorDesc(source, output, offsets, sizes, strides)


@st.composite
def windows(draw: Any, data_types: Types, is_gradient: bool = False) -> OperatorDesc:
    data_type, whole = draw(st.sampled_from(data_types)), draw(shapes())
    offsets = [draw(st.integers(0, n - 1)) for n in whole]
    windows = [
        draw(st.integers(1, n - offset))
        for n, offset in zip(whole, offsets, strict=True)
    ]
    stride = st.sampled_from([1, 1, -1, 2, -2, 3, -3, -(2**31), 2**31 - 1])
    strides = [draw(stride) for _ in whole]
    most = [1 + (w - 1) // abs(s) for w, s in zip(windows, strides, strict=True)]
    part = tuple(draw(st.just(n) | st.integers(1, n)) for n in most)
    window = (offsets, windows, strides)
    if is_gradient:
        source = draw(tensors(data_type, part))
        output = draw(tensors(data_type, whole, is_output=True))
        return SliceGradOperatorDesc(source, output, *window)
    source = draw(tensors(data_type, whole))
    output = draw(tensors(data_type, part, is_output=True))
    return Slice1OperatorDesc(source, output, *window)


@st.composite
def fills(draw: Any, data_types: Types, desc: Any) -> OperatorDesc:
    data_type = draw(st.sampled_from(data_types))
    bits = st.binary(min_size=8, max_size=8).map(lambda b: ScalarUnion(bytes=b))
    small = st.integers(-9, 9).map(lambda n: ScalarUnion.of(data_type, n))
    values = [draw(bits | small) for _ in range(len(dataclasses.fields(desc)) - 2)]
    output = draw(tensors(data_type, draw(shapes()), is_output=True))
    return desc(output, data_type, *values)


MOVES: dict[str, Callable[[Types], st.SearchStrategy[OperatorDesc]]] = {
    "reverse_subsequences": reversals,
    "slice": slices,
    "slice1": windows,
    "slice_grad": functools.partial(windows, is_gradient=True),
}
ALL = [*INTEGERS, *FLOATS]
DESCS = {name: of_types(ALL) for name, of_types in MOVES.items()} | {
    "fill_value_constant": fills(ALL, FillValueConstantOperatorDesc),
    "fill_value_sequence": fills(ALL[:-1], FillValueSequenceOperatorDesc),
}

# Bytes of infinities, NaNs with and without payloads, subnormals, zeros.
SPECIAL = np.array([0x00, 0x01, 0x7C, 0x7F, 0x80, 0xF0, 0xFF], np.uint8)
LENGTHS = np.array(
    [*range(11), 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1],
    np.uint64,
)


@st.composite
def bound(draw: Any, tensor: BufferTensorDesc, is_lengths: bool = False) -> np.ndarray:
    """An array or a flat buffer of random bits for a tensor."""
    random = np.random.default_rng(draw(SEEDS))
    dtype = tensor.data_type.dtype
    shape = (buffer_size(tensor) + draw(st.sampled_from([0, 0, 1, 6])),)
    if is_packed(tensor) and draw(st.booleans()):
        shape = tensor.sizes
    if is_lengths:
        fitting = LENGTHS[np.iinfo(dtype).max >= LENGTHS]
        return random.choice(fitting, shape).astype(dtype)
    size = (math.prod(shape), dtype.itemsize)
    content = random.integers(0, 256, size, np.uint8)
    special = random.choice(SPECIAL, size)
    content = np.where(random.random((size[0], 1)) < 0.5, special, content)
    return np.frombuffer(content.tobytes(), dtype).reshape(shape)
