"""The rules that CreateOperator checks.

A rule is a member, whether the rule holds, what it says, and the value. A generator
yields a rule only after all earlier ones hold. Members are named as in C, since the
rules are DirectML's. If a rule depends on the feature level, the value is followed by
the level from which it is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from dml_jax.directml._levels import Support
from dml_jax.directml._members import UINT
from dml_jax.directml._tensor import BufferTensorDesc, rounded_bytes
from dml_jax.directml._types import FeatureLevel

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
