"""Compiled operators under transformations, and what the compiler makes of them."""

import math
import re

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import U32, buffer_size, expected_of

from dml_jax.directml import (
    BufferTensorDesc,
    DataType,
    ReverseSubsequencesOperatorDesc,
    Slice1OperatorDesc,
    SliceGradOperatorDesc,
    SliceOperatorDesc,
    calc_buffer_tensor_size,
    compile_operator,
)

FLOAT32 = DataType.FLOAT32


def tensor(sizes, strides=None, data_type=FLOAT32, extra=0):
    needed = calc_buffer_tensor_size(data_type, sizes, strides)
    return BufferTensorDesc(data_type, sizes, strides, needed + extra)


def moves(data_type):
    """Descriptions in every way to read and to write, each with lengths or none."""
    cube, line = (2, 3, 4), (2, 1, 4)
    lengths = tensor(line, (1, 1, 0), DataType.UINT32)
    window = ((1, 0, 1), (1, 3, 3), (1, -2, 2))

    def of(sizes, *strides, extra=8):
        return tensor(sizes, *strides, data_type=data_type, extra=extra)

    nested, overlapping, woven = (2, 17, 4), (1, 1, 0), (3, 2, 12)
    padded = (40, 13, 3)
    reverse, slice1 = ReverseSubsequencesOperatorDesc, Slice1OperatorDesc
    return {
        "packed": reverse(of(cube, extra=0), lengths, of(cube, extra=0), 1),
        "packed-larger": reverse(of(cube), lengths, of(cube), 1),
        "nested": reverse(of(cube, nested), lengths, of(cube, padded), 1),
        "woven": reverse(of(cube, overlapping), lengths, of(cube, woven), 1),
        "slice": SliceOperatorDesc(
            of(cube, nested), of((1, 2, 2), (9, 2, 5)), (1, 0, 1), (1, 2, 2), (5, 2, 2)
        ),
        "slice1": slice1(of(cube, overlapping), of((1, 2, 2), (9, 1, 1 + 2)), *window),
        "slice_grad": SliceGradOperatorDesc(
            of((1, 2, 2), (9, 2, 5)), of(cube, padded), *window
        ),
    }


MOVES = moves(FLOAT32)


def arrays_of(desc, *batch):
    """Whole numbers in the buffers of the inputs and in that of the output before."""
    random = np.random.default_rng(len(batch))
    return [
        random.integers(
            0, 5 if t.data_type in U32 else 99, (*batch, buffer_size(t))
        ).astype(t.data_type.dtype)
        for t in (*desc.inputs, desc.output)
    ]


def with_buffer(desc):
    """The compiled operator as a function of the inputs and the buffer before."""
    compiled = compile_operator(desc)
    return lambda *arrays: compiled(*arrays[:-1], outputs=arrays[-1:])


def expected_with_buffer(desc, *arrays):
    return expected_of(desc, arrays[:-1], arrays[-1])


@pytest.mark.parametrize("mapped", [0, 1, -1, None])  # the data, lengths, buffer, all
@pytest.mark.parametrize("name", MOVES)
def test_vmap_equals_a_loop(name, mapped):
    desc = MOVES[name]
    arrays, batches = arrays_of(desc), arrays_of(desc, 3)
    indices = range(len(arrays))
    axes = [0 if mapped is None or i == indices[mapped] else None for i in indices]
    pairs = [
        (array, [array] * 3) if axis is None else (batch, batch)
        for array, batch, axis in zip(arrays, batches, axes, strict=True)
    ]
    result = jax.vmap(with_buffer(desc), axes)(*(array for array, _ in pairs))
    entries = zip(*(entries for _, entries in pairs), strict=True)
    for actual, entry in zip(result, entries, strict=True):
        assert_same_bits(actual, expected_with_buffer(desc, *entry))


@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16"])
@pytest.mark.parametrize("name", MOVES)
def test_jacobians(name, data_type):
    """Ones and zeros: where the data go, and which places of the buffer are kept."""
    desc = moves(DataType[data_type])[name]
    x, *lengths, previous = arrays_of(desc)
    units = np.eye(x.size + previous.size, dtype=x.dtype)
    columns = [
        expected_with_buffer(desc, unit[: x.size], *lengths, unit[x.size :])
        for unit in units
    ]
    expected = np.split(np.stack(columns, -1), [x.size], -1)
    for jacobian in (jax.jacrev, jax.jacfwd):
        derivative = jacobian(with_buffer(desc), (0, len(desc.inputs)))
        actual = jax.jit(derivative)(x, *lengths, previous)
        jax.tree.map(assert_same_bits, actual, tuple(expected))


@pytest.mark.parametrize("name", MOVES)
def test_transpose_is_the_adjoint(name):
    """<f(x), y> = <x, f^T(y)>, of whole numbers, so exactly."""
    desc = MOVES[name]
    x, *lengths, previous = arrays_of(desc)

    def linear(x, previous):
        return with_buffer(desc)(x, *lengths, previous)

    y = previous[::-1].copy()
    result = jax.jit(linear)(x, previous)
    assert_same_bits(result, expected_with_buffer(desc, x, *lengths, previous))
    by_x, by_previous = jax.linear_transpose(linear, x, previous)(y)
    assert np.vdot(result, y) == np.vdot(x, by_x) + np.vdot(previous, by_previous)


REPEATS = {  # sizes and strides: repeated, rows that are, windows, windows of rows
    "scalar": ((50_000,), (0,)),
    "rows": ((5_000, 3), (0, 1)),
    "inner": ((3, 5_000), (1, 0)),
    "windows": ((3_000, 3_000), (1, 1)),
    "both": ((4, 300, 300), (0, 1, 1)),
}


@pytest.mark.parametrize("data_type", ["FLOAT16", "FLOAT32"])
@pytest.mark.parametrize("name", REPEATS)
def test_sums_of_repeated_elements_are_rounded_once(name, data_type):
    """FLOAT16 has no whole numbers above 2048 but the even ones."""
    sizes, strides = REPEATS[name]
    source = tensor(sizes, strides, DataType[data_type])
    zeros, ones = (0,) * len(sizes), (1,) * len(sizes)
    packed = tensor(sizes, None, DataType[data_type])
    desc = SliceOperatorDesc(source, packed, zeros, sizes, ones)
    dtype = source.data_type.dtype
    x = np.ones(buffer_size(source), dtype)
    counts = np.zeros(x.size, np.int64)
    indices = np.indices(sizes).reshape(len(sizes), -1)
    np.add.at(counts, np.array(strides) @ indices, 1)
    weight = dtype.type(0.125)
    ct = np.full(packed.sizes, weight, dtype)
    _, pullback = jax.vjp(compile_operator(desc), x)
    expected = (counts * float(weight)).astype(dtype)
    for found in (pullback(ct)[0], jax.jit(pullback)(ct)[0]):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("name", ["reverse", "slice1", "slice_grad"])
def test_sums_of_a_broadcast_operand_are_rounded_once(name):
    """Through each operator, of which only some elements may be read."""
    half, sizes, one = DataType.FLOAT16, (5_000, 3), (1, 1)
    given, packed = tensor(sizes, (0, 1), half), tensor(sizes, None, half)
    lengths = tensor((5_000, 1), (0, 0), DataType.UINT32)
    part = tensor((5_000, 2), None, half)
    desc = {
        "reverse": ReverseSubsequencesOperatorDesc(given, lengths, packed, 1),
        "slice1": Slice1OperatorDesc(given, part, (0, 0), sizes, (-1, 2)),
        "slice_grad": SliceGradOperatorDesc(
            given, tensor((5_000, 5), None, half), (0, 0), (5_000, 5), (1, 2)
        ),
    }[name]
    more = [np.full(one[:1], 2, np.uint32)] if name == "reverse" else []
    x = np.ones(buffer_size(given), np.float16)
    output, pullback = jax.vjp(lambda x: compile_operator(desc)(x, *more), x)
    (found,) = jax.jit(pullback)(np.ones(output.shape, np.float16))
    counts = [5_000, 0, 5_000] if name == "slice1" else [5_000] * 3
    assert_same_bits(found, np.array([*counts, 0], np.float16)[: x.size])


@pytest.mark.parametrize("name", MOVES)
def test_disable_jit(name):
    desc = MOVES[name]
    arrays = arrays_of(desc)
    with jax.disable_jit():
        result = with_buffer(desc)(*arrays)
    assert_same_bits(result, expected_with_buffer(desc, *arrays))


# Compiled text ------------------------------------------------------------------------

BIG = (64, 128, 256)


def texts_of(desc):
    """The program as XLA gets it, and the top level of what XLA makes of it."""
    buffers = [
        jax.ShapeDtypeStruct((buffer_size(t),), t.data_type.dtype) for t in desc.inputs
    ]
    lowered = jax.jit(compile_operator(desc)).lower(*buffers)
    entry = re.search(r"^ENTRY .*?^}", lowered.compile().as_text(), re.M | re.S)
    return lowered.as_text(), entry[0]


def big_reversal(source=None, output=None, lengths=(1, 1, 0)):
    return ReverseSubsequencesOperatorDesc(
        tensor(BIG, source),
        tensor((64, 1, 256), lengths, DataType.UINT32),
        tensor(BIG, output),
        axis=1,
    )


@pytest.mark.parametrize("strides", [(1, 1, 0), None], ids=["broadcast", "packed"])
def test_broadcast_lengths_are_not_expanded(strides):
    """Packed lengths show that the texts would say so."""
    lowered, entry = texts_of(big_reversal(lengths=strides))
    is_expanded = bool(re.search(r"x256xu?i(32|64)>", lowered))
    integers = re.findall(r"\b[us](?:32|64)\[([\d,]+)\]", entry)
    most = max(math.prod(map(int, shape.split(","))) for shape in integers)
    assert (is_expanded, most) == ((True, 64 * 256) if strides is None else (False, 64))


@pytest.mark.parametrize(
    "desc",
    [
        big_reversal(source=(1, 128 * 256, 128)),
        big_reversal(source=(130 * 260, 260, 1)),
        big_reversal(source=(2, 260 * 130, 260)),
        big_reversal(output=(1, 64 * 256, 64)),
        big_reversal(output=(128 * 260, 260, 1)),
        SliceOperatorDesc(
            tensor(BIG, (2, 260 * 130, 260)),
            tensor((9, 9, 9)),
            offsets=(1, 2, 3),
            sizes=(9, 9, 9),
            strides=(1, 2, 3),
        ),
    ],
    ids=["permuted", "padded", "both", "to-permuted", "to-padded", "slice"],
)
def test_layouts_take_no_pass_of_their_own(desc):
    _, entry = texts_of(desc)
    instructions = re.findall(r" = \S+ ([\w-]+)\(", entry)
    passes = [name for name in instructions if name not in ("parameter", "bitcast")]
    assert passes == ["fusion"]


@pytest.mark.parametrize("name", MOVES)
def test_nested_layouts_are_neither_gathered_nor_scattered(name):
    desc = MOVES[name]
    found = re.findall(r"stablehlo\.(gather|scatter)\"", texts_of(desc)[0])
    own = ["gather"] if isinstance(desc, ReverseSubsequencesOperatorDesc) else []
    others = {"woven": ["gather", "scatter"], "slice1": ["gather"]}.get(name, [])
    assert sorted(found) == sorted(own + others)


def test_backward_pass_of_strided_reversal_has_no_scatter():
    desc = MOVES["nested"]
    arrays = arrays_of(desc)
    _, pullback = jax.vjp(with_buffer(desc), *arrays)
    lowered = jax.jit(pullback).lower(arrays[-1])
    assert "scatter" not in lowered.as_text()
    assert not re.search(r"\bscatter\(", lowered.compile().as_text())


@pytest.mark.usefixtures("nans_are_data")  # where they are not, JAX donates nothing
def test_donated_outputs_are_reused():
    """Of rows of 300 elements; whether they are copied on the way is up to XLA."""
    rows = BufferTensorDesc(FLOAT32, (128, 256), (300, 1), 4 * 128 * 300)
    source = BufferTensorDesc(FLOAT32, (128, 256))
    desc = SliceOperatorDesc(source, rows, (0, 0), (128, 256), (1, 1))
    jitted = jax.jit(compile_operator(desc), donate_argnames="outputs")
    shapes = [
        jax.ShapeDtypeStruct((t.buffer_size,), np.float32) for t in (source, rows)
    ]
    memory = jitted.lower(shapes[0], outputs=[shapes[1]]).compile().memory_analysis()
    assert memory.alias_size_in_bytes == 4 * 128 * 300
    assert memory.temp_size_in_bytes <= 4 * 128 * 300
