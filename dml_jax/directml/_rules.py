"""The rules that CreateOperator checks.

Messages name members as in C, since the rules are DirectML's. If a rule depends on the
feature level, they end with the level from which the value is allowed.
"""

from __future__ import annotations

import math
from typing import Any

from dml_jax._shared import arguments
from dml_jax.directml import _levels
from dml_jax.directml._levels import Support
from dml_jax.directml._members import UINT
from dml_jax.directml._tensor import (
    BufferTensorDesc,
    extent,
    has_overlap,
    is_nested,
    rounded_bytes,
)
from dml_jax.directml._types import FeatureLevel, OperatorType

# Strides that are not nested are checked by enumerating at most this many elements.
_MAX_ENUMERATED = 2**22


def require(struct: str, member: str, holds: bool, rule: str, got: object) -> None:
    """Refuses a member if its rule does not hold."""
    if not holds:
        raise arguments.error(ValueError, struct, member, rule, got)


def require_operator(
    struct: str, operator: OperatorType, level: FeatureLevel
) -> Support:
    """What an operator supports at a level; refuses one that does not exist there."""
    first = _levels.rows_of(operator)[0].since.label
    rows = _levels.rows_of(operator, level)
    require(struct, "FeatureLevel", bool(rows), f"be {first} or later", level.label)
    return rows[-1]


def require_tensor(
    struct: str,
    member: str,
    tensor: BufferTensorDesc,
    support: Support,
    level: FeatureLevel,
) -> None:
    """Checks the rules for a tensor that do not depend on other members."""
    _require_support(struct, member, tensor, support, level)
    require_layout(struct, member, tensor)


def require_layout(struct: str, member: str, tensor: BufferTensorDesc) -> None:
    """Checks the rules for a tensor that do not depend on its operator."""

    def check(name: str, holds: bool, rule: str, got: object) -> None:
        require(struct, f"{member}.{name}", holds, rule, got)

    for d, size in enumerate(tensor.sizes):
        check(f"Sizes[{d}]", size >= 1, "be at least 1", size)
    count, span = math.prod(tensor.sizes), extent(tensor.sizes, tensor.strides)
    maximum = UINT[-1]
    check("Sizes", count <= maximum, f"give at most {maximum} elements", count)
    check("Strides", span <= maximum, f"span at most {maximum} elements", span)

    total, needed = tensor.total_tensor_size_in_bytes, tensor.needed_bytes
    largest = rounded_bytes(tensor.data_type, maximum)
    name = "TotalTensorSizeInBytes"
    check(name, total % 4 == 0, "be a multiple of 4", total)
    rule = f"be at least {needed}, which DataType, Sizes and Strides imply"
    check(name, total >= needed, rule, total)
    rule = f"be at most {largest}, which is {maximum} elements"
    check(name, total <= largest, rule, total)

    alignment, kind = tensor.guaranteed_base_offset_alignment, tensor.data_type
    size, is_power = kind.bits // 8, alignment.bit_count() == 1
    holds = alignment == 0 or (is_power and alignment >= size)
    rule = f"be 0 or a power of two of at least {size}, the size of {kind.name}"
    check("GuaranteedBaseOffsetAlignment", holds, rule, alignment)


def _require_support(
    struct: str,
    member: str,
    tensor: BufferTensorDesc,
    support: Support,
    level: FeatureLevel,
) -> None:
    """Refuses data types and ranks that the operator does not support at a level."""
    is_lengths = member == "SequenceLengthsTensor"
    data_types = "lengths_data_types" if is_lengths else "data_types"
    for name, value, attribute in (
        ("DataType", tensor.data_type, data_types),
        ("DimensionCount", tensor.dimension_count, "dimension_counts"),
    ):
        allowed = getattr(support, attribute)
        if value not in allowed:
            rows = _levels.rows_of(support.operator_type)
            levels = [r.since.label for r in rows if value in getattr(r, attribute)]
            first = f"from {levels[0]}" if levels else "at no feature level"
            rule = f"be {_choice(allowed)} at feature level {level.label}"
            got = f"{getattr(value, 'name', value)}, allowed {first}"
            require(struct, f"{member}.{name}", False, rule, got)


def _choice(allowed: Any) -> str:
    if isinstance(allowed, range):
        first, last = allowed[0], allowed[-1]
        return str(first) if first == last else f"{first} to {last}"
    *names, last = (data_type.name for data_type in allowed)
    return f"{', '.join(names)} or {last}" if names else last


def require_output(struct: str, member: str, tensor: BufferTensorDesc) -> None:
    """Refuses flags and overlapping elements, which only inputs may have."""
    rule = "be NONE, since only inputs are owned by DirectML"
    require(struct, f"{member}.Flags", not tensor.flags, rule, tensor.flags.name)
    sizes, strides = tensor.sizes, tensor.strides
    if strides is None or is_nested(sizes, strides):
        return
    count = math.prod(sizes)
    has_room = count <= extent(sizes, strides)
    if has_room and count > _MAX_ENUMERATED:
        holds = False
        rule = f"each exceed the extent of the smaller ones, for Sizes {sizes}"
    else:
        holds = has_room and not has_overlap(sizes, strides)
        rule = f"give no two elements of Sizes {sizes} the same position"
    require(struct, f"{member}.Strides", holds, rule, strides)
