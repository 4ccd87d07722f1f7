"""What each feature level of DirectML supports, as one table.

A row applies from its feature level up to that of the operator's next row. The optional
data types, those of 64 bits, count as supported.
"""

from __future__ import annotations

import dataclasses

from dml_jax.directml._members import member_of
from dml_jax.directml._types import LATEST, DataType, FeatureLevel, OperatorType


@dataclasses.dataclass(frozen=True)
class Support:
    """What an operator supports from a feature level on.

    Attributes:
      operator_type: the operator.
      since: the feature level that introduced this support.
      dimension_counts: the allowed ranks of its tensors.
      data_types: the allowed data types of its tensors, except the sequence lengths.
      lengths_data_types: those of SequenceLengthsTensor; empty for other operators.
      source: the page of DirectML's documentation on the operator, with this table.
    """

    operator_type: OperatorType
    since: FeatureLevel
    dimension_counts: range
    data_types: tuple[DataType, ...]
    lengths_data_types: tuple[DataType, ...] = ()

    @property
    def source(self) -> str:
        name = f"dml_{self.operator_type.name.lower()}_operator_desc"
        if self.operator_type is OperatorType.REVERSE_SUBSEQUENCES:
            name = name.replace("_operator", "")
        return (
            f"https://learn.microsoft.com/windows/win32/api/directml/ns-directml-{name}"
        )


def _types(names: str) -> tuple[DataType, ...]:
    return tuple(DataType[name] for name in names.split())


_T6 = _types("FLOAT32 FLOAT16 INT32 INT16 UINT32 UINT16")
_T8 = _types("FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8")
_T10 = _types("FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8")
_T11 = (DataType.FLOAT64, *_T10)
_U32 = _types("UINT32")
_U64 = _types("UINT64 UINT32")

TABLE = tuple(
    Support(
        OperatorType[operator],
        FeatureLevel[f"LEVEL_{level}"],
        range(minimum_rank, maximum_rank + 1),
        *data_types,
    )
    for operator, level, minimum_rank, maximum_rank, *data_types in [
        ("SLICE", "1_0", 4, 5, _T6),
        ("SLICE", "2_1", 4, 5, _T8),
        ("SLICE", "3_0", 1, 8, _T8),
        ("SLICE", "4_1", 1, 8, _T11),
        ("SLICE1", "2_1", 4, 5, _T8),
        ("SLICE1", "3_0", 1, 8, _T8),
        ("SLICE1", "4_1", 1, 8, _T11),
        ("SLICE_GRAD", "3_0", 4, 5, _T8),
        ("SLICE_GRAD", "3_1", 1, 8, _T8),
        ("SLICE_GRAD", "4_1", 1, 8, _T11),
        ("REVERSE_SUBSEQUENCES", "2_1", 4, 4, _T8, _U32),
        ("REVERSE_SUBSEQUENCES", "3_0", 4, 5, _T8, _U32),
        ("REVERSE_SUBSEQUENCES", "4_0", 1, 8, _T8, _U32),
        ("REVERSE_SUBSEQUENCES", "5_0", 1, 8, _T11, _U64),
        ("FILL_VALUE_SEQUENCE", "2_1", 4, 4, _T8),
        ("FILL_VALUE_SEQUENCE", "4_0", 1, 8, _T8),
        ("FILL_VALUE_SEQUENCE", "5_0", 1, 8, _T10),
        ("FILL_VALUE_CONSTANT", "2_1", 4, 4, _T8),
        ("FILL_VALUE_CONSTANT", "4_0", 1, 8, _T8),
        ("FILL_VALUE_CONSTANT", "4_1", 1, 8, _T11),
    ]
)


def supported(
    operator_type: OperatorType, feature_level: FeatureLevel = LATEST
) -> Support | None:
    """What an operator supports at a feature level, or None if it does not exist there.

    Args:
      operator_type: the operator.
      feature_level: the level, DirectML's last one by default.

    Returns:
      The row of the table that applies at `feature_level`; None before the first row.

    Raises:
      TypeError: an argument is not an integer.
      ValueError: there is no such operator or feature level.

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
    rows = rows_of(operator, level)
    return rows[-1] if rows else None


def rows_of(operator: OperatorType, level: FeatureLevel = LATEST) -> list[Support]:
    """The rows of an operator, from its first feature level up to `level`."""
    rows = [row for row in TABLE if row.operator_type is operator]
    return [row for row in rows if row.since <= level]
