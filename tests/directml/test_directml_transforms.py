"""Sums of cotangents of compiled operators, and their compiled programs."""

import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import adjoint, buffer_size, copy_of, with_buffer
from sampling import default_of

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType

FLOAT32 = DataType.FLOAT32


def tensor(
    sizes: tuple[int, ...],
    strides: Any = None,
    data_type: DataType = FLOAT32,
    extra: int = 0,
) -> BufferTensorDesc:
    needed = dml.calc_buffer_tensor_size(data_type, sizes, strides)
    return BufferTensorDesc(data_type, sizes, strides, needed + extra)


CUBE, PART, NESTED = (2, 3, 4), (1, 2, 2), (2, 17, 4)
OVERLAPPING = tensor(CUBE, (1, 1, 0))
WINDOW = ((1, 0, 1), (1, 3, 3), (1, -2, 2))


def reverse(source: BufferTensorDesc, output: BufferTensorDesc) -> dml.OperatorDesc:
    lengths = tensor((2, 1, 4), (1, 1, 0), DataType.UINT32)
    return dml.ReverseSubsequencesOperatorDesc(source, lengths, output, 1)


MOVES = {  # layouts of each kind
    "packed": reverse(tensor(CUBE), tensor(CUBE)),
    "packed-larger": reverse(tensor(CUBE, extra=8), tensor(CUBE, extra=8)),
    "nested": reverse(tensor(CUBE, NESTED), tensor(CUBE, (40, 13, 3))),
    "woven": reverse(OVERLAPPING, tensor(CUBE, (3, 2, 12))),
    "slice": dml.SliceOperatorDesc(
        tensor(CUBE, NESTED), tensor(PART, (9, 2, 5)), (1, 0, 1), PART, (5, 2, 2)
    ),
    "slice1": dml.Slice1OperatorDesc(OVERLAPPING, tensor(PART, (9, 1, 3)), *WINDOW),
    "slice_grad": dml.SliceGradOperatorDesc(
        tensor(PART, (9, 2, 5)), tensor(CUBE, (40, 13, 3)), *WINDOW
    ),
}


ROWS, HALF = (5_000, 3), DataType.FLOAT16


def halves(sizes: tuple[int, ...], strides: Any = None) -> BufferTensorDesc:
    return tensor(sizes, strides, HALF)


REPEATED = halves(ROWS, (0, 1))
SUMS = {  # of repeated elements, of overlapping windows, or of some elements alone
    **{
        name: copy_of(halves(sizes, strides), halves(sizes))
        for name, sizes, strides in [
            ("rows", ROWS, (0, 1)),
            ("windows", (3_000, 3_000), (1, 1)),
            ("both", (4, 300, 300), (0, 1, 1)),
        ]
    },
    "reverse": dml.ReverseSubsequencesOperatorDesc(
        REPEATED, tensor((5_000, 1), (0, 0), DataType.UINT32), halves(ROWS), 1
    ),
    "slice1": dml.Slice1OperatorDesc(
        REPEATED, halves((5_000, 2)), (0, 0), ROWS, (-1, 2)
    ),
    "slice_grad": dml.SliceGradOperatorDesc(
        REPEATED, halves((5_000, 5)), (0, 0), (5_000, 5), (1, 2)
    ),
}


@pytest.mark.parametrize("name", default_of(SUMS, *(n for n in SUMS if n != "windows")))
def test_sums_of_cotangents_are_rounded_once(name: str) -> None:
    """FLOAT16 has only even whole numbers above 2048."""
    desc = SUMS[name]
    lengths = [np.array([2], np.uint32)] * (name == "reverse")
    x = np.ones(buffer_size(desc.inputs[0]), np.float16)
    y, pullback = jax.vjp(lambda x: dml.compile_operator(desc)(x, *lengths), x)
    ct = np.full(y.shape, 0.125, np.float16)
    expected, _ = adjoint(desc, lengths, ct.astype(np.float64))
    for found in (pullback(ct)[0], jax.jit(pullback)(ct)[0]):
        assert_same_bits(found, expected.astype(np.float16))


# Compiled programs --------------------------------------------------------------------

BIG = (64, 128, 256)


def texts_of(desc: dml.OperatorDesc) -> tuple[str, str]:
    """The StableHLO program, and the entry computation of the compiled one."""
    buffers = [
        jax.ShapeDtypeStruct((buffer_size(t),), t.data_type.dtype) for t in desc.inputs
    ]
    lowered = jax.jit(dml.compile_operator(desc)).lower(*buffers)
    entry = re.search(r"^ENTRY .*?^}", lowered.compile().as_text(), re.M | re.S)
    assert entry
    return lowered.as_text(), entry[0]


def big_reversal(
    source: Any = None, output: Any = None, lengths: Any = (1, 1, 0)
) -> dml.OperatorDesc:
    half = DataType.FLOAT16  # which is moved as integers of 16 bits
    return dml.ReverseSubsequencesOperatorDesc(
        tensor(BIG, source, half),
        tensor((64, 1, 256), lengths, DataType.UINT32),
        tensor(BIG, output, half),
        axis=1,
    )


@pytest.mark.parametrize("strides", [(1, 1, 0), None], ids=["broadcast", "packed"])
def test_broadcast_lengths_are_not_expanded(strides: Any) -> None:
    """Packed lengths show that the texts would contain it."""
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
        dml.SliceOperatorDesc(
            tensor(BIG, (2, 260 * 130, 260)),
            tensor((9, 9, 9)),
            offsets=(1, 2, 3),
            sizes=(9, 9, 9),
            strides=(1, 2, 3),
        ),
    ],
    ids=["permuted", "padded", "both", "to-permuted", "to-padded", "slice"],
)
def test_layouts_fuse_with_the_operator(desc: dml.OperatorDesc) -> None:
    _, entry = texts_of(desc)
    instructions = re.findall(r" = \S+ ([\w-]+)\(", entry)
    assert set(instructions) <= {"parameter", "bitcast", "fusion"}
    assert instructions.count("fusion") == 1


@pytest.mark.parametrize("name", MOVES)
def test_packed_layouts_are_not_indexed_and_nested_ones_not_scattered(
    name: str,
) -> None:
    desc = MOVES[name]
    found = re.findall(r"stablehlo\.(gather|scatter)\"", texts_of(desc)[0])
    is_reversal = isinstance(desc, dml.ReverseSubsequencesOperatorDesc)
    if name.startswith("packed"):
        assert found == ["gather"] * is_reversal
    assert ("scatter" in found) == (name == "woven")


def test_backward_pass_of_strided_reversal_has_no_scatter() -> None:
    desc = MOVES["nested"]
    arrays = [
        np.zeros(buffer_size(tensor), tensor.data_type.dtype)
        for tensor in (*desc.inputs, desc.output)
    ]
    _, pullback = jax.vjp(with_buffer(desc), *arrays)
    lowered = jax.jit(pullback).lower(arrays[-1])
    assert "scatter" not in lowered.as_text()
    assert not re.search(r"\bscatter\(", lowered.compile().as_text())


@pytest.mark.usefixtures("nans_are_data")  # where they are not, JAX donates nothing
def test_donated_outputs_are_reused() -> None:
    """XLA may copy the rows of 300 elements on the way."""
    rows = BufferTensorDesc(FLOAT32, (128, 256), (300, 1), 4 * 128 * 300)
    source = BufferTensorDesc(FLOAT32, (128, 256))
    operator = dml.compile_operator(copy_of(source, rows))
    jitted = jax.jit(operator, donate_argnames="outputs")
    shapes = [
        jax.ShapeDtypeStruct((t.buffer_size,), np.float32) for t in (source, rows)
    ]
    memory = jitted.lower(shapes[0], outputs=[shapes[1]]).compile().memory_analysis()
    assert memory.alias_size_in_bytes == 4 * 128 * 300
    assert memory.temp_size_in_bytes <= 4 * 128 * 300
