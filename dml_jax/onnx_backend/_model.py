"""A prepared ONNX model, to be run or transformed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import onnx
import onnx.backend.base
from jax.core import Tracer
from jax.typing import ArrayLike

from dml_jax._shared import arguments, bitwise, scalars
from dml_jax.onnx_backend._evaluation import modes, run_graph
from dml_jax.onnx_backend._inputs import HALVES, Inputs
from dml_jax.onnx_backend._nodes import Graph, Scope, are_random, shape_names
from dml_jax.onnx_backend._operators._arrays import is_quantized
from dml_jax.onnx_backend._programs import Programs
from dml_jax.onnx_backend._sharding import with_automatic_axes
from dml_jax.onnx_backend._values import is_text, traced
from dml_jax.onnx_backend._weights import weights_of, with_weights

# Making a class of named tuples is slow.
_class_of_outputs = functools.lru_cache(onnx.backend.base.namedtupledict)
_ENTROPY = ""  # of a call of `run`, among inputs by name


def _key(name: str, value: Any) -> jax.Array:
    """A key from a PRNG key, typed or raw, which has to be a single one."""
    try:
        return jax.random.fold_in(value, 0)
    except (TypeError, ValueError):
        rule, got = "be a PRNG key, as of `jax.random.key`", arguments.describe(value)
        raise arguments.error(TypeError, name, rule, got) from None


# What checks the options of `apply` and `jax_fn`.
_OPTIONS = {"training": arguments.flag, "lda_coeff": scalars.real, "key": _key}


class Model(onnx.backend.base.BackendRep):
    """A model that `prepare` has checked.

    It does not change, so that a copy is the model itself. It is hashable, for static
    fields of modules. It can be pickled if the functions for operators can.

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

    def __init__(
        self,
        source: onnx.ModelProto,
        graph: Graph,
        device: Any,
        options: Mapping[str, Any],
        prepare: Callable[[bytes], Model],
    ):
        self.device = device
        self._prepare = prepare
        self._source = source
        self._graph = graph
        self._options = options
        has_defaults = source.ir_version >= 4
        tensors = {
            info.name: info.type.tensor_type
            for info in source.graph.input
            if has_defaults or info.name not in graph.constants
        }
        self._shape_names = shape_names(graph.nodes)
        self._inputs = Inputs(tensors, graph.constants, self._shape_names)
        self.dtypes = self._inputs.dtypes
        self.input_names = self._inputs.names
        self.default_names = self._inputs.default_names
        self.output_names = graph.outputs
        self.static_names = tuple(n for n in tensors if n in self._shape_names)
        self._weights = weights_of(source, graph)
        self._is_random = are_random(graph.nodes)
        self._programs = Programs(
            lambda values: self._outputs(values, self._options),
            self._shape_names,
            sum(array.nbytes for array in graph.constants.values()),
        )

    def __deepcopy__(self, _: Any = None) -> Model:
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> tuple[Any, ...]:
        return self._prepare, (self._source.SerializeToString(),)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{name}: {self.dtypes[name]}" for name in self.input_names)
        outputs = ", ".join(self.output_names)
        count = sum(array.size for array in self._weights.values())
        constants = self._graph.constants.items()
        integers = [
            x.size for n, x in constants if n not in self._weights and is_quantized(x)
        ]
        counts = f"{count:,} of {count + sum(integers):,}" if integers else f"{count:,}"
        return f"Model({kinds} -> {outputs}; {counts} parameters)"

    @property
    def params(self) -> dict[str, jax.Array]:
        """The weights by name, as new arrays at each access, which may be donated.

        They are the initializers of float dtypes and, in a model without functions, by
        the name of the node's output, what DequantizeLinear, or Cast from up to 8 bits,
        makes of constants. Constant nodes of several floats, such as frequencies, are
        weights only if there are no others, as some exporters write all weights.

        Left out are arrays that determine shapes, scalars, running means and variances
        of BatchNormalization, and initial states of zeros. `apply` accepts initializers
        of the last three kinds and Constant nodes as well.

        If the branches of a node have weights of the same name, the node's first output
        and the branch are part of their names, as in "y.then_branch.w".
        """
        # Arrays, not tracers, also for a caller that is traced.
        with jax.ensure_compile_time_eval(), jax.default_device(self.device):
            return {n: jax.numpy.array(array) for n, array in self._weights.items()}

    @arguments.named("run")
    def run(self, inputs: Any = (), /, *others: Any, **named: Any) -> tuple[Any, ...]:
        """Runs the model on NumPy arrays.

        The first call with inputs of some shapes and dtypes, and some values of those
        in `static_names`, compiles a program; later calls run it. A model that cannot
        be compiled, such as one of strings, is computed node by node.

        Nodes draw random numbers from their attribute `seed`, the same in each call, or
        other numbers in each call if they have none.

        64-bit data keeps its width whatever `jax_enable_x64` says, and NaNs are allowed
        whatever `jax_debug_nans` says.

        Args:
          inputs: arrays, or what NumPy converts to arrays, of the shapes and dtypes of
            the graph. A mapping by name may omit those in `default_names`. A sequence
            is in the order of `input_names`; to override defaults, in the order of all
            the graph's inputs, where trailing defaults may be omitted.
          others: the inputs by name in ONNX Runtime's form, `run(None, {"x": x})`.
            `inputs` is then None, or the names of the outputs to return.
          named: inputs by name, after those in order.

        Returns:
          The outputs as a named tuple in the order of `output_names`, or of the names.

        Raises:
          TypeError: an input has another dtype than the graph's, or there are too many
            or too few.
          ValueError: an input has the wrong shape, or a node refuses its inputs.
          NotImplementedError: a Cast from or to strings or float8_e8m0fnu.
          RuntimeError: the device has not enough memory.
        """
        wanted = self.output_names
        if len(others) == 1 and isinstance(others[0], Mapping):
            wanted = wanted if inputs is None else inputs
            is_list = isinstance(wanted, (list, tuple))
            if not is_list or not {*wanted} <= {*self.output_names}:
                rule = f"be None or a list of {', '.join(self.output_names)}"
                got = arguments.describe(inputs)
                raise arguments.error(ValueError, "inputs", rule, got)
            inputs, others = others[0], ()
        given = self._inputs.of_run(inputs, others, named)
        return self._computed(given, tuple(wanted))

    def _computed(
        self,
        given: Mapping[str, Any],
        wanted: tuple[str, ...],
        is_compiled: bool = True,
    ) -> tuple[Any, ...]:
        """Some outputs for inputs by name, from a program or node by node."""
        with (
            jax.enable_x64(True),
            jax.debug_nans(False),
            jax.default_device(self.device),
        ):
            arrays = self._inputs.checked(given)
            if self._is_random:
                arrays[_ENTROPY] = np.random.SeedSequence().generate_state(2)
            read = (*arrays.values(), *self._options.values())
            if any(isinstance(value, Tracer) for value in read):
                is_compiled = False
            results = self._programs.run(arrays) if is_compiled else None
            if results is None:
                # If memory is short, the device fails before the host allocates it.
                placed = {name: self._placed(name, x) for name, x in arrays.items()}
                results = self._outputs(placed, self._options)
                results = map(np.array, jax.block_until_ready(results))
            found = dict(zip(self.output_names, results, strict=True))
        return _class_of_outputs("Outputs", wanted)(*(found[name] for name in wanted))

    @arguments.named("jax_fn")
    def jax_fn(
        self, /, *inputs: ArrayLike, key: Any = None, **named: ArrayLike
    ) -> tuple[jax.Array, ...]:
        """Computes the outputs, as a pure function that JAX can transform.

        Args:
          inputs: arrays of the shapes and dtypes of the graph, in the order of
            `input_names`; to override defaults, in the order of all the graph's inputs,
            where trailing defaults may be omitted. Those in `static_names` must not be
            traced: close over them. Those of dtype int64 may be int32, and those of
            dtype float32 may be bfloat16 or float16.
          key: a PRNG key, which nodes that draw random numbers need; their seeds have
            no effect. Each node and each iteration of a loop draws from a key of its
            own. If the graph has an input called `key`, it is this input, unless the
            input is given in order.
          named: inputs by name, after those in order.

        Returns:
          The outputs in the order of `output_names`.

        Raises:
          TypeError: an input has the wrong dtype or must not be traced, there are too
            many or too few, or a node draws random numbers without `key`.
          ValueError: an input has the wrong shape, or a node refuses its inputs.

        Outside 64-bit mode, inputs, weights and outputs of 64 bits have 32 bits, as
        everywhere in JAX. Integers inside the model keep their width.

        With inputs or weights of bfloat16 or float16 for float32, matrix products and
        convolutions are in this dtype. All else is as the model says, outputs too.

        Derivatives: those of the operators, with respect to inputs of float dtypes;
        `lda_coeff` scales them only with `training=True`. Sharding: as XLA chooses, on
        explicit axes of a mesh, too. There, an output with the batch of an input, which
        is its first axis, is sharded along it as the input is.
        """
        return self._call({}, inputs, named, key=key)

    @arguments.named("apply")
    def apply(
        self,
        params: Mapping[str, ArrayLike],
        /,
        *inputs: ArrayLike,
        training: bool | None = None,
        lda_coeff: ArrayLike | None = None,
        key: Any = None,
        **named: ArrayLike,
    ) -> tuple[jax.Array, ...]:
        """Computes the outputs with other weights, as a pure function.

        Args:
          params: arrays by the names of initializers, such as `params`, or part of
            them; the model's own are used for the others. Shapes and dtypes are those
            of the model; float32 may be bfloat16 or float16.
          inputs: as for `jax_fn`.
          training: as for `prepare`, whose value is the default.
          lda_coeff: as for `prepare`, whose value is the default.
          key: as for `jax_fn`.
          named: as for `jax_fn`; an input called `training` or `lda_coeff`, too.

        Returns:
          The outputs in the order of `output_names`.

        Raises:
          TypeError, ValueError: as `jax_fn`, or `params` does not match the model.

        Derivatives: as of `jax_fn`, and with respect to `params`.
        """
        self._inputs.require_params(params, self._weights)
        options = {"training": training, "lda_coeff": lda_coeff, "key": key}
        return self._call(params, inputs, named, **options)

    @arguments.named("to_onnx")
    def to_onnx(self, params: Mapping[str, ArrayLike]) -> onnx.ModelProto:
        """The model with other weights.

        Args:
          params: arrays by the names of initializers, as for `apply`.

        Returns:
          A new model, equal to the one that was prepared except for these initializers.
          Statistics of BatchNormalization do not share arrays with weights in it. Those
          that Cast or DequantizeLinear made take the place of these nodes.

        Raises:
          TypeError, ValueError: `params` does not match the model.
          NotImplementedError: `params` has an initializer of a function of the model.
        """
        self._inputs.require_params(params, self._weights)
        return with_weights(self._source, params, self._graph.constants)

    def _call(
        self,
        params: Mapping[str, Any],
        inputs: Any,
        named: dict[str, Any],
        **others: Any,
    ) -> tuple[jax.Array, ...]:
        options, in_order = {**self._options}, self._inputs.in_order(len(inputs))
        for name, value in others.items():
            if value is not None and name in {*self.dtypes} - {*in_order}:
                named[name] = value
            elif value is not None:
                options[name] = _OPTIONS[name](name, value)
        arrays = self._inputs.checked(self._inputs.named(inputs, named), HALVES)
        values = {**params, **arrays}
        outputs = with_automatic_axes(self._outputs, values, options)
        narrow = jax.dtypes.canonicalize_dtype
        return tuple(
            jax.numpy.asarray(x if is_text(x) else x.astype(narrow(x.dtype)))
            for x in outputs
        )

    def _placed(self, name: str, value: Any) -> Any:
        """An input of `run` on its device, if it is not a constant."""
        is_host = name in self._shape_names or is_text(value)
        known = arguments.is_known(value.dtype)
        return jax.device_put(value, self.device) if known and not is_host else value

    def _outputs(
        self, values: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[Any]:
        is_wide = not bitwise.is_narrowed(np.dtype(np.int64))
        values, options = {**values}, {**options}
        entropy = values.pop(_ENTROPY, None)
        if entropy is not None:
            options["entropy"] = jax.random.wrap_key_data(entropy, impl="threefry2x32")
        with modes():
            scope = Scope({}, options, is_wide, self._inputs.product_dtype(values))
            values = self._inputs.widened(values)
            graph = self._graph._replace(inputs=tuple(values))
            return [*map(traced, run_graph(graph, tuple(values.values()), scope))]
