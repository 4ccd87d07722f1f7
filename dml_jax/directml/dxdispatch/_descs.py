"""Parses operator and tensor descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dml_jax.directml import (
    TENSOR_DIMENSION_COUNT_MAX1,
    BufferTensorDesc,
    DataType,
    FillValueConstantOperatorDesc,
    FillValueSequenceOperatorDesc,
    OperatorDesc,
    ReverseSubsequencesOperatorDesc,
    Slice1OperatorDesc,
    SliceGradOperatorDesc,
    SliceOperatorDesc,
    TensorFlags,
    TensorType,
)
from dml_jax.directml._members import UINT, UINT64, fields_of
from dml_jax.directml._operators import camel
from dml_jax.directml.dxdispatch._json import Entry
from dml_jax.directml.dxdispatch._values import parse_data_type, parse_scalar

STRUCTS: dict[str, Any] = {
    struct.type.name: struct
    for struct in (
        ReverseSubsequencesOperatorDesc,
        SliceOperatorDesc,
        Slice1OperatorDesc,
        SliceGradOperatorDesc,
        FillValueConstantOperatorDesc,
        FillValueSequenceOperatorDesc,
    )
}

_TYPE = {"Type": "BUFFER"}
_TENSOR_DEFAULTS = {
    "Flags": [],
    "DimensionCount": None,
    "Strides": [],
    "TotalTensorSizeInBytes": 0,
    "GuaranteedBaseOffsetAlignment": 0,
}


def parse_desc(struct: Any, entry: Entry) -> OperatorDesc:
    """The description of an operator, whose members are the fields of a structure."""
    fields = {camel(name): (name, *of) for name, of in fields_of(struct).items()}
    has_arrays = any(kind == Sequence[int] for _, kind, _ in fields.values())
    members = entry.members((*fields, "DimensionCount") if has_arrays else fields)
    count = members["DimensionCount"].integer() if has_arrays else 0
    data_type = DataType.UNKNOWN
    values: dict[str, Any] = {}
    for name, (field, kind, limits) in fields.items():
        member = members[name]
        if kind is BufferTensorDesc:
            values[field] = _tensor(member)
        elif kind is int:
            values[field] = member.integer(limits)
        elif kind == Sequence[int]:
            values[field] = _integers(member, limits)
            _require_count(member, count)
        elif kind is DataType:  # precedes the values
            values[field] = data_type = parse_data_type(member, is_known=True)
        else:
            values[field] = parse_scalar(member, data_type)
    return struct(**values)


def _tensor(entry: Entry) -> BufferTensorDesc:
    """A DML_TENSOR_DESC, with its members inline or in `Desc`."""
    outer = entry.members(("Desc",), _TYPE) if "Desc" in entry.entries() else {}
    desc = outer.get("Desc", entry)
    members = outer | desc.members(
        ("DataType", "Sizes"), _TENSOR_DEFAULTS if outer else _TENSOR_DEFAULTS | _TYPE
    )
    kind = members["Type"].member_of(TensorType, "DML_TENSOR_TYPE_")
    if kind is not TensorType.BUFFER:
        raise members["Type"].error("be BUFFER")
    sizes = _integers(members["Sizes"])
    strides = _integers(members["Strides"])
    if "DimensionCount" in desc.value:
        _require_count(members["Sizes"], members["DimensionCount"].integer())
    if strides:
        _require_count(members["Strides"], len(sizes))
    data_type = parse_data_type(members["DataType"])
    # As in DxDispatch, 0 means the size that the layout needs.
    total = members["TotalTensorSizeInBytes"].integer(UINT64) or None
    flags = members["Flags"].flags_of(TensorFlags, "DML_TENSOR_FLAG_")
    alignment = members["GuaranteedBaseOffsetAlignment"].integer()
    with entry.located():
        return BufferTensorDesc(
            data_type, sizes, strides or None, total, flags, alignment
        )


def _integers(entry: Entry, limits: range = UINT) -> tuple[int, ...]:
    elements = entry.elements(TENSOR_DIMENSION_COUNT_MAX1)
    return tuple(element.integer(limits) for element in elements)


def _require_count(entry: Entry, count: int) -> None:
    if len(entry.value) != count:
        raise entry.error(f"have as many elements as DimensionCount, {count}")
