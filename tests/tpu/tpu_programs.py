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
    with_dtype,
    with_options,
)
from dtypes import dtype_of
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax
from benchmarks import programs
from benchmarks.workloads import Shape, Workload, workloads
from dml_jax.cli.verify_cases import Case

TRANSFORMS = ("forward", "gradient", "jvp")
WORKLOADS = {workload.name: workload for workload in workloads("cpu")}


def large(operator: str, *shapes: Shape, **options: Any) -> Case:
    """A case of zeros, which take no memory; lengths are the second array."""
    names = programs.ARGUMENTS[operator]
    dtypes = (np.float32, np.int32 if operator.startswith("reverse") else np.float32)
    arrays = {
        name: np.broadcast_to(np.zeros((), dtype), shape)
        for name, shape, dtype in zip(names, shapes, dtypes, strict=False)
    }
    return Case(operator, arrays, options)


def of_workload(workload: Workload) -> Case:
    arrays = jax.eval_shape(lambda: programs.arrays(workload))
    shapes = [array.shape for array in arrays]
    return large(workload.operator, *shapes, **workload.options)


FILL = dict(sizes=(4096, 1000), value_data_type=np.float32)
LARGE = {
    # Ten times the length takes half a minute to compile.
    "long-line": large("reverse_subsequences", (10**5,), (1,), axis=0),
    "long-features": large("reverse_sequence", (2, 10**6, 128), (2,), **BATCH_MAJOR),
    "fill_value_sequence-2d": large("fill_value_sequence", (), (), **FILL),
    "fill_value_constant-2d": large("fill_value_constant", (), **FILL),
    **{
        workload.name: of_workload(workload)
        for workload in WORKLOADS.values()
        if workload.dtype == np.float32
        and workload.group in ("reverse", "slice", "fill")
    },
}


def chosen_by_jax(case: Case) -> Case:
    """The case without a formulation of its own."""
    has_choice = "implementation" in case.options
    return with_options(case, implementation=None) if has_choice else case


RANDOM = {
    f"{function}-{seed}": chosen_by_jax(random_case(function, seed))
    for function in FUNCTIONS
    for seed in range(8)
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
        with jax.enable_x64(True):
            return gradient, [jax.eval_shape(run, *types), *types]
    return run, types


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
