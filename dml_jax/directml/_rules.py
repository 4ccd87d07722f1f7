"""The rules that CreateOperator checks, and what a feature level supports.

A rule is a member, whether the rule holds, what it says, and the value. A generator
yields a rule only after all earlier ones hold. Members are named as in C, since the
rules are DirectML's. If a rule depends on the feature level, the value is followed by
the level from which it is allowed.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from dml_jax.directml._members import UINT
from dml_jax.directml._tensor import BufferTensorDesc, rounded_bytes
from dml_jax.directml._types import DataType, FeatureLevel, OperatorType

Rule: TypeAlias = tuple[str, bool, str, object]

LENGTHS = "SequenceLengthsTensor"

# Strides that are not nested are checked by enumerating at most this many elements.
_MAX_ENUMERATED = 2**22


def require(struct: str, rules: Iterable[Rule]) -> None:
    """Refuses a member if its rule does not hold."""
    for member, holds, rule, got in rules:
        if not holds:
            raise ValueError(f"{struct}: `{member}` must {rule}; got {got}")


def equal(member: str, got: Any, other: str, expected: Any) -> Rule:
    """A member must have the value of another one."""
    rule = f"be {_shown(expected)}, that of `{other}`"
    return member, got == expected, rule, _shown(got)


def of_tensor(member: str, tensor: BufferTensorDesc) -> Iterator[Rule]:
    """The rules for a tensor that do not depend on its operator."""
    for d, size in enumerate(tensor.sizes):
        yield f"{member}.Sizes[{d}]", size >= 1, "be at least 1", size
    count, span = tensor.layout.element_count, tensor.layout.extent
    maximum = UINT[-1]
    rule = f"give at most {maximum} elements"
    yield f"{member}.Sizes", count <= maximum, rule, count
    rule = f"span at most {maximum} elements"
    yield f"{member}.Strides", span <= maximum, rule, span

    total, needed = tensor.total_tensor_size_in_bytes, tensor.needed_bytes
    largest = rounded_bytes(tensor.data_type, maximum)
    name = f"{member}.TotalTensorSizeInBytes"
    yield name, total % 4 == 0, "be a multiple of 4", total
    rule = f"be at least {needed}, which DataType, Sizes and Strides imply"
    yield name, total >= needed, rule, total
    rule = f"be at most {largest}, which is {maximum} elements"
    yield name, total <= largest, rule, total

    alignment, kind = tensor.guaranteed_base_offset_alignment, tensor.data_type
    size, is_power = kind.bits // 8, alignment.bit_count() == 1
    holds = alignment == 0 or (is_power and alignment >= size)
    rule = f"be 0 or a power of two of at least {size}, the size of {kind.name}"
    yield f"{member}.GuaranteedBaseOffsetAlignment", holds, rule, alignment


def between_tensors(tensors: dict[str, BufferTensorDesc]) -> Iterator[Rule]:
    """All tensors have the rank of the first one, and all but lengths its data type."""
    (first, expected), *others = tensors.items()
    for member, tensor in others:
        if member != LENGTHS:
            name, other = f"{member}.DataType", f"{first}.DataType"
            yield equal(name, tensor.data_type, other, expected.data_type)
        name, other = f"{member}.DimensionCount", f"{first}.DimensionCount"
        yield equal(name, tensor.dimension_count, other, expected.dimension_count)


def of_output(member: str, tensor: BufferTensorDesc) -> Iterator[Rule]:
    """An output has no flags and no overlapping elements, unlike inputs."""
    rule = "be NONE, since only inputs are owned by DirectML"
    yield f"{member}.Flags", not tensor.flags, rule, tensor.flags.name
    layout = tensor.layout
    if layout.is_nested:
        return
    name, strides, count = f"{member}.Strides", layout.strides, layout.element_count
    distinct = f"give no two elements of Sizes {layout.sizes} the same position"
    nested = (
        "be nested, each stride larger than the span of all smaller ones, where there "
        f"are more than {_MAX_ENUMERATED} elements"
    )
    yield name, count <= layout.extent, distinct, strides
    yield name, count <= _MAX_ENUMERATED, nested, strides
    yield name, not layout.has_overlap, distinct, strides


# Feature levels -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Support:
    """What an operator supports from a feature level on, up to its next row.

    64-bit data types are optional in DirectML, and count as supported.

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
        folder = "https://learn.microsoft.com/windows/win32/api/directml"
        return f"{folder}/ns-directml-{name}"


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


def of_level(
    rows: tuple[Support, ...], tensors: dict[str, BufferTensorDesc], level: FeatureLevel
) -> Iterator[Rule]:
    """Whether a level has the operator, with the data types and ranks of tensors."""
    first, existing = rows[0].since, [row for row in rows if row.since <= level]
    yield "FeatureLevel", bool(existing), f"be {first.label} or later", level.label
    for member, tensor in tensors.items():
        data_types = "lengths_data_types" if member == LENGTHS else "data_types"
        for name, value, attribute in (
            ("DataType", tensor.data_type, data_types),
            ("DimensionCount", tensor.dimension_count, "dimension_counts"),
        ):
            allowed = getattr(existing[-1], attribute)
            if value in allowed:
                continue
            levels = [r.since.label for r in rows if value in getattr(r, attribute)]
            got = f"{_shown(value)}, allowed "
            got += f"from {levels[0]}" if levels else "at no feature level"
            rule = f"be {_choice(allowed)} at feature level {level.label}"
            yield f"{member}.{name}", False, rule, got


def _shown(value: Any) -> Any:
    return getattr(value, "name", value)


def _choice(allowed: Any) -> str:
    if isinstance(allowed, range):
        first, last = allowed[0], allowed[-1]
        return str(first) if first == last else f"{first} to {last}"
    *names, last = map(_shown, allowed)
    return f"{', '.join(names)} or {last}" if names else last
