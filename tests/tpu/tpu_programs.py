"""The programs that are compiled for TPUs: cases of other tests, and larger ones.

They are made in the child processes of `tpu_compiler`, by name.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from cases import (
    BATCH_MAJOR,
    EXAMPLES,
    FUNCTIONS,
    linear,
    random_case,
    windows,
    with_dtype,
    with_options,
)
from dtypes import dtype_of
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax
from benchmarks import programs
from benchmarks.workloads import workloads
from dml_jax.cli.verify_cases import Case

TRANSFORMS = ("forward", "gradient", "jvp")
WORKLOADS = {workload.name: workload for workload in workloads("cpu")}


def large(
    operator: str, name: str, *shapes: tuple[int, ...], **options: Any
) -> tuple[str, Case]:
    """A name and a case of zeros; of a reversal, the shapes of input and lengths."""
    names = {
        "reverse_subsequences": ("input", "sequence_lengths"),
        "reverse_sequence": ("input", "sequence_lens"),
        "slice_grad": ("input_gradient",),
        "fill_value_sequence": ("value_start", "value_delta"),
        "fill_value_constant": ("value",),
    }.get(operator, ("input",))
    dtypes = (np.float32, np.int32 if operator.startswith("reverse") else np.float32)
    arrays = {
        array: np.broadcast_to(np.zeros((), dtype), shape)
        for array, shape, dtype in zip(names, shapes, dtypes, strict=False)
    }
    return f"{operator}-large-{name}", Case(operator, arrays, options)


LARGE = dict(
    [
        large("reverse_subsequences", "rows", (1024, 4096), (1024, 1), axis=1),
        large("reverse_subsequences", "odd-rows", (64, 4095), (64, 1), axis=1),
        large(
            "reverse_subsequences", "columns", (4, 8, 256, 64), (4, 8, 1, 64), axis=2
        ),
        large("reverse_sequence", "features", (32, 512, 256), (32,), **BATCH_MAJOR),
        large("reverse_sequence", "channels", (64, 4096, 3), (64,), **BATCH_MAJOR),
        large("reverse_sequence", "time-major", (512, 32, 256), (32,)),
        large("reverse_sequence", "flat", (4096, 1024), (1024,)),
        # Lines that fill the vector memory of a v4.
        large("reverse_subsequences", "long-rows", (32, 76_900), (32, 1), axis=1),
        large("reverse_subsequences", "long-columns", (19_200, 128), (1, 128), axis=0),
        large(
            "reverse_subsequences", "long-planes", (600, 32, 128), (1, 32, 1), axis=0
        ),
        # Lines that do not fit in the vector memory of any generation.
        large("reverse_subsequences", "too-long-line", (10**6,), (1,), axis=0),
        large(
            "reverse_sequence",
            "too-long-features",
            (2, 10**6, 128),
            (2,),
            **BATCH_MAJOR,
        ),
        large("slice", "1x1", (2048, 2048), offsets=(5, 7), sizes=(2043, 2041)),
        large(
            *("slice", "2x3", (2048, 2048)),
            **dict(offsets=(5, 7), sizes=(1000, 600), strides=(2, 3)),
        ),
        large("slice1", "1x-1", (2048, 2048), **windows((5, 7), (2043, 2041), (1, -1))),
        large("slice1", "-2x3", (2048, 2048), **windows((5, 7), (2043, 2041), (-2, 3))),
        large(
            *("slice_grad", "2x2", (126, 125)),
            **windows((5, 7), (251, 249), (2, 2), output_gradient_sizes=(256, 256)),
        ),
        *(
            large(
                operator, "2d", (), (), sizes=(4096, 1000), value_data_type=np.float32
            )
            for operator in ("fill_value_sequence", "fill_value_constant")
        ),
    ]
)


def chosen_by_jax(case: Case) -> Case:
    """The case without a formulation of its own."""
    has_choice = "implementation" in case.options
    return with_options(case, implementation=None) if has_choice else case


RANDOM = {
    f"{function}-{seed}": chosen_by_jax(random_case(function, seed))
    for function in FUNCTIONS
    for seed in range(12)
}
BY_NAME = {**EXAMPLES, **RANDOM, **LARGE}


def program(
    case: str, transform: str, dtype: str
) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """A case with data of a dtype: the operator, its gradient or its JVP."""
    found = with_dtype(BY_NAME[case], dtype_of(dtype))
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
        shape = found.expected().shape
        return gradient, [jax.ShapeDtypeStruct(shape, dtype_of(dtype)), *types]
    return run, types


def plain(name: str) -> Any:
    """Plain JAX's form of a workload of the benchmarks."""
    workload = WORKLOADS[name]
    arrays = jax.eval_shape(lambda: programs.arrays(workload))
    return programs.idiom(workload), arrays


# Programs of many chips ---------------------------------------------------------------


def on_chips(
    name: str, sizes: list[int], shape: list[int], spec: list[Any]
) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """A program of an array over a mesh, and of lengths that every chip has."""
    mesh = AbstractMesh(tuple(sizes), ("a", "b"))
    entries = [tuple(e) if isinstance(e, list) else e for e in spec]
    of_lengths = [1] * len(shape)
    batch_axis = 1 if name == "time-first" else 0
    of_lengths[batch_axis] = shape[batch_axis]
    return functions(tuple(shape))[name], [
        jax.ShapeDtypeStruct(
            tuple(shape), np.float32, sharding=NamedSharding(mesh, P(*entries))
        ),
        jax.ShapeDtypeStruct(
            tuple(of_lengths), np.int32, sharding=NamedSharding(mesh, P())
        ),
    ]


def functions(shape: tuple[int, ...]) -> dict[str, Any]:
    def reverse(x: Any, lengths: Any) -> Any:
        return dml_jax.reverse_subsequences(x, lengths, 1)

    def slice1(x: Any, stride: int = 1) -> Any:
        offsets, windows, strides = [0] * len(shape), list(shape), [1] * len(shape)
        offsets[1], windows[1], strides[1] = 3, shape[1] - 16, stride
        return dml_jax.slice1(x, offsets, windows, strides)

    def slice_grad(x: Any, stride: int = 1) -> Any:
        y, pull_back = jax.vjp(lambda x: slice1(x, stride), x)
        return pull_back(y * 2)[0]

    def fill(_: Any, lengths: Any) -> Any:
        start = lengths[0, 0].astype("float32")
        return dml_jax.fill_value_sequence(shape, "float32", start, start)

    return {
        "reverse": reverse,
        "time-first": lambda x, n: dml_jax.reverse_subsequences(x, n, 0),
        "grad": lambda x, n: jax.vjp(lambda x: reverse(x, n), x)[1](x)[0],
        "jvp": lambda x, n: jax.jvp(lambda x: reverse(x, n), (x,), (x,))[1],
        "vmap": lambda x, n: jax.vmap(
            lambda x, n: dml_jax.reverse_subsequences(x, n, 0)
        )(x, n),
        "slice": lambda x, _: slice1(x),
        "slice-backwards": lambda x, _: slice1(x, -3),
        "slice_grad": lambda x, _: slice_grad(x),
        "slice_grad-backwards": lambda x, _: slice_grad(x, -3),
        "fill": fill,
    }


# Programs that fail, for the test of how that is found --------------------------------

VECTOR = [jax.ShapeDtypeStruct((8,), np.float32)]


def good() -> Any:
    return lambda x: x + 1, VECTOR


def ends_its_process() -> Any:
    return lambda x: os.abort(), VECTOR  # noqa: ARG005


def raises() -> Any:
    def function(_: Any) -> None:
        raise ValueError("on purpose")

    return function, VECTOR


def waits() -> Any:
    return lambda x: time.sleep(600), VECTOR  # noqa: ARG005
