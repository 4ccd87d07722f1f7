"""Tensor descriptions, and the positions of elements in a buffer."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dml_jax._shared import arguments
from dml_jax.directml._members import (
    UINT64,
    Struct,
    integer,
    integers,
    member_of,
    set_frozen,
)
from dml_jax.directml._types import DataType, DataTypeLike, TensorFlags


def calc_buffer_tensor_size(
    data_type: DataTypeLike,
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
) -> int:
    """DMLCalcBufferTensorSize: the size in bytes of a buffer that holds a tensor.

    This is the index of the last element plus one, times the size of an element,
    rounded up to a multiple of 4. DirectMLX computes the index modulo 2^32; here it is
    exact.

    Args:
      data_type: the type of the elements, as a DataType, its name or NumPy dtype;
        UNKNOWN gives 0.
      sizes: for each dimension the number of elements.
      strides: for each dimension the distance between two elements, in elements; None
        if the tensor is packed in row-major order.

    Returns:
      The size in bytes.

    Raises:
      TypeError: `sizes` or `strides` is not a sequence of integers.
      ValueError: a number is negative, or the numbers of strides and sizes differ.

    Example:
      >>> from dml_jax.directml import DataType, calc_buffer_tensor_size
      >>> calc_buffer_tensor_size(DataType.FLOAT32, (2, 3), strides=(4, 1))
      28
      >>> calc_buffer_tensor_size(DataType.UINT8, (5,))
      8

    Source: DirectML, DMLCalcBufferTensorSize in DirectMLX.h.
    """
    function = "calc_buffer_tensor_size"
    kind = member_of(function, "data_type", data_type, DataType)
    sizes = integers(function, "sizes", sizes)
    if strides is not None:
        strides = integers(function, "strides", strides)
    _require_one_for_each(function, sizes, strides)
    return rounded_bytes(kind, extent(sizes, strides))


def _require_one_for_each(
    function: str, sizes: tuple[int, ...], strides: tuple[int, ...] | None
) -> None:
    if strides is not None and len(strides) != len(sizes):
        rule = f"have {len(sizes)} elements, one for each dimension"
        raise arguments.error(ValueError, function, "strides", rule, len(strides))


def extent(sizes: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
    """The number of positions from the first element to the last, gaps included."""
    if strides is None or 0 in sizes:
        return math.prod(sizes)
    pairs = zip(sizes, strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def rounded_bytes(data_type: DataType, elements: int) -> int:
    """The size of `elements` elements in bytes, rounded up to a multiple of 4."""
    return -(-elements * data_type.bits // 32) * 4


def packed_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major tensor without gaps."""
    return tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def is_packed(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements are in row-major order without gaps."""
    triples = zip(sizes, strides, packed_strides(sizes), strict=True)
    return all(size == 1 or given == packed for size, given, packed in triples)


def is_nested(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether each stride exceeds the extent of the dimensions of smaller strides."""
    last = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1:
            if stride <= last:
                return False
            last += (size - 1) * stride
    return True


def has_overlap(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements of a tensor that is not nested have the same position.

    The rows along the longest dimension are not enumerated, only where they start. Two
    rows overlap if their starts are less than a row's length of strides apart.
    """
    dims = sorted(pair for pair in zip(sizes, strides, strict=True) if pair[0] > 1)
    if any(stride == 0 for _, stride in dims):
        return True
    *others, (length, step) = dims
    starts = np.zeros(1, np.int64)
    for size, stride in others:
        starts = np.add.outer(starts, np.arange(size, dtype=np.int64) * stride)
    steps, rest = np.divmod(starts, step)
    # Starts with different rests are at least a row apart in these keys.
    keys = np.sort(rest * (steps.max() + length) + steps, axis=None)
    return bool((np.diff(keys) < length).any())


@dataclasses.dataclass(frozen=True)
class BufferTensorDesc(Struct):
    """DML_BUFFER_TENSOR_DESC: the type, shape and layout of a tensor in a buffer.

    The class accepts what the C structure can hold. The `validate` method of an
    operator description checks whether DirectML would create the operator with it.
    DimensionCount is the number of `sizes`.

    Args:
      data_type: the type of the elements, as a DataType, its name or NumPy dtype.
      sizes: for each dimension the number of elements.
      strides: for each dimension the distance between two elements, in elements, not
        bytes: 0 broadcasts, and strides larger than the packed ones leave gaps. None if
        the tensor is packed in row-major order.
      total_tensor_size_in_bytes: the size of the tensor's part of the buffer; None for
        the result of `calc_buffer_tensor_size`.
      flags: OWNED_BY_DML for an input that is bound at initialization.
      guaranteed_base_offset_alignment: the alignment of the buffer's offset in bytes; 0
        for the minimum that holds for every buffer, 16.

    Raises:
      TypeError: a number is not an integer.
      ValueError: a number does not fit its member, the data type or a flag is unknown,
        or the numbers of strides and sizes differ.

    Example:
      >>> from dml_jax.directml import BufferTensorDesc, DataType
      >>> lengths = BufferTensorDesc(DataType.UINT32, (8, 1, 256), strides=(1, 1, 0))
      >>> lengths.dimension_count, lengths.total_tensor_size_in_bytes
      (3, 32)
      >>> BufferTensorDesc("float16", (8,)).data_type
      <DataType.FLOAT16: 2>

    Source: DirectML, DML_BUFFER_TENSOR_DESC.
    """

    data_type: DataType
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    total_tensor_size_in_bytes: int = dataclasses.field(
        default=None,  # type: ignore[assignment]
        metadata={"limits": UINT64},
    )
    flags: TensorFlags = TensorFlags.NONE
    guaranteed_base_offset_alignment: int = 0

    if TYPE_CHECKING:  # the arguments are converted to the types of the fields

        def __init__(
            self,
            data_type: DataTypeLike,
            sizes: Sequence[int],
            strides: Sequence[int] | None = None,
            total_tensor_size_in_bytes: int | None = None,
            flags: TensorFlags = TensorFlags.NONE,
            guaranteed_base_offset_alignment: int = 0,
        ) -> None: ...

    def __post_init__(self) -> None:
        is_implied = self.total_tensor_size_in_bytes is None
        if is_implied:
            set_frozen(self, total_tensor_size_in_bytes=0)
        super().__post_init__()
        struct, sizes, strides = "BufferTensorDesc", self.sizes, self.strides
        _require_one_for_each(struct, sizes, strides)
        if is_implied:
            total = rounded_bytes(self.data_type, extent(sizes, strides))
            total = integer(struct, "total_tensor_size_in_bytes", total, UINT64)
            set_frozen(self, total_tensor_size_in_bytes=total)

    @property
    def dimension_count(self) -> int:
        """The number of dimensions, DimensionCount in C."""
        return len(self.sizes)

    @functools.cached_property
    def is_packed(self) -> bool:
        """Whether the elements are in row-major order without gaps."""
        return self.strides is None or is_packed(self.sizes, self.strides)

    @property
    def needed_bytes(self) -> int:
        """The minimum size for the elements in bytes, not rounded up to 4."""
        return -(-extent(self.sizes, self.strides) * self.data_type.bits // 8)

    @functools.cached_property
    def buffer_size(self) -> int:
        """The number of whole elements in `total_tensor_size_in_bytes`."""
        bits = self.data_type.bits
        return self.total_tensor_size_in_bytes * 8 // bits if bits else 0
