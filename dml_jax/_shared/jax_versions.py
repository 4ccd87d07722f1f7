"""Shims across the supported versions of JAX."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def varying_axes(x: jax.Array) -> frozenset[str]:
    """The manual mesh axes over which `x` varies."""
    aval = jax.typeof(x)
    if hasattr(aval, "manual_axis_type"):
        return aval.manual_axis_type.varying
    return aval.vma  # before jax 0.9


def vary_over(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    """`x`, declared to vary over `axes` too.

    The cotangent of `x` is summed over the devices, in at least float32.
    """
    missing = tuple(sorted(axes - varying_axes(x)))
    if not missing:
        return x
    is_narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    return (_vary_narrow if is_narrow else _vary)(x, missing)


def _vary(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    if hasattr(lax, "pcast"):
        return lax.pcast(x, axes, to="varying")
    return lax.pvary(x, axes)  # pyright: ignore[reportAttributeAccessIssue]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _vary_narrow(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return _vary(x, axes)


@_vary_narrow.defjvp
def _vary_narrow_jvp(axes: tuple[str, ...], primals: Any, tangents: Any) -> Any:
    (x,), (tangent,) = primals, tangents
    tangent = _vary(tangent.astype(jnp.float32), axes).astype(x.dtype)
    return _vary_narrow(x, axes), tangent


def mesh_of_new_arrays() -> Any:
    """The mesh in the type of an array that a program creates, such as by `jnp.full`.

    This is the mesh of the context; in some JAX versions, such as 0.8.1, it is empty.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return mesh
    jaxpr = jax.make_jaxpr(lambda: lax.full((1,), 0))()
    return jaxpr.out_avals[0].sharding.mesh


_SUPPORTS_MOSAIC = (0, 10, 2) <= jax.__version_info__ < (0, 13)
# The TPU kernels were lowered with these versions, too.
LOWERS_TPU_KERNELS = _SUPPORTS_MOSAIC
_HOPPER = 9  # major compute capability of the GPUs on which the kernels were run


def launch(kernel: Any, *operands: jax.Array) -> Any:
    """The result of a Mosaic kernel.

    Since jax 0.11 the jaxpr of a kernel holds Pallas references, which
    `jax_check_tracer_leaks` reports as leaks.
    """
    with jax.check_tracer_leaks(False):
        return kernel(*operands)


def runs_mosaic() -> bool:
    """Whether all CUDA devices of this process can run the Mosaic kernels.

    All must, since a lowering rule does not know which device its program is for.
    Pallas does not guarantee that the kernels can be lowered with other versions.
    """
    try:
        devices = jax.devices("cuda")
    except RuntimeError:  # there is no GPU where the program is lowered
        return False
    return _SUPPORTS_MOSAIC and all(
        int(float(device.compute_capability)) == _HOPPER for device in devices
    )


def is_traced() -> bool | None:
    """Whether Python runs in `jit` or in another transformation.

    A function that has only concrete arguments may be in one. None in versions of JAX
    that do not say, such as 0.8.1.
    """
    state, top_level = _trace_states()
    return None if state is None else state() != top_level


@functools.cache
def _trace_states() -> tuple[Any, Any]:
    """What returns the state of tracing, and the state in which nothing is traced."""
    from jax.extend import core  # imports pallas

    state = getattr(core, "get_opaque_trace_state", None)
    if state is None:
        return None, None
    # This thread may be tracing. A new one is not.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return state, pool.submit(state).result()


def use_abstract_device(device: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which programs are traced for a kind of device."""
    abstract_device = jax.sharding.AbstractDevice(
        device_kind=device.device_kind,
        num_cores=device.num_cores,
        platform=device.platform,
    )
    mesh = jax.sharding.get_abstract_mesh()
    return jax.sharding.use_abstract_mesh(mesh.update(abstract_device=abstract_device))


def tpu_info() -> Any:
    """What Pallas knows of the TPU in `use_abstract_device`, or None."""
    mesh: Any = jax.sharding.get_abstract_mesh()
    if not _SUPPORTS_MOSAIC or mesh.abstract_device is None:
        return None
    from jax.experimental.pallas import tpu

    try:
        return tpu.get_tpu_info()
    except ValueError:  # a generation that this version of JAX does not know
        return None
