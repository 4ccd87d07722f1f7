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
OPTIONS = "sizes", "name", "shape", "spec"
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


@pytest.mark.parametrize("topology", ["v5e:4x4", "v5e:16x16"])
def test_a_chip_receives_and_holds_few_shards(topology: str) -> None:
    cases = [
        Case(name, "tpu_programs:on_chips", dict(zip(OPTIONS, row, strict=True)))
        for name, row in (PROGRAMS | LOCAL).items()
        if (row[0] == POD) == (topology == "v5e:16x16")
    ]
    for case, found in zip(
        cases, tpu_compiler.compile_cases(cases, topology, seconds=300), strict=True
    ):
        assert found.failed is None, found
        allowed = EXCHANGES if case.name in PROGRAMS else set()
        assert {*found.collectives} <= allowed, found
        sizes, _, shape, _ = case.options.values()
        shard = 4 * math.prod(shape) / math.prod(sizes)
        assert found.temporary <= 4 * shard, found
        assert found.result <= 1.01 * shard, found
