"""Programs that XLA divides between the chips of a TPU, compiled without one."""

import math
from typing import Any

import pytest
import tpu_compiler
from tpu_compiler import Case

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not tpu_compiler.is_installed(), reason="takes jax[tpu]"),
]

EXCHANGES = {"all-to-all", "collective-permute"}
FEATURES, ROWS = (64, 65536, 128), (2**15, 2**14)
LONG = 256, 2**19, 128
LINE, SQUARE, POD = (16, 1), (4, 4), (16, 16)
TIME, BOTH, BATCH_TOO = (None, "a"), (None, ["a", "b"]), ("a", "b")

# Shape of the mesh, program, shape of the argument, spec.
PROGRAMS: dict[str, tuple[Any, ...]] = {
    "features": (LINE, "reverse", FEATURES, TIME),
    "rows": (LINE, "reverse", ROWS, TIME),
    "grad": (LINE, "grad", FEATURES, TIME),
    "two-mesh-axes": (SQUARE, "reverse", FEATURES, BOTH),
    "batch-too": (SQUARE, "reverse", FEATURES, BATCH_TOO),
    "padded": (SQUARE, "reverse", (64, 4 * 16411, 128), BATCH_TOO),
    "time-first": (SQUARE, "time-first", (65536, 64, 128), BATCH_TOO),
    "256-chips-two-mesh-axes": (POD, "reverse", LONG, BOTH),
    "slice-backwards": (LINE, "slice-backwards", FEATURES, TIME),
    "slice_grad": (LINE, "slice_grad", FEATURES, TIME),
    "slice_grad-backwards": (LINE, "slice_grad-backwards", FEATURES, TIME),
    "256-chips-slice_grad": (POD, "slice_grad", LONG, BATCH_TOO),
}
LOCAL: dict[str, tuple[Any, ...]] = {
    "not-sharded": (SQUARE, "reverse", FEATURES, (["a", "b"],)),
    "fill": (SQUARE, "fill", ROWS, BATCH_TOO),
}


@pytest.mark.parametrize("name", [*PROGRAMS, *LOCAL])
def test_a_chip_receives_and_holds_few_shards(name: str) -> None:
    sizes, program, shape, spec = {**PROGRAMS, **LOCAL}[name]
    options = dict(name=program, sizes=sizes, shape=shape, spec=spec)
    case = Case(name, "tpu_programs:on_chips", options)
    topology = "v5e:16x16" if sizes == POD else "v5e:4x4"
    (found,) = tpu_compiler.compile_cases([case], topology, seconds=300)
    assert found.failed is None, found.error
    assert {*found.collectives} <= (EXCHANGES if name in PROGRAMS else set())
    shard = 4 * math.prod(shape) / math.prod(sizes)
    assert found.temporary <= 4 * shard
    assert found.result <= 1.01 * shard
