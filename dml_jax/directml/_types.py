"""The numbers of DirectML: enumerations, constants and the scalar union.

Every member of an enumeration has the name and the number of the C header, without the
name of the enumeration before it: DML_TENSOR_DATA_TYPE_FLOAT32 is `DataType.FLOAT32`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any

import numpy as np
from jax.core import Tracer

from dml_jax._shared import arguments
from dml_jax._shared.scalars import as_scalar

TENSOR_DIMENSION_COUNT_MAX1 = 8
"""DML_TENSOR_DIMENSION_COUNT_MAX1: most dimensions of a tensor, from 3_0 on."""

MINIMUM_BUFFER_TENSOR_ALIGNMENT = 16
"""DML_MINIMUM_BUFFER_TENSOR_ALIGNMENT: what every bound offset is a multiple of."""


class DataType(enum.IntEnum):
    """DML_TENSOR_DATA_TYPE: what the elements of a tensor are."""

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

    @functools.cached_property
    def bits(self) -> int:
        """The size of an element; 0 for UNKNOWN."""
        if self is DataType.UNKNOWN:
            return 0
        return int("".join(filter(str.isdigit, self.name)))

    @functools.cached_property
    def dtype(self) -> np.dtype:
        """The dtype of an array of such elements; UNKNOWN and 4-bit types have none."""
        if self.bits < 8:
            raise ValueError(
                "DataType: `dtype` must be that of a type of 8 bits or more; got "
                f"{self.name}"
            )
        return np.dtype(self.name.lower())


class TensorType(enum.IntEnum):
    """DML_TENSOR_TYPE: what a tensor is stored in."""

    INVALID = 0
    BUFFER = 1


class TensorFlags(enum.IntFlag):
    """DML_TENSOR_FLAGS: options of a tensor.

    OWNED_BY_DML is for inputs that are bound once, when an operator is initialised.
    """

    NONE = 0
    OWNED_BY_DML = 1


class ExecutionFlags(enum.IntFlag):
    """DML_EXECUTION_FLAGS: hints to DirectML's compiler, which have no effect here."""

    NONE = 0
    ALLOW_HALF_PRECISION_COMPUTATION = 1
    DISABLE_META_COMMANDS = 2
    DESCRIPTORS_VOLATILE = 4


class OperatorType(enum.IntEnum):
    """DML_OPERATOR_TYPE: the operators of this package among DirectML's."""

    SLICE = 60
    FILL_VALUE_CONSTANT = 103
    FILL_VALUE_SEQUENCE = 104
    REVERSE_SUBSEQUENCES = 106
    SLICE1 = 111
    SLICE_GRAD = 135


class FeatureLevel(enum.IntEnum):
    """DML_FEATURE_LEVEL: what a DirectML device can do; each level has all below it."""

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
        """The number as the documents write it, such as 4_1."""
        return self.name.removeprefix("LEVEL_")


LATEST = FeatureLevel.LEVEL_6_4


@dataclasses.dataclass(frozen=True, init=False)
class ScalarUnion:
    """DML_SCALAR_UNION: 8 bytes that are read as the data type that stands beside them.

    There is no member for FLOAT16: half values are given as raw bits, in `uint16`, or
    as a number with `ScalarUnion.of`. Bytes that a member does not set are 0.

    Args:
      members: one of `bytes` (8 of them), `int8`, `uint8`, `int16`, `uint16`, `int32`,
        `uint32`, `int64`, `uint64`, `float32`, `float64`; none for 8 zeros. An integer
        may be given in the signed or the unsigned range of its width.

    Raises:
      TypeError: more than one member, an unknown one, or a value of the wrong kind.
      ValueError: `bytes` has not 8 of them.
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

    def __init__(self, **members: Any):
        if len(members) > 1 or not members.keys() <= {"bytes", *_MEMBERS}:
            raise TypeError(
                "ScalarUnion: `members` must be one of bytes, "
                f"{', '.join(_MEMBERS)}; got {', '.join(members)}"
            )
        content = b""
        for name, value in members.items():
            is_bytes = name == "bytes"
            content = _eight(value) if is_bytes else _bits(name, value, _MEMBERS[name])
        settle(self, bytes=content.ljust(8, b"\0"))

    @classmethod
    def of(cls, data_type: DataType, value: Any) -> ScalarUnion:
        """The union that reads as `value`, rounded once, as a `data_type`.

        Raises TypeError for what is not a static number, OverflowError for one that
        does not fit, ValueError for a data type below 8 bits.
        """
        dtype = member_of("ScalarUnion", "data_type", data_type, DataType).dtype
        return cls(bytes=_bits("value", value, dtype).ljust(8, b"\0"))

    def read(self, data_type: DataType) -> Any:
        """The bits as a NumPy scalar of `data_type`."""
        dtype = member_of("ScalarUnion", "data_type", data_type, DataType).dtype
        return np.frombuffer(self.bytes, dtype, count=1)[0]

    def __getattr__(self, name: str) -> Any:
        if name not in _MEMBERS:
            raise AttributeError(f"ScalarUnion has no member {name!r}")
        return np.frombuffer(self.bytes, _MEMBERS[name], count=1)[0].item()


def _bits(name: str, value: Any, dtype: np.dtype) -> bytes:
    if isinstance(value, Tracer):
        raise TypeError(
            f"ScalarUnion: `{name}` must be a static number; got "
            f"{arguments.describe(value)}"
        )
    return as_scalar("ScalarUnion", name, value, dtype).tobytes()


def _eight(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(
            f"ScalarUnion: `bytes` must be bytes; got {arguments.describe(value)}"
        )
    if len(value) != 8:
        raise ValueError(f"ScalarUnion: `bytes` must be 8 bytes; got {len(value)}")
    return bytes(value)


def member_of(function: str, name: str, value: Any, enumeration: Any) -> Any:
    """`value` as a member of an enumeration, by its number."""
    try:
        return enumeration(arguments.integer(function, name, value))
    except (TypeError, ValueError) as error:
        kind = enumeration.__name__
        article = "an" if kind[0] in "AEIOU" else "a"
        raise type(error)(
            f"{function}: `{name}` must be {article} {kind}; got "
            f"{arguments.describe(value)}"
        ) from None


def settle(frozen: Any, **values: Any) -> None:
    """Sets fields of a frozen dataclass that is being made."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


_MEMBERS = {
    data_type.name.lower(): data_type.dtype
    for data_type in DataType
    if data_type.bits >= 8 and data_type is not DataType.FLOAT16
}
