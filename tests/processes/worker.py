"""One of several processes, which checks its shards of every operator.

`test_processes.py` starts them. Each has two devices, and the mesh has a row for every
process: what is sharded over "hosts" is sharded across processes.
"""

import argparse
import dataclasses
import warnings
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np
from assertions import assert_same_bits
from cases import (
    BATCH_MAJOR,
    adjoint,
    fill,
    lengths_for,
    numbers,
    padded,
    sequence,
    special_values,
    subsequences,
    window,
    windows,
)
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax
from dml_jax.cli.verify_cases import Case

Layout = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Operation:
    """A case, and a letter for each dimension of its arrays.

    "b" is the batch, "t" the time along which elements move, "f" the features, "-" a
    dimension of size 1. The backward pass multiplies by `scale`.
    """

    case: Case
    dims: tuple[str, ...] = ("btf",)
    scale: float = 1.0


SHAPE, SHORT, SIZES = (8, 16, 3), (8, 8, 3), (8, 8)
PER_LINE = lengths_for(SHAPE, 1)
PER_ENTRY = PER_LINE[:, 0, 0]
WINDOWS = windows([0, 0, 0], [8, 15, 3], [1, -2, 1])
STRIDED = dict(offsets=[0, 1, 0], sizes=SHORT, strides=[1, 2, 1])
GRADIENT = WINDOWS | dict(output_gradient_sizes=SHAPE)

LINES = Operation(subsequences(SHAPE, PER_LINE, 1), ("btf", "b-f"))
LINE = Operation(subsequences((16,), [13], 0), ("t", "-"))
MOVES = [
    LINES,
    Operation(padded(SHAPE, PER_ENTRY), ("btf", "b")),
    Operation(sequence(SHAPE, PER_ENTRY, **BATCH_MAJOR), ("btf", "b"), 0.5),
    Operation(sequence((16, 8, 3), PER_ENTRY, training=False), ("tbf", "b")),
    Operation(window("slice", SHAPE, **STRIDED)),
    Operation(window("slice1", SHAPE, **WINDOWS)),
    Operation(window("slice_grad", SHORT, **GRADIENT)),
]
FILLS = [
    Operation(fill(SIZES, value_start=-3.2, value_delta=0.1)),
    Operation(fill(SIZES, value=1.5)),
]

BY_BATCH = {"b": ("hosts", "devices")}
BY_TIME = {"t": ("hosts", "devices")}
BY_TIME_AND_BATCH = {"t": "hosts", "b": "devices"}


def put(array: Any, mesh: Mesh, dims: str, layout: Layout) -> jax.Array:
    """A global array, of which this process has the shards of its devices."""
    sharding = NamedSharding(mesh, P(*map(layout.get, dims)))
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


def assert_own_shards(actual: jax.Array, expected: Any) -> None:
    """Compares the shards of this process with their part of the whole."""
    assert actual.shape == expected.shape
    assert len(actual.addressable_shards) == jax.local_device_count()
    for shard in actual.addressable_shards:
        assert_same_bits(shard.data, expected[shard.index])


def check_move(operation: Operation, mesh: Mesh, layout: Layout) -> None:
    """The operator and its gradient, for arrays of this layout."""
    case = operation.case
    name, *names = case.arrays
    options = {} if operation.scale == 1 else dict(lda_coeff=operation.scale)

    @jax.jit
    def forward_and_backward(x: Any, cotangent: Any, *others: Any) -> Any:
        arrays = dict(zip(names, others, strict=True))
        y, pull_back = jax.vjp(lambda x: case.run(**{name: x}, **arrays, **options), x)
        return y, *pull_back(cotangent)

    data = special_values(case.arrays[name].shape)
    expected = case.expected(**{name: data})
    weights = numbers(*expected.shape)
    x, *others = (
        put(array, mesh, dims, layout)
        for array, dims in zip(
            [data, *(case.arrays[name] for name in names)], operation.dims, strict=True
        )
    )
    cotangent = put(weights, mesh, operation.dims[0], layout)
    y, gradient = forward_and_backward(x, cotangent, *others)
    assert_own_shards(y, expected)
    assert_own_shards(gradient, operation.scale * adjoint(case, weights))
    for result in (y, gradient):
        assert result.sharding.is_equivalent_to(x.sharding, x.ndim)


def check_fill(operation: Operation, mesh: Mesh, layout: Layout) -> None:
    """The fill under an output sharding, and the gradients of its values."""
    case = operation.case
    # Small whole numbers, whose sums are exact in any order.
    weights = numbers(*SIZES) % 7
    cotangent = put(weights, mesh, "bt", layout)

    def run(values: Any) -> jax.Array:
        return case.run(**values)

    @jax.jit
    def backward(values: Any, cotangent: jax.Array) -> Any:
        return jax.vjp(run, values)[1](cotangent)[0]

    with jax.disable_jit(False):  # without `jit` there is no output sharding
        y = jax.jit(run, out_shardings=cotangent.sharding)(case.arrays)
    assert_own_shards(y, case.expected())
    assert y.sharding.is_equivalent_to(cotangent.sharding, y.ndim)
    for name, gradient in backward(case.arrays, cotangent).items():
        direction = {other: np.float32(other == name) for other in case.arrays}
        assert_own_shards(gradient, np.vdot(case.expected(**direction), weights))


def check_lengths(mesh: Mesh) -> None:
    """`checked` raises in every process, whichever has the length that is wrong."""
    reverse = partial(dml_jax.reverse_sequence, **BATCH_MAJOR)
    spec = P(BY_BATCH["b"])
    shards = jax.shard_map(reverse, mesh=mesh, in_specs=spec, out_specs=spec)
    x = put(numbers(8, 3), mesh, "b-", BY_BATCH)
    for function in (reverse, shards):
        for wrong in ([], [0], [7]):
            lengths = np.ones(8, np.int32)
            lengths[wrong] = 9
            error = ""
            try:
                with jax.disable_jit(False):
                    dml_jax.checked(function)(x, put(lengths, mesh, "b", BY_BATCH))
            except ValueError as raised:
                error = str(raised)
            message = "reverse_sequence: `sequence_lens` must be in [0, 3]; got 1 to 9"
            assert error == (message if wrong else "")


# Each of them takes a compilation in every process.
CHECKS = [
    *product([check_move], MOVES, [BY_BATCH, BY_TIME_AND_BATCH]),
    *product([check_move], [LINES, LINE], [BY_TIME]),
    *product([check_fill], FILLS, [BY_TIME_AND_BATCH]),
]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("processes", type=int)
    parser.add_argument("index", type=int)
    return parser.parse_args()


def main() -> None:
    warnings.simplefilter("error")
    arguments = parse_arguments()
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_debug_nans", False)  # they are data
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        arguments.address,
        arguments.processes,
        arguments.index,
        cluster_detection_method="deactivate",
        coordinator_bind_address=arguments.address,
        initialization_timeout=60,
        shutdown_timeout_seconds=20,
    )
    mesh = jax.make_mesh(
        (arguments.processes, jax.local_device_count()),
        ("hosts", "devices"),
        axis_types=(AxisType.Auto, AxisType.Auto),
    )
    for row, index in zip(mesh.devices, range(arguments.processes), strict=True):
        assert {device.process_index for device in row} == {index}
    for check, operation, layout in CHECKS:
        print(f"checking {operation.case.function} for {layout}", flush=True)
        check(operation, mesh, layout)
    check_lengths(mesh)


if __name__ == "__main__":
    main()
