"""Descriptions of operators and tensors, from JSON."""

from __future__ import annotations

from dml_jax.directml._operators import (
    FillValueConstantOperatorDesc,
    FillValueSequenceOperatorDesc,
    OperatorDesc,
    ReverseSubsequencesOperatorDesc,
    snake,
)
from dml_jax.directml._slices import (
    Slice1OperatorDesc,
    SliceGradOperatorDesc,
    SliceOperatorDesc,
)
from dml_jax.directml._tensor import BufferTensorDesc
from dml_jax.directml._types import (
    TENSOR_DIMENSION_COUNT_MAX1,
    DataType,
    OperatorType,
    TensorFlags,
    TensorType,
)
from dml_jax.directml.dxdispatch._json import Entry
from dml_jax.directml.dxdispatch._values import parse_data_type, parse_scalar


def parse_desc(operator: OperatorType, entry: Entry) -> OperatorDesc:
    """The description of an operator from its members."""
    struct, members = PARSERS[operator.name]
    fields = entry.members(required=tuple(members))
    data_type = None
    if "ValueDataType" in fields:
        data_type = parse_data_type(fields["ValueDataType"])
        if data_type is DataType.UNKNOWN:
            raise fields["ValueDataType"].refused("be a data type other than UNKNOWN")
    values = {name: parse(fields[name], data_type) for name, parse in members.items()}
    count = values.pop("DimensionCount", None)  # the class counts for itself
    for name, value in values.items():
        if isinstance(value, tuple) and len(value) != count:
            raise fields[name].refused(
                f"have as many elements as DimensionCount, {count}"
            )
    return struct(**{snake(name): value for name, value in values.items()})


def _tensor(entry, data_type):
    """DML_TENSOR_DESC, with its defaults; its members inline or below `Desc`."""
    members = entry.members(optional=("Type", "Desc", *_TENSOR_MEMBERS))
    if "Type" in members:
        kind = members["Type"].member_of(TensorType, "DML_TENSOR_TYPE_")
        if kind is not TensorType.BUFFER:
            raise members["Type"].refused("be BUFFER")
    desc, inline = entry, ("Type",)
    if "Desc" in members:
        entry.members(optional=("Type", "Desc"))
        desc, inline = members["Desc"], ()
    fields = desc.members(("DataType", "Sizes"), (*inline, *_TENSOR_MEMBERS))
    sizes = _uints(fields["Sizes"], None)
    strides = _uints(fields["Strides"], None) if "Strides" in fields else None
    for name, values in (("Sizes", sizes), ("Strides", strides)):
        count = len(sizes)
        if "DimensionCount" in fields:
            count = fields["DimensionCount"].unsigned()
        if values and len(values) != count:
            raise fields[name].refused(
                f"have as many elements as DimensionCount, {count}"
            )
    total = alignment = 0
    if "TotalTensorSizeInBytes" in fields:
        total = fields["TotalTensorSizeInBytes"].unsigned(64)
    if "GuaranteedBaseOffsetAlignment" in fields:
        alignment = fields["GuaranteedBaseOffsetAlignment"].unsigned()
    flags = TensorFlags.NONE
    if "Flags" in fields:
        flags = fields["Flags"].flags_of(TensorFlags, "DML_TENSOR_FLAG_")
    # As for DxDispatch, no strides are none at all, and a size of 0 is to be inferred.
    layout = (sizes, strides or None, total or None, flags, alignment)
    data_type = parse_data_type(fields["DataType"])
    try:
        return BufferTensorDesc(data_type, *layout)  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError(f"`{entry.place}` is refused: {error}") from None


_TENSOR_MEMBERS = (
    "DataType",
    "Flags",
    "DimensionCount",
    "Sizes",
    "Strides",
    "TotalTensorSizeInBytes",
    "GuaranteedBaseOffsetAlignment",
)


def _uint(entry, data_type):
    return entry.unsigned()


def _uints(entry, data_type):
    items = entry.items(most=TENSOR_DIMENSION_COUNT_MAX1)
    return tuple(item.unsigned() for item in items)


def _ints(entry, data_type):
    items = entry.items(most=TENSOR_DIMENSION_COUNT_MAX1)
    return tuple(item.integer(-(2**31), 2**31 - 1) for item in items)


def _type(entry, data_type):
    return data_type


# The members of each structure, and how they are read.
PARSERS = {
    "REVERSE_SUBSEQUENCES": (
        ReverseSubsequencesOperatorDesc,
        {
            "InputTensor": _tensor,
            "SequenceLengthsTensor": _tensor,
            "OutputTensor": _tensor,
            "Axis": _uint,
        },
    ),
    "SLICE": (
        SliceOperatorDesc,
        {
            "InputTensor": _tensor,
            "OutputTensor": _tensor,
            "DimensionCount": _uint,
            "Offsets": _uints,
            "Sizes": _uints,
            "Strides": _uints,
        },
    ),
    "SLICE1": (
        Slice1OperatorDesc,
        {
            "InputTensor": _tensor,
            "OutputTensor": _tensor,
            "DimensionCount": _uint,
            "InputWindowOffsets": _uints,
            "InputWindowSizes": _uints,
            "InputWindowStrides": _ints,
        },
    ),
    "SLICE_GRAD": (
        SliceGradOperatorDesc,
        {
            "InputGradientTensor": _tensor,
            "OutputGradientTensor": _tensor,
            "DimensionCount": _uint,
            "InputWindowOffsets": _uints,
            "InputWindowSizes": _uints,
            "InputWindowStrides": _ints,
        },
    ),
    "FILL_VALUE_CONSTANT": (
        FillValueConstantOperatorDesc,
        {"OutputTensor": _tensor, "ValueDataType": _type, "Value": parse_scalar},
    ),
    "FILL_VALUE_SEQUENCE": (
        FillValueSequenceOperatorDesc,
        {
            "OutputTensor": _tensor,
            "ValueDataType": _type,
            "ValueStart": parse_scalar,
            "ValueDelta": parse_scalar,
        },
    ),
}
