"""Compiles descriptions to functions of arrays.

An operator or a graph of operators becomes a `CompiledOperator`, whose steps are in
topological order. It is a static argument of one jitted function, so that equal
descriptions share a compiled program.
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
from dml_jax.directml import _rules, _strided
from dml_jax.directml._graph_descs import FunctionGraphNodeDesc
from dml_jax.directml._members import camel, instance_of, member_of
from dml_jax.directml._operators import OperatorDesc
from dml_jax.directml._tensor import BufferTensorDesc
from dml_jax.directml._types import LATEST, DataType, FeatureLevel


class Source(NamedTuple):
    """An output of a node; if `node` is None, an input of the program."""

    node: int | None
    output: int = 0


class Step(NamedTuple):
    """The operator or function of a node, and the sources of its inputs."""

    node: int
    operator: OperatorDesc | FunctionGraphNodeDesc
    sources: tuple[Source, ...]
    name: str | None = None


class Binding(NamedTuple):
    """A tensor to which the caller binds an array, and its name in messages."""

    name: str
    tensor: BufferTensorDesc


@dataclasses.dataclass(frozen=True)
class CompiledOperator:
    """IDMLCompiledOperator: a function of the arrays that are bound to its tensors.

    `compile_operator` and `compile_graph` create it. It is a pure function of arrays
    that supports `jit`, `vmap`, `grad` and shardings.

    Attributes:
      name: the name with which error messages begin.
      inputs: the names and tensors of the inputs, in binding order.
      outputs: the names and tensors of the outputs, in binding order.
      steps: the operators in the order in which they run.
      results: the source of each output.
      constants: the nodes that are constants, and their bytes.
    """

    name: str
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    steps: tuple[Step, ...] = dataclasses.field(repr=False)
    results: tuple[Source, ...] = dataclasses.field(repr=False)
    constants: tuple[tuple[int, bytes], ...] = dataclasses.field(repr=False, default=())

    def __call__(
        self, *inputs: ArrayLike, outputs: Sequence[ArrayLike | None] | None = None
    ) -> Any:
        """Computes the outputs from inputs in binding order.

        A packed tensor is bound as an array with its sizes or as a flat buffer, any
        other tensor as a flat buffer. A flat buffer has at least as many elements as
        fit into `total_tensor_size_in_bytes`. Strides are in units of its elements.

        Args:
          inputs: for each input an array of the dtype of its tensor.
          outputs: for each output its previous buffer, or None. The result keeps the
            parts of the buffer that are not elements of the tensor; for None they are
            0.

        Returns:
          The output, or a tuple of several outputs. Each has the shape of its previous
          buffer. Without one, it is an array with the sizes of a packed tensor, or the
          flat buffer of any other tensor.

        Raises:
          TypeError: the number of arrays or the dtype of one is wrong.
          ValueError: an array has neither the shape nor the size of its tensor; or a
            tensor has 64 bits while 64-bit mode is off, and is bound to a NumPy array,
            or is an output and no argument has 64 bits.

        Derivatives: those of the operators, in both modes, also with respect to the
        kept parts of buffers. The gradient of an element that is read more than once is
        a sum, rounded once. Where a graph reads bytes as another data type, derivatives
        are 0. Sharding: that of the operators for packed tensors. Strided buffers may
        be sharded, but are gathered.
        """
        with arguments.named(self.name):
            bound = _bind("inputs", self.inputs, inputs)
            if outputs is None:
                outputs = (None,) * len(self.outputs)
            previous = _bind("outputs", self.outputs, outputs)
            mode = self._mode(bound, previous)
        with mode:
            # An array that is made in a mesh is of no use outside it.
            in_mesh = not jax.sharding.get_abstract_mesh().empty
            constants = self._data if in_mesh else self._arrays
            results = _execute(self, bound, previous, constants)
        return results if len(results) > 1 else results[0]

    @property
    def _data(self) -> tuple[np.ndarray, ...]:
        return tuple(np.frombuffer(data, np.uint8) for _, data in self.constants)

    @functools.cached_property
    def _arrays(self) -> tuple[jax.Array, ...]:
        """The constants on JAX's default device, also for a caller that is traced."""
        with jax.ensure_compile_time_eval():
            return tuple(map(jnp.asarray, self._data))

    def __getstate__(self) -> dict[str, Any]:
        """The fields without cached values, which hold for this process alone."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.steps, self.results, self.constants))

    def __hash__(self) -> int:
        return self._hash

    @property
    def __name__(self) -> str:
        """The name of a jitted call in compiled programs and profiles."""
        return self.name

    def _mode(self, *arrays: Any) -> contextlib.AbstractContextManager[Any]:
        """A context with 64-bit mode if a tensor has 64 bits.

        If an output has 64 bits but no bound array has, the mode must be on already.
        """
        operators = [step.operator for step in self.steps]
        tensors = [t for desc in operators for t in (*desc.inputs, *desc.outputs)]
        if all(tensor.data_type.bits < 64 for tensor in tensors):
            return contextlib.nullcontext()
        if not any(array.dtype.itemsize == 8 for array in jax.tree.leaves(arrays)):
            for name, tensor in self.outputs:
                arguments.require_width(name, tensor.data_type.dtype)
        return jax.enable_x64(True)


def compile_operator(
    desc: OperatorDesc, feature_level: FeatureLevel = LATEST
) -> CompiledOperator:
    """IDMLDevice.CreateOperator and CompileOperator: a description as a function.

    Args:
      desc: the description of the operator.
      feature_level: the level for which it is validated.

    Returns:
      A function of the operator's inputs, which returns its output.

    Raises:
      TypeError: `desc` is not an OperatorDesc.
      ValueError: DirectML would refuse the description; see `validate`.

    Derivatives and sharding: those of the operator.

    Example:
      >>> import jax.numpy as jnp
      >>> from dml_jax import directml as dml
      >>> frames = dml.BufferTensorDesc("float32", (2, 3))
      >>> lengths = dml.BufferTensorDesc("uint32", (2, 1))
      >>> reverse = dml.compile_operator(
      ...     dml.ReverseSubsequencesOperatorDesc(frames, lengths, frames, axis=1))
      >>> reverse(jnp.arange(6.0).reshape(2, 3), jnp.array([[3], [2]], jnp.uint32))
      Array([[2., 1., 0.],
             [4., 3., 5.]], dtype=float32)

    Source: DirectML, IDMLDevice::CreateOperator, IDMLDevice::CompileOperator.
    """
    instance_of("desc", desc, OperatorDesc)
    desc.validate(member_of("feature_level", feature_level, FeatureLevel))
    names = map(camel, desc.input_members)
    inputs = tuple(map(Binding, names, desc.inputs))
    sources = tuple(Source(None, i) for i in range(len(inputs)))
    return CompiledOperator(
        name=f"DML_OPERATOR_{desc.type.name}",
        inputs=inputs,
        outputs=(Binding(camel(desc.output_member), desc.output),),
        steps=(Step(0, desc, sources),),
        results=(Source(0),),
    )


def _bind(kind: str, bindings: tuple[Binding, ...], values: Any) -> tuple[Any, ...]:
    """The arrays for the inputs or the outputs; an output may have none."""
    if not isinstance(values, (tuple, list)):
        got, rule = arguments.describe(values), "be a sequence of arrays"
        raise arguments.error(TypeError, kind, rule, got)
    if len(values) != len(bindings):
        names = ", ".join(binding.name for binding in bindings) or "none"
        rule = f"have {len(bindings)} arrays, one for each tensor ({names})"
        raise arguments.error(TypeError, kind, rule, len(values))
    return tuple(
        None if value is None and kind == "outputs" else _as_bound(*binding, value)
        for binding, value in zip(bindings, values, strict=True)
    )


def _as_bound(name: str, tensor: BufferTensorDesc, value: Any) -> jax.Array:
    """`value` as an array that can be bound to a tensor."""
    dtype = tensor.data_type.dtype
    array = jnp.asarray(value)
    given = value.dtype if isinstance(value, np.ndarray) else array.dtype
    if not given == array.dtype == dtype:  # JAX narrows 64 bits outside 64-bit mode
        arguments.require_width(name, dtype)
        got = f"{given}{arguments.conversion(given, dtype)}"
        raise arguments.error(TypeError, name, f"have dtype {dtype}", got)
    is_buffer = array.ndim == 1 and array.shape[0] >= tensor.buffer_size
    if not is_buffer and not _strided.is_logical(tensor, array):
        shape = f"have shape {tensor.sizes} or " if tensor.is_packed else ""
        rule = f"{shape}be a flat buffer of at least {tensor.buffer_size} elements"
        raise arguments.error(ValueError, name, rule, f"shape {array.shape}")
    return array


# Execution ----------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def _execute(compiled: CompiledOperator, *arrays: Any) -> tuple[jax.Array, ...]:
    inputs, previous, constants = arrays
    # The tensor of each source, and its elements or its buffer.
    found: dict[Source, tuple[BufferTensorDesc, jax.Array, bool]] = {}
    for i, (binding, array) in enumerate(zip(compiled.inputs, inputs, strict=True)):
        is_elements = _strided.is_logical(binding.tensor, array)
        found[Source(None, i)] = binding.tensor, array, is_elements
    for (node, data), array in zip(compiled.constants, constants, strict=True):
        of_bytes = BufferTensorDesc(DataType.UINT8, (len(data),))
        found[Source(node)] = of_bytes, array, False
    for step in compiled.steps:
        operator = step.operator
        members = zip(operator.inputs, operator.input_members, strict=True)
        operands = [
            _operand(*found[source], *member)
            for source, member in zip(step.sources, members, strict=True)
        ]
        with jax.named_scope(step.name or operator.label.lower()):
            results = operator.evaluate(*operands)
        if not isinstance(results, tuple):
            results = (results,)
        for i, tensor in enumerate(operator.outputs):
            found[Source(step.node, i)] = tensor, results[i], True
    return tuple(
        _strided.write(binding.tensor, found[result][1], buffer)
        for binding, result, buffer in zip(
            compiled.outputs, compiled.results, previous, strict=True
        )
    )


def _operand(
    given: BufferTensorDesc,
    array: jax.Array,
    is_elements: bool,
    wanted: BufferTensorDesc,
    member: str,
) -> jax.Array:
    """The elements of a tensor, from the elements or the buffer of another."""
    if (given.data_type, given.layout) != (wanted.data_type, wanted.layout):
        buffer = _strided.flatten(given, array) if is_elements else array
        array = _strided.reinterpret(buffer, wanted)
    elif is_elements:
        return array
    # Reversals broadcast lengths themselves.
    is_lengths = camel(member) == _rules.LENGTHS
    return _strided.read(wanted.layout.compact if is_lengths else wanted.layout, array)
