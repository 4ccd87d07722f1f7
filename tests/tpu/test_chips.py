"""Programs that XLA divides between the chips of a TPU, compiled without one.

A child process compiles each, because XLA ends the process where it finds a bug of its
own. Run as a script, this file prints what came of one program.
"""

import collections
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="takes jax[tpu]"
    ),
]

COLLECTIVE = r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
EXCHANGES = {"all-to-all", "collective-permute"}
FEATURES, ROWS = (64, 65536, 128), (2**15, 2**14)

# Topology, shape of the mesh, program, shape of the argument, spec.
PROGRAMS: dict[str, tuple[Any, ...]] = {
    "features": ("v5e:4x4", (16, 1), "reverse", FEATURES, (None, "a")),
    "rows": ("v5e:4x4", (16, 1), "reverse", ROWS, (None, "a")),
    "grad": ("v5e:4x4", (16, 1), "grad", FEATURES, (None, "a")),
    "jvp": ("v5e:4x4", (16, 1), "jvp", FEATURES, (None, "a")),
    "vmap": ("v5e:4x4", (16, 1), "vmap", FEATURES, (None, "a")),
    "two-mesh-axes": ("v5e:4x4", (4, 4), "reverse", FEATURES, (None, ["a", "b"])),
    "batch-too": ("v5e:4x4", (4, 4), "reverse", FEATURES, ("a", "b")),
    "rows-batch-too": ("v5e:4x4", (4, 4), "reverse", ROWS, ("a", "b")),
    "padded": ("v5e:4x4", (4, 4), "reverse", (64, 4 * 16411, 128), ("a", "b")),
    "time-first": ("v5e:4x4", (4, 4), "time-first", (65536, 64, 128), ("a", "b")),
    "256-chips": ("v5e:16x16", (16, 16), "reverse", (256, 2**19, 128), ("a", "b")),
    "256-chips-two-mesh-axes": (
        *("v5e:16x16", (16, 16), "reverse"),
        *((256, 2**19, 128), (None, ["a", "b"])),
    ),
    "slice": ("v5e:4x4", (16, 1), "slice", FEATURES, (None, "a")),
    "slice-backwards": ("v5e:4x4", (16, 1), "slice-backwards", FEATURES, (None, "a")),
    "slice_grad-backwards": (
        *("v5e:4x4", (16, 1), "slice_grad-backwards"),
        *(FEATURES, (None, "a")),
    ),
    "slice_grad": ("v5e:4x4", (16, 1), "slice_grad", FEATURES, (None, "a")),
    "256-chips-slice_grad": (
        *("v5e:16x16", (16, 16), "slice_grad"),
        *((256, 2**19, 128), ("a", "b")),
    ),
}
LOCAL: dict[str, tuple[Any, ...]] = {
    "not-sharded": ("v5e:4x4", (4, 4), "reverse", FEATURES, (["a", "b"],)),
    "not-sharded-rows": ("v5e:4x4", (4, 4), "reverse", ROWS, (["a", "b"],)),
    "fill": ("v5e:4x4", (4, 4), "fill", ROWS, ("a", "b")),
}


def compiled(program: tuple[Any, ...]) -> dict[str, Any]:
    """The collectives of a program, and its memory in shards of the argument."""
    child = subprocess.run(
        [sys.executable, __file__, json.dumps(program)],
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_chip_exchanges_shards(name: str) -> None:
    found = compiled(PROGRAMS[name])
    assert found["collectives"].keys() <= EXCHANGES
    assert found["temporary"] <= 4
    assert found["result"] <= 1.01


@pytest.mark.parametrize("name", LOCAL)
def test_a_chip_needs_no_other(name: str) -> None:
    found = compiled(LOCAL[name])
    assert found["collectives"] == {}
    assert found["temporary"] <= 4
    assert found["result"] <= 1.01


# In the child process -----------------------------------------------------------------


def main(program: tuple[Any, ...]) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    topology, sizes, name, shape, spec = program
    shape = tuple(shape)  # JSON has lists
    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=topology
    ).devices
    mesh = Mesh(np.array(devices).reshape(sizes), ("a", "b"))
    sharding = NamedSharding(
        mesh, PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in spec))
    )
    x = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    batch_axis = 1 if name == "time-first" else 0
    lengths = jax.ShapeDtypeStruct(
        tuple(size if d == batch_axis else 1 for d, size in enumerate(shape)),
        jnp.int32,
        sharding=NamedSharding(mesh, PartitionSpec()),
    )
    function = functions(shape)[name]
    executable = jax.jit(function, out_shardings=sharding).lower(x, lengths).compile()
    calls = re.findall(rf" ({COLLECTIVE})(?:-start)?\(", executable.as_text())
    memory = executable.memory_analysis()
    shard = math.prod(sharding.shard_shape(shape)) * 4
    found = {
        "collectives": collections.Counter(calls),
        "temporary": memory.temp_size_in_bytes / shard,
        "result": memory.output_size_in_bytes / shard,
    }
    print(json.dumps(found))


def functions(shape: tuple[int, ...]) -> dict[str, Any]:
    import jax

    import dml_jax

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


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
