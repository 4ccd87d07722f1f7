"""What TPU's compiler tells of the time of reversals on a v5e, without one.

    python -m benchmarks.tpu_schedule > benchmarks/results/tpu-v5e.md

Runs on a machine with `libtpu`, which the extra `tpu` installs. The compiler writes the
final schedule of every fusion: bundles of instructions, one for each cycle, and loops
with the number of their turns. The sum of the cycles is compared with the time to read
and write the bytes once. Not counted are waits for memory, and more than one turn of a
loop whose number of turns depends on values or is not written.
"""

import importlib.metadata
import os
import pathlib
import re
import tempfile
from typing import Any

if __name__ == "__main__":  # libtpu reads these when JAX is imported
    FOLDER = tempfile.TemporaryDirectory()
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={FOLDER.name} "
        "--xla_jf_dump_llo_text=true",
    }

import jax
from jax.experimental import topologies

from benchmarks import programs
from benchmarks.workloads import workloads

CLOCK, BANDWIDTH = 1.5e9, 819e9  # of a v5e, in Hz and in bytes per second
HEADER = """\
# Reversals on a v5e

Cycles in the final schedule of TPU's compiler (jax {}, libtpu {}), not run, at 1.5 GHz,
in multiples of the time to read and write the bytes once at 819 GB/s.

| layout | shape | dtype | dml_jax | plain JAX |
| --- | --- | --- | --- | --- |"""
LAYOUTS = ("rows", "rows-of-32", "features-256", "features-4", "flat", "columns")


def cycles(schedule: str) -> int:
    """The cycles of a fusion, each bundle times the turns of the loops around it.

    A line has the number of its bundle, perhaps a label, `LB` at the begin of a loop,
    and a `>` for each loop around it.
    """
    loops: list[Any] = [dict(bundles=0, turns=1, inner=[])]  # the open ones
    for line in schedule.splitlines():
        bundle = re.match(r"\s*(?:0x)?[\da-f]+\s+([A-Z]{2})?\s*:([\s>]*)\{", line)
        if not bundle:
            continue
        label, depth = bundle[1], bundle[2].count(">")
        del loops[depth + (label != "LB") :]
        if label == "LB":
            loops.append(dict(bundles=0, turns=1, inner=[]))
            loops[-2]["inner"].append(loops[-1])
        loops[-1]["bundles"] += 1
        turns = re.search(r"scmp[^;]*, (\d+) /\* loop exit test", line)
        if turns:
            loops[-1]["turns"] = int(turns[1])
    return _total(loops[0])


def _total(loop: Any) -> int:
    return loop["turns"] * (loop["bundles"] + sum(map(_total, loop["inner"])))


def compiled_cycles(function: Any, arguments: Any, folder: pathlib.Path) -> int:
    """The cycles of a program, whose schedules the compiler writes to the folder."""
    for path in folder.iterdir():
        path.unlink()
    jax.jit(function).lower(*arguments).compile()
    schedules = folder.glob("*-final_bundles.txt")
    return sum(
        cycles(path.read_text())
        for path in schedules
        if "schedule-analysis" not in path.name
    )


def main() -> None:
    folder = pathlib.Path(FOLDER.name)
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
    print(HEADER.format(jax.__version__, importlib.metadata.version("libtpu")))
    for workload in workloads("cpu"):
        _, layout, dtype = workload.name.split("/")
        if workload.group != "reverse" or layout not in LAYOUTS:
            continue
        arguments = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
            for x in jax.eval_shape(lambda: programs.arrays(workload))  # noqa: B023
        ]
        limit = (workload.bytes_read + workload.bytes_written) / BANDWIDTH
        multiples = [
            compiled_cycles(function(workload), arguments, folder) / CLOCK / limit
            for function in (programs.operator, programs.idiom)
        ]
        columns = " | ".join(f"{float(f'{n:.2g}'):g}" for n in multiples)
        row = f"| {layout} | `{list(workload.shape)}` | {dtype} | {columns} |"
        print(row, flush=True)


if __name__ == "__main__":
    main()
