"""The programs that are compiled for TPUs: the examples of all operators.

They are made in the child processes of `tpu_compiler`, by name.
"""

from collections.abc import Callable
from typing import Any

import jax
from cases import EXAMPLES, linear, with_dtype
from dtypes import dtype_of

TRANSFORMS = ("forward", "gradient", "jvp")


def program(
    case: str, transform: str, dtype: str
) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """A case with data of a dtype: the operator, its gradient or its JVP."""
    found = with_dtype(EXAMPLES[case], dtype_of(dtype))
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in found.arrays.values()]
    count = len(linear(found))  # these arrays come first

    def run(*arrays: Any) -> Any:
        return found.run(**dict(zip(found.arrays, arrays, strict=True)))

    def gradient(cotangent: Any, *arrays: Any) -> Any:
        data, rest = arrays[:count], arrays[count:]
        return jax.vjp(lambda *data: run(*data, *rest), *data)[1](cotangent)

    def jvp(*arrays: Any) -> Any:
        tangents, data, rest = (
            arrays[:count],
            arrays[count:][:count],
            arrays[2 * count :],
        )
        return jax.jvp(lambda *data: run(*data, *rest), data, tangents)

    if transform == "jvp":
        return jvp, [*types[:count], *types]
    if transform == "gradient":
        with jax.enable_x64(True):
            return gradient, [jax.eval_shape(run, *types), *types]
    return run, types
