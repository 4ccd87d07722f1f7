"""What `validate` accepts: DirectML's tables of feature levels, and the rules' limits.

The table is written as the documentation prints it: for each operator a row for each
feature level that changes it.
"""

import dataclasses
import itertools
import re
from typing import Any

import pytest
from descriptions import LARGEST_UINT, copy_of, positions_overlap
from sampling import default_of
from wrong_calls.graphs import BY_CONSTANT, EIGHT, VALID, Node
from wrong_calls.rules import (
    LENGTHS,
    MEMBERS,
    OUTPUTS,
    TENSORS,
    base,
    changed,
    tensor,
)
from wrong_calls.structures import FILL

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion, _rules

LEVELS = [level.label for level in dml.FeatureLevel]
BITS_16_TO_32 = "FLOAT32 FLOAT16 INT32 INT16 UINT32 UINT16"
BITS_8_TO_32 = "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"
WITH_64_BIT_INTEGERS = (
    "FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"
)
WITH_FLOAT64 = f"FLOAT64 {WITH_64_BIT_INTEGERS}"
DOCUMENTED = {  # minimum and maximum rank, data types, those of the lengths
    ("SLICE", "1_0"): (4, 5, BITS_16_TO_32, ""),
    ("SLICE", "2_1"): (4, 5, BITS_8_TO_32, ""),
    ("SLICE", "3_0"): (1, 8, BITS_8_TO_32, ""),
    ("SLICE", "4_1"): (1, 8, WITH_FLOAT64, ""),
    ("SLICE1", "2_1"): (4, 5, BITS_8_TO_32, ""),
    ("SLICE1", "3_0"): (1, 8, BITS_8_TO_32, ""),
    ("SLICE1", "4_1"): (1, 8, WITH_FLOAT64, ""),
    ("SLICE_GRAD", "3_0"): (4, 5, BITS_8_TO_32, ""),
    ("SLICE_GRAD", "3_1"): (1, 8, BITS_8_TO_32, ""),
    ("SLICE_GRAD", "4_1"): (1, 8, WITH_FLOAT64, ""),
    ("REVERSE_SUBSEQUENCES", "2_1"): (4, 4, BITS_8_TO_32, "UINT32"),
    ("REVERSE_SUBSEQUENCES", "3_0"): (4, 5, BITS_8_TO_32, "UINT32"),
    ("REVERSE_SUBSEQUENCES", "4_0"): (1, 8, BITS_8_TO_32, "UINT32"),
    ("REVERSE_SUBSEQUENCES", "5_0"): (1, 8, WITH_FLOAT64, "UINT64 UINT32"),
    ("FILL_VALUE_SEQUENCE", "2_1"): (4, 4, BITS_8_TO_32, ""),
    ("FILL_VALUE_SEQUENCE", "4_0"): (1, 8, BITS_8_TO_32, ""),
    ("FILL_VALUE_SEQUENCE", "5_0"): (1, 8, WITH_64_BIT_INTEGERS, ""),
    ("FILL_VALUE_CONSTANT", "2_1"): (4, 4, BITS_8_TO_32, ""),
    ("FILL_VALUE_CONSTANT", "4_0"): (1, 8, BITS_8_TO_32, ""),
    ("FILL_VALUE_CONSTANT", "4_1"): (1, 8, WITH_FLOAT64, ""),
}
every_operator = pytest.mark.parametrize("operator", TENSORS)


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
    rows = [DOCUMENTED.get((operator, at)) for at in levels]
    return next(filter(None, reversed(rows)), None)


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


@pytest.mark.parametrize("level", dml.FeatureLevel, ids=lambda level: level.label)
@pytest.mark.parametrize("changes", [{}, BY_CONSTANT], ids=["operators", "constant"])
def test_levels_that_have_graphs(
    level: dml.FeatureLevel, changes: dict[str, Any]
) -> None:
    """Of rank 4, which all operators support from 2_1 on; constants need 6_2."""
    table = BufferTensorDesc(DataType.FLOAT32, (1, 1, 2, 3))
    counts = BufferTensorDesc(DataType.UINT32, (1, 1, 2, 1))
    fill: Any = dataclasses.replace(FILL, output_tensor=table)
    reverse = dml.ReverseSubsequencesOperatorDesc(table, counts, table, 3)
    nodes = [*map(Node, (fill, reverse, copy_of(table))), EIGHT][: 4 if changes else 3]
    desc = dml.GraphDesc(**{**VALID, **changes, "nodes": nodes})
    if level >= (0x6200 if changes else 0x2100):
        dml.compile_graph(desc, level)
    else:
        with pytest.raises(ValueError, match=r"^DML_GRAPH_DESC: "):
            dml.compile_graph(desc, level)


# Tensors -----------------------------------------------------------------


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


def test_strides_that_are_not_nested_are_enumerated_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without overlap either way, but too many elements to enumerate them."""
    monkeypatch.setattr(_rules, "_MAX_ENUMERATED", 2**10)
    assert refused(fill_of((2**9, 2), (2, 3))) is None
    assert refused(fill_of((2**9 + 1, 2), (2, 3))) == "OutputTensor.Strides"
