"""What CreateOperator refuses, rule by rule.

Members are named as in C, since the rules are DirectML's. A message ends with the
feature level from which a value would be allowed, where a level decides.
"""

from __future__ import annotations

import math

from dml_jax.directml import _levels
from dml_jax.directml._levels import Support
from dml_jax.directml._tensor import (
    LARGEST_UINT,
    BufferTensorDesc,
    extent,
    has_overlap,
    is_nested,
    rounded_bytes,
)
from dml_jax.directml._types import FeatureLevel, OperatorType, TensorFlags

# Strides that are not nested are looked at element by element, up to this many.
_MOST_ENUMERATED = 2**22


def refused(struct: str, member: str, rule: str, got: object) -> ValueError:
    """What to raise for a member that breaks a rule."""
    return ValueError(f"{struct}: `{member}` must {rule}; got {got}")


def require_equal(struct, member, got, expected, whose):
    """Refuses a member that is not the same as another one."""
    if got != expected:
        name = getattr(expected, "name", expected)
        got = getattr(got, "name", got)
        raise refused(struct, member, f"be {name}, that of `{whose}`", got)


def require_operator(
    struct: str, operator: OperatorType, level: FeatureLevel
) -> Support:
    """What the level supports of the operator, if it exists there."""
    support = _levels.supported(operator, level)
    if support is None:
        first = _levels.rows_of(operator)[0].since
        raise refused(struct, "FeatureLevel", f"be {first.label} or later", level.label)
    return support


def require_tensor(
    struct: str, member: str, tensor: BufferTensorDesc, support: Support, level
):
    """Refuses a tensor that breaks a rule which does not depend on other tensors."""
    _require_data_type(struct, member, tensor.data_type, support, level)
    _require_dimension_count(struct, member, tensor.dimension_count, support, level)
    _require_sizes(struct, member, tensor)
    _require_total(struct, member, tensor)
    alignment, size = (
        tensor.guaranteed_base_offset_alignment,
        tensor.data_type.bits // 8,
    )
    if alignment and (alignment < size or alignment & (alignment - 1)):
        rule = (
            f"be 0 or a power of two of at least {size}, the size of "
            f"{tensor.data_type.name}"
        )
        raise refused(
            struct, f"{member}.GuaranteedBaseOffsetAlignment", rule, alignment
        )


def require_output(struct: str, member: str, tensor: BufferTensorDesc):
    """Refuses what only inputs may have."""
    if tensor.flags:
        rule = "be NONE, since only inputs are owned by DirectML"
        raise refused(struct, f"{member}.Flags", rule, TensorFlags(tensor.flags).name)
    sizes, strides = tensor.sizes, tensor.strides
    if strides is None or is_nested(sizes, strides):
        return
    rule = f"give each element of Sizes {sizes} a place of its own"
    count = math.prod(sizes)
    if count <= extent(sizes, strides):
        if count > _MOST_ENUMERATED:
            rule = f"each step over what the smaller ones reach, for Sizes {sizes}"
        elif not has_overlap(sizes, strides):
            return
    raise refused(struct, f"{member}.Strides", rule, strides)


def require_same_type(struct, member, tensor: BufferTensorDesc, other, like):
    """Refuses a tensor that has not the data type and the rank of another one."""
    got, expected = tensor.data_type, like.data_type
    require_equal(struct, f"{member}.DataType", got, expected, f"{other}.DataType")
    require_same_count(struct, member, tensor, other, like)


def require_same_count(struct, member, tensor: BufferTensorDesc, other, like):
    """Refuses a tensor that has not the rank of another one."""
    require_equal(
        struct,
        f"{member}.DimensionCount",
        tensor.dimension_count,
        like.dimension_count,
        f"{other}.DimensionCount",
    )


def require_same_sizes(struct, member, tensor: BufferTensorDesc, other, like):
    """Refuses a tensor of the same rank that has not the sizes of another one."""
    for d, (got, size) in enumerate(zip(tensor.sizes, like.sizes, strict=True)):
        require_equal(struct, f"{member}.Sizes[{d}]", got, size, f"{other}.Sizes[{d}]")


def require_count(struct, member, values, count):
    """Refuses an array that has not one element for each dimension."""
    if len(values) != count:
        rule = f"have {count} elements, one for each dimension of the tensors"
        raise refused(struct, member, rule, len(values))


def _require_data_type(struct, member, data_type, support, level):
    of_lengths = member == "SequenceLengthsTensor"

    def allowed(row):
        return row.lengths_data_types if of_lengths else row.data_types

    if data_type not in allowed(support):
        rule = f"be {_one_of([t.name for t in allowed(support)])}"
        first = _first(support, lambda row: data_type in allowed(row))
        raise refused(
            struct,
            f"{member}.DataType",
            f"{rule} at feature level {level.label}",
            f"{data_type.name}, {first}",
        )


def _require_dimension_count(struct, member, count, support, level):
    if count not in support.dimension_counts:
        fewest, most = support.dimension_counts[0], support.dimension_counts[-1]
        rule = f"be {fewest}" if fewest == most else f"be {fewest} to {most}"
        first = _first(support, lambda row: count in row.dimension_counts)
        raise refused(
            struct,
            f"{member}.DimensionCount",
            f"{rule} at feature level {level.label}",
            f"{count}, {first}",
        )


def _require_sizes(struct, member, tensor):
    for d, size in enumerate(tensor.sizes):
        if size < 1:
            raise refused(struct, f"{member}.Sizes[{d}]", "be at least 1", size)
    elements = math.prod(tensor.sizes)
    if elements > LARGEST_UINT:
        rule = f"give at most {LARGEST_UINT} elements"
        raise refused(struct, f"{member}.Sizes", rule, elements)
    reach = extent(tensor.sizes, tensor.strides)
    if reach > LARGEST_UINT:
        rule = f"reach over at most {LARGEST_UINT} elements"
        raise refused(struct, f"{member}.Strides", rule, reach)


def _require_total(struct, member, tensor):
    total, needed = tensor.total_tensor_size_in_bytes, tensor.needed_bytes
    most = rounded_bytes(tensor.data_type, LARGEST_UINT)
    if total % 4:
        rule = "be a multiple of 4"
    elif total < needed:
        rule = f"be at least {needed}, which DataType, Sizes and Strides imply"
    elif total > most:
        rule = f"be at most {most}, which is {LARGEST_UINT} elements"
    else:
        return
    raise refused(struct, f"{member}.TotalTensorSizeInBytes", rule, total)


def _first(support, is_allowed):
    """From which level on a value would be allowed."""
    rows = _levels.rows_of(support.operator_type)
    first = next((row.since for row in rows if is_allowed(row)), None)
    return f"allowed from {first.label}" if first else "allowed at no feature level"


def _one_of(names):
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
