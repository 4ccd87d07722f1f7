"""Runs random programs, of which `test_random_programs.py` gives the seeds."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import pathlib
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

LIMIT = 120  # seconds for a program, beyond which its devices wait for each other

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # for `assertions`
os.environ["JAX_PLATFORMS"] = "cpu"
# A program that runs once need not be optimized.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0 "
    "--xla_force_host_platform_device_count=8"
)

import children  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import programs  # noqa: E402
from assertions import assert_same_bits, assert_same_sequence  # noqa: E402
from devices import (  # noqa: E402
    HAS_GSPMD,
    collectives,
    messages,
    most_elements,
    partitioner,
)
from jax import lax  # noqa: E402
from jax.interpreters import mlir  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec  # noqa: E402
from programs import WORK, Placement, Program  # noqa: E402

import dml_jax  # noqa: E402
from dml_jax._reverse import primitive as reverse_primitive  # noqa: E402
from dml_jax._slice import primitive as slice_primitive  # noqa: E402

RULES: dict[Any, Callable[[str | None], Any]] = {
    reverse_primitive.reverse_subsequences_p: reverse_primitive._lowering,
    slice_primitive.transpose_p: slice_primitive._transpose_lowering,
}


def main() -> None:
    warnings.simplefilter("ignore")  # about GSPMD
    counter = itertools.count(1)

    def answer(item: tuple[str, int]) -> dict[str, str]:
        if next(counter) % 50 == 0:
            jax.clear_caches()
        kind, seed = item
        return outcome(programs.draw(seed, kind))

    children.serve(answer, LIMIT)


def outcome(program: Program) -> dict[str, str]:
    """Whether it passed, was refused by JAX, or what was wrong."""
    if not program.shardy and not HAS_GSPMD:
        return dict(outcome="skipped", why="no GSPMD")
    wide = program.dtype in ("int64", "float64")
    try:
        lower_as_on("tpu" if program.for_tpu else "cpu")
        with jax.enable_x64(wide), partitioner(shardy=program.shardy):
            actual = run(program)
    except Exception as error:
        why = "".join(traceback.format_exception_only(error)).strip()[:2000]
        if program.explicit and type(error).__name__ == "ShardingTypeError":
            return dict(outcome="skipped", why=why)
        # Since jax 0.12, JAX refuses an uneven sharding that XLA chose for a result.
        if type(error).__name__ == "IndivisibleError":
            return dict(outcome="skipped", why=why)
        # JAX has no name for the sharding that GSPMD gives a flip.
        if not program.shardy and "Failed to convert OpSharding" in why:
            return dict(outcome="skipped", why=why)
        # GSPMD refuses an uneven sharding that it chose for the result of a shard_map.
        if not program.shardy and program.manual and "RET_CHECK" in why:
            return dict(outcome="skipped", why=why)
        return dict(outcome="error", why=why)
    try:
        is_sequence = program.operator == "fill_value_sequence"
        compare = assert_same_sequence if is_sequence else assert_same_bits
        compare(actual, programs.expected(program))
    except AssertionError:
        return dict(outcome="wrong", why=traceback.format_exc()[-2000:])
    return dict(outcome="silent" if program.sends_nothing else "passed")


def lower_as_on(platform: str) -> None:
    """Gives CPUs the formulations of a platform. XLA's partitioner is the same."""
    for primitive, rule in RULES.items():
        mlir.register_lowering(primitive, rule(platform), "cpu")


# The program in JAX -------------------------------------------------------------------


def run(program: Program) -> np.ndarray:
    mesh = mesh_of(program)
    placements = [program.of_input, program.of_lengths, program.of_cotangent]
    arrays = stacked(program)
    present = [index for index in range(3) if arrays[index] is not None]
    options: dict[str, Any] = {}
    if program.of_input.how == "in_shardings":
        options["in_shardings"] = tuple(
            sharding(program, mesh, program.of_input) if index == 0 else None
            for index in present
        )
    if program.of_output.how == "out_shardings":
        options["out_shardings"] = sharding(program, mesh, program.of_output)

    def function(*given: jax.Array) -> jax.Array:
        found = dict(zip(present, given, strict=True))
        x, lengths, other = (found.get(index) for index in range(3))
        run = partial(apply, program, mesh)
        if program.outside:
            run = of_copies(program, run, [0, 1][: 1 + (lengths is not None)])
        operands = [] if lengths is None else [lengths]
        result = derived(program, lambda x: run(x, *operands), x, other)
        return inside(program, result, mesh, program.of_output)

    has_context = program.explicit or program.manual
    with jax.set_mesh(mesh) if has_context else contextlib.nullcontext():
        operands = [put(program, arrays[i], mesh, placements[i]) for i in present]
        if not program.outside:
            function = of_copies(program, function, present, is_sum=program.is_sum)
        run = jax.jit(function, **options)
        compiled = run.lower(*operands).compile()
        result = compiled(*operands)
        # JAX lowers no callback in a `shard_map` that leaves two axes to XLA, and calls
        # none in one whose result is empty.
        is_called = len(program.mesh) < 2 and 0 not in program.result_shape
        has_callbacks = is_called or not program.manual
        has_lengths = program.lengths is not None and program.shardy
        if has_lengths and has_callbacks and program.seed % 4 == 0:
            require_report(program, run, operands, arrays[1])
    if program.is_large:
        require_few_messages(program, compiled)
    elif program.sends_nothing:
        require_no_messages(program, compiled, result, mesh)
    return np.asarray(result)


def require_report(
    program: Program, run: Callable[..., Any], operands: list[Any], lengths: Any
) -> None:
    """`checked` raises an error with the extremes of all devices, if one is wrong."""
    axis = program.options["axis" if "axis" in program.options else "time_axis"]
    size, message = program.shape[axis], ""
    try:
        dml_jax.checked(run)(*operands)
    except ValueError as error:
        message = str(error)
    is_wrong = lengths.size > 0 and (lengths.min() < 0 or lengths.max() > size)
    extremes = (
        f"[0, {size}]; got {lengths.min()} to {lengths.max()}" if is_wrong else ""
    )
    assert message.endswith(extremes), message
    assert bool(message) == is_wrong, message


def elements_of_a_shard(program: Program) -> int:
    """Of the larger one of input and result."""
    spec = program.of_input.spec or program.of_output.spec
    shards = math.prod(math.prod(program.mesh[n] for n in entry) for entry in spec)
    return max(math.prod(program.shape), math.prod(program.result_shape)) // shards


def require_few_messages(program: Program, compiled: Any) -> None:
    """Between pairs of devices, or of parts of shards: four of them each time.

    Lengths that are sharded in another way than the input may be gathered.
    """
    of_lengths = 0 if program.has_its_lengths else math.prod(program.lengths[0])
    sent = [message for message in messages(compiled) if message[1] > of_lengths]
    allowed = {"collective-permute"}
    if program.operator.startswith("reverse"):
        allowed.add("all-to-all")
    assert {name for name, _ in sent} <= allowed
    most = 4 * elements_of_a_shard(program)
    assert most_elements(compiled) <= most
    times = 4 if program.mode == "grad_of_squares" else 1
    assert sum(size for _, size in sent) <= times * most


def require_no_messages(
    program: Program, compiled: Any, result: jax.Array, mesh: Mesh
) -> None:
    """No collectives, no array of more than two shards, the sharding of the input."""
    assert collectives(compiled) == set()
    assert most_elements(compiled) <= max(2 * elements_of_a_shard(program), 2)
    spec = program.of_input.spec or program.of_output.spec
    if program.of_output.how == "none" and spec:
        wanted = sharding(program, mesh, program.of_input)
        assert result.sharding.is_equivalent_to(wanted, result.ndim)


def mesh_of(program: Program) -> Mesh:
    sizes = dict(sorted((program.mesh | program.manual).items()))
    types = [
        AxisType.Explicit if name in program.explicit else AxisType.Auto
        for name in sizes
    ]
    devices = jax.devices()[: math.prod(sizes.values())]
    return jax.make_mesh((*sizes.values(),), (*sizes,), tuple(types), devices=devices)


def stacked(program: Program) -> list[Any]:
    """The arrays, with one more dimension for the copies of the manual axes."""
    copies = [programs.arrays_of(program, copy) for copy in range(program.copies)]
    if not program.manual:
        return [*copies[0]]
    x, *others = zip(*copies, strict=True)
    others = [None if array[0] is None else np.stack(array) for array in others]
    return [x[0] if program.shared else np.stack(x), *others]


def of_copies(
    program: Program,
    function: Callable[..., jax.Array],
    operands: Iterable[int],
    *,
    is_sum: bool = False,
) -> Callable[..., jax.Array]:
    """The function of every copy's arrays; the input is the operand 0."""
    if not program.manual:
        return function
    are_shared = [index == 0 and program.shared for index in operands]

    def of_copy(*given: jax.Array) -> jax.Array:
        arrays = [
            x if is_shared else lax.squeeze(x, [0])
            for x, is_shared in zip(given, are_shared, strict=True)
        ]
        y = function(*arrays)
        return y if is_sum else lax.expand_dims(y, [0])

    of_each = PartitionSpec((*program.manual,))
    ins = tuple(PartitionSpec() if shared else of_each for shared in are_shared)
    out = PartitionSpec() if is_sum else of_each
    return jax.shard_map(
        of_copy, in_specs=ins, out_specs=out, axis_names={*program.manual}
    )


def sharding(program: Program, mesh: Mesh, placement: Placement) -> NamedSharding:
    is_stacked = program.manual and placement.spec
    if program.shared and placement is program.of_input:
        is_stacked = False
    leading = [(*program.manual,)] if is_stacked else []
    return NamedSharding(mesh, spec_of([*leading, *placement.spec]))


def spec_of(entries: Iterable[tuple[str, ...]]) -> PartitionSpec:
    return PartitionSpec(*(entry or None for entry in entries))


def put(program: Program, array: Any, mesh: Mesh, placement: Placement) -> Any:
    if placement.how == "argument":
        return jax.device_put(array, sharding(program, mesh, placement))
    if program.is_uneven and placement.how != "in_shardings":
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec()))
    return array


def inside(program: Program, x: Any, mesh: Mesh, placement: Placement) -> Any:
    """`x`, with the sharding that is stated inside the program."""
    if placement.how != "inside":
        return x
    context = jax.sharding.get_abstract_mesh()
    explicit, automatic = (
        spec_of(
            tuple(name for name in entry if (name in program.explicit) == is_explicit)
            for entry in placement.spec
        )
        for is_explicit in (True, False)
    )
    if program.explicit:
        x = jax.sharding.reshard(x, explicit)
    if set(program.explicit) != set(program.mesh):
        x = lax.with_sharding_constraint(
            x, NamedSharding(mesh if context.empty else context, automatic)
        )
    return x


def derived(program: Program, function: Callable[..., Any], x: Any, other: Any) -> Any:
    """The result of the function, or of its derivative."""

    def typed_as(like: Any) -> Any:
        """`other` with the sharding of `like`, where that is part of the type."""
        if not program.explicit:
            return other
        spec = jax.typeof(like).sharding.spec  # perhaps of no mesh
        context = jax.sharding.get_abstract_mesh()
        return jax.sharding.reshard(other, NamedSharding(context, spec))

    match program.mode:
        case "forward":
            return function(x)
        case "grad_of_squares":
            return jax.grad(lambda x: jnp.sum(function(x) * function(x)))(x)
        case "jvp":
            return jax.jvp(function, (x,), (typed_as(x),))[1]
        case "vjp":
            y, pull_back = jax.vjp(function, x)
            return pull_back(typed_as(y))[0]
    y, _ = jax.vjp(function, x)
    _, push_forward = jax.vjp(lambda ct: jax.vjp(function, x)[1](ct)[0], y)
    return push_forward(typed_as(x))[0]


def apply(program: Program, mesh: Mesh, x: Any, lengths: Any = None) -> Any:
    x = inside(program, WORK[program.before](x), mesh, program.of_input)
    y = program.case.run(**program.operands(x, lengths))
    return WORK[program.after](inside(program, y, mesh, program.of_result))


if __name__ == "__main__":
    main()
