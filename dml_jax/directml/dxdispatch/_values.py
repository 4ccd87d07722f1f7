"""Parses numbers of a DirectML data type."""

from __future__ import annotations

import contextlib
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
    dtype = data_type.dtype
    if {*map(type, entry.value)} <= ({int, float} if dtype.kind == "f" else {int}):
        with contextlib.suppress(OverflowError), np.errstate(over="ignore"):
            array = np.array(entry.value, dtype)
            if np.isfinite(array).all():
                return array
    # Some elements are special values or errors.
    return np.array([parse_number(element, data_type) for element in entry.elements()])


def parse_number(entry: Entry, data_type: DataType) -> Any:
    """A JSON number as a NumPy scalar of a data type."""
    value, dtype = entry.value, data_type.dtype
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        return dtype.type(entry.integer(range(int(limits.min), int(limits.max) + 1)))
    if isinstance(value, str) and value.lower() in _SPECIAL:
        return dtype.type(_SPECIAL[value.lower()])
    if type(value) in (int, float):
        with contextlib.suppress(OverflowError), np.errstate(over="ignore"):
            number = dtype.type(value)
            if np.isfinite(number):
                return number
    raise entry.error(f'be a number of {data_type.name}, "nan", "inf" or "-inf"')


def parse_scalar(entry: Entry, data_type: DataType) -> ScalarUnion:
    """A DML_SCALAR_UNION: a number, or an object with the member that holds it."""
    if isinstance(entry.value, dict):
        if data_type is DataType.FLOAT16:  # the union has its bits alone
            bits = entry.members(required=("UInt16",))["UInt16"].integer(range(2**16))
            return ScalarUnion(uint16=bits)
        kind = {"f": "Float", "u": "UInt", "i": "Int"}[data_type.dtype.kind]
        member = f"{kind}{data_type.bits}"
        entry = entry.members(required=(member,))[member]
    if data_type.dtype.kind == "f":
        return ScalarUnion.of(data_type, parse_number(entry, data_type))
    # As in the fill functions, -2 for UINT8 is 254.
    both = range(-(2 ** (data_type.bits - 1)), 2**data_type.bits)
    return ScalarUnion.of(data_type, entry.integer(both))
