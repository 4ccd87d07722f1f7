"""A prepared ONNX model, to be run or transformed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx
import onnx.backend.base
from jax.core import Tracer
from jax.typing import ArrayLike

from dml_jax._shared import arguments
from dml_jax.onnx_backend._functions import Inlined
from dml_jax.onnx_backend._graph import node_of, static_names
from dml_jax.onnx_backend._operators import dtype_of, evaluate, is_text
from dml_jax.onnx_backend._tensors import array_of


class Model(onnx.backend.base.BackendRep):
    """A model that `prepare` has checked.

    Attributes:
      input_names: the inputs of the graph without an initializer, in order.
      default_names: the inputs with an initializer, in order. From version 4 of ONNX's
        IR on, the initializer is a default; before, it is a constant, and not an input.
      output_names: the outputs of the graph, in order.
      dtypes: the dtypes of the inputs by name, object for strings.
      device: the device that `run` runs on.
      static_names: the inputs whose values determine shapes, such as the starts of a
        Slice; they must be constants under JAX's transformations.
    """

    def __init__(self, inlined: Inlined, device: Any, options: Mapping[str, Any]):
        model, opsets, _ = inlined
        graph = model.graph
        self.device = device
        self._constants = {
            t.name: array_of(t, f"onnx: `{t.name}`") for t in graph.initializer
        }
        nodes = zip(graph.node, opsets, strict=True)
        self._nodes = [node_of(node, opset, options) for node, opset in nodes]
        has_defaults = model.ir_version >= 4
        self._inputs = {
            info.name: info.type.tensor_type
            for info in graph.input
            if has_defaults or info.name not in self._constants
        }
        self.dtypes = {
            name: dtype_of(f"onnx: `{name}`", tensor.elem_type)
            for name, tensor in self._inputs.items()
        }
        self.input_names = tuple(n for n in self._inputs if n not in self._constants)
        self.default_names = tuple(n for n in self._inputs if n in self._constants)
        self.output_names = tuple(info.name for info in graph.output)
        self._static = static_names(self._nodes)
        self.static_names = tuple(n for n in self._inputs if n in self._static)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Runs the model on NumPy arrays.

        64-bit data keeps its width whatever `jax_enable_x64` says, and NaNs are allowed
        whatever `jax_debug_nans` says.

        Args:
          inputs: arrays, or what NumPy converts to arrays, of the shapes and dtypes of
            the graph. A mapping by name may omit those in `default_names`. A sequence
            is in the order of `input_names`; to override defaults, in the order of all
            the graph's inputs, where trailing defaults may be omitted.
          kwargs: must be empty; part of ONNX's interface.

        Returns:
          The outputs as a named tuple in the order of `output_names`.

        Raises:
          TypeError: an input has another dtype than the graph's, or there are too many
            or too few.
          ValueError: an input has the wrong shape, or a node refuses its inputs.
          NotImplementedError: a Cast from or to strings or float8_e8m0fnu.
          RuntimeError: the device has not enough memory.
        """
        if kwargs:
            raise TypeError(f"run: `kwargs` must be empty; got {', '.join(kwargs)}")
        given = inputs if isinstance(inputs, Mapping) else self._by_name(inputs)
        if not set(self.input_names) <= given.keys() <= self._inputs.keys():
            got = ", ".join(map(str, given)) or "none"
            raise wrong_inputs(self.input_names, got, self.default_names)
        with (
            jax.enable_x64(True),
            jax.debug_nans(False),
            jax.default_device(self.device),
        ):
            # If memory is short, the device fails before the host allocates as much.
            results = jax.block_until_ready(self._outputs(given))
            arrays = [np.array(value) for value in results]
        names = onnx.backend.base.namedtupledict("Outputs", self.output_names)
        return names(*arrays)

    def jax_fn(self, *inputs: ArrayLike) -> tuple[jax.Array, ...]:
        """Computes the outputs, as a pure function that JAX can transform.

        Args:
          inputs: arrays of the shapes and dtypes of the graph, in the order of
            `input_names`; to override defaults, in the order of all the graph's inputs,
            where trailing defaults may be omitted. Those in `static_names` must not be
            traced: close over them.

        Returns:
          The outputs in the order of `output_names`.

        Raises:
          TypeError: an input has the wrong dtype or must not be traced, or there are
            too many or too few.
          ValueError: an input has the wrong shape, a node refuses its inputs, or 64-bit
            data occurs outside of 64-bit mode.

        Derivatives: those of the operators, with respect to inputs of float dtypes;
        `lda_coeff` scales them only with `training=True`. Sharding: as the operators.
        """
        outputs = self._outputs(self._by_name(inputs))
        return tuple(
            value
            if isinstance(value, jax.Array)
            else jax.numpy.asarray(arguments.as_array("jax_fn", name, value))
            for name, value in zip(self.output_names, outputs, strict=True)
        )

    def _by_name(self, inputs: Any) -> Mapping[str, Any]:
        """Names inputs that are given in order."""
        names, got = self.input_names, arguments.describe(inputs)
        if isinstance(inputs, (tuple, list)):
            if len(inputs) != len(names):
                names = tuple(self._inputs)[: len(inputs)]
            if len(inputs) == len(names) and {*names}.issuperset(self.input_names):
                return dict(zip(names, inputs, strict=True))
            got = f"{len(inputs)} of them"
        raise wrong_inputs(self.input_names, got, self.default_names)

    def _outputs(self, inputs: Mapping[str, Any]) -> list[Any]:
        values: dict[str, Any] = dict(self._constants)
        for name, value in inputs.items():
            values[name] = self._checked_input(name, value)
        for node in self._nodes:
            given = [values[name] if name else None for name in node.inputs]
            if node.output in self._static:
                # Shapes are computed while tracing, in the 64 bits of ONNX.
                with jax.ensure_compile_time_eval(), jax.enable_x64(True):
                    values[node.output] = np.asarray(evaluate(node, given))
            else:
                values[node.output] = evaluate(node, given)
        return [values[name] for name in self.output_names]

    def _checked_input(self, name: str, value: Any) -> jax.Array | np.ndarray:
        """Checks an input against the graph's dtype and shape."""
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
        canonicalize = jax.dtypes.canonicalize_dtype
        if value.dtype != dtype and not (is_text(dtype) and is_text(value.dtype)):
            kind, hint = "string" if is_text(dtype) else dtype, ""
            if canonicalize(dtype) == value.dtype:
                hint = ", to which JAX narrows it outside of 64-bit mode"
            raise TypeError(
                f"onnx: `{name}` must have dtype {kind}; got {value.dtype}{hint}"
            )
        _require_shape(name, value.shape, self._inputs[name].shape.dim)
        if isinstance(value, Tracer):
            arguments.require_width("onnx", name, value.dtype)
        elif isinstance(value, jax.Array) and canonicalize(value.dtype) != value.dtype:
            value = np.asarray(value)  # operators of JAX would narrow it silently
        return value


def is_untyped(given: np.dtype, wanted: np.dtype) -> bool:
    """Whether .npy files store `wanted`, such as bfloat16, as the dtype `given`."""
    is_raw = given.type is np.void and given.names is None
    return is_raw and wanted.kind == "V" and given.itemsize == wanted.itemsize


def as_numpy(name: str, value: Any) -> np.ndarray:
    """Converts an input to a NumPy array."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"onnx: `{name}` must be an array without a mask; got MaskedArray"
        )
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        got = arguments.describe(value)
        raise TypeError(f"onnx: `{name}` must be an array; got {got}") from None


def wrong_inputs(
    names: Sequence[str], got: str, defaults: Sequence[str] = ()
) -> TypeError:
    """The error for missing or unknown inputs."""
    if not names and not defaults:
        return TypeError(f"onnx: `inputs` must be empty; got {got}")
    rule = ", ".join(names) or "none"
    if defaults:
        rule = f"{rule}, and may be for {', '.join(defaults)}"
    return TypeError(f"onnx: `inputs` must be arrays for {rule}; got {got}")


def _require_shape(
    name: str,
    shape: tuple[Any, ...],
    dims: Iterable[onnx.TensorShapeProto.Dimension],
) -> None:
    """Refuses a shape with another rank or size than the graph's."""
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    if len(shape) != len(sizes) or any(
        size not in (given, None) for size, given in zip(sizes, shape, strict=True)
    ):
        expected = ", ".join("?" if size is None else str(size) for size in sizes)
        raise ValueError(f"onnx: `{name}` must have shape ({expected}); got {shape}")
