"""How schedules of TPU's compiler are read, and the tables of predictions."""

import itertools
import pathlib

import pytest

from benchmarks import predictions, results, tables, tpu_compiler
from benchmarks.command import main
from benchmarks.results import Document
from benchmarks.tpu_schedule import Scalars, Schedule, hbm_bytes, parse_hlo
from benchmarks.workloads import RANDOM_KINDS, random_workloads

pytestmark = pytest.mark.exhaustive

# Ten windows in a pipeline of eleven iterations; a loop of four rows in each of them.
# The last bundle of a loop is in the delay slot of its branch.
SCHEDULE = """
     0   :  { %s1_s0 = smov 0 /* copy for cssa */ }
   0x1 LB: > { %s2_s1 = sphi %s1_s0, %s9_s9 /* iteration index */ } /* Start region 9 */
   0x2   : > { %p3_p0 = scmp.lt.s32.totalorder %s2_s1, 10 }
   0x3   : > { %7 = dma.hbm_to_vmem [thread:$0]  (%p3_p0), /*hbm=*/%s4, \
/*size_in_granules=*/64, /*vmem=*/%s5 }
   0x4   : > { %p5_p2 = scmp.lt.s32.totalorder %s2_s1, 1  ;;  %s6_s3 = smov 0 }
   0x5   : > { %39 = sbr.rel (%p5_p2) target = $region20 }
   0x6 LB: >> { %s7_s4 = sphi %s6_s3, %s8_s4 } /* Start region 5 */
   0x7   : >> { %s8_s4 = sadd.s32 1, %s7_s4  ;;  \
%p9_p3 = scmp.ge.s32.totalorder %s8_s4, 4 }
   0x8   : > { %40 = sbr.rel (!%p9_p3) target = $region5 }
   0x9   : >> { %v1_v0 = vld [vmem:[%s5] sm:$0xff] } /* End region 5 */
   0xa PF: > { %s9_s9 = sadd.s32 1, %s2_s1 } /* Start/End empty region 20 */
   0xb   : > { %p10_p4 = scmp.ge.s32.totalorder %s9_s9, TRIPS }
   0xc   :  { %41 = sbr.rel (!%p10_p4) target = $region9 }
   0xd   :  {} /* End region 9 */
   0xe   :  { %42 = vsyncpa [#allocation1], 1 }
"""


def test_bundles_are_counted_as_often_as_they_run() -> None:
    found = Schedule(SCHEDULE.replace("TRIPS", "11"))
    around, inside = 2, 9  # bundles outside of the loop, and in it but not skipped
    assert found.cycles == pytest.approx(around + 11 * inside + 10 * 4 * 4)
    assert found.granules(cores=1) == 10 * 64
    assert not found.is_lower_bound


def test_loop_whose_trips_depend_on_data_is_a_lower_bound() -> None:
    found = Schedule(SCHEDULE.replace("TRIPS", "%s77_s7"))
    assert found.is_lower_bound
    assert found.cycles == 2 + 9 + 4 * 4


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("smin.u32", 5), ("smin.s32", -5), ("scmp.lt.u32.totalorder", 1)],
)
def test_unsigned_scalars(operation: str, expected: int) -> None:
    scalars = Scalars(f"%s2 = ssub.s32 0, %s1 ;; %s3 = {operation} %s1, %s2")
    assert scalars.value("%s3", {"%s1": 5}) == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[32,512,256]{2,1,0:T(8,128)}", 32 * 512 * 256 * 4),
        ("f32[32,512,256]{2,1,0:T(8,128)S(1)}", 0),
        ("u8[3,200]{1,0:T(8,128)(4,1)}", 8 * 256),
        ("bf16[3,200]{0,1:T(8,128)(2,1)}", 200 * 128 * 2),
        ("s4[8,128]{1,0:T(8,128)(8,1)E(4)}", 512),
        ("(f32[100]{0:T(128)}, s32[]{:T(128)})", 1024),
    ],
)
def test_bytes_have_the_padding_of_tiles(shape: str, expected: int) -> None:
    assert hbm_bytes(shape) == expected


def test_instructions_of_a_program() -> None:
    text = """
ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  %start = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]{:S(2)}) \
copy-start(%x)
  ROOT %y.1 = f32[8,128]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%fused
}
"""
    found = parse_hlo(text)
    assert [instruction.opcode for instruction in found.values()] == [
        *("parameter", "copy-start", "fusion")
    ]
    assert found["y.1"].hbm_bytes(found) == 2 * 4096
    assert found["start"].bytes_of_async_copy(found) == 4096


def test_random_workloads_are_of_every_kind_and_repeatable() -> None:
    found = list(itertools.islice(random_workloads(1, "tpu"), 5 * len(RANDOM_KINDS)))
    assert found == list(itertools.islice(random_workloads(1, "tpu"), len(found)))
    kinds = [workload.name.split("/")[1] for workload in found]
    assert kinds == 5 * list(RANDOM_KINDS)
    assert len({workload.shape for workload in found}) > len(found) // 2


def test_command_without_the_compiler_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tpu_compiler, "is_installed", lambda: False)
    assert main(["tpu"]) == 2
    assert capsys.readouterr().err.startswith("benchmarks: needs the package libtpu")


# Tables -------------------------------------------------------------------------------


def record(name: str, ratio: float, **candidates: float) -> dict:
    group, _, generation = name.split("/")[0], None, name.rpartition("/")[2]

    def figures(value: float, is_lower_bound: bool) -> dict:
        summary = dict(median=value, q1=value, q3=value)
        figures = dict(seconds=summary, ratio=summary, cycles=1.0)
        return figures | dict(is_lower_bound=is_lower_bound)

    ratios = dict(limit=1.0, dml_jax=ratio, **candidates)
    return dict(
        name=name,
        group=group,
        dtype="float32",
        shape=[2, 8],
        bytes_read=4,
        bytes_written=4,
        generation=generation,
        baseline="limit",
        candidates={key: figures(r, key == "jnp") for key, r in ratios.items()},
    )


FOUND: Document = dict(
    schema=1,
    date="2026-01-02T03:04:05+00:00",
    options=dict(device="tpu", quick=False),
    versions=dict(jax="1", torch=None, onnxruntime=None, flax=None),
    machine=dict(device="libtpu 2"),
    records=[
        record("reverse/rows/float32/v5e", 1.25, jnp=640.0),
        record("reverse/rows/float32/v6e", 2.0, jnp=700.0),
        record("random/rows/2x8/float32/v5e", 3.0),
        record("random/rows/8x2/float32/v5e", 5.0),
    ],
)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("tpu machine", ["libtpu 2, jax 1, 2026-01-02."]),
        (
            "tpu reverse v5e v6e; dml_jax jnp",
            [
                "| workload | shape | v5e, dml_jax | v5e, plain JAX "
                "| v6e, dml_jax | v6e, plain JAX |",
                "| --- | --- | --- | --- | --- | --- |",
                "| rows/float32 | `[2, 8]` | 80 | ≤ 0.16 | 50 | ≤ 0.14 |",
            ],
        ),
        (
            "tpu random v5e v6e; dml_jax",
            [
                "| random shapes | v5e: median (least) | v6e: median (least) |",
                "| --- | --- | --- |",
                "| rows | 25 (20) | \N{EN DASH} |",
            ],
        ),
    ],
)
def test_tables(words: str, lines: list[str], tmp_path: pathlib.Path) -> None:
    results.save(FOUND, tmp_path / "tpu.json")
    document = tmp_path / "document.md"
    start, end = f"<!-- figures: {words} -->", "<!-- end of figures -->"
    document.write_text(f"{start}\nold\n{end}\n", encoding="utf-8")
    text = tables.rewritten(document, tmp_path)
    assert text == "\n".join([start, *lines, end, ""])


def test_printed_table_names_the_worst_random_shape() -> None:
    *_, last = predictions.table(FOUND).splitlines()
    assert last == (
        "random rows, v5e: median 4.00, worst 5.00 (random/rows/8x2/float32/v5e)"
    )
