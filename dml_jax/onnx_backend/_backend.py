"""The interface of the ONNX backend, and `load_model`."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import onnx
import onnx.backend.base
import onnx.defs
import onnx.helper
import onnx.shape_inference
from jax.typing import ArrayLike

from dml_jax._shared import arguments, scalars
from dml_jax.onnx_backend import _protos
from dml_jax.onnx_backend._errors import as_value_error, with_nearest
from dml_jax.onnx_backend._functions import info_of
from dml_jax.onnx_backend._graph import convert, split_shared
from dml_jax.onnx_backend._inputs import as_numpy, wrong_inputs
from dml_jax.onnx_backend._model import Model
from dml_jax.onnx_backend._validation import Functions, validate_model

Source: TypeAlias = onnx.ModelProto | str | os.PathLike[str] | bytes


class Backend(onnx.backend.base.Backend):
    """Implements ONNX's interface for backends, which its test suite uses.

    Source: ONNX, onnx.backend.base.Backend.
    """

    @classmethod
    def is_compatible(
        cls, model: Source, device: str | None = None, **kwargs: Any
    ) -> bool:
        """Whether `prepare` accepts a model.

        Args:
          model: the model, as for `prepare`.
          device: where to run it, as for `prepare`.
          kwargs: options, as for `prepare`.
        """
        try:
            cls.prepare(model, device, **kwargs)
        except (NotImplementedError, ValueError):
            return False
        return True

    @classmethod
    @arguments.named("prepare")
    def prepare(
        cls,
        model: Source,
        device: str | None = None,
        *,
        training: bool = False,
        lda_coeff: ArrayLike = 1.0,
        outputs: Sequence[str] | None = None,
        operators: Functions | None = None,
        **kwargs: Any,
    ) -> Model:
        """Checks a model and prepares it for running.

        Args:
          model: a model with its external data loaded, as by `load_model`; the path of
            its file, which `load_model` then reads; or the bytes of such a file.
          device: "CPU", or "CUDA" with the number of a GPU, as "CUDA:1"; JAX's default
            device if it is None. `run` computes there, and `params` are there.
          training: whether ReverseSequence, and the reverse directions of RNN, GRU and
            LSTM, scale the gradients of their inputs by `lda_coeff`. Whether Dropout
            drops elements is in the model.
          lda_coeff: the coefficient, a real number or a (traced) scalar; without
            `training` it has no effect.
          outputs: names of outputs of nodes, in place of the graph's outputs, such as
            the features before the last layer. Inputs and nodes that they do not depend
            on are left out, also by `to_onnx`.
          operators: functions by the name of an operator, or by a pair of its domain
            and its name. A function is used even if the operator is supported. It is
            called with a dictionary of the node's attributes and with its inputs, None
            for those that are omitted, and returns an output or a sequence of outputs.
            It must be pure: `Model.run` traces it once for each program.
          kwargs: must be empty; part of ONNX's interface.

        Returns:
          The model with its methods `run`, `jax_fn`, `apply` and `to_onnx`.

        Raises:
          TypeError: an option is unknown or of the wrong type.
          ValueError: the model is not valid, or there is no such device.
          NotImplementedError: the model has unsupported nodes (the message lists all),
            or one of `outputs` is not a tensor.
          OSError: the file cannot be read.

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
            raise TypeError(f"prepare: `kwargs` must be empty; got {', '.join(kwargs)}")
        options = {
            "training": arguments.flag("training", training),
            "lda_coeff": scalars.real("lda_coeff", lda_coeff),
        }
        functions = _checked_functions(operators)
        source = _read(model)
        if outputs is not None:
            _cut(source.graph, outputs)  # ONNX's checker may not find their types
        _protos.import_microsoft(source)
        split_shared(source.graph)
        graph = convert(validate_model(source, functions), functions)
        if outputs is not None:
            graph = graph._replace(outputs=tuple(outputs))
            source.graph.output.extend(onnx.ValueInfoProto(name=n) for n in outputs)
            if source.ByteSize() < 2**31:
                with as_value_error("onnx"):
                    source = onnx.shape_inference.infer_shapes(source)
            for info in source.graph.output:
                kind = info.type.WhichOneof("value")
                if kind not in ("tensor_type", None):
                    rule, got = "be names of tensors", f"{info.name!r} of {kind}"
                    raise arguments.error(NotImplementedError, "outputs", rule, got)
        prepare = functools.partial(
            cls.prepare, device=device, outputs=outputs, operators=operators, **options
        )
        return Model(source, graph, _device(device), options, prepare)

    @classmethod
    @arguments.named("run_node")
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str | None = None,
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs one node.

        Args:
          node: the node.
          inputs: its inputs in order; None for those that are omitted.
          device: where to run it, as for `prepare`.
          outputs_info: ignored; dtypes and shapes of the outputs are inferred.
          kwargs: options, as for `prepare`, and `opset_version`, the version of the
            operators, ONNX's newest by default.

        Returns:
          Its outputs, as `Model.run` gives them.

        Raises:
          TypeError, ValueError, NotImplementedError: as `prepare` and `Model.run`.
        """
        del outputs_info
        if not isinstance(inputs, Sequence) or len(inputs) != len(node.input):
            raise wrong_inputs(node.input, arguments.describe(inputs))
        given = zip(node.input, inputs, strict=True)
        arrays = {name: as_numpy(name, value) for name, value in given if name}
        newest = onnx.defs.onnx_opset_version()
        opset = kwargs.pop("opset_version", newest)
        opset = arguments.integer("opset_version", opset, range(1, newest + 1))
        infos = [info_of(name, array) for name, array in arrays.items()]
        graph = onnx.helper.make_graph([node], "node", infos, [])
        imports = [onnx.helper.make_opsetid("", opset)]
        model = onnx.helper.make_model(graph, opset_imports=imports)
        if kwargs.get("outputs") is None:
            kwargs["outputs"] = [name for name in node.output if name]
        prepared = cls.prepare(model, device, **kwargs)
        # One node takes longer to compile than to run.
        return prepared._computed(arrays, prepared.output_names, is_compiled=False)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether JAX has a device.

        Args:
          device: "CPU", "CUDA" or "CUDA:1".
        """
        try:
            _device(device)
        except (TypeError, ValueError):
            return False
        return True


def load_model(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Reads a model and its external data, which must be in its folder.

    If the model is a link, its data may be links to the folder of the model's file.

    Args:
      path: the model's file.

    Returns:
      The model.

    Raises:
      ValueError: the file is not a model, or its data lies elsewhere.
      OSError: the file cannot be read.
    """
    with as_value_error(os.fspath(path)):
        model = onnx.load(path, format="protobuf", load_external_data=False)
        _protos.load(model, os.fspath(path))
    if not model.HasField("graph"):
        raise ValueError(f"{os.fspath(path)}: must have a graph; got none")
    return model


def _read(model: Source) -> onnx.ModelProto:
    """A copy of a model, or one from a file or its bytes."""
    if isinstance(model, (str, os.PathLike)):
        return load_model(model)
    source = onnx.ModelProto()
    if isinstance(model, onnx.ModelProto):
        source.CopyFrom(model)
    elif isinstance(model, bytes):
        with as_value_error("prepare"):
            source.ParseFromString(model)
        if not source.HasField("graph"):
            raise ValueError("prepare: `model` must have a graph; got none")
    else:
        is_torch = any(c.__module__.startswith("torch.") for c in type(model).__mro__)
        hint = ". `torch.onnx.export(module, inputs, path)` writes one" * is_torch
        raise TypeError(
            "prepare: `model` must be an onnx.ModelProto, a path or bytes; got "
            f"{arguments.describe(model)}{hint}"
        )
    return source


def _cut(graph: onnx.GraphProto, names: Any) -> None:
    """Removes the outputs, and all that `names` do not depend on."""
    if not isinstance(names, (list, tuple)):
        rule, got = "be a list of names", arguments.describe(names)
        raise arguments.error(TypeError, "outputs", rule, got)
    known = [name for node in graph.node for name in node.output if name]
    for name in names:
        if name not in known:
            rule = "have names of outputs of nodes"
            got = with_nearest(name, known)
            raise arguments.error(ValueError, "outputs", rule, got)
    needed = {*names}
    for i in reversed(range(len(graph.node))):
        node = graph.node[i]
        if needed.isdisjoint(node.output):
            del graph.node[i]
        else:
            needed |= _protos.read_names([node])
    for parts in (graph.initializer, graph.input):
        _protos.remove(parts, {part.name for part in parts} - needed)
    del graph.output[:]


def _checked_functions(operators: Any) -> Functions:
    if operators is None:
        return {}
    rule = "be a mapping of names, or pairs of a domain and a name, to functions"
    if not isinstance(operators, Mapping):
        got = arguments.describe(operators)
        raise arguments.error(TypeError, "operators", rule, got)
    for key, function in operators.items():
        parts = key if isinstance(key, tuple) and len(key) == 2 else (key,)
        if not all(isinstance(part, str) for part in parts) or not callable(function):
            got = f"{key!r}: {arguments.describe(function)}"
            raise arguments.error(TypeError, "operators", rule, got)
    return dict(operators)


def _device(text: str | None) -> Any:
    if text is None:
        config: Any = jax.config
        default = config.jax_default_device
        is_device = isinstance(default, jax.Device)
        return default if is_device else jax.local_devices(backend=default)[0]
    if not isinstance(text, str):
        raise TypeError(
            f"onnx: `device` must be a string; got {arguments.describe(text)}"
        )
    platform, _, number = text.partition(":")
    try:
        devices = jax.devices(platform.lower() or "none")
        return {str(i): device for i, device in enumerate(devices)}[number or "0"]
    except (RuntimeError, KeyError):
        names = ", ".join(f"{d.platform.upper()}:{d.id}" for d in jax.devices())
        raise ValueError(
            f"onnx: `device` must be one of CPU, {names}; got {text}"
        ) from None
