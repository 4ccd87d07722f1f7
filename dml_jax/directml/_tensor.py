"""Tensor descriptions, and the positions of elements in a buffer."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dml_jax._shared import arguments
from dml_jax.directml._members import UINT, UINT64, Struct, member_of
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
    kind = member_of("data_type", data_type, DataType)
    sizes = arguments.integers("sizes", sizes, limits=UINT)
    if strides is not None:
        strides = arguments.integers("strides", strides, limits=UINT)
    return rounded_bytes(kind, _layout(sizes, strides).extent)


def _layout(sizes: tuple[int, ...], strides: tuple[int, ...] | None) -> Layout:
    if strides is None:
        return Layout.packed(sizes)
    if len(strides) != len(sizes):
        rule = f"have {len(sizes)} elements, one for each dimension"
        raise arguments.error(ValueError, "strides", rule, len(strides))
    return Layout(sizes, strides)


def rounded_bytes(data_type: DataType, elements: int) -> int:
    """The size of `elements` elements in bytes, rounded up to a multiple of 4."""
    return -(-elements * data_type.bits // 32) * 4


class Layout(NamedTuple):
    """For each dimension, the number of elements and the distance between two."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def packed(cls, sizes: tuple[int, ...]) -> Layout:
        """The layout of a row-major tensor without gaps."""
        return cls(sizes, tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes))))

    @property
    def element_count(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def extent(self) -> int:
        """The number of positions from the first element to the last, gaps included."""
        if 0 in self.sizes:
            return 0
        pairs = zip(*self, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in pairs)

    @property
    def order(self) -> list[int]:
        """The dimensions with more than one element, largest stride first."""
        dims = [d for d, size in enumerate(self.sizes) if size > 1]
        return sorted(dims, key=lambda d: -self.strides[d])

    @property
    def compact(self) -> Layout:
        """The layout with size 1 in dimensions with a stride of 0."""
        pairs = zip(*self, strict=True)
        sizes = tuple(1 if stride == 0 else size for size, stride in pairs)
        return self._replace(sizes=sizes)

    @property
    def is_packed(self) -> bool:
        """Whether the elements are in row-major order without gaps."""
        packed = self.packed(self.sizes).strides
        return all(self.strides[d] == packed[d] for d in self.order)

    @property
    def is_nested(self) -> bool:
        """Whether each stride exceeds the extent of the dimensions of smaller ones."""
        last = 0
        for d in reversed(self.order):
            if self.strides[d] <= last:
                return False
            last += (self.sizes[d] - 1) * self.strides[d]
        return True

    @property
    def has_overlap(self) -> bool:
        """Whether two elements have the same position, found by enumerating them."""
        positions = np.zeros(1, np.int64)
        for d in self.order:
            steps = np.arange(self.sizes[d], dtype=np.int64) * self.strides[d]
            positions = np.add.outer(positions, steps)
        return np.unique(positions).size < positions.size


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

    @arguments.named("BufferTensorDesc")
    def __post_init__(self) -> None:
        super().__post_init__()
        total = rounded_bytes(self.data_type, self.layout.extent)
        if self.total_tensor_size_in_bytes is None:
            arguments.integer("total_tensor_size_in_bytes", total, UINT64)
            object.__setattr__(self, "total_tensor_size_in_bytes", total)

    @functools.cached_property
    def layout(self) -> Layout:
        """The sizes and strides, also where the tensor has no `strides`."""
        return _layout(self.sizes, self.strides)

    @property
    def dimension_count(self) -> int:
        """The number of dimensions, DimensionCount in C."""
        return len(self.sizes)

    @functools.cached_property
    def is_packed(self) -> bool:
        """Whether the elements are in row-major order without gaps."""
        return self.layout.is_packed

    @property
    def needed_bytes(self) -> int:
        """The minimum size for the elements in bytes, not rounded up to 4."""
        return -(-self.layout.extent * self.data_type.bits // 8)

    @functools.cached_property
    def buffer_size(self) -> int:
        """The number of whole elements in `total_tensor_size_in_bytes`."""
        bits = self.data_type.bits
        return self.total_tensor_size_in_bytes * 8 // bits if bits else 0
