"""Every operator on arrays that eight devices share: values, shardings, communication.

An `Operation` names the dimensions of its arrays, and a layout maps such names to axes
of the mesh. What is expected is always the result of one device, bit for bit.
"""

import dataclasses
import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import (
    BATCH_MAJOR,
    Case,
    lengths_for,
    sequence,
    subsequences,
    window,
    windows,
)
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax

DATA, MODEL = 4, 2  # the sizes of the mesh


def make_mesh(axis_type):
    return jax.make_mesh((DATA, MODEL), ("data", "model"), axis_types=(axis_type,) * 2)


# Operations ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """A case and, one letter a dimension, what its arrays' dimensions are.

    "b" for batch, "t" for time, "f" for features, "-" for a dimension of size 1.
    """

    case: Case
    dims: tuple[str, ...]

    def __str__(self):
        return str(self.case)

    @property
    def arrays(self):
        return tuple(self.case.arrays.values())

    @property
    def has_lengths(self):
        return len(self.dims) == 2

    @property
    def has_jvp(self):
        is_trained = self.case.options.get("training", True)
        return self.case.operator != "reverse_sequence" or not is_trained

    def run(self, *arrays):
        return self.case.run(**dict(zip(self.case.arrays, arrays, strict=True)))

    def specs(self, layout, lengths_layout):
        """How the arrays are sharded; the result is sharded as the first of them."""
        layouts = (layout, lengths_layout)[: len(self.dims)]
        return tuple(
            P(*map(layout.get, dims))
            for dims, layout in zip(self.dims, layouts, strict=True)
        )


LENGTHS = lengths_for((8, 8), 1).ravel()

REVERSALS = [
    Operation(
        subsequences("length-per-line", (8, 8, 4), lengths_for((8, 8, 4), 1), 1),
        ("btf", "b-f"),
    ),
    Operation(
        subsequences("length-per-entry", (8, 8, 4), lengths_for((8, 8, 1), 1), 1),
        ("btf", "b--"),
    ),
    Operation(
        sequence("training", (8, 8, 4), LENGTHS, **BATCH_MAJOR, lda_coeff=0.5),
        ("btf", "b"),
    ),
    Operation(
        sequence("inference", (8, 8, 4), LENGTHS, training=False),
        ("tbf", "b"),
    ),
]
SLICES = [
    Operation(
        window("slice", "of-time", (8, 8, 4), offsets=[0, 1, 0], sizes=[8, 6, 4]),
        ("btf",),
    ),
    Operation(
        window("slice1", "of-time", (8, 8, 4), **windows([0, 1, 0], [8, 7, 4], [1, -3, 1])),
        ("btf",),
    ),
    Operation(
        window(
            "slice_grad",
            "of-time",
            (8, 3, 4),
            **windows(
                [0, 1, 0], [8, 7, 4], [1, -3, 1], output_gradient_sizes=[8, 8, 4]
            ),
        ),
        ("btf",),
    ),
]
OPERATIONS = [*REVERSALS, *SLICES]


# Transformations ----------------------------------------------------------------------


def forward(run, *arrays):
    return run(*arrays)


def vjp(run, x, *lengths):
    y, pull_back = jax.vjp(lambda x: run(x, *lengths), x)
    return pull_back(y * y)[0]


def jvp(run, x, *lengths):
    return jax.jvp(lambda x: run(x, *lengths), (x,), (x * x,))[1]


def vmap(run, *arrays):
    return jax.vmap(run)(*map(_with_successor, arrays))[1]


def vmap_of_lengths(run, x, lengths):
    return jax.vmap(run, in_axes=(None, 0))(x, _with_successor(lengths))[1]


def _with_successor(array):
    return jnp.stack([array, array + 1])


def transformations_of(operation):
    return [
        forward,
        vjp,
        *([jvp] if operation.has_jvp else []),
        vmap,
        *([vmap_of_lengths] if operation.has_lengths else []),
    ]


@functools.cache
def on_one_device(operation, transformation):
    run = jax.jit(functools.partial(transformation, operation.run))
    return np.asarray(run(*operation.arrays))


# Layouts ------------------------------------------------------------------------------

LAYOUTS = {
    "batch": {"b": "data"},
    "features": {"f": "model"},
    "batch-and-features": {"b": "data", "f": "model"},
    "batch-over-all": {"b": ("data", "model")},
}
LENGTHS_APART = {
    "nothing-lengths-batch": ({}, {"b": "data"}),
    "features-lengths-batch": ({"f": "model"}, {"b": "data"}),
    "features-lengths-batch-same-axis": ({"f": "data"}, {"b": "data"}),
    "batch-lengths-batch-other-axis": ({"b": "data"}, {"b": "model"}),
}


def parameters(operations, layouts_of):
    """(operation, transformation, specs) for all that `layouts_of` an operation."""
    return [
        pytest.param(
            operation,
            transformation,
            operation.specs(*layouts),
            id=f"{operation}-{transformation.__name__}-{name}",
        )
        for operation in operations
        for name, layouts in layouts_of(operation).items()
        for transformation in transformations_of(operation)
    ]


def layouts_alike(operation):
    return {name: (layout, layout) for name, layout in LAYOUTS.items()}


def layouts_alike_or_replicated(operation):
    alike = layouts_alike(operation)
    if not operation.has_lengths:
        return alike
    replicated = {
        f"{name}-lengths-replicated": (layout, {}) for name, layout in LAYOUTS.items()
    }
    return alike | replicated


def put(arrays, mesh, specs):
    return [
        jax.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip(arrays, specs, strict=True)
    ]


def collectives(compiled):
    kinds = r"all-gather|all-reduce|all-to-all|collective-\w+|reduce-scatter"
    return sorted(set(re.findall(kinds, compiled.as_text())))


# Automatic mode -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "transformation", "specs"),
    parameters(OPERATIONS, layouts_alike_or_replicated),
)
def test_automatic_mode(operation, transformation, specs):
    mesh = make_mesh(AxisType.Auto)
    arrays = put(operation.arrays, mesh, specs)
    run = jax.jit(functools.partial(transformation, operation.run))
    compiled = run.lower(*arrays).compile()
    result = compiled(*arrays)
    assert_same_bits(result, on_one_device(operation, transformation))
    assert result.sharding.is_equivalent_to(arrays[0].sharding, result.ndim)
    assert collectives(compiled) == []


# Explicit mode ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "transformation", "specs"),
    [
        *parameters(OPERATIONS, layouts_alike_or_replicated),
        *parameters(REVERSALS, lambda operation: LENGTHS_APART),
    ],
)
def test_explicit_mode(operation, transformation, specs):
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        arrays = put(operation.arrays, mesh, specs)
        result = jax.jit(functools.partial(transformation, operation.run))(*arrays)
        assert jax.typeof(result).sharding.spec == specs[0]
        assert_same_bits(result, on_one_device(operation, transformation))
