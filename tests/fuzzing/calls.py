"""Random calls of the public functions, and what the documents say about them."""

import math
import random
from fractions import Fraction
from typing import NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from arguments import (
    FAR_SIZES,
    WIDE,
    WRONG,
    Given,
    inputs,
    integers,
    lengths,
    pick,
    sequences,
)
from hypothesis import strategies as st

from dml_jax import reference


class Call(NamedTuple):
    """A call of a function with arguments that are drawn one by one."""

    function: str
    arguments: dict[str, Given]

    @property
    def values(self):
        return {name: given.value for name, given in self.arguments.items()}

    @property
    def meanings(self):
        return {name: given.meaning for name, given in self.arguments.items()}


def expected_of(call):
    """The result of the reference; None where the documents refuse the call."""
    meanings = call.meanings
    if any(meaning is WRONG for meaning in meanings.values()):
        return None
    if not RULES[call.function](**meanings):
        return None
    for name in ("training", "lda_coeff", "name", "implementation"):
        meanings.pop(name, None)
    return getattr(reference, call.function)(**meanings)


def spoilt(draw, names):
    """Which arguments are wrong: none in two of five calls."""
    count = pick(draw, [0, 0, 1, 1, 2])
    return {pick(draw, names) for _ in range(count)}


# Slices -------------------------------------------------------------------------------


def window_in(shape, number):
    """One of a few windows in a shape, with strides, and fewer sizes than it gives."""
    pick = random.Random(f"{shape} {number}")
    offsets = tuple(pick.randint(0, size) for size in shape)
    pairs = zip(shape, offsets, strict=True)
    windows = tuple(pick.randint(0, size - offset) for size, offset in pairs)
    strides = tuple(pick.choice([1, 2, -1, -2, 3]) for _ in shape)
    return offsets, windows, strides


def given_by(windows, strides):
    return tuple(
        (window - 1) // abs(stride) + 1
        for window, stride in zip(windows, strides, strict=True)
    )


def shape_of(given):
    return (3, 4) if given.meaning is WRONG else given.meaning.shape


def optional(arguments, name):
    """The arguments, of which one may be None."""
    is_none = name in arguments and arguments[name].value is None
    return arguments | ({name: Given(None, None)} if is_none else {})


NUMBERS = st.integers(0, 3)


@st.composite
def slice_calls(draw, x64=False, traced=False):
    bad = spoilt(draw, ["input", "offsets", "sizes", "strides"])
    x = inputs(draw, x64, "input" in bad, traced)
    offsets, windows, strides = window_in(shape_of(x), draw(NUMBERS))
    strides = tuple(map(abs, strides))
    numbers = {"offsets": offsets, "sizes": given_by(windows, strides)}
    if "strides" in bad or draw(st.booleans()):
        numbers["strides"] = strides
    else:
        numbers["sizes"] = windows
    arguments = {
        name: sequences(draw, value, name in bad) for name, value in numbers.items()
    }
    return Call("slice", {"input": x, **optional(arguments, "strides")})


@st.composite
def slice1_calls(draw, x64=False, traced=False):
    names = ["offsets", "sizes", "strides"]
    bad = spoilt(draw, ["input", *names, "output_sizes"])
    x = inputs(draw, x64, "input" in bad, traced)
    window = window_in(shape_of(x), draw(NUMBERS))
    arguments = {
        f"input_window_{name}": sequences(draw, value, name in bad)
        for name, value in zip(names, window, strict=True)
    }
    if "output_sizes" in bad or draw(st.booleans()):
        sizes = given_by(*window[1:])
        arguments["output_sizes"] = sequences(draw, sizes, "output_sizes" in bad)
    return Call("slice1", {"input": x, **optional(arguments, "output_sizes")})


@st.composite
def slice_grad_calls(draw, x64=False, traced=False):
    names = ["offsets", "sizes", "strides"]
    bad = spoilt(draw, ["gradient", *names, "shape"])
    shape = pick(draw, [(4,), (3, 4), (2, 3, 2), (0, 3), ()])
    window = window_in(shape, draw(NUMBERS))
    fitting = [given_by(*window[1:])]
    gradient = inputs(draw, x64, "gradient" in bad, traced, shapes=fitting)
    arguments = {
        f"input_window_{name}": sequences(draw, value, name in bad)
        for name, value in zip(names, window, strict=True)
    }
    sizes = sequences(draw, shape, "shape" in bad, FAR_SIZES)
    first = {"input_gradient": gradient, "output_gradient_sizes": sizes}
    return Call("slice_grad", first | arguments)


def slice_rule(input, offsets, sizes, strides=None):
    if input.dtype.kind in "OSU":
        return False
    strides = (1,) * input.ndim if strides is None else strides
    if {len(offsets), len(sizes), len(strides)} != {input.ndim}:
        return False
    return all(
        offset >= 0 and size >= 0 and stride >= 1
        and (offset + stride * (size - 1) < n if size else offset <= n)
        for n, offset, size, stride in zip(
            input.shape, offsets, sizes, strides, strict=True
        )
    )  # fmt: skip


def window_rule(shape, part, offsets, windows, strides):
    members = shape, offsets, windows, strides
    if len({len(member) for member in members}) != 1:
        return False
    if not all(
        offset >= 0 and window >= 0 and stride and offset + window <= n
        for n, offset, window, stride in zip(*members, strict=True)
    ):
        return False
    most = given_by(windows, strides)
    return part is None or (
        len(part) == len(most)
        and all(0 <= size <= m for size, m in zip(part, most, strict=True))
    )


def slice1_rule(input, output_sizes=None, **window):
    is_text = input.dtype.kind in "OSU"
    return not is_text and window_rule(input.shape, output_sizes, *window.values())


def slice_grad_rule(input_gradient, output_gradient_sizes, **window):
    return (
        sizes_rule(output_gradient_sizes)
        and input_gradient.dtype.kind not in "OSU"
        and window_rule(output_gradient_sizes, input_gradient.shape, *window.values())
    )


def sizes_rule(sizes):
    return min(sizes, default=0) >= 0 and math.prod(s for s in sizes if s) <= 2**48


# Reversals ----------------------------------------------------------------------------


@st.composite
def reverse_subsequences_calls(draw, x64=False, traced=False):
    bad = spoilt(draw, ["input", "sequence_lengths", "axis", "implementation"])
    x = inputs(draw, x64, "input" in bad, traced)
    shape = shape_of(x)
    axis = draw(st.integers(-len(shape), len(shape) - 1)) if shape else 0
    lines = [n if draw(st.booleans()) else 1 for n in shape]
    if shape:
        lines[axis] = 1
    most = shape[axis] if shape else 1
    arguments = {
        "input": x,
        "sequence_lengths": lengths(
            draw, tuple(lines), most, "sequence_lengths" in bad, traced
        ),
        "axis": integers(draw, axis, "axis" in bad),
        **options(draw, bad, ["implementation"]),
    }
    return Call("reverse_subsequences", arguments)


@st.composite
def reverse_sequence_calls(draw, x64=False, traced=False):
    bad = spoilt(draw, ["input", "sequence_lens", "batch_axis", "time_axis", *OPTIONS])
    x = inputs(draw, x64, "input" in bad, traced, shapes=[(3, 4), (2, 3, 2), (0, 3)])
    shape, batch = shape_of(x), draw(st.integers(0, 1))
    batches = shape[batch : batch + 1] if len(shape) > 1 else (3,)
    most = shape[1 - batch] if len(shape) > 1 else 1
    arguments = {
        "input": x,
        "sequence_lens": lengths(draw, batches, most, "sequence_lens" in bad, traced),
        "batch_axis": integers(draw, batch, "batch_axis" in bad),
        "time_axis": integers(draw, 1 - batch, "time_axis" in bad),
        **options(draw, bad, OPTIONS),
    }
    return Call("reverse_sequence", arguments)


OPTIONS = {  # right values, and those that are wrong
    "training": ([True, False, np.True_], [None, 1, "yes", 0.0, np.array([True])]),
    "lda_coeff": (
        [1.0, 0, 0.5, -2, np.float16(3), np.array(2), jnp.float32(4), 2**70],
        [None, "1", 1j, math.nan, -math.inf, True, [1.0], 10**400, np.ones(1), {}],
    ),
    "name": (["n", None], ["", 3, b"n", ["n"]]),
    "implementation": (["gather", "scatter", None], ["", "GATHER", 1, b"gather"]),
}


def options(draw, bad, names):
    result = {}
    for name in names:
        right, wrong = OPTIONS[name]
        if name in bad:
            result[name] = Given(pick(draw, wrong), WRONG)
        elif draw(st.integers(0, 3)) == 0:
            result[name] = Given(*[pick(draw, right)] * 2)
    return result


def reverse_subsequences_rule(input, sequence_lengths, axis, implementation=None):
    lines = sequence_lengths.shape
    if input.dtype.kind in "OSU" or not -input.ndim <= axis < input.ndim:
        return False
    if len(lines) != input.ndim or lines[axis] != 1:
        return False
    return all(s in (1, n) for s, n in zip(lines, input.shape, strict=True) if s != 1)


def reverse_sequence_rule(input, sequence_lens, batch_axis, time_axis, **options):
    axes = {(batch_axis, time_axis)} <= {(0, 1), (1, 0)}
    return (
        axes and input.ndim >= 2 and sequence_lens.shape == (input.shape[batch_axis],)
    )


# Fills --------------------------------------------------------------------------------

NAMES = "bool int8 uint8 uint16 int32 uint32 int4 float16 bfloat16 float32 complex64"
NAMES += " float8_e4m3fn float8_e5m2 float4_e2m1fn"
FILL_DTYPES = [np.dtype(getattr(ml_dtypes, n, n)) for n in NAMES.split()]
FILL_SIZES = [(), (3,), (2, 2), (0, 3)]
REALS = [
    *[0, 1, -3, 255, 256, -128, -129, 2**24 + 1, 2**31, 2**32, 2**63, 2**64, 2**70],
    *[0.0, -0.0, 0.1, -1 / 3, 2.5, 6.0, 8.0, 500.0, 65504.0, 65600.0, 1e-45, 1e39],
    *[1e-320, 1e308, math.nan, math.inf, -math.inf, 10**400, True, False, 1j, 2 - 0.5j],
]
NO_NUMBERS = [
    None,
    "1",
    b"1",
    [1],
    {1},
    object(),
    len,
    np.ones(1),
    jnp.ones((1, 1)),
    ...,
]
NO_DTYPES = [
    *[
        None,
        "f99",
        "abc",
        3,
        object(),
        [1],
        np.ones(2),
        np.float32(1),
        "m8[s]",
        "M8[D]",
    ],
    *["S3", "U1", "O", ">f4", "V4", np.longdouble, str, object, jnp.ones(1), 1.5, ""],
    *[np.dtype([("a", int)]), [("a", "f4")], {"names": ["a"]}, {}, "f4,f4"],
]


def is_in(dtype, number):
    """Whether a number of Python may be given for a dtype."""
    if dtype == np.bool_ or isinstance(number, bool):
        return dtype == np.bool_ and isinstance(number, bool)
    if isinstance(number, complex):
        return dtype.kind == "c"
    if jnp.issubdtype(dtype, jnp.integer):
        bits = ml_dtypes.iinfo(dtype).bits
        return isinstance(number, int) and -(2 ** (bits - 1)) <= number < 2**bits
    part = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    if isinstance(number, float) and not math.isfinite(number):
        return str(float(part.type(number))) == str(number)
    info = ml_dtypes.finfo(part)
    # No number above lies between this and what is rounded to the largest one.
    slack = 1 + Fraction(1, 2 ** (int(info.nmant) + 2))
    return abs(Fraction(number)) < Fraction(float(info.max)) * slack


def numbers(draw, dtype, spoilt=False, traced=False):
    """A number that a dtype has or has not, in any guise."""
    if spoilt and not traced and draw(st.booleans()):
        return Given(pick(draw, NO_NUMBERS), WRONG)
    number = pick(
        draw, [n for n in REALS if is_in(dtype, n) or (spoilt and not traced)]
    )
    if not is_in(dtype, number):
        return Given(number, WRONG)
    if not traced and draw(st.booleans()):
        return Given(number, number)
    exact = reference.fill_value_constant((), dtype, number)
    guises = [np.asarray, jnp.asarray, lambda array: array[()]]
    return Given(pick(draw, guises)(exact), exact[()])


@st.composite
def fills(draw, function, names, x64=False, traced=False):
    bad = spoilt(draw, ["sizes", "value_data_type", *names])
    dtypes = FILL_DTYPES[function == "fill_value_sequence" :]
    dtype = pick(draw, [*dtypes, *WIDE] if x64 else dtypes)
    kind = pick(draw, [np.dtype, str, lambda d: d.type])
    data_type = Given(kind(dtype), dtype)
    if "value_data_type" in bad:
        others = [*NO_DTYPES, *([] if x64 else WIDE)]
        data_type = Given(pick(draw, others), WRONG)
    sizes = pick(draw, FILL_SIZES)
    arguments = {
        "sizes": sequences(draw, sizes, "sizes" in bad, FAR_SIZES),
        "value_data_type": data_type,
        **{name: numbers(draw, dtype, name in bad, traced) for name in names},
    }
    return Call(function, arguments)


def fill_value_constant_calls(x64=False, traced=False):
    return fills("fill_value_constant", ["value"], x64, traced)


def fill_value_sequence_calls(x64=False, traced=False):
    names = ["value_start", "value_delta"]
    return fills("fill_value_sequence", names, x64, traced)


def fill_rule(sizes, **_):
    return sizes_rule(sizes)


# All of them --------------------------------------------------------------------------

CALLS = {
    "reverse_subsequences": reverse_subsequences_calls,
    "reverse_sequence": reverse_sequence_calls,
    "slice": slice_calls,
    "slice1": slice1_calls,
    "slice_grad": slice_grad_calls,
    "fill_value_sequence": fill_value_sequence_calls,
    "fill_value_constant": fill_value_constant_calls,
}
RULES = {
    "reverse_subsequences": reverse_subsequences_rule,
    "reverse_sequence": reverse_sequence_rule,
    "slice": slice_rule,
    "slice1": slice1_rule,
    "slice_grad": slice_grad_rule,
    "fill_value_sequence": fill_rule,
    "fill_value_constant": fill_rule,
}
