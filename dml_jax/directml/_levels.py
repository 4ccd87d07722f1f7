"""What DirectML supports of an operator from a feature level on.

The classes of the operators have the rows. A row applies from its feature level up to
that of the operator's next row. Data types of 64 bits are optional in DirectML, and
count as supported.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from dml_jax.directml._types import DataType, FeatureLevel, OperatorType


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


BITS_16_TO_32 = _types("FLOAT32 FLOAT16 INT32 INT16 UINT32 UINT16")
BITS_8_TO_32 = _types("FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8")
WITH_64_BIT_INTEGERS = _types(
    "FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"
)
WITH_FLOAT64 = (DataType.FLOAT64, *WITH_64_BIT_INTEGERS)
UINT32 = _types("UINT32")
UINT32_OR_UINT64 = _types("UINT64 UINT32")


def table(
    operator: OperatorType, *rows: tuple[str, int, int, *tuple[Any, ...]]
) -> tuple[Support, ...]:
    """An operator's support; a row has a level, the limits of the rank, data types."""
    return tuple(
        Support(operator, FeatureLevel[f"LEVEL_{level}"], range(low, high + 1), *types)
        for level, low, high, *types in rows
    )
