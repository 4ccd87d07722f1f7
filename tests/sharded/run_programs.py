"""Runs the random programs of some seeds, and prints what came of each.

    PYTHONPATH=. python tests/sharded/run_programs.py SEED [SEED ...]

A compiler that aborts takes the process with it; the last seed that was printed is the
one to blame. `test_random_programs.py` starts this script for many seeds.
"""

import contextlib
import faulthandler
import functools
import json
import math
import os
import sys
import traceback
import warnings

DEVICES = 8
LIMIT = 120  # seconds for a program, beyond which its devices wait for each other

os.environ["JAX_PLATFORMS"] = "cpu"
# What runs once need not be optimized.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0 "
    f"--xla_force_host_platform_device_count={DEVICES}"
)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import programs  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

import dml_jax  # noqa: E402


def main(seeds):
    # That the partitioner before Shardy is deprecated, and of what XLA does about it.
    warnings.simplefilter("ignore")
    for count, seed in enumerate(seeds):
        program = programs.draw(seed)
        say(seed=seed, program=repr(program))
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        say(seed=seed, **outcome(program))
        faulthandler.cancel_dump_traceback_later()
        if count % 50 == 49:
            jax.clear_caches()


def say(**what):
    print(json.dumps(what), flush=True)


def outcome(program):
    """Whether it passed, was not allowed by JAX, or what was wrong."""
    if not program.shardy and not has_partitioner_before_shardy():
        return dict(outcome="skipped", why="no such partitioner")
    wide = jax.enable_x64(True) if program.is_wide else contextlib.nullcontext()
    try:
        with wide, partitioner(program):
            actual = run(program)
    except Exception as error:
        lines = traceback.format_exception_only(error)
        why = "".join(lines).strip()[:2000]
        if program.explicit and type(error).__name__ == "ShardingTypeError":
            return dict(outcome="skipped", why=why)
        return dict(outcome="error", why=why)
    difference = difference_of(actual, programs.expected(program))
    if difference is None:
        return dict(outcome="passed")
    return dict(outcome="wrong", why=difference)


def has_partitioner_before_shardy():
    return hasattr(jax.config, "jax_use_shardy_partitioner")


@contextlib.contextmanager
def partitioner(program):
    if not has_partitioner_before_shardy():
        yield
        return
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", program.shardy)
    yield
    jax.config.update("jax_use_shardy_partitioner", before)


def difference_of(actual, expected):
    """Where the bits differ, in words, or None."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"{actual.dtype}{actual.shape}, not {expected.dtype}{expected.shape}"
    pair = actual, np.asarray(expected)
    of_bits = np.dtype((np.uint8, expected.dtype.itemsize))
    actual_bits, expected_bits = (
        np.ascontiguousarray(array).reshape(expected.shape).view(of_bits)
        if expected.ndim
        else np.frombuffer(array.tobytes(), np.uint8)
        for array in pair
    )
    if np.array_equal(actual_bits, expected_bits):
        return None
    wrong = (actual_bits != expected_bits).any(-1)
    first = tuple(int(index) for index in np.argwhere(wrong)[0]) if wrong.ndim else ()
    return (
        f"{wrong.sum()} of {wrong.size} elements, the first at {first}: "
        f"{pair[0][first]} = {actual_bits[first][::-1].tobytes().hex()}, not "
        f"{pair[1][first]} = {expected_bits[first][::-1].tobytes().hex()}"
    )


# The program in JAX -------------------------------------------------------------------


def run(program):
    kind = AxisType.Explicit if program.explicit else AxisType.Auto
    mesh = jax.make_mesh(
        program.mesh,
        tuple(programs.names_of(program.mesh)),
        axis_types=(kind,) * len(program.mesh),
        devices=jax.devices()[: math.prod(program.mesh)],
    )
    placements = [program.of_input, program.of_lengths, program.of_cotangent]
    arrays = programs.arrays_of(program)
    present = [index for index in range(3) if arrays[index] is not None]
    options = {}
    if program.of_input.how == "in_shardings":
        options["in_shardings"] = tuple(
            sharding(mesh, program.of_input) if index == 0 else None
            for index in present
        )
    if program.of_output.how == "out_shardings":
        options["out_shardings"] = sharding(mesh, program.of_output)

    @functools.partial(jax.jit, **options)
    def compiled(*given):
        of_all = [None] * 3
        for index, array in zip(present, given, strict=True):
            of_all[index] = array
        return transformed(program, mesh, *of_all)

    in_context = jax.set_mesh(mesh) if program.explicit else contextlib.nullcontext()
    with in_context:
        operands = [
            put(program, arrays[index], mesh, placements[index]) for index in present
        ]
        return np.asarray(compiled(*operands))


def sharding(mesh, placement):
    return NamedSharding(mesh, PartitionSpec(*(e or None for e in placement.spec)))


def put(program, array, mesh, placement):
    if placement.how == "argument":
        return jax.device_put(array, sharding(mesh, placement))
    if program.is_uneven and placement.how != "in_shardings":
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec()))
    return array


def inside(program, x, mesh, placement):
    """`x`, with the sharding that is stated inside of the program."""
    if placement.how != "inside":
        return x
    if program.explicit:
        return jax.sharding.reshard(x, sharding(mesh, placement))
    return lax.with_sharding_constraint(x, sharding(mesh, placement))


def transformed(program, mesh, x, lengths, other):
    """The program itself or its derivative."""
    function = functools.partial(apply, program, mesh, lengths)
    result = derived(program, mesh, function, x, other)
    return inside(program, result, mesh, program.of_output)


def derived(program, mesh, function, x, other):
    if program.mode == "forward":
        return function(x)
    if program.mode == "grad_of_squares":
        return jax.grad(lambda x: jnp.sum(function(x) * function(x)))(x)
    if program.mode == "jvp":
        return jax.jvp(function, (x,), (typed_as(program, mesh, other, x),))[1]
    y, pull_back = jax.vjp(function, x)
    if program.mode == "vjp":
        return pull_back(typed_as(program, mesh, other, y))[0]
    _, push_forward = jax.vjp(lambda ct: jax.vjp(function, x)[1](ct)[0], y)
    return push_forward(typed_as(program, mesh, other, x))[0]


def typed_as(program, mesh, x, other):
    """`x` with the sharding of `other`, where that is part of the type."""
    if not program.explicit:
        return x
    # An array is on no mesh where nobody stated one.
    spec = jax.typeof(other).sharding.spec
    return jax.sharding.reshard(x, NamedSharding(mesh, spec))


def apply(program, mesh, lengths, x):
    x = inside(program, WORK[program.before](x), mesh, program.of_input)
    y = inside(program, operate(program, x, lengths), mesh, program.of_result)
    return WORK[program.after](y)


def operate(program, x, lengths):
    operator, options = getattr(dml_jax, program.operator), program.options
    if program.operator.startswith("reverse"):
        return operator(x, lengths, **options)
    if program.operator == "fill_value_constant":
        return operator(options["sizes"], program.dtype, x)
    if program.operator == "fill_value_sequence":
        return operator(options["sizes"], program.dtype, x[0], x[1])
    return operator(x, **options)


def invert(x):
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(invert(x.real), invert(x.imag))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return ~x
    unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    return lax.bitcast_convert_type(~lax.bitcast_convert_type(x, unsigned), x.dtype)


WORK = {
    "nothing": lambda x: x,
    "flip": lambda x: lax.rev(x, range(x.ndim)),
    "double": lambda x: x * 2,
    "invert": invert,
}

if __name__ == "__main__":
    main(map(int, sys.argv[1:]))
