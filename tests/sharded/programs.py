"""Random programs over random meshes, and what they compute, by NumPy.

A program is `after(operator(before(x)))`, itself or a derivative of it, with shardings
stated at some places and left to XLA at others. All of it follows from a seed. Every
program is linear in x, so that its derivatives are known exactly: the reference of the
operator's adjoint, between the adjoints of what comes before and after.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np

from dml_jax import reference

MESHES = [
    *[(2,), (3,), (4,), (6,), (8,), (1, 4), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2)],
    (2, 2, 2),
]
LARGEST = {1: 64, 2: 24, 3: 12, 4: 8}  # size of a dimension, by rank
INTEGERS = ["int8", "uint8", "int16", "int32", "uint32", "int64"]
NARROW = ["float16", "bfloat16", "float8_e4m3fn"]
FLOATS = [*NARROW, "float32", "float64"]
DTYPES = ["bool", *INTEGERS, *FLOATS, "complex64"]
MODES = ["forward", "vjp", "vjp_of_vjp", "jvp", "grad_of_squares"]
OPERATORS = [
    *["reverse_subsequences", "reverse_sequence", "slice", "slice1", "slice_grad"],
    *["fill_value_constant", "fill_value_sequence"],
]


@dataclasses.dataclass(frozen=True)
class Placement:
    """How an array comes to its sharding, and the entries of its PartitionSpec."""

    how: str = "none"  # or argument, in_shardings, out_shardings, inside
    spec: tuple[tuple[str, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class Program:
    """What `draw` gives.

    `data` is "numbers" for small positive numbers, with which a program may compute, or
    "bits" for any bits. Where XLA itself moves floats between devices, it does not keep
    their bits: it adds zeros, or on CPU goes by way of float32. So floats have any bits
    only in programs that are `local`: no operator, and no stated sharding, needs
    another device, but for a reversal along a shared axis.
    """

    seed: int
    shardy: bool
    mesh: tuple[int, ...]
    explicit: bool
    operator: str
    options: dict[str, Any]
    dtype: str
    mode: str
    shape: tuple[int, ...]  # of the input
    result_shape: tuple[int, ...]  # of the operator
    lengths: tuple[tuple[int, ...], str] | None  # their shape and dtype
    before: str
    after: str
    local: bool
    data: str
    of_input: Placement
    of_lengths: Placement
    of_result: Placement  # of the operator
    of_cotangent: Placement
    of_output: Placement  # of the program

    @property
    def is_uneven(self):
        """Whether XLA might divide arguments and results as JAX does not allow it."""
        places = (self.of_input, self.shape), (self.of_result, self.result_shape)
        return any(
            placement.how == "inside"
            and placement.spec != _evenly(placement.spec, shape, self.mesh)
            for placement, shape in places
        )

    @property
    def is_wide(self):
        return self.dtype in ("int64", "float64")


def draw(seed):
    """The program of a seed."""
    random = np.random.default_rng(seed)
    mesh = MESHES[random.integers(len(MESHES))]
    explicit = bool(random.random() < 0.3)
    shardy = bool(random.random() < 0.5)
    local = bool(random.random() < 0.2)
    # Slices have the most ways of being wrong.
    operator = _one(random, OPERATORS, [3, 3, 5, 6, 6, 1, 1])
    options, shape, result_shape, lengths, of_input = _draw_operator(
        random, operator, mesh, explicit, local
    )
    dtype = _draw_dtype(random, operator)
    mode = _draw_mode(random, operator, options, dtype)
    data = _draw_data(random, operator, options, dtype, mode, local)
    before, after = _draw_work(
        random, operator, mode, dtype, data, shardy or not explicit
    )
    shapes = dict(shape=shape, result_shape=result_shape)
    placements = _draw_placements(
        random, operator, mode, mesh, explicit, local, of_input, **shapes
    )
    program = Program(
        **dict(seed=seed, shardy=shardy, mesh=mesh, explicit=explicit, local=local),
        **dict(operator=operator, options=options, dtype=dtype, mode=mode, data=data),
        **dict(**shapes, lengths=lengths, before=before, after=after),
        **dict(of_input=of_input, **placements),
        of_lengths=_draw_placement_of_lengths(random, lengths, of_input.spec, mesh),
    )
    if program.is_uneven and program.of_output.how == "none":
        replicated = Placement("out_shardings")
        return dataclasses.replace(program, of_output=replicated)
    return program


def _one(random, values, weights=None):
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, float)
    return values[random.choice(len(values), p=weights / weights.sum())]


# Shardings ----------------------------------------------------------------------------


def names_of(mesh):
    return "abc"[: len(mesh)]


def parts_of(entry, mesh):
    return math.prod(mesh[names_of(mesh).index(name)] for name in entry)


def _draw_spec(random, rank, mesh):
    """Most axes of the mesh, in any order, each along some dimension."""
    entries = [()] * rank
    for name in random.permutation(list(names_of(mesh))):
        if rank and random.random() < 0.85:
            dimension = int(random.integers(rank))
            entries[dimension] = (*entries[dimension], str(name))
    return tuple(entries)


def _evenly(spec, shape, mesh):
    """What of the spec divides the shape evenly."""
    return tuple(
        entry if size % parts_of(entry, mesh) == 0 else ()
        for entry, size in zip(spec, shape, strict=True)
    )


def _draw_placements(
    random, operator, mode, mesh, explicit, local, of_input, shape, result_shape
):
    """Those of the operator's result, the second array and the program's output."""
    is_pulled = mode in ("vjp", "grad_of_squares")
    output_shape = shape if is_pulled else result_shape
    other_shape = result_shape if is_pulled else shape

    def placed(weight, hows, shape):
        how = _one(random, ["none", *hows], [weight, *[1] * len(hows)])
        if how == "none":
            return Placement()
        if local:
            return Placement(how, of_input.spec)
        spec = _draw_spec(random, len(shape), mesh)
        is_even = explicit or how != "inside"
        return Placement(how, _evenly(spec, shape, mesh) if is_even else spec)

    is_left_to_xla = not local and random.random() < 0.7
    often = 1000 if is_left_to_xla else 2
    of_result = placed(often, ["inside"], result_shape)
    of_other = placed(0 if local else often, ["argument"], other_shape)
    of_output = placed(often, ["out_shardings", "inside"], output_shape)
    if operator.startswith("fill") and mode != "forward":
        of_output = Placement()  # of scalars
        of_other = of_other if mode == "vjp" else Placement()
    if 0 in output_shape:  # JAX takes no empty result that XLA divides
        of_output = Placement("out_shardings")
    return dict(of_result=of_result, of_cotangent=of_other, of_output=of_output)


def _draw_placement_of_lengths(random, lengths, spec, mesh):
    """As the input, in so far as they have its dimensions."""
    if lengths is None or random.random() < 0.5:
        return Placement()
    shape, _ = lengths
    spec = spec[: len(shape)] if len(spec) >= len(shape) else ((),) * len(shape)
    entries = [() if size == 1 else e for e, size in zip(spec, shape, strict=True)]
    return Placement("argument", _evenly(entries, shape, mesh))


# Operators ----------------------------------------------------------------------------


def _draw_operator(random, operator, mesh, explicit, local):
    """Options, shapes of input, result and lengths, and the placement of the input."""
    rank = int(random.integers(2 if operator == "reverse_sequence" else 1, 5))
    if operator != "reverse_sequence" and random.random() < 0.5:
        rank = 1
    how = _one(random, ["argument", "in_shardings", "inside", "none"], [6, 2, 3, 1])
    if local:  # for `in_shardings` an explicit type says nothing of the sharding
        how = "argument" if explicit else _one(random, ["argument", "in_shardings"])
    spec = _draw_spec(random, rank, mesh)
    is_uneven = how == "inside" and not explicit
    parts = [1 if is_uneven else parts_of(entry, mesh) for entry in spec]
    shape = tuple(_draw_size(random, p, LARGEST[rank]) for p in parts)
    of_input = Placement(how, spec if how != "none" else ())
    if operator.startswith("reverse"):
        options, lengths = _draw_reversal(random, operator, shape)
        return options, shape, shape, lengths, of_input
    if operator.startswith("fill"):
        of_scalars = () if operator == "fill_value_constant" else (2,)
        of_input = Placement("none", spec if local else ())
        return dict(sizes=shape), of_scalars, shape, None, of_input
    drawn = [
        _draw_window(random, operator, size, p, whole=local and p > 1)
        for size, p in zip(shape, parts, strict=True)
    ]
    offsets, sizes, strides, others = map(tuple, zip(*drawn, strict=True))
    if operator == "slice":
        options = dict(offsets=offsets, sizes=sizes, strides=strides)
        return options, shape, sizes, None, of_input
    options = dict(
        input_window_offsets=offsets,
        input_window_sizes=sizes,
        input_window_strides=strides,
    )
    if operator == "slice_grad":
        options["output_gradient_sizes"] = others
    return options, shape, others, None, of_input


def _draw_size(random, parts, largest):
    if random.random() < 0.02:
        return 0
    return parts * int(random.integers(1, max(largest // parts, 1) + 1))


def _draw_reversal(random, operator, shape):
    options = dict(implementation=_one(random, [None, "gather", "scatter"], [3, 1, 1]))
    dtype = _one(random, ["int32", "uint32", "int8"])
    if operator == "reverse_subsequences":
        options["axis"] = axis = int(random.integers(len(shape)))
        whole = random.random(len(shape)) < 0.5
        of_lengths = tuple(
            1 if d == axis or not whole[d] else size for d, size in enumerate(shape)
        )
        return options, (of_lengths, dtype)
    options["batch_axis"] = int(random.integers(2))
    options["time_axis"] = 1 - options["batch_axis"]
    options["training"] = bool(random.random() < 0.6)
    if options["training"]:
        options["lda_coeff"] = _one(random, [1.0, 0.5, 0.0])
    return options, ((shape[options["batch_axis"]],), dtype)


def _draw_window(random, operator, extent, parts, whole):
    """Offset, size and stride; the size that the operator makes of them.

    `extent` is the size of the input, which shares it evenly between `parts` devices.
    """
    if whole:
        return 0, extent, 1, extent
    kind = _one(random, ["whole", "any", "few", "empty"], [1.5, 5, 4, 0.2])
    stride = _one(random, [1, 2, 3, 5, 50], [3, 3, 2, 1, 0.3])
    if operator == "slice_grad":
        return _draw_window_around(random, kind, stride, extent, parts)
    if kind == "whole":
        stride = 1 if operator == "slice" else int(_one(random, [1, -1]))
        return 0, extent, stride, extent
    most = 1 + (extent - 1) // stride if extent else 0
    count = _draw_count(random, kind, most, parts)
    reads = stride * (count - 1) + 1 if count else 0
    if operator == "slice":
        return _draw_offset(random, extent - reads), count, stride, count
    slack = int(random.integers(min(stride, extent - reads + 1))) if count else 0
    stride *= int(_one(random, [1, -1]))
    return _draw_offset(random, extent - reads - slack), reads + slack, stride, count


def _draw_count(random, kind, most, parts):
    """How many elements are read, mostly a number that the devices can divide."""
    if most == 0 or kind == "empty":
        return 0
    if kind == "few":
        return int(random.integers(1, min(most, 4) + 1))
    if parts > 1 and most >= parts and random.random() < 0.4:
        return parts * int(random.integers(1, most // parts + 1))
    return int(random.integers(1, most + 1))


def _draw_offset(random, room):
    return _one(random, [0, room, int(random.integers(room + 1))], [1, 1, 3])


def _draw_window_around(random, kind, stride, count, parts):
    """For `count` elements that are put back; the size of what they are put into."""
    if kind == "whole" or count == 0:
        return 0, count, int(_one(random, [1, -1])), count
    if stride * count > 150:
        stride = 1
    window = stride * (count - 1) + 1 + int(random.integers(stride))
    before, after = (int(random.integers(8)) * (random.random() < 0.7) for _ in "ab")
    extent = before + window + after
    if parts > 1 and random.random() < 0.4:
        extent = -(-extent // parts) * parts
    return before, window, stride * int(_one(random, [1, -1])), extent


# What is done with them ---------------------------------------------------------------


def _draw_dtype(random, operator):
    dtypes = DTYPES
    if operator == "fill_value_sequence":
        dtypes = [dtype for dtype in DTYPES if dtype != "bool"]
    floats = random.random() < 0.75  # the others have no derivatives
    return _one(random, FLOATS if floats else dtypes)


def _draw_mode(random, operator, options, dtype):
    if dtype not in (*FLOATS, "complex64"):
        return "forward"
    modes = [*MODES, "vjp", "grad_of_squares"]
    if operator in ("slice", "slice1"):  # XLA divides their gradients wrongly
        modes += ["grad_of_squares"] * 5
    if dtype == "complex64":
        modes = [mode for mode in modes if mode != "grad_of_squares"]
    if options.get("training"):
        modes.remove("jvp")
    if operator.startswith("fill"):
        modes = ["forward", "vjp", "jvp"]
    return _one(random, modes)


def _draw_work(random, operator, mode, dtype, data, with_flips):
    if operator.startswith("fill"):
        return "nothing", "nothing"
    works = ["nothing"]
    if data == "numbers" and dtype != "bool":
        works.append("double")
        if with_flips:  # JAX has no name for the sharding that GSPMD gives a flip
            works.append("flip")
    if data == "bits" and mode == "forward":
        works.append("invert")
    weights = [4, *[1] * (len(works) - 1)]
    return _one(random, works, weights), _one(random, works, weights)


def _draw_data(random, operator, options, dtype, mode, local):
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
    return "bits" if is_float else _one(random, ["bits", "numbers"])


# Arrays -------------------------------------------------------------------------------


def arrays_of(program):
    """The input, the lengths or None, and the cotangent or tangent or None."""
    random = np.random.default_rng([program.seed, 1])
    make = numbers if program.data == "numbers" else any_bits
    x = make(random, program.shape, np.dtype(program.dtype))
    lengths = other = None
    if program.lengths is not None:
        shape, dtype = program.lengths
        axis = program.options.get("axis", program.options.get("time_axis"))
        low = 0 if dtype == "uint32" else -1
        high = min(program.shape[axis] + 3, 128)
        lengths = random.integers(low, high, shape).astype(dtype)
    if program.mode == "vjp":
        other = make(random, program.result_shape, np.dtype(program.dtype))
        if program.operator.startswith("fill"):
            other = _summable(random, program.result_shape, np.dtype(program.dtype))
    elif program.mode in ("vjp_of_vjp", "jvp"):
        other = make(random, program.shape, np.dtype(program.dtype))
    return x, lengths, other


def numbers(random, shape, dtype):
    """Integers from 1 to 6; no zeros, which are what is missing."""
    if dtype.name == "bool":
        return random.random(shape) < 0.5
    x = random.integers(1, 7, shape)
    return (x + 1j * random.integers(1, 7, shape) if dtype.kind == "c" else x).astype(
        dtype
    )


def any_bits(random, shape, dtype):
    """Zeros of both signs, infinities, NaNs with payloads, subnormals, any bits."""
    if dtype.name == "bool":
        return random.random(shape) < 0.5
    if dtype.kind == "c":
        return any_bits(random, (*shape, 2), np.dtype("float32")).view(dtype)[..., 0]
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    x = random.integers(0, 2 ** (8 * dtype.itemsize), shape, unsigned)
    if dtype.name in FLOATS:
        info = ml_dtypes.finfo(dtype)
        exponent = unsigned.type((2**info.nexp - 1) << info.nmant)
        sign = unsigned.type(1 << (8 * dtype.itemsize - 1))
        kind = random.integers(5, size=shape)
        x = np.select(
            [kind == 0, kind == 1, kind == 2, kind == 3],
            [x & sign, (x & sign) | exponent, x | exponent, x & ~exponent],
            x,
        )
    return x.astype(unsigned).view(dtype)


def _summable(random, shape, dtype):
    """Small numbers whose sum in any order has no rounding error in the dtype."""
    x = random.integers(0, 3, shape)
    bits = 24 if dtype.kind == "c" else ml_dtypes.finfo(dtype).nmant + 1
    while x.sum() > 2**bits:
        x *= random.random(shape) < 0.5
    return x.astype(dtype)


# What is to come out ------------------------------------------------------------------


def expected(program):
    x, lengths, other = arrays_of(program)
    if program.mode == "forward":
        return apply(program, x, lengths)
    if program.mode == "vjp":
        return pull_back(program, other, lengths)
    if program.mode == "grad_of_squares":
        return pull_back(program, double(apply(program, x, lengths)), lengths)
    y = apply(program, other, lengths)
    return scaled(program, y) if program.mode == "vjp_of_vjp" else y


def apply(program, x, lengths):
    y = operate(program, WORK[program.before](x), lengths)
    return WORK[program.after](y)


def pull_back(program, cotangent, lengths):
    """All that comes before and after is its own adjoint."""
    cotangent = WORK[program.after](cotangent)
    return WORK[program.before](scaled(program, adjoint(program, cotangent, lengths)))


def double(x):
    return (x * x.dtype.type(2)).astype(x.dtype)


def invert(x):
    if x.dtype.kind == "c":
        return invert(x.view("f4")).view(x.dtype)
    return ~x if x.dtype == bool else (~x.view(f"u{x.itemsize}")).view(x.dtype)


WORK = {"nothing": lambda x: x, "flip": np.flip, "double": double, "invert": invert}


def operate(program, x, lengths):
    dtype, options = np.dtype(program.dtype), program.options
    if program.operator == "fill_value_constant":
        return np.full(options["sizes"], x, dtype)
    if program.operator == "fill_value_sequence":
        return reference.fill_value_sequence(options["sizes"], dtype, *x)
    if program.operator == "reverse_subsequences":
        return reference.reverse_subsequences(x, lengths, options["axis"])
    if program.operator == "reverse_sequence":
        axes = options["batch_axis"], options["time_axis"]
        return reference.reverse_sequence(x, lengths, *axes)
    return getattr(reference, program.operator)(x, **options)


def adjoint(program, cotangent, lengths):
    options = dict(program.options)
    if program.operator.startswith("reverse"):
        return operate(program, cotangent, lengths)
    if program.operator == "slice_grad":
        del options["output_gradient_sizes"]
        return reference.slice1(cotangent, **options, output_sizes=program.shape)
    if program.operator == "slice1":
        sizes = dict(output_gradient_sizes=program.shape)
        return reference.slice_grad(cotangent, **options, **sizes)
    if program.operator == "slice":
        windows = [
            (size - 1) * stride + 1 if size else 0
            for size, stride in zip(options["sizes"], options["strides"], strict=True)
        ]
        return reference.slice_grad(
            cotangent, program.shape, options["offsets"], windows, options["strides"]
        )
    dtype = np.dtype(program.dtype)
    numbers = cotangent.astype("c16" if dtype.kind == "c" else "f8").ravel()
    if program.operator == "fill_value_constant":
        return np.asarray(numbers.sum()).astype(dtype)
    k = np.arange(numbers.size)
    return np.array([numbers.sum(), (k * numbers).sum()]).astype(dtype)


def scaled(program, x):
    """What the training mode makes of a cotangent."""
    coefficient = program.options.get("lda_coeff", 1.0)
    return x if coefficient == 1 else (x * x.dtype.type(coefficient)).astype(x.dtype)
