"""Numbers of a data type, from JSON."""

from __future__ import annotations

import math

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


def parse_numbers(entries: list[Entry], data_type: DataType) -> np.ndarray:
    """Numbers as a data type, each rounded once."""
    dtype = data_type.dtype
    if dtype.kind == "f":
        return _floats(entries, data_type)
    info = np.iinfo(dtype)
    for entry in entries:
        entry.integer(int(info.min), int(info.max))
    return np.array([entry.value for entry in entries], dtype)


def _floats(entries, data_type):
    numbers = np.array([_float(entry, data_type) for entry in entries], np.float64)
    with np.errstate(over="ignore"):
        result = numbers.astype(data_type.dtype)
    for i in np.flatnonzero(~np.isfinite(result)):
        if not isinstance(entries[i].value, str):
            raise _not_a_float(entries[i], data_type)
    return result


def _float(entry, data_type):
    value = entry.value
    if isinstance(value, str):
        value = _SPECIAL.get(value.lower())
    if value is None or isinstance(value, (bool, dict, list)):
        raise _not_a_float(entry, data_type)
    try:
        return float(value)
    except OverflowError:
        raise _not_a_float(entry, data_type) from None


def _not_a_float(entry, data_type):
    rule = f'be a number of {data_type.name}, "nan", "inf" or "-inf"'
    return entry.refused(rule)


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
        return ScalarUnion.of(data_type, parse_numbers([number], data_type)[0])
    # -2 for UINT8 is 254, as for the operator's function.
    bits = data_type.bits
    return ScalarUnion.of(data_type, number.integer(-(2 ** (bits - 1)), 2**bits - 1))


def _member(data_type):
    """The name in C of the member of DML_SCALAR_UNION."""
    kind = {"f": "Float", "u": "UInt", "i": "Int"}[data_type.dtype.kind]
    return f"{kind}{data_type.bits}"
