"""Operators on arrays that eight devices share: values, shardings, communication.

An operation names the dimensions of its arrays, and a layout says which axis of the
mesh shards which of them. What one device computes is what is expected, bit for bit.
"""

import dataclasses
import itertools
from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, lengths_for, numbers, special_values
from devices import ALL, DATA, MODEL, collectives, compile_for, make_mesh
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax

# Operations ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """A function of whole arrays or of their shards, and what it is tested with.

    `dims` has a letter for each dimension of each array: "b" for batch, "t" for time,
    "f" for features, "-" for a dimension of size 1. The function moves elements along
    the time, so that its result has the dimensions of its first array.
    """

    name: str
    run: Callable[..., jax.Array]
    arrays: tuple[np.ndarray, ...]
    dims: tuple[str, ...]
    has_jvp: bool = True

    def __str__(self):
        return self.name

    def specs(self, *layouts):
        """The shardings of the arrays, given a layout for each of them."""
        return tuple(
            P(*map(layout.get, dims))
            for dims, layout in zip(self.dims, layouts, strict=False)
        )


def reverse_lines(x, lengths, **options):
    return dml_jax.reverse_subsequences(x, lengths, axis=1, **options)


def slice_time(x):
    b, _, f = x.shape
    return dml_jax.slice(x, [0, 1, 0], [b, 3, f], [1, 2, 1])


def slice1_time(x):
    b, _, f = x.shape
    return dml_jax.slice1(x, [0, 1, 0], [b, 7, f], [1, -3, 1])


def slice_grad_time(x):
    b, _, f = x.shape
    return dml_jax.slice_grad(x, [b, 8, f], [0, 1, 0], [b, 7, f], [1, -3, 1])


SHAPE = (8, 8, 4)
PER_LINE = lengths_for(SHAPE, 1).astype(np.int32)
PER_ENTRY = PER_LINE[:, :, :1]

REVERSALS = [
    Operation(
        "reverse_subsequences-length-per-line",
        reverse_lines,
        (numbers(*SHAPE), PER_LINE),
        ("btf", "b-f"),
    ),
    Operation(
        "reverse_sequence-training",
        partial(dml_jax.reverse_sequence, **BATCH_MAJOR, lda_coeff=0.5),
        (numbers(*SHAPE), PER_ENTRY.ravel()),
        ("btf", "b"),
        has_jvp=False,
    ),
    Operation(
        "reverse_sequence-inference",
        partial(dml_jax.reverse_sequence, training=False),
        (numbers(*SHAPE), PER_ENTRY.ravel()),
        ("tbf", "b"),
    ),
]
SLICES = [
    Operation("slice", slice_time, (numbers(*SHAPE),), ("btf",)),
    Operation("slice1", slice1_time, (numbers(*SHAPE),), ("btf",)),
    Operation("slice_grad", slice_grad_time, (numbers(8, 3, 4),), ("btf",)),
    Operation(
        "slice_grad-bfloat16",
        slice_grad_time,
        (numbers(8, 3, 4).astype(jnp.bfloat16),),
        ("btf",),
    ),
]
SCATTER = Operation(
    "reverse_subsequences-scatter",
    partial(reverse_lines, implementation="scatter"),
    (numbers(*SHAPE), PER_ENTRY),
    ("btf", "b--"),
)
OPERATIONS = [*REVERSALS, SCATTER, *SLICES]


# Transformations ----------------------------------------------------------------------


def forward(run, *arrays):
    return run(*arrays)


def vjp(run, x, *lengths):
    y, pull_back = jax.vjp(lambda x: run(x, *lengths), x)
    return pull_back(y * y)[0]


def jvp(run, x, *lengths):
    return jax.jvp(lambda x: run(x, *lengths), (x,), (x * x,))[1]


def vmap(run, *arrays):
    """Maps over the last array alone: the lengths, where there are any."""
    *others, last = arrays
    in_axes = (*[None] * len(others), 0)
    return jax.vmap(run, in_axes)(*others, jnp.stack([last, last + 1]))[1]


def transformations_of(operation):
    return [forward, vjp, jvp, vmap] if operation.has_jvp else [forward, vjp, vmap]


@cache
def on_one_device(operation, transformation):
    run = jax.jit(partial(transformation, operation.run))
    return np.asarray(run(*operation.arrays))


# Layouts ------------------------------------------------------------------------------

BY_BATCH = {"b": "data"}
BY_FEATURES = {"f": "model"}
BY_BOTH = {"b": "data", "f": "model"}

# Pairs: the layout of the input and that of the lengths.
ALIKE = {
    "by-batch": (BY_BATCH, BY_BATCH),
    "by-features": (BY_FEATURES, BY_FEATURES),
    "by-both": (BY_BOTH, BY_BOTH),
}
LENGTHS_REPLICATED = {
    "by-batch-lengths-replicated": (BY_BATCH, {}),
}
LENGTHS_APART = {
    "replicated-lengths-by-batch": ({}, BY_BATCH),
    "by-features-lengths-by-batch-on-the-same-axis": ({"f": "data"}, BY_BATCH),
    "by-batch-lengths-by-batch-on-another-axis": (BY_BATCH, {"b": "model"}),
}
BY_TIME = {"by-time": ({"t": "data"}, {})}


def scenarios(operations, layouts):
    """(operation, transformation, specs) for every combination that has a meaning."""
    return [
        pytest.param(
            operation,
            transformation,
            operation.specs(*layouts[name]),
            id=f"{operation}-{name}-{transformation.__name__}",
        )
        for operation in operations
        for name in layouts
        for transformation in transformations_of(operation)
    ]


def over_scenarios(*scenarios):
    return pytest.mark.parametrize(
        ("operation", "transformation", "specs"), [*itertools.chain(*scenarios)]
    )


def put(arrays, mesh, specs):
    return [
        jax.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip(arrays, specs, strict=True)
    ]


# Automatic mode -----------------------------------------------------------------------


@over_scenarios(scenarios(OPERATIONS, ALIKE), scenarios(REVERSALS, LENGTHS_REPLICATED))
def test_automatic_mode(operation, transformation, specs):
    arrays = put(operation.arrays, make_mesh(AxisType.Auto), specs)
    compiled = compile_for(partial(transformation, operation.run), *arrays)
    result = compiled(*arrays)
    assert_same_bits(result, on_one_device(operation, transformation))
    assert result.sharding.is_equivalent_to(arrays[0].sharding, result.ndim)
    assert collectives(compiled) == []


@over_scenarios(scenarios(REVERSALS[:1], LENGTHS_APART), scenarios(REVERSALS, BY_TIME))
def test_automatic_mode_with_communication(operation, transformation, specs):
    arrays = put(operation.arrays, make_mesh(AxisType.Auto), specs)
    result = jax.jit(partial(transformation, operation.run))(*arrays)
    assert_same_bits(result, on_one_device(operation, transformation))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("operation", REVERSALS, ids=str)
def test_automatic_mode_without_jit(operation):
    """No sum of floats may stand for a move, as when XLA divides a gather."""
    arrays = special_values(SHAPE), *operation.arrays[1:]
    operation = dataclasses.replace(operation, arrays=arrays)
    specs = operation.specs(*BY_TIME["by-time"])
    with jax.disable_jit():
        result = operation.run(*put(arrays, make_mesh(AxisType.Auto), specs))
    assert_same_bits(result, on_one_device(operation, forward))


# Explicit mode ------------------------------------------------------------------------


def compile_and_run_explicitly(operation, transformation, specs):
    """Checks values and sharding, traced and real; returns what was compiled."""
    mesh = make_mesh(AxisType.Explicit)
    run = partial(transformation, operation.run)
    with jax.set_mesh(mesh):
        arrays = put(operation.arrays, mesh, specs)
        traced = jax.eval_shape(run, *arrays)
        compiled = compile_for(run, *arrays)
        result = compiled(*arrays)
    assert_same_bits(result, on_one_device(operation, transformation))
    assert traced.sharding.spec == jax.typeof(result).sharding.spec == specs[0]
    return compiled


@over_scenarios(
    scenarios(OPERATIONS, {"by-both": (BY_BOTH, BY_BOTH)}),
    scenarios(REVERSALS, LENGTHS_REPLICATED),
)
def test_explicit_mode(operation, transformation, specs):
    compiled = compile_and_run_explicitly(operation, transformation, specs)
    assert collectives(compiled) == []


@over_scenarios(scenarios(REVERSALS, LENGTHS_APART | BY_TIME))
def test_explicit_mode_with_communication(operation, transformation, specs):
    compile_and_run_explicitly(operation, transformation, specs)


@pytest.mark.parametrize("operation", REVERSALS, ids=str)
def test_explicit_mode_with_an_input_on_no_mesh(operation):
    mesh = make_mesh(AxisType.Explicit)
    x, lengths = operation.arrays
    with jax.set_mesh(mesh):
        (lengths,) = put([lengths], mesh, operation.specs({}, BY_BATCH)[1:])
        result = operation.run(x, lengths)
    assert_same_bits(result, on_one_device(operation, forward))


@pytest.mark.parametrize("operation", REVERSALS, ids=str)
def test_explicit_mode_without_jit(operation):
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh), jax.disable_jit():
        result = operation.run(
            *put(operation.arrays, mesh, operation.specs(BY_BATCH, BY_BATCH))
        )
    assert_same_bits(result, on_one_device(operation, forward))


# shard_map ----------------------------------------------------------------------------


def shard_map(function, in_specs, out_specs):
    return jax.shard_map(
        function,
        mesh=make_mesh(AxisType.Auto),
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=True,
    )


def test_shard_map_over_one_axis_of_an_explicit_mesh():
    operation = REVERSALS[0]
    mesh = make_mesh(AxisType.Explicit)
    specs = operation.specs(BY_BOTH, BY_BATCH)
    with jax.set_mesh(mesh):
        arrays = put(operation.arrays, mesh, specs)
        in_specs = operation.specs(BY_BATCH, BY_BATCH)
        run = jax.shard_map(
            operation.run, in_specs=in_specs, out_specs=in_specs[0], axis_names={"data"}
        )
        result = jax.jit(run)(*arrays)
    assert_same_bits(result, on_one_device(operation, forward))
    assert jax.typeof(result).sharding.spec == specs[0]


@over_scenarios(scenarios(OPERATIONS, {"by-both": (BY_BOTH, BY_BOTH)}))
def test_inside_of_shard_map(operation, transformation, specs):
    transformed = partial(transformation, operation.run)
    result = jax.jit(shard_map(transformed, specs, specs[0]))(*operation.arrays)
    assert_same_bits(result, on_one_device(operation, transformation))


@over_scenarios(scenarios(OPERATIONS, {"by-batch": (BY_BATCH, BY_BATCH)}))
def test_outside_of_shard_map(operation, transformation, specs):
    run = shard_map(operation.run, specs, specs[0])
    result = jax.jit(partial(transformation, run))(*operation.arrays)
    assert_same_bits(result, on_one_device(operation, transformation))


def test_coefficients_vary_where_the_input_is_replicated():
    """The cotangent of the input is the sum over the devices."""
    x, lengths = REVERSALS[1].arrays
    coefficients = np.arange(1, 1 + DATA, dtype=np.float32)

    def loss(x, coefficient):
        y = dml_jax.reverse_sequence(
            x, lengths, lda_coeff=coefficient[0], **BATCH_MAJOR
        )
        return lax.psum(jnp.sum(y * y), "data")

    run = shard_map(jax.grad(loss), (P(), P("data")), P())
    assert_same_bits(jax.jit(run)(x, coefficients), 2 * x * coefficients.sum())


# Every device has a length of its own, while several of them share an input. Its
# cotangent is the sum over those devices.
LENGTHS_VARY = {
    "input-replicated": ({}, {"b": ALL}),
    "input-by-batch": (BY_BATCH, {"b": ALL}),
}


@cache
def one_per_device(operation, transformation, specs):
    """The arrays, what one device computes of them, and the sharding of the result."""
    x, lengths = operation.arrays
    batch = operation.dims[0].index("b")
    shards = 1 if specs[0][batch] is None else DATA
    x = lax.slice_in_dim(x, 0, shards, axis=batch)

    def run(x, lengths):
        return operation.run(jnp.repeat(x, DATA * MODEL // shards, batch), lengths)

    expected = np.asarray(jax.jit(partial(transformation, run))(x, lengths))
    (result_spec,) = operation.specs({"b": ALL})
    return (x, lengths), expected, specs[0] if transformation is vjp else result_spec


@over_scenarios(scenarios(REVERSALS, LENGTHS_VARY))
def test_lengths_vary_inside_of_shard_map(operation, transformation, specs):
    arrays, expected, spec = one_per_device(operation, transformation, specs)
    transformed = partial(transformation, operation.run)
    result = jax.jit(shard_map(transformed, specs, spec))(*arrays)
    assert_same_bits(result, expected)


@over_scenarios(scenarios(REVERSALS, LENGTHS_VARY))
def test_lengths_vary_outside_of_shard_map(operation, transformation, specs):
    arrays, expected, _ = one_per_device(operation, transformation, specs)
    (result_spec,) = operation.specs({"b": ALL})
    run = shard_map(operation.run, specs, result_spec)
    result = jax.jit(partial(transformation, run))(*arrays)
    assert_same_bits(result, expected)


def test_the_sum_over_devices_is_rounded_once():
    """The cotangent of a replicated bfloat16: 256 and seven ones are 263, not 256."""
    x = jnp.ones(1, jnp.bfloat16)
    reverse = shard_map(
        lambda x, n: dml_jax.reverse_subsequences(x, n, 0), (P(), P(ALL)), P(ALL)
    )
    lengths = np.arange(8)
    _, pull_back = jax.vjp(jax.jit(lambda x: reverse(x, lengths)), x)
    cotangent = jnp.asarray([256] + [1] * 7, jnp.bfloat16)
    assert_same_bits(pull_back(cotangent)[0], np.asarray([263], jnp.bfloat16))
