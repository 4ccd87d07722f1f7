"""The operators: for each its description, what a level supports, and its rules.

Each class mirrors one C structure, with members in snake_case. The types of the members
determine how they are converted, which tensors are bound, and how a DxDispatch model is
read. `levels` has a row for each feature level that changed the operator. `validate`
checks DirectML's rules, and `evaluate` calls the public function of the operator.
"""

from __future__ import annotations

import abc
import dataclasses
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import jax

import dml_jax
from dml_jax._shared import arguments
from dml_jax.directml import _rules
from dml_jax.directml._members import INT, Struct, camel, fields_of, member_of
from dml_jax.directml._rules import (
    BITS_8_TO_32,
    BITS_16_TO_32,
    UINT32,
    UINT32_OR_UINT64,
    WITH_64_BIT_INTEGERS,
    WITH_FLOAT64,
    Rule,
    Support,
)
from dml_jax.directml._tensor import BufferTensorDesc
from dml_jax.directml._types import (
    LATEST,
    DataType,
    DataTypeLike,
    FeatureLevel,
    OperatorType,
    ScalarUnion,
)


class OperatorDesc(Struct, abc.ABC):
    """DML_OPERATOR_DESC: base class of the operator descriptions.

    Where a C structure has a DimensionCount, it is the one of the tensors.

    Attributes:
      type: the operator.
      levels: what the operator supports, by the feature level that introduced it.
      input_members: the members that hold input tensors, in binding order.
      output_member: the member that holds the output tensor.
      evaluate: computes the output tensor from the input tensors. Sequence lengths
        have size 1 in dimensions with a stride of 0.
    """

    type: ClassVar[OperatorType]
    levels: ClassVar[tuple[Support, ...]]
    input_members: ClassVar[tuple[str, ...]]
    output_member: ClassVar[str]
    evaluate: Callable[..., jax.Array]

    def __init_subclass__(cls) -> None:
        kinds = typing.get_type_hints(cls).items()
        tensors = [member for member, kind in kinds if kind is BufferTensorDesc]
        if tensors:  # the output is the last one
            cls.input_members, cls.output_member = tuple(tensors[:-1]), tensors[-1]

    @property
    def inputs(self) -> tuple[BufferTensorDesc, ...]:
        """The input tensors in binding order."""
        return tuple(getattr(self, member) for member in self.input_members)

    @property
    def output(self) -> BufferTensorDesc:
        """The output tensor."""
        return getattr(self, self.output_member)

    @property
    def outputs(self) -> tuple[BufferTensorDesc, ...]:
        """The output tensor, in a tuple."""
        return (self.output,)

    @property
    def label(self) -> str:
        """The name of the operator in error messages about graphs."""
        return self.type.name

    @property
    def struct(self) -> str:
        """The name of the C structure, with which error messages begin."""
        return f"DML_{self.type.name}_OPERATOR_DESC"

    @arguments.named("validate")
    def validate(self, feature_level: FeatureLevel = LATEST) -> None:
        """Checks what DirectML's CreateOperator checks at a feature level.

        Args:
          feature_level: the level, DirectML's last one by default.

        Raises:
          TypeError: `feature_level` is not an integer.
          ValueError: DirectML would refuse the description. The message has the member
            as in C, the rule and the value. If the rule depends on the level, it also
            has the level from which the value is allowed.
        """
        level = member_of("feature_level", feature_level, FeatureLevel)
        _rules.require(self.struct, self._rules(level))

    def _rules(self, level: FeatureLevel) -> Iterator[Rule]:
        members = (*self.input_members, self.output_member)
        tensors = {camel(member): getattr(self, member) for member in members}
        yield from _rules.of_level(self.levels, tensors, level)
        for member, tensor in tensors.items():
            yield from _rules.of_tensor(member, tensor)
        yield from _rules.of_output(camel(self.output_member), self.output)
        yield from _rules.between_tensors(tensors)
        count = self.output.dimension_count
        rule = f"have {count} elements, one for each dimension of the tensors"
        for member, kind in fields_of(type(self)).items():
            if kind == Sequence[int]:
                got = len(getattr(self, member))
                yield camel(member), got == count, rule, got
        yield from self._rules_between_members()

    @abc.abstractmethod
    def _rules_between_members(self) -> Iterator[Rule]: ...


@dataclasses.dataclass(frozen=True)
class ReverseSubsequencesOperatorDesc(OperatorDesc):
    """DML_REVERSE_SUBSEQUENCES_OPERATOR_DESC: `dml_jax.reverse_subsequences`.

    Args:
      input_tensor: the sequences.
      sequence_lengths_tensor: the length of each sequence, with the sizes of
        `input_tensor`, but 1 along `axis`. UINT32, or UINT64 from 5_0 on. A stride of 0
        broadcasts a length along a dimension without expanding it.
      output_tensor: the result, with the sizes and data type of `input_tensor`.
      axis: the dimension along which elements are reversed.

    Raises:
      TypeError: a tensor is not a BufferTensorDesc, or `axis` is not an integer.
      ValueError: `axis` does not fit a UINT.

    Example:
      >>> import numpy as np
      >>> from dml_jax import directml as dml
      >>> rows = dml.BufferTensorDesc("int32", (2, 3))
      >>> lengths = dml.BufferTensorDesc("uint32", (2, 1))
      >>> desc = dml.ReverseSubsequencesOperatorDesc(rows, lengths, rows, axis=1)
      >>> x = np.arange(6, dtype=np.int32).reshape(2, 3)
      >>> dml.compile_operator(desc)(x, np.array([[3], [2]], np.uint32)).tolist()
      [[2, 1, 0], [4, 3, 5]]

    Source: DirectML, DML_REVERSE_SUBSEQUENCES_OPERATOR_DESC.
    """

    input_tensor: BufferTensorDesc
    sequence_lengths_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    axis: int

    type = OperatorType.REVERSE_SUBSEQUENCES
    levels = _rules.table(
        type,
        ("2_1", 4, 4, BITS_8_TO_32, UINT32),
        ("3_0", 4, 5, BITS_8_TO_32, UINT32),
        ("4_0", 1, 8, BITS_8_TO_32, UINT32),
        ("5_0", 1, 8, WITH_FLOAT64, UINT32_OR_UINT64),
    )

    def _rules_between_members(self) -> Iterator[Rule]:
        source, lengths = self.input_tensor.sizes, self.sequence_lengths_tensor.sizes
        rule = f"be less than {len(source)}, `InputTensor.DimensionCount`"
        yield "Axis", self.axis < len(source), rule, self.axis
        for d, size in enumerate(source):
            name, other = f"OutputTensor.Sizes[{d}]", f"InputTensor.Sizes[{d}]"
            yield _rules.equal(name, self.output_tensor.sizes[d], other, size)
            name, got = f"{_rules.LENGTHS}.Sizes[{d}]", lengths[d]
            if d == self.axis:
                yield name, got == 1, f"be 1, since `Axis` is {d}", got
            else:
                hint = " (a stride of 0 broadcasts)" if got == 1 else ""
                yield name, got == size, f"be {size}, that of `{other}`{hint}", got

    def evaluate(self, input: jax.Array, lengths: jax.Array) -> jax.Array:
        return dml_jax.reverse_subsequences(input, lengths, self.axis)


@dataclasses.dataclass(frozen=True)
class SliceOperatorDesc(OperatorDesc):
    """DML_SLICE_OPERATOR_DESC: `dml_jax.slice`.

    Args:
      input_tensor: the tensor that is read.
      output_tensor: the result, with the data type of `input_tensor` and these `sizes`.
      offsets: for each dimension the first index that is read.
      sizes: for each dimension the number of elements that are read.
      strides: for each dimension the distance between two elements, at least 1.

    Raises:
      TypeError: a tensor is not a BufferTensorDesc, or a number is not an integer.
      ValueError: a number does not fit a UINT.

    Example:
      >>> import numpy as np
      >>> from dml_jax import directml as dml
      >>> line, part = (dml.BufferTensorDesc("int32", (size,)) for size in (6, 2))
      >>> desc = dml.SliceOperatorDesc(line, part, (1,), sizes=(2,), strides=(3,))
      >>> dml.compile_operator(desc)(np.arange(6, dtype=np.int32)).tolist()
      [1, 4]

    Source: DirectML, DML_SLICE_OPERATOR_DESC.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    offsets: Sequence[int]
    sizes: Sequence[int]
    strides: Sequence[int]

    type = OperatorType.SLICE
    levels = _rules.table(
        type,
        ("1_0", 4, 5, BITS_16_TO_32),
        ("2_1", 4, 5, BITS_8_TO_32),
        ("3_0", 1, 8, BITS_8_TO_32),
        ("4_1", 1, 8, WITH_FLOAT64),
    )

    def _rules_between_members(self) -> Iterator[Rule]:
        whole, part = self.input_tensor.sizes, self.output_tensor.sizes
        for d, (offset, size, stride) in enumerate(
            zip(self.offsets, self.sizes, self.strides, strict=True)
        ):
            yield f"Sizes[{d}]", size >= 1, "be at least 1", size
            yield f"Strides[{d}]", stride >= 1, "be at least 1", stride
            name = f"OutputTensor.Sizes[{d}]"
            yield _rules.equal(name, part[d], f"Sizes[{d}]", size)
            last = offset + stride * (size - 1)
            name = f"Offsets[{d}] + Strides[{d}] * (Sizes[{d}] - 1)"
            rule = f"be less than {whole[d]}, `InputTensor.Sizes[{d}]`"
            yield name, last < whole[d], rule, last

    def evaluate(self, input: jax.Array) -> jax.Array:
        return dml_jax.slice(input, self.offsets, self.sizes, self.strides)


class _WindowDesc(OperatorDesc):
    """Base class of SLICE1 and SLICE_GRAD, which have a window with strides."""

    input_window_offsets: Sequence[int]
    input_window_sizes: Sequence[int]
    input_window_strides: Sequence[int]

    @property
    def _window(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """The offsets, sizes and strides, in the order of the public functions."""
        return (
            self.input_window_offsets,
            self.input_window_sizes,
            self.input_window_strides,
        )

    def _window_rules(self, whole_member: str, part_member: str) -> Iterator[Rule]:
        """The rules for the window of one tensor that holds the other's elements."""
        whole = getattr(self, whole_member).sizes
        part = getattr(self, part_member).sizes
        for d, (offset, size, stride) in enumerate(zip(*self._window, strict=True)):
            yield f"InputWindowStrides[{d}]", stride != 0, "not be 0", stride
            yield f"InputWindowSizes[{d}]", size >= 1, "be at least 1", size
            name = f"InputWindowOffsets[{d}] + InputWindowSizes[{d}]"
            end, count = offset + size, 1 + (size - 1) // abs(stride)
            rule = f"be at most {whole[d]}, `{camel(whole_member)}.Sizes[{d}]`"
            yield name, end <= whole[d], rule, end
            name = f"{camel(part_member)}.Sizes[{d}]"
            rule = f"be at most {count}, the number of elements in the window"
            yield name, part[d] <= count, rule, part[d]


@dataclasses.dataclass(frozen=True)
class Slice1OperatorDesc(_WindowDesc):
    """DML_SLICE1_OPERATOR_DESC: `dml_jax.slice1`.

    Args:
      input_tensor: the tensor that is read.
      output_tensor: the result, with the data type of `input_tensor` and, along each
        dimension, at most as many elements as the window.
      input_window_offsets: for each dimension the index at which the window starts.
      input_window_sizes: for each dimension the size of the window in the input.
      input_window_strides: for each dimension the distance between two elements, not 0.
        A negative stride starts from the window's last element.

    Raises:
      TypeError: a tensor is not a BufferTensorDesc, or a number is not an integer.
      ValueError: a number does not fit a UINT, or an INT for the strides.

    Example:
      >>> import numpy as np
      >>> from dml_jax import directml as dml
      >>> line, part = (dml.BufferTensorDesc("int32", (size,)) for size in (6, 2))
      >>> desc = dml.Slice1OperatorDesc(line, part, (1,), (4,), (-3,))
      >>> dml.compile_operator(desc)(np.arange(6, dtype=np.int32)).tolist()
      [4, 1]

    Source: DirectML, DML_SLICE1_OPERATOR_DESC.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    input_window_offsets: Sequence[int]
    input_window_sizes: Sequence[int]
    input_window_strides: Sequence[int] = dataclasses.field(metadata={"limits": INT})

    type = OperatorType.SLICE1
    levels = _rules.table(
        type,
        ("2_1", 4, 5, BITS_8_TO_32),
        ("3_0", 1, 8, BITS_8_TO_32),
        ("4_1", 1, 8, WITH_FLOAT64),
    )

    def _rules_between_members(self) -> Iterator[Rule]:
        return self._window_rules("input_tensor", "output_tensor")

    def evaluate(self, input: jax.Array) -> jax.Array:
        return dml_jax.slice1(input, *self._window, self.output_tensor.sizes)


@dataclasses.dataclass(frozen=True)
class SliceGradOperatorDesc(_WindowDesc):
    """DML_SLICE_GRAD_OPERATOR_DESC: `dml_jax.slice_grad`.

    Args:
      input_gradient_tensor: the gradient with respect to the output of SLICE1.
      output_gradient_tensor: the gradient with respect to the input of SLICE1, with the
        data type of `input_gradient_tensor`.
      input_window_offsets: for each dimension the index at which the window starts.
      input_window_sizes: for each dimension the size of the window.
      input_window_strides: for each dimension the distance between two elements.

    Raises:
      TypeError: a tensor is not a BufferTensorDesc, or a number is not an integer.
      ValueError: a number does not fit a UINT, or an INT for the strides.

    Example:
      >>> import numpy as np
      >>> from dml_jax import directml as dml
      >>> part, line = (dml.BufferTensorDesc("int32", (size,)) for size in (2, 6))
      >>> desc = dml.SliceGradOperatorDesc(part, line, (1,), (4,), (-3,))
      >>> dml.compile_operator(desc)(np.array([7, 8], np.int32)).tolist()
      [0, 8, 0, 0, 7, 0]

    Source: DirectML, DML_SLICE_GRAD_OPERATOR_DESC.
    """

    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc
    input_window_offsets: Sequence[int]
    input_window_sizes: Sequence[int]
    input_window_strides: Sequence[int] = dataclasses.field(metadata={"limits": INT})

    type = OperatorType.SLICE_GRAD
    levels = _rules.table(
        type,
        ("3_0", 4, 5, BITS_8_TO_32),
        ("3_1", 1, 8, BITS_8_TO_32),
        ("4_1", 1, 8, WITH_FLOAT64),
    )

    def _rules_between_members(self) -> Iterator[Rule]:
        return self._window_rules("output_gradient_tensor", "input_gradient_tensor")

    def evaluate(self, input: jax.Array) -> jax.Array:
        sizes = self.output_gradient_tensor.sizes
        return dml_jax.slice_grad(input, sizes, *self._window)


@dataclasses.dataclass(frozen=True)
class _FillDesc(OperatorDesc):
    output_tensor: BufferTensorDesc
    value_data_type: DataType

    def _rules_between_members(self) -> Iterator[Rule]:
        output = ("OutputTensor.DataType", self.output_tensor.data_type)
        yield _rules.equal("ValueDataType", self.value_data_type, *output)

    def _evaluate(
        self, fill: Callable[..., jax.Array], *values: ScalarUnion
    ) -> jax.Array:
        numbers = (value.read(self.value_data_type) for value in values)
        return fill(self.output_tensor.sizes, self.value_data_type.dtype, *numbers)


@dataclasses.dataclass(frozen=True)
class FillValueConstantOperatorDesc(_FillDesc):
    """DML_FILL_VALUE_CONSTANT_OPERATOR_DESC: `dml_jax.fill_value_constant`.

    Args:
      output_tensor: the tensor that is filled.
      value_data_type: its data type, and that of `value`.
      value: the bits of every element.

    Raises:
      TypeError: a member has the wrong type.
      ValueError: there is no such data type.

    Example:
      >>> from dml_jax import directml as dml
      >>> line, seven = dml.BufferTensorDesc("int32", (3,)), dml.ScalarUnion(int32=7)
      >>> desc = dml.FillValueConstantOperatorDesc(line, "int32", seven)
      >>> dml.compile_operator(desc)().tolist()
      [7, 7, 7]

    Source: DirectML, DML_FILL_VALUE_CONSTANT_OPERATOR_DESC.
    """

    value: ScalarUnion

    if TYPE_CHECKING:  # the arguments are converted to the types of the fields

        def __init__(
            self,
            output_tensor: BufferTensorDesc,
            value_data_type: DataTypeLike,
            value: ScalarUnion,
        ) -> None: ...

    type = OperatorType.FILL_VALUE_CONSTANT
    levels = _rules.table(
        type,
        ("2_1", 4, 4, BITS_8_TO_32),
        ("4_0", 1, 8, BITS_8_TO_32),
        ("4_1", 1, 8, WITH_FLOAT64),
    )

    def evaluate(self) -> jax.Array:
        return self._evaluate(dml_jax.fill_value_constant, self.value)


@dataclasses.dataclass(frozen=True)
class FillValueSequenceOperatorDesc(_FillDesc):
    """DML_FILL_VALUE_SEQUENCE_OPERATOR_DESC: `dml_jax.fill_value_sequence`.

    Args:
      output_tensor: the tensor that is filled, in row-major order whatever its strides.
      value_data_type: its data type, and that of the values.
      value_start: the bits of the first element.
      value_delta: the bits of the difference between two consecutive elements.

    Raises:
      TypeError: a member has the wrong type.
      ValueError: there is no such data type.

    Example:
      >>> from dml_jax import directml as dml
      >>> line = dml.BufferTensorDesc("uint8", (3,))
      >>> start, delta = dml.ScalarUnion(uint8=1), dml.ScalarUnion(int8=-2)
      >>> desc = dml.FillValueSequenceOperatorDesc(line, "uint8", start, delta)
      >>> dml.compile_operator(desc)().tolist()
      [1, 255, 253]

    Source: DirectML, DML_FILL_VALUE_SEQUENCE_OPERATOR_DESC.
    """

    value_start: ScalarUnion
    value_delta: ScalarUnion

    if TYPE_CHECKING:  # the arguments are converted to the types of the fields

        def __init__(
            self,
            output_tensor: BufferTensorDesc,
            value_data_type: DataTypeLike,
            value_start: ScalarUnion,
            value_delta: ScalarUnion,
        ) -> None: ...

    type = OperatorType.FILL_VALUE_SEQUENCE
    levels = _rules.table(
        type,
        ("2_1", 4, 4, BITS_8_TO_32),
        ("4_0", 1, 8, BITS_8_TO_32),
        ("5_0", 1, 8, WITH_64_BIT_INTEGERS),
    )

    def evaluate(self) -> jax.Array:
        values = (self.value_start, self.value_delta)
        return self._evaluate(dml_jax.fill_value_sequence, *values)


OPERATORS: dict[OperatorType, type[OperatorDesc]] = {
    operator.type: operator
    for operator in (
        ReverseSubsequencesOperatorDesc,
        SliceOperatorDesc,
        Slice1OperatorDesc,
        SliceGradOperatorDesc,
        FillValueConstantOperatorDesc,
        FillValueSequenceOperatorDesc,
    )
}


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
    operator = member_of("operator_type", operator_type, OperatorType)
    level = member_of("feature_level", feature_level, FeatureLevel)
    rows = [row for row in OPERATORS[operator].levels if row.since <= level]
    return rows[-1] if rows else None
