"""How schedules of TPU's compiler are read."""

import pytest

from benchmarks import tpu_compiler
from benchmarks.command import main
from benchmarks.tpu_scalars import Scalars
from benchmarks.tpu_schedule import Schedule, hbm_bytes, parse_hlo

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


def test_command_without_the_compiler_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tpu_compiler, "is_installed", lambda: False)
    assert main(["tpu"]) == 2
    assert capsys.readouterr().err.startswith("benchmarks: needs the package libtpu")
