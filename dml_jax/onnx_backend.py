"""An ONNX backend on this package's operators.

ReverseSequence, Slice, Range and ConstantOfShape at every version, with Constant,
Identity and Cast between them; functions of a model are inlined. `prepare` turns a
model into an object whose `run` takes and gives NumPy arrays, at their full width
whatever JAX's 64-bit flag says, and whose `jax_fn` is a pure function of the graph's
inputs, to be jitted, mapped, differentiated and exported.

Where ONNX leaves something open, or its implementations differ:

- Sequence lengths outside [0, time] are refused where they are concrete, as ONNX
  Runtime does, and act as their nearest end where they are traced.
- The elements of a Range are start + i * delta, rounded once; its count is exact. Both
  precisions that `stash_type` may ask for are met by that.
- The start of a Slice with a negative step is clamped to the axis, as the text says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx
import onnx.backend.base
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.inliner
import onnx.numpy_helper
import onnx.shape_inference
from google.protobuf.message import DecodeError
from jax.core import Tracer
from jax.typing import ArrayLike

from dml_jax import _check
from dml_jax._onnx_graph import checked, first_line, node_of, static_names
from dml_jax._onnx_operators import evaluate


class Model(onnx.backend.base.BackendRep):
    """A model that `prepare` has checked, to be run.

    Attributes:
      input_names: the inputs of the graph that are not initialised, in order.
      output_names: its outputs, in order.
      device: the device that `run` runs on.
      static_names: the inputs on whose values shapes depend, such as the starts of a
        Slice: constants under JAX's transformations.
    """

    def __init__(self, model: onnx.ModelProto, device: Any, options: Mapping[str, Any]):
        graph = model.graph
        self.device = device
        self._constants = {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in graph.initializer
        }
        self._nodes = [node_of(node, model, options) for node in graph.node]
        self._infos = {
            info.name: info for info in graph.input if info.name not in self._constants
        }
        self.input_names = tuple(self._infos)
        self.output_names = tuple(info.name for info in graph.output)
        self._static = static_names(self._nodes)
        self.static_names = tuple(n for n in self.input_names if n in self._static)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs as NumPy arrays, from inputs that NumPy can hold.

        Args:
          inputs: a sequence in the order of `input_names`, or a mapping by them.
          kwargs: nothing; ONNX's interface has them.

        Returns:
          The outputs in the order of `output_names`; they can be had by name, too.

        Raises:
          TypeError: an input has the wrong dtype, or there are too many or too few.
          ValueError: an input has the wrong shape, or a node refuses its inputs.
        """
        if kwargs:
            raise TypeError(f"run: `kwargs` must be none; got {', '.join(kwargs)}")
        if isinstance(inputs, Mapping):
            unknown = inputs.keys() - set(self.input_names)
            if unknown or len(inputs) < len(self.input_names):
                names = ", ".join(self.input_names)
                raise TypeError(
                    f"run: `inputs` must be {names}; got {', '.join(inputs)}"
                )
            inputs = [inputs[name] for name in self.input_names]
        with jax.enable_x64(True), jax.default_device(self.device):
            results = self._outputs([np.asarray(value) for value in inputs])
            arrays = [np.asarray(value) for value in results]
        names = onnx.backend.base.namedtupledict("Outputs", self.output_names)
        return names(*arrays)

    def jax_fn(self, *inputs: ArrayLike) -> tuple[jax.Array, ...]:
        """The outputs as a pure function of the inputs that are not initialised.

        Args:
          inputs: arrays in the order of `input_names`. Those in `static_names` must not
            be traced: close over them.

        Returns:
          The outputs in the order of `output_names`.

        Raises:
          TypeError: an input has the wrong dtype or is traced and must not, or there
            are too many or too few.
          ValueError: an input has the wrong shape, a node refuses its inputs, or 64-bit
            data is met outside of 64-bit mode.

        Derivatives and sharding: those of the operators.
        """
        outputs = self._outputs(inputs)
        return tuple(
            value
            if isinstance(value, jax.Array)
            else jax.numpy.asarray(_check.as_array("jax_fn", name, value))
            for name, value in zip(self.output_names, outputs, strict=True)
        )

    def _outputs(self, inputs: Sequence[Any]) -> list[Any]:
        if len(inputs) != len(self.input_names):
            names = ", ".join(self.input_names) or "none"
            raise TypeError(
                f"onnx: `inputs` must be an array for each of {names}; got "
                f"{len(inputs)}"
            )
        values = dict(self._constants)
        for name, value in zip(self.input_names, inputs, strict=True):
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
                f"{_check.describe(value)}. Close over it instead of passing it to the "
                "function that is transformed"
            )
        if not isinstance(value, jax.Array) or name in self._static:
            value = np.asarray(value)
        tensor = self._infos[name].type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if value.dtype.kind == "V" and value.dtype.itemsize == dtype.itemsize:
            value = value.view(dtype)  # what .npy files make of bfloat16 and the like
        is_text = dtype.kind == "O" and value.dtype.kind in "OSUT"
        if value.dtype != dtype and not is_text:
            raise TypeError(
                f"onnx: `{name}` must have dtype {dtype}; got {value.dtype}"
            )
        if tensor.HasField("shape"):
            _require_shape(name, value.shape, tensor.shape.dim)
        return value


def _require_shape(name, shape, dims):
    """Refuses a shape that differs where the graph gives a number."""
    fixed = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    fits = len(shape) == len(fixed) and all(
        size in (given, None) for size, given in zip(fixed, shape, strict=True)
    )
    if not fits:
        expected = ", ".join("?" if size is None else str(size) for size in fixed)
        raise ValueError(f"onnx: `{name}` must have shape ({expected}); got {shape}")


class Backend(onnx.backend.base.Backend):
    """The interface that ONNX defines for backends, and its test suite uses.

    Source: ONNX, onnx.backend.base.Backend.
    """

    @classmethod
    def is_compatible(
        cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any
    ) -> bool:
        """Whether `prepare` would take the model.

        Args:
          model: the model.
          device: where to run it, as for `prepare`.
          kwargs: options, as for `prepare`.
        """
        try:
            cls.prepare(model, device, **kwargs)
        except (NotImplementedError, ValueError):
            return False
        return True

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        *,
        training: bool = False,
        lda_coeff: ArrayLike = 1.0,
        **kwargs: Any,
    ) -> Model:
        """Checks a model, and makes it ready to be run.

        Args:
          model: the model; data of its own files is loaded, as `load_model` does.
          device: "CPU", or "CUDA" with the number of a GPU, as "CUDA:1".
          training: whether ReverseSequence scales its gradient by `lda_coeff`.
          lda_coeff: the coefficient, as for `dml_jax.reverse_sequence`.
          kwargs: nothing; ONNX's interface has them.

        Returns:
          The model with its methods `run` and `jax_fn`.

        Raises:
          TypeError: unknown options.
          ValueError: the model is not valid, or there is no such device.
          NotImplementedError: it has nodes that this package has no operator for; the
            message lists them all.

        Example:
          >>> import numpy as np
          >>> from onnx import helper, TensorProto
          >>> from dml_jax import onnx_backend
          >>> node = helper.make_node("ReverseSequence", ["x", "lens"], ["y"])
          >>> x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 2])
          ...         for n in "xy")
          >>> lens = helper.make_tensor_value_info("lens", TensorProto.INT64, [2])
          >>> graph = helper.make_graph([node], "backwards", [x, lens], [y])
          >>> model = onnx_backend.prepare(helper.make_model(graph))
          >>> frames = np.arange(6, dtype=np.float32).reshape(3, 2)
          >>> model.run([frames, np.array([3, 2])]).y
          array([[4., 3.],
                 [2., 1.],
                 [0., 5.]], dtype=float32)
        """
        if kwargs:
            raise TypeError(f"prepare: unknown options {', '.join(kwargs)}")
        options = {"training": training, "lda_coeff": lda_coeff}
        return Model(checked(model), _device(device), options)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs one node.

        Args:
          node: the node.
          inputs: its inputs in order; None for those that are left out.
          device: where to run it, as for `prepare`.
          outputs_info: dtypes and shapes of the outputs, which are found without them.
          kwargs: options, as for `prepare`, and `opset_version`, the version of the
            operators, ONNX's newest by default.

        Returns:
          Its outputs, as `Model.run` gives them.

        Raises:
          TypeError, ValueError, NotImplementedError: as `prepare` and `Model.run`.
        """
        arrays = {
            name: np.asarray(value)
            for name, value in zip(node.input, inputs, strict=True)
            if name
        }
        infos = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in arrays.items()
        ]
        results = [onnx.helper.make_empty_tensor_value_info(n) for n in node.output]
        graph = onnx.helper.make_graph([node], "node", infos, results)
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        imports = [onnx.helper.make_opsetid("", opset)]
        model = onnx.helper.make_model(graph, opset_imports=imports)
        try:
            model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        except onnx.shape_inference.InferenceError as error:
            raise ValueError(f"onnx: {first_line(error)}") from None
        return cls.prepare(model, device, **kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether JAX has a device.

        Args:
          device: "CPU", "CUDA" or "CUDA:1".
        """
        try:
            _device(device)
        except ValueError:
            return False
        return True


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device


def load_model(path: str | os.PathLike) -> onnx.ModelProto:
    """Reads a model and the data that it keeps in other files of its folder.

    Args:
      path: the model's file.

    Returns:
      The model.

    Raises:
      ValueError: the file is not a model, or its data lies outside of its folder.
      OSError: the file cannot be read.
    """
    try:
        return onnx.load(path)
    except (DecodeError, ValueError, onnx.checker.ValidationError) as error:
        raise ValueError(f"{os.fspath(path)}: {first_line(error)}") from None


def _device(text: str) -> Any:
    platform, _, number = text.partition(":")
    try:
        devices = jax.devices(platform.lower() or "none")
        return {str(i): device for i, device in enumerate(devices)}[number or "0"]
    except (RuntimeError, KeyError):
        names = ", ".join(f"{d.platform.upper()}:{d.id}" for d in jax.devices())
        raise ValueError(
            f"onnx: `device` must be one of CPU, {names}; got {text}"
        ) from None
