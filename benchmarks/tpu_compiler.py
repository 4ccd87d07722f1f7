"""Compiles programs for TPUs ahead of time, on a machine that has none.

TPU's compiler is in the package `libtpu`, which JAX's extra `tpu` installs. It may end
its process where it fails, so the programs are compiled in child processes: a child
compiles one after the other, and where it ends, another one continues with the rest.

A child is this module, as a program. It reads cases from its standard input, and writes
their outcomes to its standard output, a line of JSON for each.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from benchmarks import tpu_schedule
from benchmarks.tpu_schedule import Cost

SECONDS = 120.0  # for a program


class Generation(NamedTuple):
    """A generation of TPUs: what a JAX device of it is, and how fast that is.

    The clock is None where it is not published. Each of the two cores of a TPU7x chip
    is a device, which has half of the chip's bandwidth.
    """

    topology: str
    chip_config: str
    cores: int  # of a device
    granule: int  # the unit of copies, in bytes
    clock: float | None  # in Hz
    bandwidth: float  # of the main memory, in bytes per second


GENERATIONS = {
    "v4": Generation("v4:2x2x1", "megacore", 2, 512, 1.05e9, 1228e9),
    "v5e": Generation("v5e:2x2", "default", 1, 32, 1.5e9, 819e9),
    "v5p": Generation("v5p:2x2x1", "megacore", 2, 32, 1.75e9, 2765e9),
    "v6e": Generation("v6e:2x2", "default", 1, 32, 1.75e9, 1640e9),
    "tpu7x": Generation("tpu7x:2x2x1", "default", 1, 32, None, 7380e9 / 2),
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
    seconds: float = 0.0
    failed: str | None = None
    error: str = ""
    costs: Sequence[Cost] = ()


def is_installed() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def compile_cases(
    cases: Sequence[Case],
    generation: str,
    *,
    with_costs: bool = False,
    seconds: float = SECONDS,
) -> Iterator[Outcome]:
    """Compiles the cases for one chip, and yields an outcome for each, in order."""
    with tempfile.TemporaryDirectory(prefix="dml_jax_tpu") as name:
        folder = pathlib.Path(name)
        rest = list(cases)
        while rest:
            some = _outcomes(tuple(rest), generation, folder, with_costs, seconds)
            for outcome in some:
                rest.pop(0)
                yield outcome


def _outcomes(
    cases: Sequence[Case],
    generation: str,
    folder: pathlib.Path,
    with_costs: bool,
    seconds: float,
) -> Iterator[Outcome]:
    """The outcomes of one child, up to the case that ends it."""
    dump = folder / "dump"
    errors = folder / "errors.txt"
    command = [sys.executable, "-m", "benchmarks.tpu_compiler", generation]
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [*command, str(dump)] if with_costs else command,
            env=_environment(dump if with_costs else None),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdout.readline()  # it is ready: its start takes none of the seconds
            for case in cases:
                start = time.monotonic()
                timer = threading.Timer(seconds, child.kill)
                timer.start()
                try:
                    print(json.dumps(case), file=child.stdin, flush=True)
                    line = child.stdout.readline()
                except BrokenPipeError:
                    line = ""
                timer.cancel()
                spent = time.monotonic() - start
                if not line:
                    yield _end(case, child.wait(), spent, seconds, errors)
                    return
                name, spent, failed, error, costs = json.loads(line)
                costs = [Cost(*cost) for cost in costs]
                yield Outcome(name, spent, failed, error, costs)
        finally:
            child.kill()


def _environment(dump: pathlib.Path | None) -> dict[str, str]:
    flags = ()
    if dump:  # of all passes, the dump takes most of the time to compile
        passes = "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
        flags = (f"--xla_jf_dump_to={dump}", "--xla_jf_dump_llo_text=true", passes)
    return {
        **os.environ,
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # by several processes
        "JAX_PLATFORMS": "cpu",
        "LIBTPU_INIT_ARGS": " ".join(flags),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server
    }


def _end(
    case: Case, status: int, spent: float, seconds: float, errors: pathlib.Path
) -> Outcome:
    """The outcome of the case at which a child has ended."""
    if spent >= seconds:
        return Outcome(case.name, spent, "time", f"takes more than {seconds:g} s")
    text = errors.read_text(errors="replace")
    if status > 0:
        raise RuntimeError(f"{case.name}: the child process failed:\n{text[-4000:]}")
    failed = re.search(r"^F\d{4} .*|^.*Check failed.*", text, re.MULTILINE)
    reason = failed[0] if failed else f"signal {-status}"
    return Outcome(case.name, spent, "process", reason)


# The child ----------------------------------------------------------------------------


def _serve(generation: str, dump: pathlib.Path | None) -> None:
    """Compiles the cases of the standard input."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for what libraries print
        device = _device(generation)
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            outcome = _compile(Case(*json.loads(line)), generation, device, dump)
            print(json.dumps(outcome), file=answers, flush=True)


def _device(generation: str) -> Any:
    from jax.experimental import topologies

    described = GENERATIONS[generation]
    topology = topologies.get_topology_desc(
        platform="tpu",
        topology_name=described.topology,
        chip_config_name=described.chip_config,
    )
    return topology.devices[0]


def _compile(
    case: Case, generation: str, device: Any, dump: pathlib.Path | None
) -> Outcome:
    module, _, name = case.program.partition(":")
    function, arguments = getattr(importlib.import_module(module), name)(**case.options)
    if dump:
        shutil.rmtree(dump, ignore_errors=True)
    start, stage = time.monotonic(), "lowering"
    try:
        lowered = lower(function, arguments, device)
        stage = "compiling"
        compiled = lowered.compile()
    except Exception as error:  # of any kind: what the outcome is about
        text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return Outcome(case.name, time.monotonic() - start, stage, text)
    seconds, costs = time.monotonic() - start, []
    if dump:
        _, _, cores, granule, *_ = GENERATIONS[generation]
        costs = tpu_schedule.costs(dump, compiled.as_text(), granule, cores)
    return Outcome(case.name, seconds, costs=costs)


def lower(
    function: Callable[..., Any], arguments: Sequence[jax.ShapeDtypeStruct], device: Any
) -> Any:
    """Lowers a function for a TPU of a topology."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    placed = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in arguments
    ]
    # Pallas asks the device in the context for its kind.
    abstract_device = jax.sharding.AbstractDevice(
        device_kind=device.device_kind, num_cores=device.num_cores, platform="tpu"
    )
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=abstract_device)
    needs_x64 = any(x.dtype != jax.dtypes.canonicalize_dtype(x.dtype) for x in placed)
    with jax.enable_x64(needs_x64), jax.sharding.use_abstract_mesh(mesh):
        return jax.jit(function).lower(*placed)


if __name__ == "__main__":
    _serve(sys.argv[1], pathlib.Path(sys.argv[2]) if sys.argv[2:] else None)
