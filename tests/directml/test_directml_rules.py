"""What `validate` refuses: DirectML's tables of feature levels, and every rule.

The tables are written as the documentation prints them: for each operator a row for
each feature level that changes it.
"""

import dataclasses
import itertools
import re
from typing import Any

import pytest
from descriptions import LARGEST_UINT, positions_overlap
from sampling import default_of

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion

LEVELS = [level.label for level in dml.FeatureLevel]
T6 = "FLOAT32 FLOAT16 INT32 INT16 UINT32 UINT16"
T8 = "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"
T10 = "FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"
T11 = f"FLOAT64 {T10}"
DOCUMENTED = {  # level: minimum and maximum rank, data types, those of the lengths
    "SLICE": {
        "1_0": (4, 5, T6, ""),
        "2_1": (4, 5, T8, ""),
        "3_0": (1, 8, T8, ""),
        "4_1": (1, 8, T11, ""),
    },
    "SLICE1": {"2_1": (4, 5, T8, ""), "3_0": (1, 8, T8, ""), "4_1": (1, 8, T11, "")},
    "SLICE_GRAD": {
        "3_0": (4, 5, T8, ""),
        "3_1": (1, 8, T8, ""),
        "4_1": (1, 8, T11, ""),
    },
    "REVERSE_SUBSEQUENCES": {
        "2_1": (4, 4, T8, "UINT32"),
        "3_0": (4, 5, T8, "UINT32"),
        "4_0": (1, 8, T8, "UINT32"),
        "5_0": (1, 8, T11, "UINT64 UINT32"),
    },
    "FILL_VALUE_SEQUENCE": {
        "2_1": (4, 4, T8, ""),
        "4_0": (1, 8, T8, ""),
        "5_0": (1, 8, T10, ""),
    },
    "FILL_VALUE_CONSTANT": {
        "2_1": (4, 4, T8, ""),
        "4_0": (1, 8, T8, ""),
        "4_1": (1, 8, T11, ""),
    },
}
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
every_operator = pytest.mark.parametrize("operator", DOCUMENTED)


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


def refused(desc: dml.OperatorDesc, level: str = "6_4") -> str | None:
    """The member that `validate` refuses; None if it accepts the description."""
    message = None
    try:
        desc.validate(dml.FeatureLevel[f"LEVEL_{level}"])
    except ValueError as error:
        message = str(error)
    if message is None:
        return None
    match = re.fullmatch(r"DML_(\w+)_OPERATOR_DESC: `([^`]+)` must .+; got .+", message)
    assert match, message
    assert match[1] == desc.type.name
    return match[2]


# Feature levels -----------------------------------------------------------------------


def documented(operator: str, level: str) -> Any:
    """The row that applies at a level, or None."""
    levels = LEVELS[: LEVELS.index(level) + 1]
    rows = [DOCUMENTED[operator][at] for at in levels if at in DOCUMENTED[operator]]
    return rows[-1] if rows else None


@pytest.mark.parametrize("level", LEVELS)
@every_operator
def test_a_level_supports_what_the_documentation_says(
    operator: str, level: str
) -> None:
    number: Any = int(level[0]) * 0x1000 + int(level[2]) * 0x100
    support = dml.supported(dml.OperatorType[operator], number)
    row = documented(operator, level)
    if support is None or row is None:
        assert support is row
        assert refused(base(operator), level) == "FeatureLevel"
        return
    types = support.data_types, support.lengths_data_types
    assert list(support.dimension_counts) == list(range(row[0], row[1] + 1))
    assert [" ".join(t.name for t in found) for found in types] == list(row[2:])
    page = support.source.rpartition("/")[2]
    suffix = "" if operator == "REVERSE_SUBSEQUENCES" else "_operator"
    assert page == f"ns-directml-dml_{operator.lower()}{suffix}_desc"


@pytest.mark.parametrize("level", default_of(LEVELS, "2_1", "6_4"))
@every_operator
def test_a_level_accepts_what_it_supports(operator: str, level: str) -> None:
    row = documented(operator, level)
    if row is None:
        return
    first = TENSORS[operator][0]
    for rank in range(1, 10):
        expected = None if row[0] <= rank <= row[1] else f"{first}.DimensionCount"
        assert refused(base(operator, sizes=(2,) * rank), level) == expected
    for member, listed, keyword in [
        (first, row[2], "data_type"),
        (LENGTHS, row[3], "lengths"),
    ]:
        for data_type in DataType if listed else ():
            is_listed = data_type.name in listed.split()
            expected = None if is_listed else f"{member}.DataType"
            desc = base(operator, **{keyword: data_type.name})
            assert refused(desc, level) == expected


@pytest.mark.parametrize(
    ("operator", "changes", "level", "message"),
    [
        (
            "REVERSE_SUBSEQUENCES",
            {"OutputTensor": tensor((2, 3))},
            "3_1",
            "`OutputTensor.DimensionCount` must be 4 to 5 at feature level 3_1; got 2, "
            "allowed from 4_0",
        ),
        (
            "FILL_VALUE_SEQUENCE",
            {"OutputTensor": tensor(data_type="FLOAT64")},
            "6_4",
            "`OutputTensor.DataType` must be FLOAT32, FLOAT16, INT64, INT32, INT16, "
            "INT8, UINT64, UINT32, UINT16 or UINT8 at feature level 6_4; got FLOAT64, "
            "allowed at no feature level",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value in DOCUMENTED else "",
)
def test_messages_name_the_level_that_allows_a_value(
    operator: str, changes: dict[str, Any], level: str, message: str
) -> None:
    with pytest.raises(ValueError, match="at feature level") as error:
        changed(operator, **changes).validate(dml.FeatureLevel[f"LEVEL_{level}"])
    assert str(error.value) == f"DML_{operator}_OPERATOR_DESC: {message}"


# Rules for one tensor -----------------------------------------------------------------

TENSOR_RULES = [
    ("Sizes[3]", {"sizes": (1, 2, 3, 0)}),
    ("Sizes", {"sizes": (65536, 1, 1, 65536)}),
    ("Strides", {"strides": (0, LARGEST_UINT, 0, 0)}),
    ("TotalTensorSizeInBytes", {"total": 92}),
    ("TotalTensorSizeInBytes", {"total": 98}),
    ("TotalTensorSizeInBytes", {"strides": (0, 16, 5, 1), "total": 116}),
    ("TotalTensorSizeInBytes", {"total": 4 * LARGEST_UINT + 4}),
    ("GuaranteedBaseOffsetAlignment", {"guaranteed_base_offset_alignment": 2}),
    ("GuaranteedBaseOffsetAlignment", {"guaranteed_base_offset_alignment": 24}),
]
OUTPUT_RULES = [
    ("Flags", {"flags": 1}),
    ("Strides", {"strides": (24, 12, 0, 1)}),
    ("Strides", {"strides": (0, 12, 4, 4)}),
    ("Strides", {"strides": (0, 2, 3, 1)}),
]


@pytest.mark.parametrize(
    ("operator", "member", "rule", "options"),
    [(*pair, *row) for pair in MEMBERS for row in TENSOR_RULES]
    + [(*pair, *row) for pair in OUTPUTS for row in OUTPUT_RULES],
)
def test_rules_for_a_tensor(
    operator: str, member: str, rule: str, options: dict[str, Any]
) -> None:
    assert refused(changed(operator, **{member: tensor(**options)})) == (
        f"{member}.{rule}"
    )


@pytest.mark.parametrize(("operator", "member"), MEMBERS)
def test_what_a_tensor_may_have(operator: str, member: str) -> None:
    sizes = (1, 2, 1, 4) if member == LENGTHS else (1, 2, 3, 4)
    allowed = [{"guaranteed_base_offset_alignment": n} for n in (4, 16, 2**31)]
    # crossing without overlap, permuted, padded
    allowed += [{"strides": s} for s in ((0, 3, 2, 6), (9, 1, 2, 6), (99, 32, 8, 2))]
    allowed += [{"total": 4 * LARGEST_UINT}]
    if (operator, member) not in OUTPUTS:
        allowed += [{"flags": 1}, {"strides": (0,) * 4}, {"strides": (0, 1, 1, 1)}]
    for options in allowed:
        assert refused(changed(operator, **{member: tensor(sizes, **options)})) is None


def test_the_largest_tensor_is_accepted() -> None:
    assert refused(base("FILL_VALUE_CONSTANT", "UINT8", (1, 65535, 65537, 1))) is None


def fill_of(sizes: tuple[int, ...], strides: tuple[int, ...]) -> dml.OperatorDesc:
    output = BufferTensorDesc(DataType.INT8, sizes, strides)
    return dml.FillValueConstantOperatorDesc(output, DataType.INT8, ScalarUnion())


@pytest.mark.parametrize(
    "sizes", [(2, 3), pytest.param((2, 3, 2), marks=pytest.mark.exhaustive)], ids=str
)
def test_elements_of_an_output_do_not_overlap(sizes: tuple[int, ...]) -> None:
    verdicts = set()
    for strides in itertools.product(range(8), repeat=len(sizes)):
        is_refused = positions_overlap(sizes, strides)
        expected = "OutputTensor.Strides" if is_refused else None
        assert refused(fill_of(sizes, strides)) == expected
        verdicts.add(is_refused)
    assert verdicts == {True, False}


def test_strides_that_are_not_nested_are_enumerated_up_to_a_limit() -> None:
    """Without overlap either way, but too many elements to enumerate them."""
    assert refused(fill_of((2**21, 2), (2, 3))) is None
    assert refused(fill_of((2**21 + 1, 2), (2, 3))) == "OutputTensor.Strides"


# Rules between members ----------------------------------------------------------------

SAME = {  # for each slice and the reversal: the output differs from the input
    operator: [
        (f"{members[-1]}.DataType", {members[-1]: tensor(data_type="INT32")}),
        (f"{members[-1]}.DimensionCount", {members[-1]: tensor((1, 1, 2, 3, 4))}),
    ]
    for operator, members in list(TENSORS.items())[:4]
}
WINDOW = {
    operator: [
        ("InputWindowOffsets", {"InputWindowOffsets": (0, 0, 0)}),
        ("InputWindowSizes", {"InputWindowSizes": (1, 2, 3, 4, 1)}),
        ("InputWindowStrides", {"InputWindowStrides": ()}),
        ("InputWindowStrides[1]", {"InputWindowStrides": (1, 0, 1, 1)}),
        ("InputWindowSizes[3]", {"InputWindowSizes": (1, 2, 3, 0)}),
        (
            "InputWindowOffsets[2] + InputWindowSizes[2]",
            {"InputWindowOffsets": (0, 0, 1, 0)},
        ),
        (f"{part}.Sizes[2]", {"InputWindowStrides": (1, 1, -2, 1)}),
    ]
    for operator, part in [
        ("SLICE1", "OutputTensor"),
        ("SLICE_GRAD", "InputGradientTensor"),
    ]
}
READ = "Offsets[3] + Strides[3] * (Sizes[3] - 1)"
RULES = {
    "SLICE": [
        *SAME["SLICE"],
        ("Offsets", {"Offsets": (0, 0, 0)}),
        ("Sizes", {"Sizes": (1, 2, 3, 4, 1)}),
        ("Strides", {"Strides": ()}),
        ("Sizes[2]", {"Sizes": (1, 2, 0, 4)}),
        ("Strides[1]", {"Strides": (1, 0, 1, 1)}),
        ("OutputTensor.Sizes[2]", {"Sizes": (1, 2, 2, 4)}),
        (READ, {"Offsets": (0, 0, 0, 1)}),
        (READ, {"Strides": (1, 1, 1, 2)}),
    ],
    "SLICE1": SAME["SLICE1"] + WINDOW["SLICE1"],
    "SLICE_GRAD": SAME["SLICE_GRAD"] + WINDOW["SLICE_GRAD"],
    "REVERSE_SUBSEQUENCES": [
        *SAME["REVERSE_SUBSEQUENCES"],
        ("OutputTensor.Sizes[3]", {"OutputTensor": tensor((1, 2, 3, 5))}),
        ("Axis", {"Axis": 4}),
        (f"{LENGTHS}.DimensionCount", {LENGTHS: tensor((2, 1, 4))}),
        (f"{LENGTHS}.Sizes[2]", {LENGTHS: tensor((1, 2, 3, 4))}),
        (f"{LENGTHS}.Sizes[3]", {LENGTHS: tensor((1, 2, 1, 5))}),
        (f"{LENGTHS}.Sizes[1]", {LENGTHS: tensor((1, 1, 1, 4))}),
    ],
    "FILL_VALUE_SEQUENCE": [("ValueDataType", {"ValueDataType": DataType.INT32})],
    "FILL_VALUE_CONSTANT": [("ValueDataType", {"ValueDataType": DataType.INT32})],
}


@pytest.mark.parametrize(
    ("operator", "member", "changes"),
    [(operator, *row) for operator, rules in RULES.items() for row in rules],
)
def test_rules_between_members(
    operator: str, member: str, changes: dict[str, Any]
) -> None:
    assert refused(changed(operator, **changes)) == member


def test_the_message_of_a_rule_between_members() -> None:
    desc = changed("REVERSE_SUBSEQUENCES", **{LENGTHS: tensor((1, 1, 1, 4))})
    with pytest.raises(ValueError, match="broadcasts") as error:
        desc.validate()
    assert str(error.value) == (
        "DML_REVERSE_SUBSEQUENCES_OPERATOR_DESC: `SequenceLengthsTensor.Sizes[1]` must "
        "be 2, that of `InputTensor.Sizes[1]` (a stride of 0 broadcasts); got 1"
    )


@pytest.mark.parametrize("operator", WINDOW)
@pytest.mark.parametrize("strides", [(1, -1, 2, -3), (-9, 2, 1, 3)])
def test_what_a_window_may_have(operator: str, strides: tuple[int, ...]) -> None:
    """The smallest part; the largest one; a window at the end of the tensor."""
    part = TENSORS[operator][operator == "SLICE1"]
    fits = tuple(
        1 + (n - 1) // abs(s) for n, s in zip((1, 1, 3, 4), strides, strict=True)
    )
    for sizes in [(1, 1, 1, 1), fits]:
        changes = {"InputWindowOffsets": (0, 1, 0, 0), "InputWindowSizes": (1, 1, 3, 4)}
        changes |= {"InputWindowStrides": strides, part: tensor(sizes)}
        assert refused(changed(operator, **changes)) is None
