"""What comes into a model: the arrays of a call, and weights that replace its own.

`Inputs.named` gives the arrays their names, `checked` checks them, and `widened` gives
them the dtypes that nodes read, in this order.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax.core import Tracer

from dml_jax._shared import arguments
from dml_jax.onnx_backend._errors import with_nearest
from dml_jax.onnx_backend._operators._arrays import dtype_of
from dml_jax.onnx_backend._values import Array, is_text, traced_shape

# Dtypes in which products of float32 may be computed.
HALVES = jnp.dtype(jnp.bfloat16), np.dtype(np.float16)


class Inputs:
    """Names and checks the inputs of a model, and checks its weights.

    `Model` describes the attributes. `static` has the names whose values determine
    shapes.
    """

    def __init__(
        self,
        tensors: Mapping[str, onnx.TypeProto.Tensor],
        constants: Mapping[str, np.ndarray],
        static: Set[str],
    ):
        self.dtypes = {
            name: dtype_of(f"onnx: `{name}`", tensor.elem_type)
            for name, tensor in tensors.items()
        }
        self.names = tuple(n for n in tensors if n not in constants)
        self.default_names = tuple(n for n in tensors if n in constants)
        self._dtypes = {n: x.dtype for n, x in constants.items()} | self.dtypes
        self._sizes = {name: sizes_of(tensor) for name, tensor in tensors.items()}
        self._constants, self._static = constants, static

    def in_order(self, count: int) -> tuple[str, ...]:
        """The names of `count` inputs that are given in order."""
        is_short = count <= len(self.names)
        return (self.names if is_short else tuple(self.dtypes))[:count]

    def of_run(
        self, inputs: Any, others: Sequence[Any], named: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Names the inputs of `run`, which may be a mapping, and are not traced."""
        if others:
            got = f"{1 + len(others)} arguments"
            raise wrong_inputs(self.names, got, self.default_names)
        given = self.named(inputs, named, isinstance(inputs, Mapping) or not named)
        for name, value in given.items():
            if isinstance(value, Tracer):
                got = f"{arguments.describe(value)}. `jax_fn` takes traced arrays"
                raise arguments.error(TypeError, name, "not be traced", got)
        return given

    def named(
        self, inputs: Any, named: Mapping[str, Any], is_list: bool = False
    ) -> dict[str, Any]:
        """Inputs by name, from a mapping or a sequence and those that have names."""
        given, is_complete = {}, False
        if isinstance(inputs, Mapping):
            given, is_complete = {**inputs, **named}, True
            got = ", ".join(map(str, given)) or "none"
        elif isinstance(inputs, (tuple, list)):
            names = self.in_order(len(inputs))
            given = {**dict(zip(names, inputs, strict=False)), **named}
            is_complete = len(given) == len(inputs) + len(named)
            got = f"{len(inputs)} of them"
            got = f"{got} and {', '.join(named)}" if named else got
        else:
            got = arguments.describe(inputs)
        if is_complete and {*self.names} <= given.keys() <= self.dtypes.keys():
            return given
        raise wrong_inputs(self.names, got, self.default_names, given, is_list)

    def checked(
        self, given: Mapping[str, Any], halves: Sequence[Any] = ()
    ) -> dict[str, Array]:
        """Checks shapes and dtypes; `halves` are valid for float32, too."""
        names = [name for name in self.dtypes if name in given]
        return {name: self._checked(name, given[name], halves) for name in names}

    def _checked(self, name: str, given: Any, halves: Sequence[Any]) -> Array:
        if isinstance(given, Tracer) and name in self._static:
            raise TypeError(f"onnx: {traced_shape(name, given)}")
        is_array = isinstance(given, jax.Array) and name not in self._static
        value = given if is_array else as_numpy(name, given)
        is_half = self.dtypes[name] == np.float32 and value.dtype in halves
        if value.dtype != self.dtypes[name] and not is_half:
            value = self._of_other_dtype(name, value, hasattr(given, "dtype"))
        require_shape(name, value.shape, self._sizes[name])
        return value

    def _of_other_dtype(self, name: str, value: Any, is_typed: bool) -> Array:
        """An input of another dtype than the graph's, if it stands for that one."""
        dtype = self.dtypes[name]
        if is_untyped(value.dtype, dtype):
            return value.view(dtype)
        is_int32 = (dtype, value.dtype) == (np.int64, np.int32)
        if is_int32 or jax.dtypes.canonicalize_dtype(dtype) == value.dtype:
            return value
        kind, hint = dtype, arguments.conversion(value.dtype, dtype)
        if is_text(dtype):
            if is_text(value):
                return value
            kind, hint = "string", ""
        elif hint and not is_typed:
            hint = f". Convert it by `np.array(x, '{dtype}')`"
        raise TypeError(
            f"onnx: `{name}` must have dtype {kind}; got {value.dtype}{hint}"
        )

    def require_params(self, params: Any, known: Iterable[str]) -> None:
        """Refuses arrays that cannot take the place of initializers."""
        if not isinstance(params, Mapping):
            rule, got = "be a mapping of names to arrays", arguments.describe(params)
            raise arguments.error(TypeError, "params", rule, got)
        for name, value in params.items():
            array = self._constants.get(name)
            if array is None or name in self._static:
                rule = "have names of initializers that shapes do not depend on"
                got = with_nearest(name, known)
                raise arguments.error(ValueError, "params", rule, got)
            dtype, shape = getattr(value, "dtype", None), np.shape(value)
            wanted = jax.dtypes.canonicalize_dtype(array.dtype)
            halves = HALVES if array.dtype == np.float32 else ()
            if dtype not in (wanted, array.dtype, *halves) or shape != array.shape:
                rule = f"be a {wanted} array of shape {array.shape}"
                got = arguments.describe(value)
                raise arguments.error(ValueError, f"params[{name!r}]", rule, got)

    def product_dtype(self, values: Mapping[str, Any]) -> Any:
        """The dtype of products: that of what has 16 bits in place of float32."""
        found = {
            np.dtype(value.dtype)
            for name, value in values.items()
            if value.dtype in HALVES and self._dtypes[name] == np.float32
        }
        if len(found) > 1:
            got = " and ".join(sorted(map(str, found)))
            raise TypeError(
                "onnx: inputs and `params` of 16 bits for float32 must have one dtype; "
                f"got {got}"
            )
        return found.pop() if found else np.float32

    def widened(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What nodes read: 64-bit integers and float32, which may be given in fewer."""
        are_wide = np.int64, np.uint64, np.float32
        return {
            name: x.astype(self._dtypes[name]) if self._dtypes[name] in are_wide else x
            for name, x in values.items()
        }


def is_untyped(given: np.dtype, wanted: np.dtype) -> bool:
    """Whether .npy files store `wanted`, such as bfloat16, as the dtype `given`."""
    is_raw = given.type is np.void and given.names is None
    return is_raw and wanted.kind == "V" and given.itemsize == wanted.itemsize


def as_numpy(name: str, value: Any) -> np.ndarray:
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
    names: Sequence[str],
    got: str,
    defaults: Sequence[str] = (),
    given: Iterable[str] = (),
    is_list: bool = True,
) -> TypeError:
    """The error for missing or unknown inputs, passed as a list if `is_list`."""
    if not names and not defaults:
        return TypeError(f"onnx: `inputs` must be empty; got {got}")
    order = ", ".join(names)
    missing = ", ".join(name for name in names if name not in given)
    if given and missing:
        got += f", without {missing}"
    if names:
        got += f". Pass `[{order}]`" if is_list else f". Pass `{order}`"
    rule = order or "none"
    if defaults:
        rule = f"{rule}, and may be for {', '.join(defaults)}"
    return TypeError(f"onnx: `inputs` must be arrays for {rule}; got {got}")


def sizes_of(tensor: onnx.TypeProto.Tensor) -> tuple[int | None, ...]:
    """The sizes in the type of an input, each None where any size is valid."""
    # Old exporters write -1 for a size that is unknown.
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in tensor.shape.dim
    )


def require_shape(
    name: str, shape: tuple[Any, ...], sizes: tuple[int | None, ...]
) -> None:
    """Refuses a shape with another rank or size than the graph's."""
    pairs = enumerate(zip(sizes, shape, strict=False))
    wrong = [i for i, (size, given) in pairs if size not in (given, None)]
    if len(shape) != len(sizes) or wrong:
        expected = ", ".join("?" if size is None else str(size) for size in sizes)
        is_batch = len(shape) == len(sizes) and wrong == [0] and sizes[0] == 1
        hint = ". For a batch, use `jax.vmap` of `jax_fn` or `apply`" * is_batch
        raise ValueError(
            f"onnx: `{name}` must have shape ({expected}); got {shape}{hint}"
        )
