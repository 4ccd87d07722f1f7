"""What one supported JAX version calls otherwise than another, bridged here only."""

from __future__ import annotations

import jax
from jax import lax


def varying_axes(x: jax.Array) -> frozenset[str]:
    """The manual mesh axes along which `x` differs from device to device."""
    aval = jax.typeof(x)
    if hasattr(aval, "manual_axis_type"):
        return aval.manual_axis_type.varying
    return aval.vma  # before jax 0.9


def vary_over(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    """`x`, declared to differ along `axes` too."""
    missing = tuple(axes - varying_axes(x))
    if not missing:
        return x
    if hasattr(lax, "pcast"):
        return lax.pcast(x, missing, to="varying")
    return lax.pvary(x, missing)  # pyright: ignore[reportAttributeAccessIssue]
