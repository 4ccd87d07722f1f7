"""The descriptions of the operators: what DirectML's structures hold, as values.

Each class is one structure of C, member by member, in snake_case. It knows its rules
(`validate`) and the public function that computes it (`evaluate`).
"""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Callable
from typing import ClassVar

import jax

import dml_jax
from dml_jax._shared import arguments
from dml_jax.directml import _rules
from dml_jax.directml._levels import Support
from dml_jax.directml._strided import api
from dml_jax.directml._tensor import LARGEST_UINT, BufferTensorDesc, in_range
from dml_jax.directml._types import (
    LATEST,
    DataType,
    FeatureLevel,
    OperatorType,
    ScalarUnion,
    member_of,
    settle,
)


class OperatorDesc(abc.ABC):
    """DML_OPERATOR_DESC: any of the operators' descriptions.

    Attributes:
      type: the operator.
      input_members: the members that hold input tensors, in binding order.
      output_member: the member that holds the output tensor.
      evaluate: the function that computes the output tensor, from the input tensors
        with size 1 where their stride is 0.
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
    def struct(self) -> str:
        """The name of the structure in C, which error messages begin with."""
        return f"DML_{self.type.name}_OPERATOR_DESC"

    def validate(self, feature_level: FeatureLevel = LATEST) -> None:
        """Raises what DirectML's CreateOperator would refuse at a feature level.

        Args:
          feature_level: the level, DirectML's last one by default.

        Raises:
          ValueError: a member breaks a rule; the message names the member as in C, the
            rule, the value and, where a level decides, the level that would allow it.
        """
        level = member_of("validate", "feature_level", feature_level, FeatureLevel)
        support = _rules.require_operator(self.struct, self.type, level)
        for member, tensor in zip(self.input_members, self.inputs, strict=True):
            _rules.require_tensor(self.struct, camel(member), tensor, support, level)
        output = (self.struct, camel(self.output_member), self.output)
        _rules.require_tensor(*output, support, level)
        _rules.require_output(*output)
        self._validate_together(support)

    @abc.abstractmethod
    def _validate_together(self, support: Support) -> None:
        """Checks the rules between members."""

    def _settle_tensors(self) -> None:
        name = type(self).__name__
        for member in (*self.input_members, self.output_member):
            tensor = getattr(self, member)
            if not isinstance(tensor, BufferTensorDesc):
                raise TypeError(
                    f"{name}: `{member}` must be a BufferTensorDesc; got "
                    f"{arguments.describe(tensor)}"
                )


def camel(member: str) -> str:
    """The name in C of a member: InputTensor for input_tensor."""
    return "".join(word.capitalize() for word in member.split("_"))


def snake(member: str) -> str:
    """The name here of a member of C: input_tensor for InputTensor."""
    return re.sub("(?!^)([A-Z])", r"_\1", member).lower()


@dataclasses.dataclass(frozen=True)
class ReverseSubsequencesOperatorDesc(OperatorDesc):
    """DML_REVERSE_SUBSEQUENCES_OPERATOR_DESC: `dml_jax.reverse_subsequences`.

    Args:
      input_tensor: the sequences.
      sequence_lengths_tensor: one length for each of them: the sizes of `input_tensor`,
        but 1 along `axis`. UINT32, or UINT64 from 5_0 on. A stride of 0 stands for a
        length that holds for a whole dimension; it is never expanded.
      output_tensor: sizes and data type of `input_tensor`.
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

    def __post_init__(self):
        self._settle_tensors()
        axis = in_range(type(self).__name__, "axis", self.axis, 0, LARGEST_UINT)
        settle(self, axis=axis)

    def _validate_together(self, support):
        source, struct = self.input_tensor, self.struct
        output = (struct, "OutputTensor", self.output_tensor, "InputTensor", source)
        _rules.require_same_type(*output)
        _rules.require_same_sizes(*output)
        count = source.dimension_count
        if self.axis >= count:
            rule = f"be less than {count}, `InputTensor.DimensionCount`"
            raise _rules.refused(struct, "Axis", rule, self.axis)
        lengths, member = self.sequence_lengths_tensor, "SequenceLengthsTensor"
        _rules.require_same_count(struct, member, lengths, "InputTensor", source)
        for d, (got, size) in enumerate(zip(lengths.sizes, source.sizes, strict=True)):
            name = f"{member}.Sizes[{d}]"
            if d == self.axis and got != 1:
                raise _rules.refused(struct, name, f"be 1, since `Axis` is {d}", got)
            if d != self.axis and got != size:
                rule = f"be {size}, that of `InputTensor.Sizes[{d}]`"
                if got == 1:
                    rule += " (a stride of 0 broadcasts)"
                raise _rules.refused(struct, name, rule, got)

    def evaluate(self, input, lengths):
        input = api.broadcast(input, self.input_tensor.sizes)
        return dml_jax.reverse_subsequences(input, lengths, self.axis)


@dataclasses.dataclass(frozen=True)
class FillValueConstantOperatorDesc(OperatorDesc):
    """DML_FILL_VALUE_CONSTANT_OPERATOR_DESC: `dml_jax.fill_value_constant`.

    Args:
      output_tensor: what is filled.
      value_data_type: its data type, as which `value` is read.
      value: the bits of every element.

    Raises:
      TypeError: a member is not of its class.
      ValueError: no such data type.

    Source: DirectML, DML_FILL_VALUE_CONSTANT_OPERATOR_DESC.
    """

    output_tensor: BufferTensorDesc
    value_data_type: DataType
    value: ScalarUnion

    type = OperatorType.FILL_VALUE_CONSTANT
    input_members = ()
    output_member = "output_tensor"

    def __post_init__(self):
        self._settle_tensors()
        _settle_values(self, "value")

    def _validate_together(self, support):
        _require_value_type(self)

    def evaluate(self):
        return dml_jax.fill_value_constant(
            self.output_tensor.sizes,
            self.value_data_type.dtype,
            self.value.read(self.value_data_type),
        )


@dataclasses.dataclass(frozen=True)
class FillValueSequenceOperatorDesc(OperatorDesc):
    """DML_FILL_VALUE_SEQUENCE_OPERATOR_DESC: `dml_jax.fill_value_sequence`.

    Args:
      output_tensor: what is filled, in row-major order of its sizes, not of its
        strides.
      value_data_type: its data type, as which the values are read.
      value_start: the bits of the first element.
      value_delta: the bits of the difference between an element and the one before.

    Raises:
      TypeError: a member is not of its class.
      ValueError: no such data type.

    Source: DirectML, DML_FILL_VALUE_SEQUENCE_OPERATOR_DESC.
    """

    output_tensor: BufferTensorDesc
    value_data_type: DataType
    value_start: ScalarUnion
    value_delta: ScalarUnion

    type = OperatorType.FILL_VALUE_SEQUENCE
    input_members = ()
    output_member = "output_tensor"

    def __post_init__(self):
        self._settle_tensors()
        _settle_values(self, "value_start", "value_delta")

    def _validate_together(self, support):
        _require_value_type(self)

    def evaluate(self):
        return dml_jax.fill_value_sequence(
            self.output_tensor.sizes,
            self.value_data_type.dtype,
            self.value_start.read(self.value_data_type),
            self.value_delta.read(self.value_data_type),
        )


def _require_value_type(desc):
    """Refuses a fill whose values are not of the type of its output."""
    _rules.require_equal(
        desc.struct,
        "ValueDataType",
        desc.value_data_type,
        desc.output_tensor.data_type,
        "OutputTensor.DataType",
    )


def _settle_values(desc, *members):
    """Checks the members of a fill that are not tensors."""
    name = type(desc).__name__
    value_type = member_of(name, "value_data_type", desc.value_data_type, DataType)
    settle(desc, value_data_type=value_type)
    for member in members:
        value = getattr(desc, member)
        if not isinstance(value, ScalarUnion):
            raise TypeError(
                f"{name}: `{member}` must be a ScalarUnion; got "
                f"{arguments.describe(value)}"
            )
