"""What each feature level of DirectML supports, as one table.

A row says what its operator supports from its level on, until the next row of that
operator. Levels without a row change nothing. Data types that a level supports may
still be missing on a device (64-bit ones); here they are not.
"""

from __future__ import annotations

import dataclasses

from dml_jax.directml._types import (
    LATEST,
    DataType,
    FeatureLevel,
    OperatorType,
    member_of,
)

_PAGE = "https://learn.microsoft.com/windows/win32/api/directml/ns-directml-"
_PAGES = {  # the page of REVERSE_SUBSEQUENCES is the one without `_operator`
    operator: f"{_PAGE}dml_{operator.name.lower()}{suffix}_desc"
    for operator in OperatorType
    for suffix in ["" if operator is OperatorType.REVERSE_SUBSEQUENCES else "_operator"]
}


def _types(names: str) -> tuple[DataType, ...]:
    return tuple(DataType[name] for name in names.split())


_T6 = _types("FLOAT32 FLOAT16 INT32 INT16 UINT32 UINT16")
_T8 = _types("FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8")
_T10 = _types("FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8")
_T11 = (DataType.FLOAT64, *_T10)
_U32 = _types("UINT32")
_U64 = _types("UINT64 UINT32")


@dataclasses.dataclass(frozen=True)
class Support:
    """What an operator supports from a feature level on.

    Attributes:
      operator_type: the operator.
      since: the feature level that brought this.
      dimension_counts: the numbers of dimensions its tensors may have.
      data_types: the data types its tensors may have, but for the sequence lengths.
      lengths_data_types: those of SequenceLengthsTensor; empty for other operators.
      source: the page of DirectML's documentation that has the table.
    """

    operator_type: OperatorType
    since: FeatureLevel
    dimension_counts: range
    data_types: tuple[DataType, ...]
    lengths_data_types: tuple[DataType, ...] = ()

    @property
    def source(self) -> str:
        return _PAGES[self.operator_type]


def _row(operator, level, fewest, most, data_types, lengths=()):
    return Support(
        OperatorType[operator],
        FeatureLevel[f"LEVEL_{level}"],
        range(fewest, most + 1),
        data_types,
        lengths,
    )


TABLE = (
    _row("SLICE", "1_0", 4, 5, _T6),
    _row("SLICE", "2_1", 4, 5, _T8),
    _row("SLICE", "3_0", 1, 8, _T8),
    _row("SLICE", "4_1", 1, 8, _T11),
    _row("SLICE1", "2_1", 4, 5, _T8),
    _row("SLICE1", "3_0", 1, 8, _T8),
    _row("SLICE1", "4_1", 1, 8, _T11),
    _row("SLICE_GRAD", "3_0", 4, 5, _T8),
    _row("SLICE_GRAD", "3_1", 1, 8, _T8),
    _row("SLICE_GRAD", "4_1", 1, 8, _T11),
    _row("REVERSE_SUBSEQUENCES", "2_1", 4, 4, _T8, _U32),
    _row("REVERSE_SUBSEQUENCES", "3_0", 4, 5, _T8, _U32),
    _row("REVERSE_SUBSEQUENCES", "4_0", 1, 8, _T8, _U32),
    _row("REVERSE_SUBSEQUENCES", "5_0", 1, 8, _T11, _U64),
    _row("FILL_VALUE_SEQUENCE", "2_1", 4, 4, _T8),
    _row("FILL_VALUE_SEQUENCE", "4_0", 1, 8, _T8),
    _row("FILL_VALUE_SEQUENCE", "5_0", 1, 8, _T10),
    _row("FILL_VALUE_CONSTANT", "2_1", 4, 4, _T8),
    _row("FILL_VALUE_CONSTANT", "4_0", 1, 8, _T8),
    _row("FILL_VALUE_CONSTANT", "4_1", 1, 8, _T11),
)


def supported(
    operator_type: OperatorType, feature_level: FeatureLevel = LATEST
) -> Support | None:
    """What an operator supports at a feature level; None where it does not exist.

    Args:
      operator_type: the operator.
      feature_level: the level, DirectML's last one by default.

    Returns:
      The row of the table that holds at `feature_level`, or None.

    Raises:
      ValueError: no such operator or feature level.

    Example:
      >>> from dml_jax.directml import FeatureLevel, OperatorType, supported
      >>> support = supported(OperatorType.SLICE1, FeatureLevel.LEVEL_3_1)
      >>> support.since.label, support.dimension_counts
      ('3_0', range(1, 9))
      >>> supported(OperatorType.SLICE1, FeatureLevel.LEVEL_2_0) is None
      True

    Source: DirectML, the operator's page; it is the `source` of the result.
    """
    operator = member_of("supported", "operator_type", operator_type, OperatorType)
    level = member_of("supported", "feature_level", feature_level, FeatureLevel)
    rows = [row for row in rows_of(operator) if row.since <= level]
    return rows[-1] if rows else None


def rows_of(operator: OperatorType) -> list[Support]:
    """The rows of an operator, from its first feature level on."""
    return [row for row in TABLE if row.operator_type is operator]
