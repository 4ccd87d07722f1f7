"""Random programs over random meshes, and what they compute, by NumPy.

A program is `after(operator(before(x)))`, itself or a derivative of it, with shardings
stated at some points and left to XLA at others. All of it follows from a seed. Every
program is linear in x, so that its derivatives are known exactly: the reference of the
operator's adjoint, between the adjoints of `before` and `after`.

Every axis of a mesh is automatic, explicit or manual. Manual axes number copies of the
program: each has arrays of its own, but perhaps the input of the others, and runs in a
`shard_map` on the other axes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from cases import moved_back

from dml_jax.cli.verify_cases import Case, random_bits

SIZES = dict.fromkeys([(2,), (3,), (4,), (6,), (8,), (1, 4), (2, 2)], 1)
SIZES |= {(2, 3): 1, (3, 2): 1, (2, 4): 1, (4, 2): 1, (2, 2, 2): 6}
# Size of a dimension, by rank.
LARGEST = {1: 64, 2: 24, 3: 12, 4: 8}
LARGEST_IN_LARGE_ONES = {1: 4096, 2: 64, 3: 16, 4: 8}
INTEGERS = ["int8", "uint8", "int16", "int32", "uint32", "int64"]
NARROW = ["float16", "bfloat16", "float8_e4m3fn"]
FLOATS = [*NARROW, "float32", "float64"]
MODES = ["forward", "vjp", "vjp_of_vjp", "jvp", "grad_of_squares"]
REVERSALS = dict(reverse_subsequences=5, reverse_sequence=4)
OPERATORS = REVERSALS | dict(slice=4, slice1=5, slice_grad=5)
OPERATORS |= dict(fill_value_constant=1, fill_value_sequence=1)

Shape = tuple[int, ...]
Mesh = dict[str, int]  # the sizes of named axes
Spec = tuple[tuple[str, ...], ...]  # the entries of a PartitionSpec


@dataclasses.dataclass(frozen=True)
class Placement:
    """How an array gets its sharding."""

    how: str = "none"  # or argument, in_shardings, out_shardings, inside
    spec: Spec = ()


@dataclasses.dataclass(frozen=True)
class Program:
    """What `draw` returns.

    `data` is "numbers" for small positive numbers, with which a program may compute, or
    "bits" for any bits. XLA does not keep the bits of floats that it moves between
    devices: it adds zeros, or converts to float32 on CPU. So floats have any bits only
    in programs that are `local`: no operator, and no stated sharding, needs another
    device, except for a reversal along a sharded axis.
    """

    seed: int
    shardy: bool
    mesh: Mesh  # without its manual axes
    manual: Mesh
    explicit: str  # the names of the explicit axes
    operator: str
    options: dict[str, Any]
    dtype: str
    mode: str
    shape: Shape  # of the input
    result_shape: Shape  # of the operator
    lengths: tuple[Shape, str] | None  # their shape and dtype
    before: str
    after: str
    data: str
    local: bool
    of_input: Placement
    of_lengths: Placement
    of_result: Placement  # of the operator
    of_cotangent: Placement
    of_output: Placement  # of the program
    outside: bool = False  # whether the derivative is one of the `shard_map`
    shared: bool = False  # whether all copies have the same input
    for_tpu: bool = False  # whether XLA partitions it as it does for TPUs
    is_large: bool = False  # so that one tells its arrays from their shards

    @property
    def case(self) -> Case:
        """The operator with its options; `operands` has its arrays."""
        options = dict(self.options)
        if self.operator.startswith("fill"):
            options["value_data_type"] = np.dtype(self.dtype)
        return Case(self.operator, {}, options)

    def operands(self, x: Any, lengths: Any) -> dict[str, Any]:
        """The arrays of the operator by name, from the input of the program."""
        match self.operator:
            case "fill_value_constant":
                return {"value": x}
            case "fill_value_sequence":
                return {"value_start": x[0], "value_delta": x[1]}
            case "reverse_subsequences":
                return {"input": x, "sequence_lengths": lengths}
            case "reverse_sequence":
                return {"input": x, "sequence_lens": lengths}
        return {"input_gradient" if self.operator == "slice_grad" else "input": x}

    @property
    def is_sum(self) -> bool:
        """Whether the result is the cotangent of an input that the copies share."""
        return self.shared and self.mode != "forward"

    @property
    def copies(self) -> int:
        return math.prod(self.manual.values())

    @property
    def is_uneven(self) -> bool:
        """Whether XLA might shard arguments and results unevenly, which JAX refuses."""
        places = (self.of_input, self.shape), (self.of_result, self.result_shape)
        return any(
            placement.how == "inside"
            and placement.spec != evenly(placement.spec, shape, self.mesh)
            for placement, shape in places
        )

    @property
    def sends_nothing(self) -> bool:
        """Whether each device has all that it needs, and Shardy sees that."""
        if not self.local or not self.shardy or self.shared:
            return False
        if 0 in (*self.shape, *self.result_shape):
            return False
        if self.operator.startswith("fill"):
            stated = "out_shardings" in (self.of_result.how, self.of_output.how)
            return stated and self.mode == "forward"
        spec, options = self.of_input.spec, self.options
        if "flip" in (self.before, self.after) and any(spec):
            return False
        if not self.operator.startswith("reverse"):
            return True
        axis = options["axis" if "axis" in options else "time_axis"]
        return self.has_its_lengths and not (spec and spec[axis])

    @property
    def has_its_lengths(self) -> bool:
        """Whether any lengths are sharded like the input, or not at all."""
        batch = spec = self.of_input.spec
        if self.operator == "reverse_sequence":
            batch = (spec[self.options["batch_axis"]],) if spec else ()
        return all(
            entry in ((), of_input)
            for entry, of_input in zip(self.of_lengths.spec, batch, strict=False)
        )


class Picker:
    """Random choices."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def between(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def one(self, values: Iterable[Any] | Mapping[Any, float]) -> Any:
        """One of the values; the values of a mapping are weights."""
        values = values if isinstance(values, Mapping) else dict.fromkeys(values, 1)
        weights = np.fromiter(values.values(), float)
        return [*values][self.random.choice(len(weights), p=weights / weights.sum())]


def draw(seed: int, kind: str = "any") -> Program:
    """The program of a seed: any one, a local one, or a large one.

    The kind "lengths" is large, and its lengths have another sharding than the input.
    """
    if kind in ("any", "local"):
        return draw_one(seed, LARGEST, OPERATORS, kind == "local")
    operators = OPERATORS if kind == "large" else REVERSALS
    seeds = itertools.count(1000 * seed)
    drawn = (draw_one(seed, LARGEST_IN_LARGE_ONES, operators, False) for seed in seeds)
    shared_out = map(with_one_sharding, filter(is_shared_out, drawn))
    return next(p for p in shared_out if kind == "large" or not p.has_its_lengths)


def is_shared_out(program: Program) -> bool:
    """Whether its devices have equal parts of a large argument and of the result."""
    spec, mesh = program.of_input.spec, program.mesh
    return (
        any(spec)
        and program.of_input.how == "argument"
        and spec == evenly(spec, program.result_shape, mesh)
        and math.prod(program.shape) >= 1024
        and 0 not in program.result_shape
        and program.shardy
        and not program.manual
        and len(program.explicit) in (0, len(mesh))
        and not program.operator.startswith("fill")
        and program.options.get("implementation") is None  # XLA partitions the others
    )


def with_one_sharding(program: Program) -> Program:
    """The program with shardings of its input and any lengths, and no other work."""
    none, is_pulled = Placement(), program.mode in ("vjp", "vjp_of_vjp", "jvp")
    of_lengths = none
    if program.lengths is not None:
        shape, _ = program.lengths
        pick = Picker(program.seed)
        of_lengths = draw_any_placement_of_lengths(pick, shape, program.mesh)
    return dataclasses.replace(
        program,
        of_lengths=of_lengths,
        **dict.fromkeys(("of_result", "of_output"), none),
        **dict.fromkeys(("before", "after"), "nothing"),
        of_cotangent=program.of_input if is_pulled else none,
        for_tpu=False,  # XLA's own partitioning gathers some gradients
        is_large=True,
    )


def draw_one(
    seed: int, largest: Mapping[int, int], operators: Mapping[str, int], is_local: bool
) -> Program:
    """One whose dimensions have at most these sizes; a local one is by Shardy."""
    pick = Picker(seed)
    mesh, manual, explicit = draw_mesh(pick)
    # JAX moves arrays to other devices where explicit axes meet others.
    are_alike = not explicit or (len(explicit) == len(mesh) and not manual)
    shardy = pick.chance(0.5) or is_local
    local = are_alike and (pick.chance(0.2) or is_local)
    operator, may_be_uneven = pick.one(operators), not explicit and not manual
    of_input, parts = draw_input(pick, operator, mesh, may_be_uneven, local, explicit)
    sizes = tuple(draw_size(pick, p, largest[len(parts)]) for p in parts)
    options, shape, result_shape, lengths = draw_operator(
        pick, operator, sizes, parts, local
    )
    # Derivatives are of floats alone.
    dtypes = FLOATS if pick.chance(0.75) else ["bool", *INTEGERS, *FLOATS, "complex64"]
    if operator == "fill_value_sequence":
        dtypes = [dtype for dtype in dtypes if dtype != "bool"]
    if 0 in (*shape, *result_shape):
        # XLA ends the process where it shards a constant of complex zeros unevenly.
        dtypes = [dtype for dtype in dtypes if dtype != "complex64"]
    dtype = pick.one(dtypes)
    mode = draw_mode(pick, operator, options, dtype)
    data = draw_data(pick, operator, options, dtype, mode, local)
    works = draw_works(operator, dtype, data)
    program = Program(
        **dict(seed=seed, shardy=shardy),
        **dict(mesh=mesh, manual=manual, explicit=explicit),
        **dict(operator=operator, options=options, dtype=dtype, mode=mode, data=data),
        local=local,
        **dict(shape=shape, result_shape=result_shape, lengths=lengths),
        **dict(before=pick.one(works), after=pick.one(works), of_input=of_input),
        of_lengths=draw_placement_of_lengths(pick, lengths, of_input.spec, mesh),
        **dict.fromkeys(("of_result", "of_cotangent", "of_output"), Placement()),
    )
    if operator.startswith("fill"):
        program = dataclasses.replace(program, of_input=Placement())
    program = draw_placements(pick, program, of_input.spec if local else None)
    for_tpu = not local and pick.chance(0.25)
    program = dataclasses.replace(program, for_tpu=for_tpu)
    if program.is_uneven and program.of_output.how == "none":
        replicated = Placement("out_shardings")
        return dataclasses.replace(program, of_output=replicated)
    return draw_copies(pick, program) if manual and not explicit else program


def draw_copies(pick: Picker, program: Program) -> Program:
    """The program with what its copies share, and what is inside a `shard_map`."""
    outside, of_output = pick.chance(0.5), program.of_output
    may_be_shared = (
        program.operator.startswith("reverse")
        and program.mode in ("forward", "vjp", "grad_of_squares")
        and program.data == "numbers"
        and program.dtype != "float8_e4m3fn"  # the sums are too large for it
        and 0 not in program.shape
    )
    shared = may_be_shared and pick.chance(0.7)
    program = dataclasses.replace(program, outside=outside, shared=shared)
    if program.is_sum or (outside and of_output.how == "inside"):
        of_output = Placement()
    return dataclasses.replace(program, of_output=of_output)


# Shardings ----------------------------------------------------------------------------


def draw_mesh(pick: Picker) -> tuple[Mesh, Mesh, str]:
    """The axes of a mesh, its manual axes, and the names of the explicit ones."""
    sizes = pick.one(SIZES)
    kinds: Any = dict(automatic=3, explicit=2, manual=2)
    if pick.chance(0.5):
        kinds = [pick.one(dict(automatic=7, explicit=3))]
    mesh, manual, explicit = {}, {}, ""
    for name, size in zip("abc", sizes, strict=False):
        kind = pick.one(kinds)
        (manual if kind == "manual" else mesh)[name] = size
        explicit += name if kind == "explicit" else ""
    return mesh, manual, explicit


def parts_of(entry: Iterable[str], mesh: Mesh) -> int:
    return math.prod(mesh[name] for name in entry)


def evenly(spec: Sequence[tuple[str, ...]], shape: Shape, mesh: Mesh) -> Spec:
    """The spec without the entries that do not partition the shape evenly."""
    return tuple(
        entry if size % parts_of(entry, mesh) == 0 else ()
        for entry, size in zip(spec, shape, strict=True)
    )


def draw_spec(pick: Picker, rank: int, mesh: Mesh) -> Spec:
    """Most axes of the mesh, in any order, each along some dimension."""
    entries: list[tuple[str, ...]] = [()] * rank
    for name in pick.random.permutation([*mesh]):
        if rank and pick.chance(0.85):
            entries[pick.between(0, rank - 1)] += (str(name),)
    return tuple(entries)


def draw_input(
    pick: Picker,
    operator: str,
    mesh: Mesh,
    may_be_uneven: bool,
    local: bool,
    explicit: str,
) -> tuple[Placement, list[int]]:
    """A placement, and by what the size of each dimension has to be divisible."""
    least = 2 if operator == "reverse_sequence" else 1
    rank = 1 if least == 1 and pick.chance(0.5) else pick.between(least, 4)
    spec = draw_spec(pick, rank, mesh)
    how = pick.one({"argument": 6, "in_shardings": 2, "inside": 3, "none": 1})
    if local:  # with `in_shardings` an explicit type says nothing of the sharding
        how = "argument" if explicit else pick.one(["argument", "in_shardings"])
    is_uneven = how == "inside" and may_be_uneven
    parts = [1 if is_uneven else parts_of(entry, mesh) for entry in spec]
    return Placement(how, spec if how != "none" else ()), parts


def draw_placements(pick: Picker, program: Program, local: Spec | None) -> Program:
    """Those of the operator's result, the cotangent and the program's output."""
    is_pulled = program.mode in ("vjp", "grad_of_squares")
    shapes = program.shape, program.result_shape
    output_shape, other_shape = shapes if is_pulled else shapes[::-1]

    def placed(weight: float, hows: Sequence[str], shape: Shape) -> Placement:
        how = pick.one({"none": weight, **dict.fromkeys(hows, 1)})
        if how == "none" or local is not None:
            return Placement(how, () if how == "none" else local or ())
        spec = draw_spec(pick, len(shape), program.mesh)
        is_even = program.explicit or program.manual or how != "inside"
        return Placement(how, evenly(spec, shape, program.mesh) if is_even else spec)

    often = 1000 if local is None and pick.chance(0.7) else 2  # mostly left to XLA
    of_result = placed(often, ["inside"], program.result_shape)
    of_other = placed(often if local is None else 0, ["argument"], other_shape)
    of_output = placed(often, ["out_shardings", "inside"], output_shape)
    if program.operator.startswith("fill") and program.mode != "forward":
        of_output = Placement()  # of scalars
        of_other = of_other if program.mode == "vjp" else Placement()
    if 0 in output_shape:  # JAX takes no empty result that XLA shards
        of_output = Placement("out_shardings")
    placements = dict(of_result=of_result, of_cotangent=of_other, of_output=of_output)
    return dataclasses.replace(program, **placements)


def draw_placement_of_lengths(
    pick: Picker, lengths: tuple[Shape, str] | None, spec: Spec, mesh: Mesh
) -> Placement:
    """As the input, for the dimensions that they share, or by any axes of the mesh."""
    if lengths is None or pick.chance(0.4):
        return Placement()
    shape, _ = lengths
    if pick.chance(0.3):
        return draw_any_placement_of_lengths(pick, shape, mesh)
    spec = spec[: len(shape)] if len(spec) >= len(shape) else ((),) * len(shape)
    entries = [() if size == 1 else e for e, size in zip(spec, shape, strict=True)]
    return Placement("argument", evenly(entries, shape, mesh))


def draw_any_placement_of_lengths(pick: Picker, shape: Shape, mesh: Mesh) -> Placement:
    spec = draw_spec(pick, len(shape), mesh)
    return Placement("argument", evenly(spec, shape, mesh))


# Operators ----------------------------------------------------------------------------


def draw_size(pick: Picker, parts: int, largest: int) -> int:
    if pick.chance(0.02):
        return 0
    return parts * pick.between(1, max(largest // parts, 1))


def draw_operator(
    pick: Picker, operator: str, sizes: Shape, parts: list[int], local: bool
) -> tuple[dict[str, Any], Shape, Shape, tuple[Shape, str] | None]:
    """Options, shapes of input and result, and the lengths."""
    if operator.startswith("reverse"):
        return draw_reversal(pick, operator, sizes)
    if operator.startswith("fill"):
        of_scalars = () if operator == "fill_value_constant" else (2,)
        return dict(sizes=sizes), of_scalars, sizes, None
    drawn = [
        draw_window(pick, operator, size, p, whole=local and p > 1)
        for size, p in zip(sizes, parts, strict=True)
    ]
    offsets, windows, strides, results = map(tuple, zip(*drawn, strict=True))
    if operator == "slice":
        options = dict(offsets=offsets, sizes=windows, strides=strides)
        return options, sizes, windows, None
    options = dict(
        input_window_offsets=offsets,
        input_window_sizes=windows,
        input_window_strides=strides,
    )
    if operator == "slice_grad":
        options["output_gradient_sizes"] = results
    return options, sizes, results, None


def draw_reversal(
    pick: Picker, operator: str, shape: Shape
) -> tuple[dict[str, Any], Shape, Shape, tuple[Shape, str]]:
    implementation = pick.one({None: 3, "gather": 1, "scatter": 1})
    options: dict[str, Any] = dict(implementation=implementation)
    dtype = pick.one(["int32", "uint32", "int8"])
    if operator == "reverse_subsequences":
        options["axis"] = axis = pick.between(0, len(shape) - 1)
        of_lengths = tuple(
            1 if d == axis or pick.chance(0.5) else size for d, size in enumerate(shape)
        )
        return options, shape, shape, (of_lengths, dtype)
    batch_axis = pick.between(0, 1)
    options |= dict(batch_axis=batch_axis, time_axis=1 - batch_axis)
    options["training"] = pick.chance(0.6)
    if options["training"]:
        options["lda_coeff"] = pick.one([1.0, 0.5, 0.0])
    return options, shape, shape, ((shape[batch_axis],), dtype)


def draw_window(
    pick: Picker, operator: str, extent: int, parts: int, whole: bool
) -> tuple[int, int, int, int]:
    """Offset, size and stride of a window, and the size of the result.

    `extent` is the size of the input, which `parts` devices share evenly.
    """
    if whole:
        return 0, extent, 1, extent
    kind = pick.one({"whole": 1.5, "any": 5, "few": 4, "empty": 0.2})
    step = pick.one({1: 3, 2: 3, 3: 2, 5: 1, 50: 0.3})
    sign = 1 if operator == "slice" else pick.one([1, -1])
    if kind == "whole" or (operator == "slice_grad" and extent == 0):
        return 0, extent, sign, extent
    if operator == "slice_grad":
        step = 1 if step * extent > 150 else step
        window = step * (extent - 1) + pick.between(1, step)
        before, after = (pick.between(0, 7) * pick.chance(0.7) for _ in "ab")
        whole_size = before + window + after
        if parts > 1 and pick.chance(0.4):
            whole_size = -(-whole_size // parts) * parts
        return before, window, sign * step, whole_size
    most = 1 + (extent - 1) // step if extent else 0
    count = 0 if kind == "empty" else draw_count(pick, kind, most, parts)
    window = step * (count - 1) + 1 if count else 0
    if operator == "slice":
        return draw_offset(pick, extent - window), count, step, count
    window += pick.between(0, min(step - 1, extent - window)) if count else 0
    return draw_offset(pick, extent - window), window, sign * step, count


def draw_count(pick: Picker, kind: str, most: int, parts: int) -> int:
    """How many elements are read, mostly a number that the devices can share."""
    if most == 0:
        return 0
    if kind == "few":
        return pick.between(1, min(most, 4))
    if parts > 1 and most >= parts and pick.chance(0.4):
        return parts * pick.between(1, most // parts)
    return pick.between(1, most)


def draw_offset(pick: Picker, most: int) -> int:
    return pick.one({0: 1, most: 1, pick.between(0, most): 3})


# What is done with them ---------------------------------------------------------------


def draw_mode(pick: Picker, operator: str, options: dict[str, Any], dtype: str) -> str:
    if dtype not in (*FLOATS, "complex64"):
        return "forward"
    modes = dict.fromkeys(MODES, 1) | dict(vjp=2, grad_of_squares=2)
    if operator in ("slice", "slice1"):  # XLA partitions their gradients wrongly
        modes["grad_of_squares"] = 7
    if dtype == "complex64":
        del modes["grad_of_squares"]
    if options.get("training"):
        del modes["jvp"]
    return pick.one(["forward", "vjp", "jvp"] if operator.startswith("fill") else modes)


def draw_data(
    pick: Picker,
    operator: str,
    options: dict[str, Any],
    dtype: str,
    mode: str,
    local: bool,
) -> str:
    is_float = dtype in (*FLOATS, "complex64")
    is_computed = (
        mode == "grad_of_squares"
        or (options.get("training") and mode in ("vjp", "vjp_of_vjp"))
        or (operator.startswith("fill") and mode != "forward")
        or operator == "fill_value_sequence"
        # XLA on CPU copies a shard by way of float32, as one of `jnp.full`.
        or (operator == "fill_value_constant" and dtype in NARROW)
    )
    if is_computed or (is_float and not local):
        return "numbers"
    return "bits" if is_float else pick.one(["bits", "numbers"])


def draw_works(operator: str, dtype: str, data: str) -> dict[str, float]:
    """What may come before and after the operator, with weights."""
    works = {"nothing": 4.0}
    if operator.startswith("fill"):
        return works
    if data == "numbers" and dtype != "bool":
        works |= dict(double=1, flip=1)
    return works


# Arrays -------------------------------------------------------------------------------


def arrays_of(
    program: Program, copy: int = 0
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """The input, the lengths or None, and the cotangent or tangent or None."""
    random = np.random.default_rng([program.seed, 1, copy])
    dtype = np.dtype(program.dtype)
    make = numbers if program.data == "numbers" else random_bits
    of_input = np.random.default_rng(program.seed) if program.shared else random
    x, lengths, other = make(of_input, dtype, program.shape), None, None
    if program.lengths is not None:
        shape, of_lengths = program.lengths
        axis = program.options["axis" if "axis" in program.options else "time_axis"]
        low = 0 if of_lengths == "uint32" else -1
        high = min(program.shape[axis] + 3, 128)
        lengths = random.integers(low, high, shape).astype(of_lengths)
    if program.mode == "vjp":
        make = summable if program.operator.startswith("fill") else make
        other = make(random, dtype, program.result_shape)
    elif program.mode in ("vjp_of_vjp", "jvp"):
        other = make(random, dtype, program.shape)
    return x, lengths, other


def numbers(random: np.random.Generator, dtype: np.dtype, shape: Shape) -> np.ndarray:
    """Integers from 1 to 6; no zeros, which stand for missing elements."""
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    x = random.integers(1, 7, shape)
    x = x + 1j * random.integers(1, 7, shape) if dtype.kind == "c" else x
    return x.astype(dtype)


def summable(random: np.random.Generator, dtype: np.dtype, shape: Shape) -> np.ndarray:
    """Small numbers whose sum in any order has no rounding error in the dtype."""
    x = random.integers(0, 3, shape)
    bits = 24 if dtype.kind == "c" else ml_dtypes.finfo(dtype).nmant + 1
    while x.sum() > 2**bits:
        x *= random.random(shape) < 0.5
    return x.astype(dtype)


# Expected results ---------------------------------------------------------------------


def expected(program: Program) -> np.ndarray:
    if not program.manual:
        return expected_of(program, 0)
    copies = np.stack([expected_of(program, copy) for copy in range(program.copies)])
    if not program.is_sum:
        return copies
    wide = "c16" if copies.dtype.kind == "c" else "f8"
    return copies.astype(wide).sum(0).astype(copies.dtype)


def expected_of(program: Program, copy: int) -> np.ndarray:
    x, lengths, other = arrays_of(program, copy)
    if program.mode == "forward":
        return apply(program, x, lengths)
    if program.mode == "vjp":
        return pull_back(program, other, lengths)
    if program.mode == "grad_of_squares":
        return pull_back(program, double(apply(program, x, lengths)), lengths)
    y = apply(program, other, lengths)
    return scaled(program, y) if program.mode == "vjp_of_vjp" else y


def apply(program: Program, x: Any, lengths: Any) -> np.ndarray:
    y = operate(program, WORK[program.before](x), lengths)
    return WORK[program.after](y)


def pull_back(program: Program, cotangent: Any, lengths: Any) -> np.ndarray:
    """The work before and after is its own adjoint."""
    cotangent = WORK[program.after](cotangent)
    return WORK[program.before](scaled(program, adjoint(program, cotangent, lengths)))


def double(x: Any) -> Any:
    return x * x.dtype.type(2)


# Of NumPy's arrays and of JAX's.
WORK: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: x,
    "flip": lambda x: x[(slice(None, None, -1),) * x.ndim],
    "double": double,
}


def operate(program: Program, x: Any, lengths: Any) -> np.ndarray:
    return program.case.expected(**program.operands(x, lengths))


def adjoint(program: Program, cotangent: Any, lengths: Any) -> np.ndarray:
    if not program.operator.startswith("fill"):
        return moved_back(
            lambda x: operate(program, x, lengths), program.shape, cotangent
        )
    y = cotangent.astype("c16" if cotangent.dtype.kind == "c" else "f8").ravel()
    sums = np.array([y.sum(), (np.arange(y.size) * y).sum()])
    is_constant = program.operator == "fill_value_constant"
    return (sums[0] if is_constant else sums).astype(program.dtype)


def scaled(program: Program, x: np.ndarray) -> np.ndarray:
    """The cotangent times the coefficient of the training mode."""
    coefficient = program.options.get("lda_coeff", 1.0)
    return x if coefficient == 1 else (x * x.dtype.type(coefficient)).astype(x.dtype)
