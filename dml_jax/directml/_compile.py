"""From descriptions to functions of arrays.

An operator, or a graph of them, becomes a plan: steps in an order in which each finds
its inputs ready. A plan is static and hashable, so that one jitted function runs them
all, and equal descriptions share their compiled program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dml_jax._shared import arguments
from dml_jax.directml._operators import OperatorDesc, camel
from dml_jax.directml._strided import api
from dml_jax.directml._tensor import BufferTensorDesc
from dml_jax.directml._types import LATEST, FeatureLevel, member_of


class Source(NamedTuple):
    """Where a step takes an input from: an input, a step, or a constant of the plan."""

    input: int | None = None
    step: int | None = None
    constant: int | None = None


class Step(NamedTuple):
    """An operator and where its inputs come from."""

    operator: OperatorDesc
    sources: tuple[Source, ...]
    name: str | None = None


class Binding(NamedTuple):
    """A tensor that is bound from outside, and the name it has in messages."""

    name: str
    tensor: BufferTensorDesc


@dataclasses.dataclass(frozen=True)
class CompiledOperator:
    """IDMLCompiledOperator: a function of the tensors that are bound to it.

    Made by `compile_operator` and `compile_graph`. It is a pure function of arrays, to
    be jitted, mapped, differentiated and sharded like any other.

    Attributes:
      name: what error messages begin with.
      inputs: the names and tensors of the inputs, in binding order.
      outputs: the names and tensors of the outputs, in binding order.
      steps: the operators in the order in which they run.
      results: for each output the step that computes it.
      constants: the bytes of the constants.
    """

    name: str
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    steps: tuple[Step, ...] = dataclasses.field(repr=False)
    results: tuple[int, ...] = dataclasses.field(repr=False)
    constants: tuple[bytes, ...] = dataclasses.field(repr=False, default=())

    def __call__(
        self, *inputs: ArrayLike, outputs: Sequence[ArrayLike | None] | None = None
    ) -> Any:
        """The outputs, from inputs in binding order.

        A packed tensor is bound as an array of its sizes, or as a flat buffer; any
        other tensor is bound as a flat buffer, which has at least as many elements as
        `total_tensor_size_in_bytes` gives. Strides count in its elements.

        Args:
          inputs: for each input an array of the dtype of its tensor.
          outputs: for each output the buffer that is bound to it before, or None. What
            is not an element of the output tensor is kept from it; without it, it is 0.

        Returns:
          The output, a tuple of them where there are several: of the shape that is
          bound before, otherwise an array of the sizes of a packed tensor, and a flat
          buffer of any other.

        Raises:
          TypeError: not as many arrays as bindings, or a wrong dtype.
          ValueError: an array has neither the shape nor the size of its tensor, or is a
            64-bit NumPy array outside of 64-bit mode; or an output is of 64 bits there
            and no array is.

        Derivatives: those of the operators, both modes; of the kept parts of buffers,
        too, and sums of what a tensor reads more than once, rounded once; none where a
        graph reads bytes as another data type. Sharding: that of the operators, where
        tensors are packed; buffers with strides may be sharded, and are gathered.
        """
        bound = self._bind("inputs", self.inputs, inputs)
        if outputs is None:
            outputs = (None,) * len(self.outputs)
        previous = self._bind("outputs", self.outputs, outputs)
        constants = tuple(np.frombuffer(data, np.uint8) for data in self.constants)
        with self._mode(bound, previous):
            results = _execute(self, bound, previous, constants)
        return results if len(results) > 1 else results[0]

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.steps, self.results, self.constants))

    def __hash__(self) -> int:
        return self._hash

    @property
    def __name__(self) -> str:
        """What a jitted call is called in compiled programs and profiles."""
        return self.name

    def _mode(self, *arrays):
        """64-bit mode for 64-bit arrays and bytes, also outside of it."""
        operators = [step.operator for step in self.steps]
        tensors = [t for desc in operators for t in (*desc.inputs, desc.output)]
        if not any(map(_is_wide, tensors)):
            return contextlib.nullcontext()
        if not any(array.dtype.itemsize == 8 for array in jax.tree.leaves(arrays)):
            if any(_is_wide(desc.output) for desc in operators if not desc.inputs):
                return contextlib.nullcontext()  # the fill says what it needs
            for name, tensor in self.outputs:
                arguments.require_width(self.name, name, tensor.data_type.dtype)
        return jax.enable_x64(True)

    def _bind(self, kind, bindings, values):
        if not isinstance(values, (tuple, list)):
            raise TypeError(
                f"{self.name}: `{kind}` must be a sequence of arrays; got "
                f"{arguments.describe(values)}"
            )
        if len(values) != len(bindings):
            names = ", ".join(binding.name for binding in bindings) or "none"
            raise TypeError(
                f"{self.name}: `{kind}` must be an array for each tensor ({names}); "
                f"got {len(values)}"
            )
        return tuple(
            None
            if value is None and kind == "outputs"
            else _array(self.name, binding.name, binding.tensor, value)
            for binding, value in zip(bindings, values, strict=True)
        )


def compile_operator(
    desc: OperatorDesc, feature_level: FeatureLevel = LATEST
) -> CompiledOperator:
    """IDMLDevice.CreateOperator and CompileOperator: a description as a function.

    Args:
      desc: the description of the operator.
      feature_level: the level that it is validated against.

    Returns:
      A function of the operator's inputs, which gives its output.

    Raises:
      TypeError: `desc` is not a description of an operator.
      ValueError: DirectML would refuse the description; see `validate`.

    Derivatives and sharding: those of the operator.

    Example:
      >>> import jax.numpy as jnp
      >>> from dml_jax.directml import (
      ...     BufferTensorDesc, DataType, ReverseSubsequencesOperatorDesc,
      ...     compile_operator)
      >>> frames = BufferTensorDesc(DataType.FLOAT32, (2, 3))
      >>> lengths = BufferTensorDesc(DataType.UINT32, (2, 1))
      >>> reverse = compile_operator(
      ...     ReverseSubsequencesOperatorDesc(frames, lengths, frames, axis=1))
      >>> reverse(jnp.arange(6.0).reshape(2, 3), jnp.array([[3], [2]], jnp.uint32))
      Array([[2., 1., 0.],
             [4., 3., 5.]], dtype=float32)

    Source: DirectML, IDMLDevice::CreateOperator, IDMLDevice::CompileOperator.
    """
    function = "compile_operator"
    require_operator_desc(function, "desc", desc)
    desc.validate(member_of(function, "feature_level", feature_level, FeatureLevel))
    names = map(camel, desc.input_members)
    inputs = tuple(map(Binding, names, desc.inputs))
    sources = tuple(Source(input=i) for i in range(len(inputs)))
    return CompiledOperator(
        name=f"DML_OPERATOR_{desc.type.name}",
        inputs=inputs,
        outputs=(Binding(camel(desc.output_member), desc.output),),
        steps=(Step(desc, sources),),
        results=(0,),
    )


def require_operator_desc(function, name, value):
    """Refuses what is not the description of an operator."""
    if not isinstance(value, OperatorDesc):
        raise TypeError(
            f"{function}: `{name}` must be the description of an operator; got "
            f"{arguments.describe(value)}"
        )


def _is_wide(tensor):
    return tensor.data_type.bits == 64


def _array(function, name, tensor, value):
    """`value` as an array that can be bound to a tensor."""
    dtype = tensor.data_type.dtype
    if getattr(value, "dtype", dtype) == dtype:
        value = arguments.as_array(function, name, value)
    if getattr(value, "dtype", None) != dtype:
        got = getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"{function}: `{name}` must have dtype {dtype}; got {got}")
    array = value
    is_buffer = array.ndim == 1 and array.shape[0] >= tensor.buffer_size
    if not is_buffer and not api.is_logical(tensor, array):
        shape = f"have shape {tensor.sizes} or " if tensor.is_packed else ""
        raise ValueError(
            f"{function}: `{name}` must {shape}be a flat buffer of at least "
            f"{tensor.buffer_size} elements; got shape {array.shape}"
        )
    return array


# Execution ----------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def _execute(plan, *arrays):
    # NumPy's come as they are where `jit` is disabled.
    inputs, previous, constants = jax.tree.map(jnp.asarray, arrays)
    elements: list[jax.Array] = []
    for step in plan.steps:
        arguments = [
            _argument(plan, elements, inputs, constants, source, tensor)
            for source, tensor in zip(step.sources, step.operator.inputs, strict=True)
        ]
        with jax.named_scope(step.name or step.operator.type.name.lower()):
            elements.append(step.operator.evaluate(*arguments))
    return tuple(
        api.write(binding.tensor, elements[step], buffer)
        for binding, step, buffer in zip(
            plan.outputs, plan.results, previous, strict=True
        )
    )


def _argument(plan, elements, inputs, constants, source, tensor):
    """What a step reads, through the tensor that its operator sees there."""
    if source.step is not None:
        given = plan.steps[source.step].operator.output
        if _has_same_layout(given, tensor):
            return elements[source.step]
        buffer = api.flatten(given, elements[source.step])
    elif source.input is not None:
        given, bound = plan.inputs[source.input].tensor, inputs[source.input]
        if _has_same_layout(given, tensor):
            return api.read(tensor, bound)
        is_logical = api.is_logical(given, bound)
        buffer = api.flatten(given, bound) if is_logical else bound
    else:
        buffer = constants[source.constant]
    return api.read(tensor, api.reinterpret(buffer, tensor))


def _has_same_layout(one, other):
    layouts = [
        (t.data_type, t.sizes, None if t.is_packed else t.strides) for t in (one, other)
    ]
    return layouts[0] == layouts[1]
