"""Parses operator and tensor descriptions."""

from __future__ import annotations

import dataclasses
from typing import Any

from dml_jax.directml import (
    TENSOR_DIMENSION_COUNT_MAX1,
    BufferTensorDesc,
    DataType,
    FillValueConstantOperatorDesc,
    FillValueSequenceOperatorDesc,
    OperatorDesc,
    OperatorType,
    ReverseSubsequencesOperatorDesc,
    Slice1OperatorDesc,
    SliceGradOperatorDesc,
    SliceOperatorDesc,
    TensorFlags,
    TensorType,
)
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
_ARRAYS = {
    "Offsets",
    "Sizes",
    "Strides",
    "InputWindowOffsets",
    "InputWindowSizes",
    "InputWindowStrides",
}


def parse_desc(operator: OperatorType, entry: Entry) -> OperatorDesc:
    """The description of an operator."""
    struct = STRUCTS[operator.name]
    fields = {camel(field.name): field.name for field in dataclasses.fields(struct)}
    has_arrays = not _ARRAYS.isdisjoint(fields)
    members = entry.members((*fields, "DimensionCount") if has_arrays else fields)
    count = members["DimensionCount"].unsigned() if has_arrays else 0
    data_type = DataType.UNKNOWN
    values: dict[str, Any] = {}
    for name, field in fields.items():
        member = members[name]
        if name.endswith("Tensor"):
            values[field] = _tensor(member)
        elif name == "Axis":
            values[field] = member.unsigned()
        elif name in _ARRAYS:
            values[field] = _integers(member, is_signed=name == "InputWindowStrides")
            _require_count(member, count)
        elif name == "ValueDataType":  # precedes the values
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
        _require_count(members["Sizes"], members["DimensionCount"].unsigned())
    if strides:
        _require_count(members["Strides"], len(sizes))
    return BufferTensorDesc(
        parse_data_type(members["DataType"]),
        sizes,
        strides or None,
        # As in DxDispatch, 0 means the size that the layout needs.
        members["TotalTensorSizeInBytes"].unsigned(64) or None,  # type: ignore
        members["Flags"].flags_of(TensorFlags, "DML_TENSOR_FLAG_"),
        members["GuaranteedBaseOffsetAlignment"].unsigned(),
    )


def _integers(entry: Entry, is_signed: bool = False) -> tuple[int, ...]:
    """An array of UINT or INT."""
    limits = (-(2**31), 2**31 - 1) if is_signed else (0, 2**32 - 1)
    elements = entry.elements(TENSOR_DIMENSION_COUNT_MAX1)
    return tuple(element.integer(*limits) for element in elements)


def _require_count(entry: Entry, count: int) -> None:
    if len(entry.value) != count:
        raise entry.error(f"have as many elements as DimensionCount, {count}")
