"""Operator descriptions: the base class, the reversal and the fills.

Each class mirrors one C structure, with members in snake_case. `validate` checks
DirectML's rules, and `evaluate` calls the public function that computes the operator.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import jax

import dml_jax
from dml_jax.directml import _rules, _strided
from dml_jax.directml._members import Struct, fields_of, member_of
from dml_jax.directml._rules import Rule
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

    Attributes:
      type: the operator.
      input_members: the members that hold input tensors, in binding order.
      output_member: the member that holds the output tensor.
      evaluate: computes the output tensor from the input tensors. Dimensions with a
        stride of 0 have size 1 in the inputs.
    """

    type: ClassVar[OperatorType]
    input_members: ClassVar[tuple[str, ...]]
    output_member: ClassVar[str]
    evaluate: Callable[..., jax.Array]

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
        level = member_of("validate", "feature_level", feature_level, FeatureLevel)
        _rules.require(self.struct, self._rules(level))

    def _rules(self, level: FeatureLevel) -> Iterator[Rule]:
        members = (*self.input_members, self.output_member)
        tensors = {camel(member): getattr(self, member) for member in members}
        yield from _rules.of_level(self.type, tensors, level)
        for member, tensor in tensors.items():
            yield from _rules.of_tensor(member, tensor)
        yield from _rules.of_output(camel(self.output_member), self.output)
        yield from _rules.between_tensors(tensors)
        count = self.output.dimension_count
        rule = f"have {count} elements, one for each dimension of the tensors"
        for member, (kind, _) in fields_of(type(self)).items():
            if kind == Sequence[int]:
                got = len(getattr(self, member))
                yield camel(member), got == count, rule, got
        yield from self._rules_between_members()

    @abc.abstractmethod
    def _rules_between_members(self) -> Iterator[Rule]: ...


@functools.cache
def camel(member: str) -> str:
    """The C name of a member: InputTensor for input_tensor."""
    return "".join(word.capitalize() for word in member.split("_"))


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

    Source: DirectML, DML_REVERSE_SUBSEQUENCES_OPERATOR_DESC.
    """

    input_tensor: BufferTensorDesc
    sequence_lengths_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    axis: int

    type = OperatorType.REVERSE_SUBSEQUENCES
    input_members = ("input_tensor", "sequence_lengths_tensor")
    output_member = "output_tensor"

    def _rules_between_members(self) -> Iterator[Rule]:
        source, lengths = self.input_tensor, self.sequence_lengths_tensor
        count, output = source.dimension_count, self.output_tensor
        for d, size in enumerate(source.sizes):
            name, other = f"OutputTensor.Sizes[{d}]", f"InputTensor.Sizes[{d}]"
            yield _rules.equal(name, output.sizes[d], other, size)
        rule = f"be less than {count}, `InputTensor.DimensionCount`"
        yield "Axis", self.axis < count, rule, self.axis
        for d, (got, size) in enumerate(zip(lengths.sizes, source.sizes, strict=True)):
            name = f"{_rules.LENGTHS}.Sizes[{d}]"
            if d == self.axis:
                yield name, got == 1, f"be 1, since `Axis` is {d}", got
            else:
                hint = " (a stride of 0 broadcasts)" if got == 1 else ""
                rule = f"be {size}, that of `InputTensor.Sizes[{d}]`{hint}"
                yield name, got == size, rule, got

    def evaluate(self, input: jax.Array, lengths: jax.Array) -> jax.Array:
        input = _strided.broadcast(input, self.input_tensor.sizes)
        return dml_jax.reverse_subsequences(input, lengths, self.axis)


class _FillDesc(OperatorDesc):
    output_tensor: BufferTensorDesc
    value_data_type: DataType

    input_members = ()
    output_member = "output_tensor"

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

    Source: DirectML, DML_FILL_VALUE_CONSTANT_OPERATOR_DESC.
    """

    output_tensor: BufferTensorDesc
    value_data_type: DataType
    value: ScalarUnion

    if TYPE_CHECKING:  # the arguments are converted to the types of the fields

        def __init__(
            self,
            output_tensor: BufferTensorDesc,
            value_data_type: DataTypeLike,
            value: ScalarUnion,
        ) -> None: ...

    type = OperatorType.FILL_VALUE_CONSTANT

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

    Source: DirectML, DML_FILL_VALUE_SEQUENCE_OPERATOR_DESC.
    """

    output_tensor: BufferTensorDesc
    value_data_type: DataType
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

    def evaluate(self) -> jax.Array:
        values = (self.value_start, self.value_delta)
        return self._evaluate(dml_jax.fill_value_sequence, *values)
