"""What several topics need: namespaces, static integers, axes and indices."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import onnx.helper
from jax.core import Tracer

from dml_jax._shared import arguments
from dml_jax._shared.bitwise import index_dtype
from dml_jax.onnx_backend._nodes import Node
from dml_jax.onnx_backend._range_checks import are_collected, note
from dml_jax.onnx_backend._values import Array, is_constant, traced_shape


def numpy_or_jax(*arrays: Any, sizes: Sequence[Any] = ()) -> ModuleType:
    """NumPy for constants, which is faster for small arrays; otherwise jax.numpy.

    It also has arrays of symbolic sizes.
    """
    are_constant = all(isinstance(array, np.ndarray) for array in arrays)
    return np if are_constant and not has_symbols(sizes) else jnp


def has_symbols(sizes: Sequence[Any]) -> bool:
    """Whether any of some sizes is symbolic."""
    return any(map(jax.export.is_symbolic_dim, sizes))


def positions(shape: Sequence[Any], axis: int) -> Array:
    """The positions along an axis, of size 1 on all others."""
    namespace = numpy_or_jax(sizes=shape)
    numbers = namespace.arange(shape[axis], dtype=index_dtype(shape[axis]))
    return numbers.reshape(along(axis, len(shape)))


def along(axis: int, rank: int) -> list[int]:
    """The shape of numbers along an axis of an array."""
    return [-1 if i == axis else 1 for i in range(rank)]


def named(name: str) -> Callable[..., Array]:
    """An operator that NumPy and jax.numpy have under a name."""

    def evaluate(_: Node, *inputs: Array) -> Array:
        return getattr(numpy_or_jax(*inputs), name)(*inputs)

    return evaluate


def integers(name: str, values: Any) -> list[Any]:
    """The elements of an input or an attribute that must be one-dimensional."""
    numbers = np.asarray(values)
    if numbers.ndim != 1:
        raise ValueError(f"`{name}` must have one dimension; got {numbers.ndim}")
    return [n if jax.export.is_symbolic_dim(n) else int(n) for n in numbers]


def integer(name: str, value: Any) -> int:
    """The only element of a static input."""
    if isinstance(value, Tracer):
        raise traced_shape(name, value)
    require_scalar(name, value)
    # A concrete array's own methods would be traced under jit.
    return int(np.reshape(np.asarray(value), ()))


def normalized(name: str, axis: int, rank: int) -> int:
    """An axis in [0, rank)."""
    if not -rank <= axis < rank:
        raise ValueError(f"`{name}` must be in [{-rank}, {rank}); got {axis}")
    return axis % rank


def option(node: Node, name: str, options: Sequence[str]) -> str:
    """An attribute that is one of several names, the first one by default."""
    given = node.attributes.get(name, options[0])
    if given not in options:
        raise ValueError(f"`{name}` must be one of {', '.join(options)}; got {given!r}")
    return given


def axis_of(node: Node, x: Any) -> int:
    """The attribute `axis`, in [0, rank) of an array."""
    return normalized("axis", node.attributes["axis"], np.ndim(x))


def axes_of(node: Node, rank: int, axes: Any = None) -> list[int] | None:
    """The axes in an input, or in the attribute that earlier versions have."""
    axes = node.attributes.get("axes") if axes is None else axes
    if axes is None:
        return None
    numbers = [normalized("axes", axis, rank) for axis in integers("axes", axes)]
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"`axes` must be unique; got {numbers}")
    return numbers


def indices_of(indices: Array, size: Any) -> Array:
    """Indices along an axis; negative ones count from its end."""
    if size == 0 and indices.size:
        raise ValueError(
            "`indices` must have no elements, since the axis has none; got shape "
            f"{indices.shape}"
        )
    places = clamped("indices", indices, size - 1, -size)
    return numpy_or_jax(places, sizes=[size]).where(places < 0, places + size, places)


def clamped(name: str, values: Array, most: Any, least: Any = 0) -> Array:
    """Lengths or places in [least, most] as int32, or int64 if the range is long.

    Concrete values outside are refused, as in ONNX Runtime. Traced ones are clamped,
    and those in a range of a symbolic size.
    """
    dtype = index_dtype(most - least)
    if isinstance(values, Tracer) or has_symbols([most]):
        if has_symbols([most]):
            # Nodes are traced in 64-bit mode. If one asks for the value of the size, a
            # loop over this axis cannot be exported outside that mode.
            most = jnp.ones(most, dtype).sum(dtype=dtype)
        if are_collected():
            note((values < least) | (values > most))
        return jnp.clip(values, least, most).astype(dtype)
    numbers = np.asarray(values)  # operations of JAX would each be a program
    outside = numbers[(numbers < least) | (numbers > most)]
    if outside.size:
        raise ValueError(f"`{name}` must be in [{least}, {most}]; got {outside[0]}")
    return numbers.astype(dtype)


def is_quantized(x: Array) -> bool:
    """Whether an array has numbers of up to 8 bits, as quantized weights."""
    return x.ndim > 0 and x.dtype.itemsize == 1 and x.dtype != np.bool_


def at_least_float32(x: Array) -> jax.Array:
    """Floats below 32 bits as float32."""
    return jnp.asarray(x).astype(jnp.promote_types(x.dtype, jnp.float32))


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator with sums, for which floats of 16 bits become float32.

    Its result is rounded to their dtype once.
    """

    def evaluate(node: Node, *inputs: Any) -> Array:
        if not is_half(inputs[0]):
            return function(node, *inputs)
        wide = [at_least_float32(x) if is_half(x) else x for x in inputs]
        return function(node, *wide).astype(inputs[0].dtype)

    return evaluate


def is_half(x: Any) -> bool:
    """Whether an array has floats of 16 bits."""
    return x is not None and x.dtype in (jnp.float16, jnp.bfloat16)


def product(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that multiplies its first two inputs, in 16 bits if the caller does.

    Others, such as a bias, stay in float32, and so do constants.
    """

    def evaluate(node: Node, *inputs: Any) -> Array:
        dtype = node.scope.product_dtype
        if inputs[0].dtype != np.float32 or all(map(is_constant, inputs)):
            return function(node, *inputs)
        factors = (x.astype(dtype) if x.dtype == np.float32 else x for x in inputs[:2])
        return function(node, *factors, *inputs[2:]).astype(np.float32)

    return evaluate


def norm(x: Array, p: int, reduce: Callable[..., Any]) -> jax.Array:
    """The p-th root of reduced p-th powers, with the derivative 0 for zeros."""
    total = reduce(jnp.abs(x) ** p)
    nonzero = jnp.where(total == 0, 1, total)
    root = jnp.sqrt(nonzero) if p == 2 else nonzero ** (1 / p)
    return jnp.where(total == 0, 0, root)


def with_masks(x: Array) -> jax.Array:
    """`x`, whose elements of minus infinity have no derivatives.

    Those of a softmax are NaN where all elements are masked, even if its result, NaN,
    is replaced afterwards.
    """
    return jnp.where(x == -jnp.inf, -jnp.inf, x)


def require_constant(**inputs: Any) -> None:
    """Refuses traced inputs, on whose values the shape of an output depends."""
    for name, value in inputs.items():
        if isinstance(value, Tracer):
            error = traced_shape(name, value)
            raise TypeError(f"{error}, or end the model before it by `outputs=`")


def require_rank(name: str, array: Any, rank: int) -> None:
    if np.ndim(array) != rank:
        raise ValueError(f"`{name}` must have rank {rank}; got shape {np.shape(array)}")


def require_shape(name: str, array: Any, shape: Any) -> None:
    """Refuses an input of another shape; one that is omitted has any."""
    if array is not None and np.shape(array) != tuple(shape):
        raise ValueError(
            f"`{name}` must have shape {tuple(shape)}; got {np.shape(array)}"
        )


def require_count(name: str, values: Any, count: int) -> None:
    if len(values) != count:
        raise ValueError(f"`{name}` must have {count} elements; got {values}")


def require_scalar(name: str, value: Any) -> None:
    """Refuses an input that is no scalar; one that is omitted may be anything.

    ONNX and ONNX Runtime take an axis of one element for one.
    """
    if value is not None and np.shape(value) not in ((), (1,)):
        raise ValueError(f"`{name}` must be a scalar; got shape {np.shape(value)}")


def require_axes(**inputs: tuple[Any, str | tuple[Any, ...]]) -> None:
    """Refuses inputs whose axes do not have the sizes that their names say.

    Axes have names, in a string with spaces or in a tuple, which may also have sizes.
    Those of the same name have the same size. An input that is omitted has any shape.
    """
    sizes: dict[str, Any] = {}
    for name, (array, axes) in inputs.items():
        if array is None:
            continue
        shape, names = np.shape(array), axes.split() if isinstance(axes, str) else axes
        wanted = [sizes.get(n, n) for n in names]
        pairs = zip(wanted, shape, strict=False)
        is_other = any(size != n for size, n in pairs if not isinstance(size, str))
        if len(shape) != len(wanted) or is_other:
            rule = f"({', '.join(map(str, wanted))}{',' * (len(wanted) == 1)})"
            raise ValueError(f"`{name}` must have shape {rule}; got {shape}")
        sizes.update(zip(names, shape, strict=True))


def require_broadcastable(name: str, array: Any, shape: Any) -> None:
    """Refuses an input that would give `shape` more axes or other sizes."""
    given = np.shape(array)  # () of None
    pairs = zip(given[::-1], shape[::-1], strict=False)
    if len(given) > len(shape) or any(n not in (1, size) for n, size in pairs):
        raise ValueError(f"`{name}` must broadcast to shape {shape}; got {given}")


def require_size(node: Node, name: str, shape: Any) -> tuple[Any, ...]:
    """Refuses shapes that no device can hold."""
    with arguments.named(node.kind):
        return arguments.sizes(name, tuple(shape))


def dtype_of(name: str, number: int) -> np.dtype:
    """The dtype of a data type of ONNX."""
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    except KeyError:
        raise ValueError(f"{name} must be a data type; got {number}") from None


def dtype_in(node: Node, name: str, default: Any = None) -> np.dtype:
    """The dtype in an attribute, `default` if it is omitted or 0."""
    number = node.attributes.get(name) or 0
    return dtype_of(f"`{name}`", number) if number or default is None else default
