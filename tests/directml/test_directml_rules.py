"""DirectML's descriptions: the documents' tables, every rule, and its whole message.

The tables are written down as the pages print them: for each operator a row for each
feature level that changes it. Rows of messages are keyed by what is said.
"""

import dataclasses
import re

import pytest

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion

LEVELS = "1_0 2_0 2_1 3_0 3_1 4_0 4_1 5_0 5_1 5_2 6_0 6_1 6_2 6_3 6_4".split()
WORDS = "FLOAT32, FLOAT16, INT32, INT16, UINT32, UINT16"
BYTES = "FLOAT32, FLOAT16, INT32, INT16, INT8, UINT32, UINT16, UINT8"
LONGS = "FLOAT32, FLOAT16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8"
ALL = f"FLOAT64, {LONGS}"
NAMES = f"UNKNOWN, {ALL}, UINT4, INT4"
DOCUMENTED = {  # level: fewest and most dimensions, data types, those of the lengths
    "SLICE": {
        "1_0": (4, 5, WORDS, ""),
        "2_1": (4, 5, BYTES, ""),
        "3_0": (1, 8, BYTES, ""),
        "4_1": (1, 8, ALL, ""),
    },
    "SLICE1": {
        "2_1": (4, 5, BYTES, ""),
        "3_0": (1, 8, BYTES, ""),
        "4_1": (1, 8, ALL, ""),
    },
    "SLICE_GRAD": {
        "3_0": (4, 5, BYTES, ""),
        "3_1": (1, 8, BYTES, ""),
        "4_1": (1, 8, ALL, ""),
    },
    "REVERSE_SUBSEQUENCES": {
        "2_1": (4, 4, BYTES, "UINT32"),
        "3_0": (4, 5, BYTES, "UINT32"),
        "4_0": (1, 8, BYTES, "UINT32"),
        "5_0": (1, 8, ALL, "UINT64, UINT32"),
    },
    "FILL_VALUE_SEQUENCE": {
        "2_1": (4, 4, BYTES, ""),
        "4_0": (1, 8, BYTES, ""),
        "5_0": (1, 8, LONGS, ""),
    },
    "FILL_VALUE_CONSTANT": {
        "2_1": (4, 4, BYTES, ""),
        "4_0": (1, 8, BYTES, ""),
        "4_1": (1, 8, ALL, ""),
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
every_level = pytest.mark.parametrize("level", LEVELS)
every_operator = pytest.mark.parametrize("operator", DOCUMENTED)


def tensor(sizes=(1, 2, 3, 4), data_type="UINT32", strides=None, total=None, **rest):
    return BufferTensorDesc(DataType[data_type], sizes, strides, total, **rest)


def base(operator, data_type="UINT32", sizes=(1, 2, 3, 4), lengths="UINT32"):
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


def changed(operator, **changes):
    """The base with members changed, which are named as in C."""
    snake = {re.sub("(?<=.)(?=[A-Z])", "_", k).lower(): v for k, v in changes.items()}
    return dataclasses.replace(base(operator), **snake)


def refusal(desc, level="6_4"):
    """What `validate` says, but for the name of the structure; None if it accepts."""
    try:
        desc.validate(dml.FeatureLevel[f"LEVEL_{level}"])
    except ValueError as error:
        struct, _, rest = str(error).partition(": ")
        assert struct == f"DML_{desc.type.name}_OPERATOR_DESC"
        return rest
    return None


def rows(table):
    """The rows of a table of tables; the message says what broke, so it is the id."""
    return [
        pytest.param(operator, changes, message, id=f"{operator}-{message}")
        for operator, row in table.items()
        for message, changes in row.items()
    ]


# Feature levels -----------------------------------------------------------------------


def documented(operator, level):
    """The row that holds at a level, or None."""
    levels = LEVELS[: LEVELS.index(level) + 1]
    held = [DOCUMENTED[operator][at] for at in levels if at in DOCUMENTED[operator]]
    return held[-1] if held else None


def since(operator, is_allowed):
    levels = [level for level, row in DOCUMENTED[operator].items() if is_allowed(row)]
    return f"allowed from {levels[0]}" if levels else "allowed at no feature level"


@every_level
@every_operator
def test_a_level_has_what_the_documents_say(operator, level):
    number = int(level[0]) * 0x1000 + int(level[2]) * 0x100
    support = dml.supported(dml.OperatorType[operator], number)
    row = documented(operator, level)
    if support is None or row is None:
        assert support is row
        first = next(iter(DOCUMENTED[operator]))
        expected = f"`FeatureLevel` must be {first} or later; got {level}"
        assert refusal(base(operator), level) == expected
        return
    types = support.data_types, support.lengths_data_types
    assert list(support.dimension_counts) == list(range(row[0], row[1] + 1))
    assert [", ".join(t.name for t in found) for found in types] == list(row[2:])
    page = support.source.rpartition("/")[2]
    suffix = "" if operator == "REVERSE_SUBSEQUENCES" else "_operator"
    assert page == f"ns-directml-dml_{operator.lower()}{suffix}_desc"
    # and what it accepts is what it says
    shapes = [dict(sizes=(2,) * rank) for rank in range(1, 10)]
    shapes = [x for x in shapes if refusal(base(operator, **x), level) is None]
    assert [len(x["sizes"]) for x in shapes] == list(support.dimension_counts)
    for member, listed in [("data_type", row[2]), ("lengths", row[3] or NAMES)]:
        kinds = [{member: name} for name in NAMES.split(", ")]
        kinds = [x for x in kinds if refusal(base(operator, **x), level) is None]
        assert {x[member] for x in kinds} == {*listed.split(", ")}


@every_level
@every_operator
def test_what_a_level_lacks_is_named_with_the_level_that_has_it(operator, level):
    row = documented(operator, level)
    for member in TENSORS[operator] if row else ():
        column = 3 if member == LENGTHS else 2
        counts = "to".join(f"{n} " for n in dict.fromkeys(row[:2])).replace("to", "to ")
        for n in {*range(10)} - {*range(row[0], row[1] + 1)}:
            has = since(operator, lambda row, n=n: row[0] <= n <= row[1])
            expected = f"must be {counts}at feature level {level}; got {n}, {has}"
            wrong = changed(operator, **{member: tensor((2,) * n)})
            assert refusal(wrong, level) == f"`{member}.DimensionCount` {expected}"
        names = " or ".join(row[column].rsplit(", ", 1))
        for t in {*NAMES.split(", ")} - {*row[column].split(", ")}:
            has = since(operator, lambda row, t=t, c=column: t in row[c].split(", "))
            expected = f"must be {names} at feature level {level}; got {t}, {has}"
            wrong = changed(operator, **{member: tensor(data_type=t)})
            assert refusal(wrong, level) == f"`{member}.DataType` {expected}"


def test_a_message_about_a_level_in_full():
    with pytest.raises(ValueError, match="DML_SLICE") as error:
        base("SLICE", "INT8").validate(dml.FeatureLevel.LEVEL_2_0)
    assert str(error.value) == (
        "DML_SLICE_OPERATOR_DESC: `InputTensor.DataType` must be FLOAT32, FLOAT16, "
        "INT32, INT16, UINT32 or UINT16 at feature level 2_0; got INT8, allowed from "
        "2_1"
    )


# Numbers ------------------------------------------------------------------------------

NUMBERS = {
    DataType: "UNKNOWN=0 FLOAT32=1 FLOAT16=2 UINT32=3 UINT16=4 UINT8=5 INT32=6 INT16=7 "
    "INT8=8 FLOAT64=9 UINT64=10 INT64=11 UINT4=12 INT4=13",
    dml.FeatureLevel: "LEVEL_1_0=0x1000 LEVEL_2_0=0x2000 LEVEL_2_1=0x2100 "
    "LEVEL_3_0=0x3000 LEVEL_3_1=0x3100 LEVEL_4_0=0x4000 LEVEL_4_1=0x4100 "
    "LEVEL_5_0=0x5000 LEVEL_5_1=0x5100 LEVEL_5_2=0x5200 LEVEL_6_0=0x6000 "
    "LEVEL_6_1=0x6100 LEVEL_6_2=0x6200 LEVEL_6_3=0x6300 LEVEL_6_4=0x6400",
    dml.OperatorType: "SLICE=60 FILL_VALUE_CONSTANT=103 FILL_VALUE_SEQUENCE=104 "
    "REVERSE_SUBSEQUENCES=106 SLICE1=111 SLICE_GRAD=135",
    dml.TensorType: "INVALID=0 BUFFER=1",
    dml.TensorFlags: "NONE=0 OWNED_BY_DML=1",
    dml.ExecutionFlags: "NONE=0 ALLOW_HALF_PRECISION_COMPUTATION=1 "
    "DISABLE_META_COMMANDS=2 DESCRIPTORS_VOLATILE=4",
}


@pytest.mark.parametrize("enumeration", NUMBERS, ids=lambda e: e.__name__)
def test_numbers_are_those_of_the_header(enumeration):
    found = {name: int(number) for name, number in enumeration.__members__.items()}
    pairs = [pair.split("=") for pair in NUMBERS[enumeration].split()]
    assert found == {name: int(number, 0) for name, number in pairs}
    constants = dml.TENSOR_DIMENSION_COUNT_MAX1, dml.MINIMUM_BUFFER_TENSOR_ALIGNMENT
    assert constants == (8, 16)


@pytest.mark.parametrize(
    ("size", "data_type", "sizes", "strides"),
    [
        (24, "FLOAT32", (2, 3), None),
        (8, "UINT8", (5,), None),
        (8, "FLOAT16", (3,), None),
        (12, "FLOAT32", (2, 3), (0, 1)),
        (28, "FLOAT32", (2, 3), (4, 1)),
        (40, "FLOAT64", (3,), (2,)),
        (4, "INT16", (), None),
        (0, "INT32", (2, 0), (7, 1)),
        (2**35, "UINT64", (65536, 65536), None),
        (4, "UINT4", (5,), None),
        (8, "UINT4", (9,), None),
        (4, "INT4", (8,), None),
        (0, "UNKNOWN", (5,), None),
    ],
)
def test_the_size_of_a_buffer(size, data_type, sizes, strides):
    assert dml.calc_buffer_tensor_size(DataType[data_type], sizes, strides) == size
    desc = BufferTensorDesc(int(DataType[data_type]), list(sizes), strides)
    assert desc == tensor(sizes, data_type, strides, total=size)


# Rules for one tensor -----------------------------------------------------------------

LAYOUT = "must be at least {0}, which DataType, Sizes and Strides imply; got {1}"
ALIGNMENT = "must be 0 or a power of two of at least 4, the size of UINT32; got"
PLACE = "Strides` must give each element of Sizes (1, 2, 3, 4) a place of its own; got"
TENSOR_RULES = {
    "Sizes[3]` must be at least 1; got 0": dict(sizes=(1, 2, 3, 0)),
    "Sizes` must give at most 4294967295 elements; got 4294967296": dict(
        sizes=(65536, 1, 1, 65536)
    ),
    "Strides` must reach over at most 4294967295 elements; got 4294967296": dict(
        strides=(0, 2**32 - 1, 0, 0)
    ),
    f"TotalTensorSizeInBytes` {LAYOUT.format(96, 92)}": dict(total=92),
    f"TotalTensorSizeInBytes` {LAYOUT.format(120, 116)}": dict(
        strides=(0, 16, 5, 1), total=116
    ),
    "TotalTensorSizeInBytes` must be a multiple of 4; got 98": dict(total=98),
    "TotalTensorSizeInBytes` must be at most 17179869180, which is 4294967295 "
    "elements; got 17179869184": dict(total=17179869184),
    f"GuaranteedBaseOffsetAlignment` {ALIGNMENT} 2": dict(
        guaranteed_base_offset_alignment=2
    ),
    f"GuaranteedBaseOffsetAlignment` {ALIGNMENT} 24": dict(
        guaranteed_base_offset_alignment=24
    ),
}
OUTPUT_RULES = {
    "Flags` must be NONE, since only inputs are owned by DirectML; got "
    "OWNED_BY_DML": dict(flags=1),
    **{
        f"{PLACE} {strides}": dict(strides=strides)
        for strides in [(24, 12, 0, 1), (0, 12, 4, 4), (0, 2, 3, 1), (0, 4, 2, 100)]
    },
}


@pytest.mark.parametrize(
    ("operator", "member", "message"),
    [(*pair, message) for pair in MEMBERS for message in TENSOR_RULES]
    + [(*pair, message) for pair in OUTPUTS for message in OUTPUT_RULES],
)
def test_rules_for_a_tensor(operator, member, message):
    wrong = tensor(**{**TENSOR_RULES, **OUTPUT_RULES}[message])
    assert refusal(changed(operator, **{member: wrong})) == f"`{member}.{message}"


@pytest.mark.parametrize(("operator", "member"), MEMBERS)
def test_what_a_tensor_may_have(operator, member):
    sizes = (1, 2, 1, 4) if member == LENGTHS else (1, 2, 3, 4)
    allowed = [dict(guaranteed_base_offset_alignment=n) for n in (4, 16, 2**31)]
    # crossing but apart, permuted, padded
    allowed += [dict(strides=s) for s in ((0, 3, 2, 6), (9, 1, 2, 6), (99, 32, 8, 2))]
    allowed += [dict(total=17179869180)]
    if (operator, member) not in OUTPUTS:
        allowed += [dict(flags=1), dict(strides=(0,) * 4), dict(strides=(0, 1, 1, 1))]
    for options in allowed:
        assert refusal(changed(operator, **{member: tensor(sizes, **options)})) is None


def test_the_largest_tensor_is_accepted():
    assert refusal(base("FILL_VALUE_CONSTANT", "UINT8", (1, 65535, 65537, 1))) is None


# Rules between members ----------------------------------------------------------------

COUNT = "must have 4 elements, one for each dimension of the tensors; got"
OTHER_TYPE, OTHER_RANK = tensor(data_type="INT32"), tensor((1, 1, 2, 3, 4))
ALIKE = {
    operator: {
        f"`{output}.DataType` must be UINT32, that of `{input}.DataType`; got INT32": {
            output: OTHER_TYPE
        },
        f"`{output}.DimensionCount` must be 4, that of `{input}.DimensionCount`; "
        "got 5": {output: OTHER_RANK},
    }
    for operator, (input, *_, output) in list(TENSORS.items())[:4]
}
WINDOW = {
    operator: {
        f"`InputWindowOffsets` {COUNT} 3": dict(InputWindowOffsets=(0, 0, 0)),
        f"`InputWindowSizes` {COUNT} 5": dict(InputWindowSizes=(1, 2, 3, 4, 1)),
        f"`InputWindowStrides` {COUNT} 0": dict(InputWindowStrides=()),
        "`InputWindowStrides[1]` must not be 0; got 0": dict(
            InputWindowStrides=(1, 0, 1, 1)
        ),
        "`InputWindowSizes[3]` must be at least 1; got 0": dict(
            InputWindowSizes=(1, 2, 3, 0)
        ),
        f"`InputWindowOffsets[2] + InputWindowSizes[2]` must be at most 3, `{whole}."
        "Sizes[2]`; got 4": dict(InputWindowOffsets=(0, 0, 1, 0)),
        f"`{part}.Sizes[2]` must be at most 2, which the window gives; got 3": dict(
            InputWindowStrides=(1, 1, -2, 1)
        ),
    }
    for operator, whole, part in [
        ("SLICE1", *TENSORS["SLICE1"]),
        ("SLICE_GRAD", *TENSORS["SLICE_GRAD"][::-1]),
    ]
}
READ = "Offsets[3] + Strides[3] * (Sizes[3] - 1)` must be less than 4, `InputTensor."
RULES = {
    "SLICE": {
        **ALIKE["SLICE"],
        f"`Offsets` {COUNT} 3": dict(Offsets=(0, 0, 0)),
        f"`Sizes` {COUNT} 5": dict(Sizes=(1, 2, 3, 4, 1)),
        f"`Strides` {COUNT} 0": dict(Strides=()),
        "`Strides[1]` must be at least 1; got 0": dict(Strides=(1, 0, 1, 1)),
        "`OutputTensor.Sizes[2]` must be 2, that of `Sizes[2]`; got 3": dict(
            Sizes=(1, 2, 2, 4)
        ),
        f"`{READ}Sizes[3]`; got 4": dict(Offsets=(0, 0, 0, 1)),
        f"`{READ}Sizes[3]`; got 6": dict(Strides=(1, 1, 1, 2)),
    },
    "SLICE1": ALIKE["SLICE1"] | WINDOW["SLICE1"],
    "SLICE_GRAD": ALIKE["SLICE_GRAD"] | WINDOW["SLICE_GRAD"],
    "REVERSE_SUBSEQUENCES": {
        **ALIKE["REVERSE_SUBSEQUENCES"],
        "`OutputTensor.Sizes[3]` must be 4, that of `InputTensor.Sizes[3]`; "
        "got 5": dict(OutputTensor=tensor((1, 2, 3, 5))),
        "`Axis` must be less than 4, `InputTensor.DimensionCount`; got 4": dict(Axis=4),
        f"`{LENGTHS}.DimensionCount` must be 4, that of `InputTensor.DimensionCount`; "
        "got 3": dict(SequenceLengthsTensor=tensor((2, 1, 4))),
        f"`{LENGTHS}.Sizes[2]` must be 1, since `Axis` is 2; got 3": dict(
            SequenceLengthsTensor=tensor((1, 2, 3, 4))
        ),
        f"`{LENGTHS}.Sizes[3]` must be 4, that of `InputTensor.Sizes[3]`; got 5": dict(
            SequenceLengthsTensor=tensor((1, 2, 1, 5))
        ),
        f"`{LENGTHS}.Sizes[1]` must be 2, that of `InputTensor.Sizes[1]` (a stride of "
        "0 broadcasts); got 1": dict(SequenceLengthsTensor=tensor((1, 1, 1, 4))),
    },
    **{
        fill: {
            "`ValueDataType` must be UINT32, that of `OutputTensor.DataType`; got "
            "INT32": dict(ValueDataType=DataType.INT32)
        }
        for fill in ("FILL_VALUE_SEQUENCE", "FILL_VALUE_CONSTANT")
    },
}


@pytest.mark.parametrize(("operator", "changes", "message"), rows(RULES))
def test_rules_between_members(operator, changes, message):
    assert refusal(changed(operator, **changes)) == message


@pytest.mark.parametrize("operator", WINDOW)
@pytest.mark.parametrize("strides", [(1, -1, 2, -3), (-9, 2, 1, 3)])
def test_what_a_window_may_have(operator, strides):
    """The smallest part; the largest one; a window at the end of the tensor."""
    part = TENSORS[operator][operator == "SLICE1"]
    fits = tuple(
        1 + (n - 1) // abs(s) for n, s in zip((1, 1, 3, 4), strides, strict=True)
    )
    for sizes in [(1, 1, 1, 1), fits]:
        changes = dict(InputWindowOffsets=(0, 1, 0, 0), InputWindowSizes=(1, 1, 3, 4))
        changes |= {"InputWindowStrides": strides, part: tensor(sizes)}
        assert refusal(changed(operator, **changes)) is None
