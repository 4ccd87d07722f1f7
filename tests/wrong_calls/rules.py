"""Descriptions of operators that `validate` refuses."""

import dataclasses
import functools
import re
from typing import Any

from descriptions import LARGEST_UINT

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion
from wrong_calls.form import Wrong

LENGTHS = "SequenceLengthsTensor"
TENSORS = {  # the members that hold tensors; the last one is the output
    "SLICE": ("InputTensor", "OutputTensor"),
    "SLICE1": ("InputTensor", "OutputTensor"),
    "SLICE_GRAD": ("InputGradientTensor", "OutputGradientTensor"),
    "REVERSE_SUBSEQUENCES": ("InputTensor", LENGTHS, "OutputTensor"),
    "FILL_VALUE_SEQUENCE": ("OutputTensor",),
    "FILL_VALUE_CONSTANT": ("OutputTensor",),
}
MEMBERS = [(o, member) for o, members in TENSORS.items() for member in members]
OUTPUTS = [(o, members[-1]) for o, members in TENSORS.items()]


def tensor(
    sizes: tuple[int, ...] = (1, 2, 3, 4),
    data_type: str = "UINT32",
    strides: Any = None,
    total: Any = None,
    **rest: Any,
) -> BufferTensorDesc:
    return BufferTensorDesc(DataType[data_type], sizes, strides, total, **rest)


def base(
    operator: str,
    data_type: str = "UINT32",
    sizes: tuple[int, ...] = (1, 2, 3, 4),
    lengths: str = "UINT32",
) -> dml.OperatorDesc:
    """A description that a level accepts if its table has these."""
    x, window = tensor(sizes, data_type), ((0,) * len(sizes), sizes, (1,) * len(sizes))
    axis, fill = max(0, len(sizes) - 2), (x, DataType[data_type], ScalarUnion())
    if operator == "REVERSE_SUBSEQUENCES":
        of_lines = tensor((*sizes[:axis], 1, *sizes[axis + 1 :]), lengths)
        return dml.ReverseSubsequencesOperatorDesc(x, of_lines, x, axis)
    if operator == "FILL_VALUE_SEQUENCE":
        return dml.FillValueSequenceOperatorDesc(*fill, ScalarUnion())
    if operator == "FILL_VALUE_CONSTANT":
        return dml.FillValueConstantOperatorDesc(*fill)
    slices = {"SLICE": dml.SliceOperatorDesc, "SLICE1": dml.Slice1OperatorDesc}
    return slices.get(operator, dml.SliceGradOperatorDesc)(x, x, *window)


def changed(operator: str, **changes: Any) -> dml.OperatorDesc:
    """The base with members changed, which are named as in C."""
    snake = {re.sub("(?<=.)(?=[A-Z])", "_", k).lower(): v for k, v in changes.items()}
    desc: Any = base(operator)
    return dataclasses.replace(desc, **snake)


def wrong(
    operator: str, changes: dict[str, Any], message: str, level: str = "6_4"
) -> Wrong:
    number = dml.FeatureLevel[f"LEVEL_{level}"]
    run = functools.partial(changed(operator, **changes).validate, number)
    name = "-".join([operator, *changes])
    return Wrong(name, run, ValueError, f"DML_{operator}_OPERATOR_DESC: {message}")


def refused(operator: str, changes: dict[str, Any], member: str) -> Wrong:
    return wrong(operator, changes, f"`{member}` must …; got …")


OF_A_TENSOR: list[tuple[dict[str, Any], str]] = [
    ({"sizes": (1, 2, 3, 0)}, "Sizes[3]"),
    ({"sizes": (65536, 1, 1, 65536)}, "Sizes"),
    ({"strides": (0, LARGEST_UINT, 0, 0)}, "Strides"),
    ({"total": 92}, "TotalTensorSizeInBytes"),
    ({"total": 98}, "TotalTensorSizeInBytes"),
    ({"strides": (0, 16, 5, 1), "total": 116}, "TotalTensorSizeInBytes"),
    ({"total": 4 * LARGEST_UINT + 4}, "TotalTensorSizeInBytes"),
    ({"guaranteed_base_offset_alignment": 2}, "GuaranteedBaseOffsetAlignment"),
    ({"guaranteed_base_offset_alignment": 24}, "GuaranteedBaseOffsetAlignment"),
]
OF_AN_OUTPUT: list[tuple[dict[str, Any], str]] = [
    ({"flags": 1}, "Flags"),
    ({"strides": (24, 12, 0, 1)}, "Strides"),
    ({"strides": (0, 12, 4, 4)}, "Strides"),
    ({"strides": (0, 2, 3, 1)}, "Strides"),
]
# Changes of each operator, and the member that is refused.
SAME: dict[str, list[tuple[dict[str, Any], str]]] = {  # the output as the input
    operator: [
        ({members[-1]: tensor(data_type="INT32")}, f"{members[-1]}.DataType"),
        ({members[-1]: tensor((1, 1, 2, 3, 4))}, f"{members[-1]}.DimensionCount"),
    ]
    for operator, members in list(TENSORS.items())[:4]
}
WINDOW: dict[str, list[tuple[dict[str, Any], str]]] = {
    operator: [
        ({"InputWindowOffsets": (0, 0, 0)}, "InputWindowOffsets"),
        ({"InputWindowSizes": (1, 2, 3, 4, 1)}, "InputWindowSizes"),
        ({"InputWindowStrides": ()}, "InputWindowStrides"),
        ({"InputWindowStrides": (1, 0, 1, 1)}, "InputWindowStrides[1]"),
        ({"InputWindowSizes": (1, 2, 3, 0)}, "InputWindowSizes[3]"),
        (
            {"InputWindowOffsets": (0, 0, 1, 0)},
            "InputWindowOffsets[2] + InputWindowSizes[2]",
        ),
        ({"InputWindowStrides": (1, 1, -2, 1)}, f"{part}.Sizes[2]"),
    ]
    for operator, part in [
        ("SLICE1", "OutputTensor"),
        ("SLICE_GRAD", "InputGradientTensor"),
    ]
}
READ = "Offsets[3] + Strides[3] * (Sizes[3] - 1)"
BETWEEN_MEMBERS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "SLICE": [
        *SAME["SLICE"],
        ({"Offsets": (0, 0, 0)}, "Offsets"),
        ({"Sizes": (1, 2, 3, 4, 1)}, "Sizes"),
        ({"Strides": ()}, "Strides"),
        ({"Sizes": (1, 2, 0, 4)}, "Sizes[2]"),
        ({"Strides": (1, 0, 1, 1)}, "Strides[1]"),
        ({"Sizes": (1, 2, 2, 4)}, "OutputTensor.Sizes[2]"),
        ({"Offsets": (0, 0, 0, 1)}, READ),
        ({"Strides": (1, 1, 1, 2)}, READ),
    ],
    "SLICE1": SAME["SLICE1"] + WINDOW["SLICE1"],
    "SLICE_GRAD": SAME["SLICE_GRAD"] + WINDOW["SLICE_GRAD"],
    "REVERSE_SUBSEQUENCES": [
        *SAME["REVERSE_SUBSEQUENCES"],
        ({"OutputTensor": tensor((1, 2, 3, 5))}, "OutputTensor.Sizes[3]"),
        ({"Axis": 4}, "Axis"),
        ({LENGTHS: tensor((2, 1, 4))}, f"{LENGTHS}.DimensionCount"),
        ({LENGTHS: tensor((1, 2, 3, 4))}, f"{LENGTHS}.Sizes[2]"),
        ({LENGTHS: tensor((1, 2, 1, 5))}, f"{LENGTHS}.Sizes[3]"),
    ],
    "FILL_VALUE_SEQUENCE": [({"ValueDataType": DataType.INT32}, "ValueDataType")],
    "FILL_VALUE_CONSTANT": [({"ValueDataType": DataType.INT32}, "ValueDataType")],
}

ROWS = [
    *[
        refused(operator, {member: tensor(**options)}, f"{member}.{rule}")
        for places, rows in [(MEMBERS, OF_A_TENSOR), (OUTPUTS, OF_AN_OUTPUT)]
        for operator, member in places
        for options, rule in rows
    ],
    *[
        refused(operator, *row)
        for operator, rows in BETWEEN_MEMBERS.items()
        for row in rows
    ],
    wrong(
        "REVERSE_SUBSEQUENCES",
        {LENGTHS: tensor((1, 1, 1, 4))},
        "`SequenceLengthsTensor.Sizes[1]` must be 2, that of `InputTensor.Sizes[1]` (a "
        "stride of 0 broadcasts); got 1",
    ),
    wrong(
        "REVERSE_SUBSEQUENCES",
        {"OutputTensor": tensor((2, 3))},
        "`OutputTensor.DimensionCount` must be 4 to 5 at feature level 3_1; got 2, "
        "allowed from 4_0",
        level="3_1",
    ),
    wrong(
        "FILL_VALUE_SEQUENCE",
        {"OutputTensor": tensor(data_type="FLOAT64")},
        "`OutputTensor.DataType` must be FLOAT32, FLOAT16, INT64, INT32, INT16, INT8, "
        "UINT64, UINT32, UINT16 or UINT8 at feature level 6_4; got FLOAT64, allowed at "
        "no feature level",
    ),
]
