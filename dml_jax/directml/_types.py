"""DirectML's enumerations, constants and scalar union.

Members of an enumeration have the numbers of the C header, and its names without the
prefix: DML_TENSOR_DATA_TYPE_FLOAT32 is `DataType.FLOAT32`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, TypeAlias

import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike

from dml_jax._shared import arguments
from dml_jax._shared.scalars import as_scalar
from dml_jax.directml._members import instance_of, member_of

TENSOR_DIMENSION_COUNT_MAX1 = 8
"""DML_TENSOR_DIMENSION_COUNT_MAX1: the maximum rank of a tensor, from 3_0 on."""

MINIMUM_BUFFER_TENSOR_ALIGNMENT = 16
"""DML_MINIMUM_BUFFER_TENSOR_ALIGNMENT: of the offsets of bound buffers, in bytes."""


class DataType(enum.IntEnum):
    """DML_TENSOR_DATA_TYPE: the type of the elements of a tensor.

    `DataType("float32")` and `DataType(np.float32)` are `DataType.FLOAT32`. Functions
    and descriptions accept these names and NumPy dtypes, too.
    """

    UNKNOWN = 0
    FLOAT32 = 1
    FLOAT16 = 2
    UINT32 = 3
    UINT16 = 4
    UINT8 = 5
    INT32 = 6
    INT16 = 7
    INT8 = 8
    FLOAT64 = 9
    UINT64 = 10
    INT64 = 11
    UINT4 = 12
    INT4 = 13

    @classmethod
    def _missing_(cls, value: object) -> DataType | None:
        """The member for a name in upper or lower case, or for a dtype."""
        if isinstance(value, type):  # NumPy's or JAX's scalar types
            value = value.__name__
        elif isinstance(value, np.dtype) and value.isnative:
            value = value.name
        if not isinstance(value, str):
            return None
        name = value.upper().removeprefix("DML_TENSOR_DATA_TYPE_")
        return cls.__members__.get(name)

    @functools.cached_property
    def bits(self) -> int:
        """The size of an element in bits; 0 for UNKNOWN."""
        return int("".join(filter(str.isdigit, self.name)) or 0)

    @functools.cached_property
    def dtype(self) -> np.dtype:
        """The NumPy dtype; UNKNOWN and the 4-bit types have none (ValueError)."""
        if self.bits < 8:
            message = f"DataType: `dtype` must have at least 8 bits; got {self.name}"
            raise ValueError(message)
        return np.dtype(self.name.lower())


DataTypeLike: TypeAlias = DataType | DTypeLike
"""What functions and descriptions accept as a data type."""


class TensorType(enum.IntEnum):
    """DML_TENSOR_TYPE: the kind of resource that stores a tensor."""

    INVALID = 0
    BUFFER = 1


class TensorFlags(enum.IntFlag):
    """DML_TENSOR_FLAGS: OWNED_BY_DML marks inputs bound at initialization."""

    NONE = 0
    OWNED_BY_DML = 1


class ExecutionFlags(enum.IntFlag):
    """DML_EXECUTION_FLAGS: hints to DirectML's compiler, which have no effect here."""

    NONE = 0
    ALLOW_HALF_PRECISION_COMPUTATION = 1
    DISABLE_META_COMMANDS = 2
    DESCRIPTORS_VOLATILE = 4


class OperatorType(enum.IntEnum):
    """DML_OPERATOR_TYPE: the DirectML operators that this package implements."""

    SLICE = 60
    FILL_VALUE_CONSTANT = 103
    FILL_VALUE_SEQUENCE = 104
    REVERSE_SUBSEQUENCES = 106
    SLICE1 = 111
    SLICE_GRAD = 135


class FeatureLevel(enum.IntEnum):
    """DML_FEATURE_LEVEL: what a device supports; a level includes all lower ones."""

    LEVEL_1_0 = 0x1000
    LEVEL_2_0 = 0x2000
    LEVEL_2_1 = 0x2100
    LEVEL_3_0 = 0x3000
    LEVEL_3_1 = 0x3100
    LEVEL_4_0 = 0x4000
    LEVEL_4_1 = 0x4100
    LEVEL_5_0 = 0x5000
    LEVEL_5_1 = 0x5100
    LEVEL_5_2 = 0x5200
    LEVEL_6_0 = 0x6000
    LEVEL_6_1 = 0x6100
    LEVEL_6_2 = 0x6200
    LEVEL_6_3 = 0x6300
    LEVEL_6_4 = 0x6400

    @property
    def label(self) -> str:
        """The level as DirectML's documentation writes it, such as 4_1."""
        return self.name.removeprefix("LEVEL_")


LATEST = FeatureLevel.LEVEL_6_4


@dataclasses.dataclass(frozen=True, init=False)
class ScalarUnion:
    """DML_SCALAR_UNION: 8 bytes, interpreted as the data type given beside them.

    There is no member for FLOAT16: pass the raw bits of a half as `uint16`, or the
    number to `ScalarUnion.of`. Bytes that a member does not set are 0.

    Args:
      members: one of `bytes` (8 bytes), `int8`, `uint8`, `int16`, `uint16`, `int32`,
        `uint32`, `int64`, `uint64`, `float32`, `float64`; none for 8 zeros. An integer
        may be given in the signed or the unsigned range of its width.

    Raises:
      TypeError: more than one member, an unknown one, or a value of the wrong kind.
      ValueError: `bytes` does not have 8 bytes.
      OverflowError: the value does not fit the member's width.

    Example:
      >>> from dml_jax.directml import DataType, ScalarUnion
      >>> ScalarUnion(float32=1.0).uint32 == 0x3F800000
      True
      >>> ScalarUnion(int8=-2).read(DataType.UINT8)
      np.uint8(254)

    Source: DirectML, DML_SCALAR_UNION.
    """

    bytes: bytes

    _example = "ScalarUnion(float32=1.0)"  # for messages

    @arguments.named("ScalarUnion")
    def __init__(self, **members: bytes | ArrayLike):
        if len(members) > 1 or not members.keys() <= {"bytes", *_MEMBERS}:
            got, rule = ", ".join(members), f"be one of bytes, {', '.join(_MEMBERS)}"
            if "float16" in members:
                got += ". `ScalarUnion.of` takes a number for any data type"
            raise arguments.error(TypeError, "members", rule, got)
        content = bytes(8)
        for name, value in members.items():
            if name in _MEMBERS:
                content = _bits(name, value, _MEMBERS[name])
            else:
                content = bytes(instance_of(name, value, bytes | bytearray))
        if len(content) != 8:
            raise arguments.error(ValueError, "bytes", "be 8 bytes", len(content))
        object.__setattr__(self, "bytes", content)

    @classmethod
    @arguments.named("ScalarUnion")
    def of(cls, data_type: DataTypeLike, value: ArrayLike) -> ScalarUnion:
        """A union with `value`, rounded once to `data_type`.

        Raises TypeError if `value` is not a static number, OverflowError if it does not
        fit, ValueError if `data_type` has fewer than 8 bits.
        """
        dtype = member_of("data_type", data_type, DataType).dtype
        return cls(bytes=_bits("value", value, dtype))

    @arguments.named("ScalarUnion")
    def read(self, data_type: DataTypeLike) -> np.generic:
        """The bits as a NumPy scalar of `data_type`."""
        dtype = member_of("data_type", data_type, DataType).dtype
        return np.frombuffer(self.bytes, dtype, count=1)[0]

    def __getattr__(self, name: str) -> Any:
        if name not in _MEMBERS:
            raise AttributeError(f"ScalarUnion has no member {name!r}")
        return np.frombuffer(self.bytes, _MEMBERS[name], count=1)[0].item()


def _bits(name: str, value: Any, dtype: np.dtype) -> bytes:
    """A number as 8 bytes, of which those beyond the dtype are 0."""
    if isinstance(value, Tracer):
        got, rule = arguments.describe(value), "be a static number"
        raise arguments.error(TypeError, name, rule, got)
    scalar = as_scalar(name, value, dtype)
    return np.asarray(scalar).astype(dtype).tobytes().ljust(8, b"\0")


_MEMBERS = {
    data_type.name.lower(): data_type.dtype
    for data_type in DataType
    if data_type.bits >= 8 and data_type is not DataType.FLOAT16
}
