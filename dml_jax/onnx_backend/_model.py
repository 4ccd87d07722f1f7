"""A prepared ONNX model, to be run or transformed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx
import onnx.backend.base
from jax.core import Tracer
from jax.typing import ArrayLike

from dml_jax._shared import arguments
from dml_jax.onnx_backend._functions import Inlined
from dml_jax.onnx_backend._graph import first_line, node_of, static_names
from dml_jax.onnx_backend._operators import dtype_of, evaluate, is_text
from dml_jax.onnx_backend._tensors import array_of


class Model(onnx.backend.base.BackendRep):
    """A model that `prepare` has checked, to be run.

    Attributes:
      input_names: the inputs of the graph that are not initialised, in order.
      default_names: those that are, in order: since version 4 of ONNX's IR their
        initializers are defaults, and before that constants, which are not inputs here.
      output_names: its outputs, in order.
      dtypes: the dtypes of the inputs by name; strings have NumPy's objects.
      device: the device that `run` runs on.
      static_names: the inputs on whose values shapes depend, such as the starts of a
        Slice: constants under JAX's transformations.
    """

    def __init__(self, inlined: Inlined, device: Any, options: Mapping[str, Any]):
        model, opsets, _ = inlined
        graph = model.graph
        self.device = device
        self._constants = {t.name: _constant(t) for t in graph.initializer}
        nodes = zip(graph.node, opsets, strict=True)
        self._nodes = [node_of(node, opset, options) for node, opset in nodes]
        has_defaults = model.ir_version >= 4
        self._inputs = {
            info.name: info.type.tensor_type
            for info in graph.input
            if has_defaults or info.name not in self._constants
        }
        self.dtypes = {
            name: _dtype(name, tensor.elem_type)
            for name, tensor in self._inputs.items()
        }
        self.input_names = tuple(n for n in self._inputs if n not in self._constants)
        self.default_names = tuple(n for n in self._inputs if n in self._constants)
        self.output_names = tuple(info.name for info in graph.output)
        self._static = static_names(self._nodes)
        self.static_names = tuple(n for n in self._inputs if n in self._static)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs as NumPy arrays, from inputs that NumPy can hold.

        64-bit data keeps its width, and NaNs are data like any other, whatever
        `jax_enable_x64` and `jax_debug_nans` say.

        Args:
          inputs: a mapping by name, in which those of `default_names` may be missing;
            or a sequence, in the order of `input_names` or, with defaults that are
            overridden, of all the graph's inputs, which may end before other defaults.
          kwargs: nothing; ONNX's interface has them.

        Returns:
          The outputs in the order of `output_names`; they can be had by name, too.

        Raises:
          TypeError: an input has not exactly the dtype of the graph, or there are too
            many or too few.
          ValueError: an input has the wrong shape, or a node refuses its inputs.
          NotImplementedError: a Cast from or to strings or float8_e8m0fnu.
          RuntimeError: the device has not enough memory.
        """
        if kwargs:
            raise TypeError(f"run: `kwargs` must be none; got {', '.join(kwargs)}")
        given = inputs if isinstance(inputs, Mapping) else self._by_name(inputs)
        if not set(self.input_names) <= given.keys() <= self._inputs.keys():
            raise self._wrong_inputs(", ".join(map(str, given)) or "none")
        with (
            jax.enable_x64(True),
            jax.debug_nans(False),
            jax.default_device(self.device),
        ):
            # A device without memory says so before the host is asked for as much.
            results = jax.block_until_ready(self._outputs(given))
            arrays = [np.array(value) for value in results]  # the caller's own
        names = onnx.backend.base.namedtupledict("Outputs", self.output_names)
        return names(*arrays)

    def jax_fn(self, *inputs: ArrayLike) -> tuple[jax.Array, ...]:
        """The outputs as a pure function of the inputs that are not initialised.

        Args:
          inputs: arrays in the order of `input_names` or, with defaults that are
            overridden, of all the graph's inputs, which may end before other defaults.
            Those in `static_names` must not be traced: close over them.

        Returns:
          The outputs in the order of `output_names`.

        Raises:
          TypeError: an input has the wrong dtype or is traced and must not, or there
            are too many or too few.
          ValueError: an input has the wrong shape, a node refuses its inputs, or 64-bit
            data is met outside of 64-bit mode.

        Derivatives: those of the operators, by inputs of floating dtypes; `lda_coeff`
        scales them with `training=True` alone. Sharding: that of the operators.
        """
        outputs = self._outputs(self._by_name(inputs))
        return tuple(
            value
            if isinstance(value, jax.Array)
            else jax.numpy.asarray(arguments.as_array("jax_fn", name, value))
            for name, value in zip(self.output_names, outputs, strict=True)
        )

    def _by_name(self, inputs: Any) -> Mapping[str, Any]:
        """Inputs that are given in order, without defaults or with some of them."""
        if not isinstance(inputs, (tuple, list)):
            raise self._wrong_inputs(arguments.describe(inputs))
        names = self.input_names
        if len(inputs) != len(names):
            names = tuple(self._inputs)[: len(inputs)]
        if len(inputs) != len(names) or not {*names}.issuperset(self.input_names):
            raise self._wrong_inputs(f"{len(inputs)} of them")
        return dict(zip(names, inputs, strict=True))

    def _wrong_inputs(self, got: str) -> TypeError:
        return wrong_inputs(self.input_names, got, self.default_names)

    def _outputs(self, inputs: Mapping[str, Any]) -> list[Any]:
        values = dict(self._constants)
        for name, value in inputs.items():
            values[name] = self._input(name, value)
        for node in self._nodes:
            arguments = [values[name] if name else None for name in node.inputs]
            if node.output in self._static:
                # Shapes are numbers for the compiler, of ONNX's own 64 bits.
                with jax.ensure_compile_time_eval(), jax.enable_x64(True):
                    values[node.output] = np.asarray(evaluate(node, arguments))
            else:
                values[node.output] = evaluate(node, arguments)
        return [values[name] for name in self.output_names]

    def _input(self, name: str, value: Any) -> Any:
        """An input of the graph, if it is what the graph says."""
        if isinstance(value, Tracer) and name in self._static:
            raise TypeError(
                f"onnx: `{name}` must be a constant, since a shape depends on it; got "
                f"{arguments.describe(value)}. Close over it instead of passing it to "
                "the function that is transformed"
            )
        if not isinstance(value, jax.Array) or name in self._static:
            value = as_numpy(name, value)
        dtype = self.dtypes[name]
        if is_untyped(value.dtype, dtype):
            value = value.view(dtype)
        if value.dtype != dtype and not (is_text(dtype) and is_text(value.dtype)):
            kind = "string" if is_text(dtype) else dtype
            hint = ""
            if jax.dtypes.canonicalize_dtype(dtype) == value.dtype:
                hint = ", to which JAX narrows it outside of 64-bit mode"
            raise TypeError(
                f"onnx: `{name}` must have dtype {kind}; got {value.dtype}{hint}"
            )
        _require_shape(name, value.shape, self._inputs[name].shape.dim)
        return _of_full_width(name, value)


def _of_full_width(name: str, value: Any) -> Any:
    """`value`, where no function of JAX narrows it.

    That is what happens outside of 64-bit mode to arrays that were made inside; data of
    NumPy is refused where it would be narrowed.
    """
    if not isinstance(value, jax.Array):
        return value
    if isinstance(value, Tracer):
        arguments.require_width("onnx", name, value.dtype)
    is_narrowed = jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype
    return np.asarray(value) if is_narrowed else value


def is_untyped(given: np.dtype, wanted: np.dtype) -> bool:
    """Whether a dtype is what .npy files make of `wanted`: bfloat16 and the like."""
    is_raw = given.type is np.void and given.names is None
    return is_raw and wanted.kind == "V" and given.itemsize == wanted.itemsize


def _dtype(name: str, number: int) -> np.dtype:
    """The dtype of an input."""
    try:
        return dtype_of(name, number)
    except ValueError as error:
        raise ValueError(f"onnx: {error}") from None


def _constant(tensor: onnx.TensorProto) -> np.ndarray:
    """The value of an initializer."""
    try:
        return array_of(tensor)
    except (TypeError, ValueError) as error:
        reason = first_line(error)
        raise ValueError(
            f"onnx: `{tensor.name}` must have a value ({reason})"
        ) from None


def as_numpy(name: str, value: Any) -> np.ndarray:
    """`value` as a NumPy array."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"onnx: `{name}` must be an array without a mask; got one")
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        got = arguments.describe(value)
        raise TypeError(f"onnx: `{name}` must be an array; got {got}") from None


def wrong_inputs(
    names: Sequence[str], got: object, defaults: Sequence[str] = ()
) -> TypeError:
    """What to raise for inputs that are not those of the names."""
    rule = ", ".join(names) or "none"
    if defaults:
        rule = f"{rule}, and may be for {', '.join(defaults)}"
    return TypeError(f"onnx: `inputs` must be arrays for {rule}; got {got}")


def _require_shape(name, shape, dims):
    """Refuses a shape that differs where the graph gives a number."""
    fixed = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    fits = len(shape) == len(fixed) and all(
        size in (given, None) for size, given in zip(fixed, shape, strict=True)
    )
    if not fits:
        expected = ", ".join("?" if size is None else str(size) for size in fixed)
        raise ValueError(f"onnx: `{name}` must have shape ({expected}); got {shape}")
