"""Operator descriptions: the slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import jax

import dml_jax
from dml_jax.directml import _rules, _strided
from dml_jax.directml._members import INT
from dml_jax.directml._operators import OperatorDesc, camel
from dml_jax.directml._rules import Rule
from dml_jax.directml._tensor import BufferTensorDesc
from dml_jax.directml._types import OperatorType

_SIGNED = {"limits": INT}  # of the integers in a field


@dataclasses.dataclass(frozen=True)
class SliceOperatorDesc(OperatorDesc):
    """DML_SLICE_OPERATOR_DESC: `dml_jax.slice`.

    DimensionCount is the number of dimensions of the tensors.

    Args:
      input_tensor: the tensor that is read.
      output_tensor: the result, with the data type of `input_tensor` and these `sizes`.
      offsets: for each dimension the first index that is read.
      sizes: for each dimension the number of elements that are read.
      strides: for each dimension the distance between two elements, at least 1.

    Raises:
      TypeError: a tensor is not a BufferTensorDesc, or a number is not an integer.
      ValueError: a number does not fit a UINT.

    Source: DirectML, DML_SLICE_OPERATOR_DESC.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    offsets: Sequence[int]
    sizes: Sequence[int]
    strides: Sequence[int]

    type = OperatorType.SLICE
    input_members = ("input_tensor",)
    output_member = "output_tensor"

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
        input = _strided.broadcast(input, self.input_tensor.sizes)
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

    DimensionCount is the number of dimensions of the tensors.

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

    Source: DirectML, DML_SLICE1_OPERATOR_DESC.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    input_window_offsets: Sequence[int]
    input_window_sizes: Sequence[int]
    input_window_strides: Sequence[int] = dataclasses.field(metadata=_SIGNED)

    type = OperatorType.SLICE1
    input_members = ("input_tensor",)
    output_member = "output_tensor"

    def _rules_between_members(self) -> Iterator[Rule]:
        return self._window_rules("input_tensor", "output_tensor")

    def evaluate(self, input: jax.Array) -> jax.Array:
        input = _strided.broadcast(input, self.input_tensor.sizes)
        return dml_jax.slice1(input, *self._window, self.output_tensor.sizes)


@dataclasses.dataclass(frozen=True)
class SliceGradOperatorDesc(_WindowDesc):
    """DML_SLICE_GRAD_OPERATOR_DESC: `dml_jax.slice_grad`.

    DimensionCount is the number of dimensions of the tensors.

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

    Source: DirectML, DML_SLICE_GRAD_OPERATOR_DESC.
    """

    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc
    input_window_offsets: Sequence[int]
    input_window_sizes: Sequence[int]
    input_window_strides: Sequence[int] = dataclasses.field(metadata=_SIGNED)

    type = OperatorType.SLICE_GRAD
    input_members = ("input_gradient_tensor",)
    output_member = "output_gradient_tensor"

    def _rules_between_members(self) -> Iterator[Rule]:
        return self._window_rules("output_gradient_tensor", "input_gradient_tensor")

    def evaluate(self, input: jax.Array) -> jax.Array:
        input = _strided.broadcast(input, self.input_gradient_tensor.sizes)
        sizes = self.output_gradient_tensor.sizes
        return dml_jax.slice_grad(input, sizes, *self._window)
