"""Numbers of a data type, from JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dml_jax.directml._types import DataType, ScalarUnion
from dml_jax.directml.dxdispatch._json import Entry

_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def parse_data_type(entry: Entry) -> DataType:
    """A data type by its full or its short name; the 4-bit ones have no values."""
    data_type = entry.member_of(DataType, "DML_TENSOR_DATA_TYPE_")
    if 0 < data_type.bits < 8:
        raise entry.refused("be a data type of 8 bits or more")
    return data_type


def parse_numbers(entry: Entry, data_type: DataType) -> np.ndarray:
    """An array of numbers as a data type."""
    return _array(entry.value, data_type, entry.item)


def parse_number(entry: Entry, data_type: DataType) -> Any:
    """A number as a data type."""
    return _array([entry.value], data_type, lambda _: entry)[0]


def _array(values, data_type, entry_of):
    """Values as an array; `entry_of` an index is what a refusal is about."""
    dtype = data_type.dtype
    if dtype.kind == "f":
        return _floats(values, data_type, entry_of)
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    for i, value in enumerate(values):
        if type(value) is not int or not least <= value <= most:
            raise entry_of(i).refused(f"be an integer from {least} to {most}")
    return np.array(values, dtype)


def _floats(values, data_type, entry_of):
    rule = f'be a number of {data_type.name}, "nan", "inf" or "-inf"'
    numbers = np.empty(len(values), np.float64)
    for i, value in enumerate(values):
        if isinstance(value, str):
            value = _SPECIAL.get(value.lower())
        if type(value) not in (int, float):
            raise entry_of(i).refused(rule)
        try:
            numbers[i] = value
        except OverflowError:
            raise entry_of(i).refused(rule) from None
    with np.errstate(over="ignore"):
        result = numbers.astype(data_type.dtype)
    for i in np.flatnonzero(~np.isfinite(result)):
        if not isinstance(values[i], str):
            raise entry_of(i).refused(rule)
    return result


def parse_scalar(entry: Entry, data_type: DataType) -> ScalarUnion:
    """A DML_SCALAR_UNION: a number, or an object with the member that holds it."""
    number = entry
    if isinstance(entry.value, dict):
        is_half = data_type is DataType.FLOAT16
        member = "UInt16" if is_half else _member(data_type)
        number = entry.members(required=(member,))[member]
        if is_half:  # the union has no member for it: these are its bits
            return ScalarUnion(uint16=number.unsigned(16))
    if data_type.dtype.kind == "f":
        return ScalarUnion.of(data_type, parse_number(number, data_type))
    # -2 for UINT8 is 254, as for the operator's function.
    bits = data_type.bits
    return ScalarUnion.of(data_type, number.integer(-(2 ** (bits - 1)), 2**bits - 1))


def _member(data_type):
    """The name in C of the member of DML_SCALAR_UNION."""
    kind = {"f": "Float", "u": "UInt", "i": "Int"}[data_type.dtype.kind]
    return f"{kind}{data_type.bits}"
