"""The arguments of a reversal: lengths, and the axis that is reversed."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dml_jax._shared import arguments, bitwise
from dml_jax._shared.arguments import Shape, Size

LengthsLike: TypeAlias = ArrayLike | Sequence[Any]  # lists, nested or not, of integers


def as_lengths(name: str, value: LengthsLike) -> jax.Array:
    """`value` as an array of integers, in which NumPy's integers keep all their bits.

    Outside 64-bit mode, JAX would take them modulo 2^32: a length of 2^32 + 1 would
    act as 1, not as the axis size.
    """
    is_numpy = isinstance(value, (np.ndarray, np.generic))
    with bitwise.full_width(value.dtype if is_numpy else None):
        # Of a copy, since jax 0.12 finds the 64-bit array again by the caller's object,
        # and passes it to programs of 32-bit arguments.
        lengths = jnp.asarray(value.copy() if is_numpy else value)
    if jnp.issubdtype(lengths.dtype, jnp.integer):
        return lengths
    got = str(lengths.dtype)
    if jnp.issubdtype(lengths.dtype, jnp.bool_):
        got += ". The lengths of a mask [batch, time] are mask.sum(axis=1)"
    elif lengths.ndim > 1 and 1 not in lengths.shape:
        got += ". The array comes first, then the lengths"
    elif jnp.issubdtype(lengths.dtype, jnp.floating):
        got += f". Pass `jnp.asarray({name}, 'int32')`"
    raise arguments.error(TypeError, name, "have an integer dtype", got)


def fits(shape: Shape, wanted: Shape) -> bool:
    """Whether a shape of lengths has the wanted sizes, or 1 in their place."""
    return len(shape) == len(wanted) and all(
        size in (1, other) for size, other in zip(shape, wanted, strict=True)
    )


def expansion(name: str, shape: Shape, wanted: Shape) -> str:
    """The advice to insert dimensions of size 1, if the lengths then fit."""
    missing, sizes = [], list(shape)
    for d, size in enumerate(wanted):
        if sizes and sizes[0] in (1, size):
            sizes.pop(0)
        else:
            missing.append(d)
    if sizes or not missing:
        return ""
    dims = missing[0] if len(missing) == 1 else tuple(missing)
    return f". Pass `jnp.expand_dims({name}, {dims})`"


def canonicalize_axis(name: str, shape: Shape, axis: Any) -> int:
    """`axis` in [0, rank), for the array `name`, whose size along it fits 32 bits."""
    rank = len(shape)
    if rank == 0:
        raise arguments.error(ValueError, name, "have rank 1 or more", "rank 0")
    axis = arguments.integer("axis", axis)
    if not -rank <= axis < rank:
        got = f"`axis` {arguments.show(axis)} is out of bounds for array of dimension"
        hint = ". Pass axis=0" if rank == 1 else ""
        raise ValueError(arguments.Message(f"{got} {rank}{hint}"))
    axis %= rank
    require_32_bits(name, f"{axis=}", shape[axis])
    return axis


def require_32_bits(name: str, axis: str, size: Size) -> None:
    """Refuses an axis of 2^32 elements or more; DirectML's sizes have 32 bits, too."""
    if not jax.export.is_symbolic_dim(size) and size >= 2**32:
        rule = f"have fewer than 2^32 elements along {axis}"
        raise arguments.error(ValueError, name, rule, size)
