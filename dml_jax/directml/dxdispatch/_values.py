"""Numbers of a DirectML data type, from JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dml_jax.directml import DataType, ScalarUnion
from dml_jax.directml.dxdispatch._json import Entry

_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def parse_data_type(entry: Entry, is_known: bool = False) -> DataType:
    """A data type of 8 bits or more; UNKNOWN is refused if `is_known`."""
    data_type = entry.member_of(DataType, "DML_TENSOR_DATA_TYPE_")
    if is_known and data_type is DataType.UNKNOWN:
        raise entry.error("be a data type other than UNKNOWN")
    if 0 < data_type.bits < 8:
        raise entry.error("be a data type of 8 bits or more")
    return data_type


def parse_numbers(entry: Entry, data_type: DataType) -> np.ndarray:
    """A JSON array as a NumPy array of a data type."""
    numbers = [_converted(value, data_type.dtype) for value in entry.value]
    for i, number in enumerate(numbers):
        if number is None:
            raise _number_error(entry.elements()[i], data_type)
    return np.array(numbers)


def parse_number(entry: Entry, data_type: DataType) -> Any:
    """A JSON number as a NumPy scalar of a data type."""
    number = _converted(entry.value, data_type.dtype)
    if number is None:
        raise _number_error(entry, data_type)
    return number


def _converted(value: Any, dtype: np.dtype) -> Any:
    """The value as a scalar of a dtype, or None if the dtype cannot hold it."""
    is_float = dtype.kind == "f"
    if is_float and isinstance(value, str) and value.lower() in _SPECIAL:
        return dtype.type(_SPECIAL[value.lower()])
    if type(value) is not int and not (is_float and type(value) is float):
        return None
    try:
        with np.errstate(over="ignore"):
            number = dtype.type(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _number_error(entry: Entry, data_type: DataType) -> ValueError:
    if data_type.dtype.kind == "f":
        return entry.error(f'be a number of {data_type.name}, "nan", "inf" or "-inf"')
    limits = np.iinfo(data_type.dtype)
    return entry.error(f"be an integer from {limits.min} to {limits.max}")


def parse_scalar(entry: Entry, data_type: DataType) -> ScalarUnion:
    """A DML_SCALAR_UNION: a number, or an object with the member that holds it."""
    if isinstance(entry.value, dict):
        if data_type is DataType.FLOAT16:  # the union has no such member, only its bits
            bits = entry.members(required=("UInt16",))["UInt16"].unsigned(16)
            return ScalarUnion(uint16=bits)
        kind = {"f": "Float", "u": "UInt", "i": "Int"}[data_type.dtype.kind]
        member = f"{kind}{data_type.bits}"
        entry = entry.members(required=(member,))[member]
    if data_type.dtype.kind == "f":
        return ScalarUnion.of(data_type, parse_number(entry, data_type))
    # As in the fill functions, -2 for UINT8 is 254.
    bits = data_type.bits
    return ScalarUnion.of(data_type, entry.integer(-(2 ** (bits - 1)), 2**bits - 1))
