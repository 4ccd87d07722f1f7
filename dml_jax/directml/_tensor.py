"""Where the elements of a tensor lie in a buffer."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from dml_jax._shared import arguments
from dml_jax.directml._types import DataType, TensorFlags, member_of, settle

LARGEST_UINT = 2**32 - 1


def calc_buffer_tensor_size(
    data_type: DataType, sizes: Sequence[int], strides: Sequence[int] | None = None
) -> int:
    """The bytes that a buffer needs to hold a tensor: DMLCalcBufferTensorSize.

    That is the index of the last element plus one, times the size of an element,
    rounded up to a multiple of 4. DirectMLX computes the index modulo 2^32; here it is
    exact.

    Args:
      data_type: the type of the elements; UNKNOWN gives 0.
      sizes: for each dimension the number of elements.
      strides: for each dimension the elements between one and the next; None where they
        are packed in row-major order.

    Returns:
      The size in bytes.

    Raises:
      TypeError: `sizes` or `strides` is not a sequence of integers.
      ValueError: a number is negative, or there are not as many strides as sizes.

    Example:
      >>> from dml_jax.directml import DataType, calc_buffer_tensor_size
      >>> calc_buffer_tensor_size(DataType.FLOAT32, (2, 3), strides=(4, 1))
      28
      >>> calc_buffer_tensor_size(DataType.UINT8, (5,))
      8

    Source: DirectML, DMLCalcBufferTensorSize in DirectMLX.h.
    """
    function = "calc_buffer_tensor_size"
    data_type = member_of(function, "data_type", data_type, DataType)
    sizes = unsigned(function, "sizes", sizes)
    if strides is not None:
        strides = unsigned(function, "strides", strides, len(sizes))
    return rounded_bytes(data_type, extent(sizes, strides))


def extent(sizes: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
    """The number of elements from the first one to the last, gaps included."""
    if strides is None or 0 in sizes:
        return math.prod(sizes)
    pairs = zip(sizes, strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def rounded_bytes(data_type: DataType, elements: int) -> int:
    """The bytes of so many elements, rounded up to a multiple of 4."""
    return -(-elements * data_type.bits // 32) * 4


def packed_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major tensor without gaps."""
    return tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def is_nested(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether each stride steps over all that the smaller ones reach."""
    reach = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += (size - 1) * stride
    return True


def has_overlap(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements share a place, by looking at all of them."""
    places = np.zeros((), np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        places = np.add.outer(places, np.arange(size, dtype=np.int64) * stride)
    places = np.sort(places, axis=None)
    return bool((places[1:] == places[:-1]).any())


def unsigned(function, name, value, count=None) -> tuple[int, ...]:
    """`value` as a tuple of UINTs."""
    numbers = arguments.integers(function, name, value, count)
    for i, number in enumerate(numbers):
        in_range(function, f"{name}[{i}]", number, 0, LARGEST_UINT)
    return numbers


def in_range(function, name, value, least, most) -> int:
    """`value` as an integer that its member in C can hold."""
    number = arguments.integer(function, name, value)
    if not least <= number <= most:
        raise ValueError(
            f"{function}: `{name}` must be {least} to {most}; got {number}"
        )
    return number


@dataclasses.dataclass(frozen=True)
class BufferTensorDesc:
    """DML_BUFFER_TENSOR_DESC: the type, shape and layout of a tensor in a buffer.

    It takes what the C structure can hold; `validate` of an operator says whether
    DirectML would create the operator with it. DimensionCount is the number of `sizes`.

    Args:
      data_type: the type of the elements.
      sizes: for each dimension the number of elements.
      strides: for each dimension the elements, not bytes, from one to the next: 0 for a
        broadcast, more than packed for padding. None for packed in row-major order.
      total_tensor_size_in_bytes: the bytes of the buffer that belong to the tensor;
        None for `calc_buffer_tensor_size`.
      flags: OWNED_BY_DML for an input that is bound at initialisation.
      guaranteed_base_offset_alignment: bytes that the offset of the buffer is a
        multiple of; 0 for no more than the 16 bytes which hold for every buffer.

    Raises:
      TypeError: a number is not an integer.
      ValueError: a number does not fit its member, the data type or a flag is unknown,
        or there are not as many strides as sizes.

    Example:
      >>> from dml_jax.directml import BufferTensorDesc, DataType
      >>> lengths = BufferTensorDesc(DataType.UINT32, (8, 1, 256), strides=(1, 1, 0))
      >>> lengths.dimension_count, lengths.total_tensor_size_in_bytes
      (3, 32)

    Source: DirectML, DML_BUFFER_TENSOR_DESC.
    """

    data_type: DataType
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    total_tensor_size_in_bytes: int = None  # type: ignore[assignment]
    flags: TensorFlags = TensorFlags.NONE
    guaranteed_base_offset_alignment: int = 0

    def __post_init__(self):
        struct = "BufferTensorDesc"
        data_type = member_of(struct, "data_type", self.data_type, DataType)
        sizes = unsigned(struct, "sizes", self.sizes)
        strides = self.strides
        if strides is not None:
            strides = unsigned(struct, "strides", strides, len(sizes))
        total = self.total_tensor_size_in_bytes
        if total is None:
            total = rounded_bytes(data_type, extent(sizes, strides))
        alignment = self.guaranteed_base_offset_alignment
        settled = {
            "data_type": data_type,
            "sizes": sizes,
            "strides": strides,
            "total_tensor_size_in_bytes": in_range(
                struct, "total_tensor_size_in_bytes", total, 0, 2**64 - 1
            ),
            "flags": flags_of(struct, "flags", self.flags, TensorFlags),
            "guaranteed_base_offset_alignment": in_range(
                struct, "guaranteed_base_offset_alignment", alignment, 0, LARGEST_UINT
            ),
        }
        settle(self, **settled)

    @property
    def dimension_count(self) -> int:
        """The number of dimensions, DimensionCount in C."""
        return len(self.sizes)

    @functools.cached_property
    def is_packed(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        if self.strides is None:
            return True
        triples = zip(self.sizes, self.strides, packed_strides(self.sizes), strict=True)
        return all(size == 1 or given == packed for size, given, packed in triples)

    @property
    def needed_bytes(self) -> int:
        """The least bytes that the elements need, not rounded up."""
        return -(-extent(self.sizes, self.strides) * self.data_type.bits // 8)

    @functools.cached_property
    def buffer_size(self) -> int:
        """The whole elements in `total_tensor_size_in_bytes`."""
        bits = self.data_type.bits
        return self.total_tensor_size_in_bytes * 8 // bits if bits else 0


def flags_of(function, name, value, enumeration):
    """`value` as flags that the enumeration has."""
    number = arguments.integer(function, name, value)
    if not 0 <= number <= sum(enumeration):
        raise ValueError(
            f"{function}: `{name}` must be {enumeration.__name__}; got {number}"
        )
    return enumeration(number)
