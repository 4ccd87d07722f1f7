"""Compiles programs for TPUs ahead of time, on a machine that has none.

TPU's compiler is in the package `libtpu`, which JAX's extra `tpu` installs. It may end
its process where it fails, so the programs are compiled in child processes. A child is
this module, as a program.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import children
import jax

SECONDS = 120.0  # for a program
# The name of a topology, and how the cores of a chip are divided into devices.
GENERATIONS = {
    "v4": ("v4:2x2x1", "megacore"),
    "v5e": ("v5e:2x2", "default"),
    "v5p": ("v5p:2x2x1", "megacore"),
    "v6e": ("v6e:2x2", "default"),
    "tpu7x": ("tpu7x:2x2x1", "default"),
}


class Case(NamedTuple):
    """A program: what the function `program`, as "module:name", makes of the options.

    It returns the function to compile and the types of its arguments, of which there is
    at least one: without any, a program is compiled for the CPU.
    """

    name: str
    program: str
    options: Mapping[str, Any]


class Outcome(NamedTuple):
    """What became of a case.

    `failed` is None, or where it failed: "lowering" (by JAX or by us), "compiling" (by
    an error of the compiler), "process" (the compiler ended it) or "time".
    """

    name: str
    failed: str | None = None
    error: str = ""


def is_installed() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def compile_cases(cases: Sequence[Case], generation: str) -> Iterator[Outcome]:
    """Compiles the cases for a generation, and yields their outcomes."""
    found = children.answers(
        __file__,
        cases,
        generation,
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # by several processes
        TPU_SKIP_MDS_QUERY="1",  # there is no metadata server
    )
    for case, answer in zip(cases, found, strict=True):
        if isinstance(answer, children.End):
            failed = "time" if answer.is_late else "process"
            yield Outcome(case.name, failed, answer.why)
        else:
            yield Outcome(*answer)


# The child ----------------------------------------------------------------------------


def _devices(generation: str) -> Sequence[Any]:
    from jax.experimental import topologies

    name, chip_config = GENERATIONS[generation]
    return topologies.get_topology_desc(
        platform="tpu", topology_name=name, chip_config_name=chip_config
    ).devices


def _compile(case: Case, devices: Sequence[Any]) -> Outcome:
    module, _, name = case.program.partition(":")
    function, arguments = getattr(importlib.import_module(module), name)(**case.options)
    stage = "lowering"
    try:
        lowered = _lower(function, arguments, devices)
        stage = "compiling"
        lowered.compile()
    except Exception as error:  # of any kind: what the outcome is about
        text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return Outcome(case.name, stage, text)
    return Outcome(case.name)


def _lower(
    function: Any, arguments: Sequence[jax.ShapeDtypeStruct], devices: Sequence[Any]
) -> Any:
    sharding = jax.sharding.SingleDeviceSharding(devices[0])
    placed = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in arguments
    ]
    needs_x64 = any(x.dtype != jax.dtypes.canonicalize_dtype(x.dtype) for x in placed)
    with jax.enable_x64(needs_x64):
        return jax.jit(function).lower(*placed)


if __name__ == "__main__":
    DEVICES = _devices(sys.argv[1])
    children.serve(lambda case: _compile(Case(*case), DEVICES), SECONDS)
