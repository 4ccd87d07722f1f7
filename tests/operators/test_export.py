"""Programs exported for every platform at once, of sizes yet unknown.

`test_random_calls.py` has reversals and fills of any size. The windows of slices have
to follow from their size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from assertions import assert_same_bits
from cases import EXAMPLES, moved_back, numbers, with_dtype
from dtypes import dtype_of
from jax import export
from sampling import default_of

import dml_jax
from dml_jax import reference

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def export_for_all(function: Callable[..., Any], *arguments: Any) -> export.Exported:
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
    assert exported.platforms == PLATFORMS
    return exported


def specs(
    shapes: list[str], dtypes: list[Any], constraints: tuple[str, ...] = ()
) -> list[jax.ShapeDtypeStruct]:
    """The arguments of an export, from shapes such as "batch, time, 3"."""
    scope = export.SymbolicScope(constraints)
    return [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


# Slices whose sizes follow from those of their input, of `shape`. They are functions of
# the module, dml_jax or its reference, and of the array.
WINDOWS = {
    "slice-crop-of-the-rest": (
        "batch, 7",
        lambda module, x: module.slice(x, [0, 2], [x.shape[0], 3]),
    ),
    "slice-every-second": (
        "batch, 7",
        lambda module, x: module.slice(x, [0, 2], [(x.shape[0] + 1) // 2, 3], [2, 1]),
    ),
    "slice1-inner-window": (
        "batch, 7",
        lambda module, x: module.slice1(x, [1, 0], [x.shape[0] - 2, 7], [-3, 2]),
    ),
    "slice_grad-every-second-reversed": (
        "batch, 2",
        lambda module, x: module.slice_grad(
            x, [2 * x.shape[0], 7], [0, 2], [2 * x.shape[0] - 1, 4], [-2, -3]
        ),
    ),
}


@pytest.mark.parametrize("dtype", default_of([jnp.float32, jnp.bfloat16], jnp.bfloat16))
@pytest.mark.parametrize("name", WINDOWS)
def test_window_of_symbolic_batch(name: str, dtype: Any) -> None:
    shape, run = WINDOWS[name]
    (argument,) = specs([shape], [dtype], ("batch >= 3",))
    exported = export_for_all(partial(run, dml_jax), argument)
    for batch in (3, 8):
        x = numbers(batch, argument.shape[1]).astype(dtype)
        y = run(reference, x)
        assert_same_bits(exported.call(x), y)
        expected = moved_back(partial(run, reference), x.shape, y)
        assert_same_bits(exported.vjp().call(x, y)[0], expected)


OPERATORS = ["reverse_subsequences", "slice", "slice_grad", "fill_value_sequence"]


@pytest.mark.parametrize("dtype", ["int2", "uint2", "complex128", "float64"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_dtypes_that_fail_in_the_compiler_of_tpus_are_refused(
    operator: str, dtype: str
) -> None:
    with jax.enable_x64(dtype in ("complex128", "float64")):
        case = with_dtype(EXAMPLES[operator], dtype_of(dtype))
        function = jax.jit(lambda arrays: case.run(**arrays))
        export.export(function, platforms=("cpu", "cuda"))(case.arrays)
        for platforms in (("tpu",), PLATFORMS):
            run = export.export(function, platforms=platforms)
            if dtype == "float64" and operator != "fill_value_sequence":
                run(case.arrays)
                continue
            message = rf"^{operator}: dtype \w+ is not supported on TPU$"
            with pytest.raises(NotImplementedError, match=message):
                run(case.arrays)
