"""What JAX does not promise to keep, and the versions in which it has it.

`jax.extend` and `jax.interpreters` have no deprecation period, and the kernel uses
parts of Pallas that may change. A part that only makes programs faster is used within
`optional`: where it fails, a warning says so, and the result is the same. These parts
are used, with the first version that has each:

    jax.extend.core.Primitive, jax.interpreters.{ad, batching, mlir}     0.4
    ShapedArray.update, for the types of results                         0.4
    jax.make_jaxpr, jax.extend.core.jaxpr_as_fun (`scans`, `wide_sums`)  0.4
    the context of a lowering rule (`lowering`, `partitioner`)           0.8
    jax.experimental.custom_partitioning(decode_shardings=False)         0.8
    jax.experimental.layout.with_layout_constraint                       0.8
    jax.make_user_context (`value_checks`)                               0.8
    the transpose of a scan with any order of inputs (`scans`)           0.10
    Mosaic for GPUs: `plgpu.kernel`, `inline_mgpu`, `jaxlib.mlir`        0.10.2

Primitives, `ShapedArray.update`, jaxprs and `make_user_context` have no substitute.
Without the first two no primitive can be defined, without the third no recurrence, and
without the last one, `checked` raises an error.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax import lax

# `jax.jit(inline=INLINE)` makes a nested function part of the jaxpr that calls it.
_Inline: Any = getattr(jax, "Inline", None)  # since jax 0.12
INLINE: Any = _Inline.JAX_EARLY if _Inline else True


def varying_axes(x: Any) -> frozenset[str]:
    """The manual mesh axes over which an array, or one of this type, varies."""
    aval = x if hasattr(x, "manual_axis_type") else jax.typeof(x)
    return aval.manual_axis_type.varying


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
    return lax.pcast(x, axes, to="varying")


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _vary_narrow(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return _vary(x, axes)


@_vary_narrow.defjvp
def _vary_narrow_jvp(axes: tuple[str, ...], primals: Any, tangents: Any) -> Any:
    (x,), (tangent,) = primals, tangents
    tangent = _vary(tangent.astype(jnp.float32), axes).astype(x.dtype)
    return _vary_narrow(x, axes), tangent


def type_of_result(
    function: Callable[[jax.Array], jax.Array], aval: Any, shape: tuple[int, ...]
) -> Any:
    """The type of `function(x)` for `x` of the type `aval`.

    The result has this shape, the dtype of `x` and its varying manual axes. It is not
    weakly typed.
    """
    if not aval.sharding.mesh.explicit_axes:
        return aval.update(shape=shape, weak_type=False)
    # The sharding rule is JAX's, so the function is traced. That takes as long as all
    # else that Python does for a slice.
    with jax.enable_x64(True):  # or else an operand of 64 bits would be narrowed
        jaxpr = jax.make_jaxpr(function)(aval.update(weak_type=False))
    return jaxpr.out_avals[0]


# Optional parts -----------------------------------------------------------------------


@contextlib.contextmanager
def optional(part: str) -> Iterator[None]:
    """Turns an error into a warning, once per process for each part."""
    try:
        yield
    except Exception as error:  # a new version may raise any
        if part in missing:
            return
        missing[part] = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"dml_jax: {part} failed with jax {jax.__version__} and is not used; "
            f"results are the same, programs may be slower ({missing[part]})",
            RuntimeWarning,
            stacklevel=3,
        )


missing: dict[str, str] = {}  # the parts that failed so far, and their errors


# The kernel ---------------------------------------------------------------------------

_SUPPORTS_MOSAIC = jax.__version_info__ >= (0, 10, 2)

_HOPPER = 9  # major compute capability of the GPUs on which the kernel was run


def attempted(kernel: Callable[..., Any], *operands: jax.Array) -> Any:
    """The result of `kernel`, or None, with a warning, if lowering it fails.

    The kernel is first lowered by itself: an error while the program is lowered would
    leave a part of the kernel in the program.
    """
    with optional("the kernel for Hopper GPUs"):
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
        program = jax.jit(functools.partial(kernel)).trace(*types)
        program.lower(lowering_platforms=("cuda",))
        return kernel(*operands)
    return None


def runs_mosaic() -> bool:
    """Whether all CUDA devices of this process can run the kernel.

    All must, since a lowering rule does not know which device its program is for.
    """
    try:
        devices = jax.devices("cuda")
    except RuntimeError:  # there is no GPU where the program is lowered
        return False
    return _SUPPORTS_MOSAIC and all(
        int(float(device.compute_capability)) == _HOPPER for device in devices
    )
