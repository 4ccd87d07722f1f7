"""The descriptions of the three slices."""

from __future__ import annotations

import dataclasses

import dml_jax
from dml_jax._shared import arguments
from dml_jax.directml import _rules
from dml_jax.directml._operators import OperatorDesc, camel
from dml_jax.directml._strided import api
from dml_jax.directml._tensor import BufferTensorDesc, in_range, unsigned
from dml_jax.directml._types import OperatorType, settle


@dataclasses.dataclass(frozen=True)
class SliceOperatorDesc(OperatorDesc):
    """DML_SLICE_OPERATOR_DESC: `dml_jax.slice`.

    DimensionCount is the number of dimensions of the tensors.

    Args:
      input_tensor: what is read.
      output_tensor: sizes `sizes` and the data type of `input_tensor`.
      offsets: for each dimension the first index that is read.
      sizes: for each dimension the number of elements that are read.
      strides: for each dimension the distance between two of them, 1 or more.

    Raises:
      TypeError: a tensor is not a BufferTensorDesc, or a number is not an integer.
      ValueError: a number does not fit a UINT.

    Source: DirectML, DML_SLICE_OPERATOR_DESC.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    type = OperatorType.SLICE
    input_members = ("input_tensor",)
    output_member = "output_tensor"

    def __post_init__(self):
        self._settle_tensors()
        for name in ("offsets", "sizes", "strides"):
            value = unsigned(type(self).__name__, name, getattr(self, name))
            settle(self, **{name: value})

    def _validate_together(self, support):
        source, output, struct = self.input_tensor, self.output_tensor, self.struct
        _rules.require_same_type(struct, "OutputTensor", output, "InputTensor", source)
        for member in ("offsets", "sizes", "strides"):
            values = getattr(self, member)
            _rules.require_count(struct, camel(member), values, source.dimension_count)
        for d, size in enumerate(self.sizes):
            if size < 1:
                raise _rules.refused(struct, f"Sizes[{d}]", "be at least 1", size)
            if self.strides[d] < 1:
                raise _rules.refused(struct, f"Strides[{d}]", "be at least 1", 0)
            _rules.require_equal(
                struct, f"OutputTensor.Sizes[{d}]", output.sizes[d], size, f"Sizes[{d}]"
            )
            last = self.offsets[d] + self.strides[d] * (size - 1)
            if last >= source.sizes[d]:
                raise _rules.refused(
                    struct,
                    f"Offsets[{d}] + Strides[{d}] * (Sizes[{d}] - 1)",
                    f"be less than {source.sizes[d]}, `InputTensor.Sizes[{d}]`",
                    last,
                )

    def evaluate(self, input):
        input = api.broadcast(input, self.input_tensor.sizes)
        return dml_jax.slice(input, self.offsets, self.sizes, self.strides)


class _WindowOperatorDesc(OperatorDesc):
    """What SLICE1 and SLICE_GRAD have in common: a window with strides."""

    input_window_offsets: tuple[int, ...]
    input_window_sizes: tuple[int, ...]
    input_window_strides: tuple[int, ...]

    def __post_init__(self):
        self._settle_tensors()
        name = type(self).__name__
        strides = arguments.integers(
            name, "input_window_strides", self.input_window_strides
        )
        for i, stride in enumerate(strides):
            member = f"input_window_strides[{i}]"
            in_range(name, member, stride, -(2**31), 2**31 - 1)
        settle(
            self,
            input_window_offsets=unsigned(
                name, "input_window_offsets", self.input_window_offsets
            ),
            input_window_sizes=unsigned(
                name, "input_window_sizes", self.input_window_sizes
            ),
            input_window_strides=strides,
        )

    def _validate_window(self, whole, whole_member, part, part_member):
        """Checks the window in `whole`, of which `part` has the elements."""
        struct = self.struct
        for member in ("offsets", "sizes", "strides"):
            values = getattr(self, f"input_window_{member}")
            name = camel(f"input_window_{member}")
            _rules.require_count(struct, name, values, whole.dimension_count)
        for d, (offset, size, stride) in enumerate(
            zip(
                self.input_window_offsets,
                self.input_window_sizes,
                self.input_window_strides,
                strict=True,
            )
        ):
            if stride == 0:
                raise _rules.refused(
                    struct, f"InputWindowStrides[{d}]", "not be 0", stride
                )
            if size < 1:
                raise _rules.refused(
                    struct, f"InputWindowSizes[{d}]", "be at least 1", size
                )
            if offset + size > whole.sizes[d]:
                raise _rules.refused(
                    struct,
                    f"InputWindowOffsets[{d}] + InputWindowSizes[{d}]",
                    f"be at most {whole.sizes[d]}, `{whole_member}.Sizes[{d}]`",
                    offset + size,
                )
            most = 1 + (size - 1) // abs(stride)
            if part.sizes[d] > most:
                rule = f"be at most {most}, which the window gives"
                raise _rules.refused(
                    struct, f"{part_member}.Sizes[{d}]", rule, part.sizes[d]
                )


@dataclasses.dataclass(frozen=True)
class Slice1OperatorDesc(_WindowOperatorDesc):
    """DML_SLICE1_OPERATOR_DESC: `dml_jax.slice1`.

    DimensionCount is the number of dimensions of the tensors.

    Args:
      input_tensor: what is read.
      output_tensor: the data type of `input_tensor`; along each dimension at most the
        elements that the window gives.
      input_window_offsets: for each dimension the index at which the window starts.
      input_window_sizes: for each dimension the size of the window, in the input.
      input_window_strides: for each dimension the distance between two elements, not 0;
        negative ones start from the window's last element.

    Raises:
      TypeError: a tensor is not a BufferTensorDesc, or a number is not an integer.
      ValueError: a number does not fit a UINT, or an INT for the strides.

    Source: DirectML, DML_SLICE1_OPERATOR_DESC.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    input_window_offsets: tuple[int, ...]
    input_window_sizes: tuple[int, ...]
    input_window_strides: tuple[int, ...]

    type = OperatorType.SLICE1
    input_members = ("input_tensor",)
    output_member = "output_tensor"

    def _validate_together(self, support):
        source, output = self.input_tensor, self.output_tensor
        _rules.require_same_type(
            self.struct, "OutputTensor", output, "InputTensor", source
        )
        self._validate_window(source, "InputTensor", output, "OutputTensor")

    def evaluate(self, input):
        return dml_jax.slice1(
            api.broadcast(input, self.input_tensor.sizes),
            self.input_window_offsets,
            self.input_window_sizes,
            self.input_window_strides,
            self.output_tensor.sizes,
        )


@dataclasses.dataclass(frozen=True)
class SliceGradOperatorDesc(_WindowOperatorDesc):
    """DML_SLICE_GRAD_OPERATOR_DESC: `dml_jax.slice_grad`.

    DimensionCount is the number of dimensions of the tensors.

    Args:
      input_gradient_tensor: the gradient by the output of SLICE1.
      output_gradient_tensor: the gradient by the input of SLICE1; the data type of
        `input_gradient_tensor`.
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
    input_window_offsets: tuple[int, ...]
    input_window_sizes: tuple[int, ...]
    input_window_strides: tuple[int, ...]

    type = OperatorType.SLICE_GRAD
    input_members = ("input_gradient_tensor",)
    output_member = "output_gradient_tensor"

    def _validate_together(self, support):
        source, output = self.input_gradient_tensor, self.output_gradient_tensor
        whole, part = "OutputGradientTensor", "InputGradientTensor"
        _rules.require_same_type(self.struct, whole, output, part, source)
        self._validate_window(output, whole, source, part)

    def evaluate(self, input):
        return dml_jax.slice_grad(
            api.broadcast(input, self.input_gradient_tensor.sizes),
            self.output_gradient_tensor.sizes,
            self.input_window_offsets,
            self.input_window_sizes,
            self.input_window_strides,
        )
