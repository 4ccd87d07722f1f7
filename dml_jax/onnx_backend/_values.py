"""Values of the names of a graph.

A value is an array, a sequence of arrays, or None if it is omitted. Constants, which
depend only on initializers and shapes, are NumPy arrays; all others are JAX arrays.
Integers among which are symbolic sizes are NumPy arrays of objects.
"""

import dataclasses
from typing import Any, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from dml_jax._shared import arguments

Array: TypeAlias = jax.Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rounded:
    """Integers, which have no derivatives in JAX, and equal floats that have them."""

    integers: jax.Array
    numbers: jax.Array  # with the derivative of what was rounded


# An array, a sequence of arrays, or None for an omitted input.
Value: TypeAlias = Array | Rounded | tuple[Array, ...] | None


@jax.custom_jvp
def with_derivative(x: jax.Array, smooth: jax.Array) -> jax.Array:
    """`x` with the derivative of `smooth`, an array of the same type."""
    del smooth
    return x


@with_derivative.defjvp
def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return primals[0], tangents[1]


def integers(value: Value) -> Any:
    return value.integers if isinstance(value, Rounded) else value


def numbers(value: Value) -> Any:
    return value.numbers if isinstance(value, Rounded) else value


def joined(exact: Any, smooth: Any) -> Value:
    """An output of rounded inputs, with the derivative of the one of floats."""
    exact, smooth = integers(exact), numbers(smooth)
    if not jnp.issubdtype(smooth.dtype, jnp.floating):
        return exact
    joined = with_derivative(exact.astype(smooth.dtype), smooth)
    return joined if exact.dtype == smooth.dtype else Rounded(exact, joined)


def is_symbolic(value: Value) -> bool:
    """Whether symbolic sizes are among the elements of an array."""
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return False
    return any(map(jax.export.is_symbolic_dim, value.flat))


def traced(value: Any) -> Any:
    """An array whose symbolic sizes are traced integers."""
    if not is_symbolic(value):
        return value
    return jnp.reshape(jnp.array([*value.flat], np.int64), value.shape)


def as_sizes(value: Any) -> Value:
    """A constant of which NumPy may have returned the only element."""
    if value is None or isinstance(value, (jax.Array, tuple, Rounded)):
        return value
    array = np.asarray(value)
    is_known = array.dtype == object and not is_symbolic(array)
    return array.astype(np.int64) if is_known else array


def traced_shape(name: str, value: Any) -> TypeError:
    """The error for a traced value that a shape or an option depends on."""
    return TypeError(
        f"`{name}` must be a constant, since a shape or an option depends on it; got "
        f"{arguments.describe(value)}. Close over it instead of passing it to the "
        "function that is transformed"
    )


def is_constant(value: Value) -> bool:
    """Whether a value is constant while JAX traces."""
    return all(isinstance(array, np.ndarray) for array in jax.tree.leaves(value))


def is_text(value: Any) -> bool:
    """Whether an array or a dtype is one of NumPy's for strings."""
    dtype = getattr(value, "dtype", value)
    is_kind = isinstance(dtype, np.dtype) and dtype.kind in "OSUT"
    return is_kind and not is_symbolic(value)
