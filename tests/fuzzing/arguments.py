"""Random arguments, right, nearly right and wrong, and what each of them stands for.

What is drawn from is small: programs are then compiled once, and not in every example.
"""

import array
import collections
import functools
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from hypothesis import strategies as st


class Given(NamedTuple):
    """An argument, and what the documents take it for: WRONG where for nothing."""

    value: Any
    meaning: Any


WRONG = object()


def choice(values):
    """One of the values, some of which have no hash."""
    values = list(values)
    return index_below(len(values)).map(values.__getitem__)


def pick(draw, values):
    """The same, drawn, without the time that a strategy takes to be made."""
    return values[draw(index_below(len(values)))]


@functools.cache
def index_below(count):
    return st.integers(0, count - 1)


# Integers -----------------------------------------------------------------------------


class Index:
    """What operator.index takes."""

    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number


class Texts:
    """An object with a dtype and a shape that is no array."""

    dtype, shape, ndim = np.dtype(np.float32), (3, 4), 2


INTEGERS = [int, np.int64, np.int8, np.array, jnp.int32, Index]
NO_INTEGERS = [
    *[float, bool, str, complex, np.float32, np.bool_, lambda n: [n]],
    *[lambda n: None, lambda n: np.array([n]), lambda n: np.array(n, object)[None]],
    *[lambda n: np.datetime64(n, "D"), jnp.float32, jnp.bool_, lambda n: jnp.ones(1)],
    *[lambda n: {n}, lambda n: np.timedelta64(n, "s"), lambda n: b"1", lambda n: ...],
    *[lambda n: jax.ShapeDtypeStruct((), np.int32), lambda n: memoryview(b"1")],
]
FAR = [2**31, -(2**31), 2**63 - 1, -(2**63), 2**64, 2**70, -(2**70)]


def integers(draw, number, spoilt=False):
    """An integer in any guise; one that is spoilt is near, far or none."""
    kind = pick(draw, ["near", "wrong"]) if spoilt else "right"
    if kind == "wrong":
        return Given(pick(draw, NO_INTEGERS)(number), WRONG)
    if kind == "near":
        number = pick(draw, [number - 1, number + 1, -number - 1, *FAR])
    guises = INTEGERS if -100 < number < 100 else [int, Index]
    return Given(pick(draw, guises)(number), number)


# Sequences of integers ----------------------------------------------------------------


def generator(numbers):
    yield from numbers


SEQUENCES = [
    *[tuple, list, collections.deque, collections.UserList, np.array],
    *[lambda n: np.array(n, np.int8), lambda n: jnp.array(n, jnp.int32)],
    *[lambda n: [np.int16(k) for k in n], lambda n: tuple(map(Index, n))],
    *[lambda n: [jnp.int32(k) for k in n], lambda n: np.array([n, n])[0]],
    *[
        lambda n: array.array("i", n),
        lambda n: np.array([n, n], np.int64, order="F")[0],
    ],
]
LONG_SEQUENCES = [tuple, list, collections.UserList, lambda n: list(map(Index, n))]
NO_SEQUENCES = [
    *[set, generator, dict.fromkeys, iter, str, lambda n: None, lambda n: 1],
    *[lambda n: object(), lambda n: b"\1\1", lambda n: np.array(1), lambda n: Texts()],
    *[
        lambda n: np.array([n]),
        lambda n: jnp.array(1),
        lambda n: types.MappingProxyType({}),
    ],
    *[lambda n: "12", lambda n: np.datetime64("NaT", "D")],
    *[lambda n: jnp.ones((1, 2), int)],
    *[lambda n: jax.ShapeDtypeStruct((len(n),), np.int32), lambda n: float("nan")],
]
NO_SEQUENCES_OF_INTEGERS = [
    *[lambda n, to=to: [to(k) for k in n] for to in NO_INTEGERS],
    *[lambda n: np.array(n, np.float16), lambda n: np.array(n, bool), lambda n: [n]],
    *[lambda n: np.array(n).astype("M8[D]"), lambda n: np.array(n).astype(str)],
    *[lambda n: [*n[:-1], 1.5], lambda n: [*n[:-1], True], lambda n: (None, *n[1:])],
    *[lambda n: np.array(n, np.complex64), lambda n: jnp.array(n, jnp.bfloat16)],
    *[lambda n: [np.array(n), *n[1:]], lambda n: [[k] for k in n]],
]
FAR_SIZES = [2**49, 2**62, 2**63, 2**64, -(2**49)]  # refused, or empty


def sequences(draw, numbers, spoilt=False, far=FAR):
    """A sequence of integers in any guise; one that is spoilt differs, or is none."""
    numbers, kind = list(numbers), "right"
    if spoilt:
        kind = pick(draw, ["near", "near", "far", "more", "less", "no", "kind"])
    if kind == "no" or (kind == "kind" and not numbers):
        return Given(pick(draw, NO_SEQUENCES)(numbers), WRONG)
    small = all(-100 < number < 100 for number in numbers)
    if kind == "kind" and small:
        return Given(pick(draw, NO_SEQUENCES_OF_INTEGERS)(numbers), WRONG)
    if kind == "less" and numbers:
        numbers.pop()
    elif kind in ("near", "far") and numbers:
        d = draw(st.integers(0, len(numbers) - 1))
        n = numbers[d]
        numbers[d] = pick(draw, far if kind == "far" else [n - 1, n + 1, -n, 0])
    elif kind != "right":
        numbers.append(pick(draw, [1, 0, 2]))
    guises = SEQUENCES if small and kind != "far" else LONG_SEQUENCES
    return Given(pick(draw, guises)(numbers), tuple(numbers))


# Arrays -------------------------------------------------------------------------------

SHAPES = [(4,), (3, 4), (2, 3, 2), (1, 4), (0, 3), ()]
DTYPES = [np.dtype(t) for t in ("f4", "f4", "i4", "i1", "?", ml_dtypes.bfloat16, "c8")]
WIDE = [np.dtype(t) for t in ("f8", "i8", "u8", "c16")]


@functools.cache
def content(shape, dtype, seed):
    """Random bits; numbers where not every bit pattern is one."""
    random = np.random.default_rng([seed, *shape])
    if dtype == np.bool_:
        return np.asarray(random.random(shape) < 0.5)
    raw = random.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return np.ascontiguousarray(raw).view(dtype).reshape(shape)


class Arrayed:
    """What NumPy takes for an array."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def read_only(array):
    array = np.array(array)
    array.flags.writeable = False
    return array


def fortran(array):
    return np.array(array, order="F")


def strided(array):
    wide = np.repeat(array[..., None], 2, axis=-1)
    return wide[..., 1]


ARRAYS = [np.asarray, jnp.asarray, jnp.asarray, read_only, strided, fortran]
NO_ARRAYS = [
    *[None, ..., object(), int, len, {1, 2}, {"a": 1}, range, Texts()],
    *[[[1, 2], [3]], [[1, 2], 3], [None, None], [{}], [object()], [2**70, 1], 2**70],
    *[np.array(["2020-01-01"], "M8[D]"), np.timedelta64(3, "D"), [np.float16(1), None]],
    *[np.zeros((3, 4), [("a", np.int32)]), np.zeros((3, 4), "V4")],
    *[np.ones((3, 4), ">f4"), np.ones((3, 4), np.longdouble), np.ma.array([1.0, 2.0])],
    *[jax.ShapeDtypeStruct((3, 4), np.float32), np.zeros((3, 4), jax.dtypes.float0)],
]
OBJECTS = np.array([[1, None], ["a", 2.5]], object)
TEXTS = ["abc", b"abc", [["a", "b"]], np.array([["a", "b"]]), OBJECTS]


def number_lists(x64):
    """Lists of Python's numbers, and the dtype that JAX gives them."""
    integer, real = (np.dtype(f"{k}{8 if x64 else 4}") for k in "if")
    for numbers, dtype in [
        ([[1, 2, 3, 4], [5, 6, 7, -8], [9, 10, 11, 2**31 - 1]], integer),
        ([[0.5, -0.0, 3, 1e-30]] * 3, real),
        ([[True, False, True, True]] * 3, np.dtype(bool)),
        ([], real),
        (2.5, real),
        ((1, 2, 3, 4), integer),
    ]:
        yield Given(numbers, np.array(numbers, np.dtype(dtype)))


LISTS = {x64: list(number_lists(x64)) for x64 in (False, True)}


def inputs(draw, x64, spoilt=False, traced=False, dtypes=DTYPES, shapes=SHAPES):
    """An array in any guise; one that is spoilt has any shape and dtype, or is none."""
    kind = pick(draw, ["array"] * 7 + ["list", "object"])
    if spoilt and not traced:
        kind = pick(draw, ["array", "none", "text", "wide"])
    if kind == "none":
        return Given(pick(draw, NO_ARRAYS), WRONG)
    if kind == "text":
        text = pick(draw, TEXTS)
        return Given(text, np.asarray(text))
    if kind == "list" and not traced:
        return pick(draw, LISTS[x64])
    if kind == "wide" and not x64:
        wide = content((3, 4), pick(draw, WIDE), 0)
        return Given(wide, WRONG)
    shape, seed = pick(draw, shapes), draw(st.integers(0, 1))
    dtype = pick(draw, [*dtypes, *WIDE] if x64 else dtypes)
    meaning = content(shape, dtype, seed)
    if kind == "object" and not traced:
        return Given(Arrayed(meaning), meaning)
    guises = [np.asarray, jnp.asarray] if traced else ARRAYS
    return Given(pick(draw, guises)(meaning), meaning)


# Lengths ------------------------------------------------------------------------------

LENGTH_DTYPES = [np.dtype(t) for t in ("i4", "i4", "u1", "i8", "u4", "u8")]
NO_LENGTHS = [
    *[
        None,
        "3",
        1.5,
        [1.5],
        ["a"],
        [[1], [2, 3]],
        [None],
        object(),
        {2},
        [True, False],
    ],
    *[np.array([1.0, 2.0]), np.array([True]), np.array([1], object), [2**70], [1j]],
    *[np.array([1]).astype("m8[s]"), np.array([2], ">i4"), np.ma.array([1, 2])],
]


def lengths(draw, shape, most, spoilt=False, traced=False):
    """Lengths within and beyond an axis; spoilt ones have another shape, or none."""
    kind = pick(draw, ["shape", "none"]) if spoilt else "right"
    if kind == "none" and not traced:
        return Given(pick(draw, NO_LENGTHS), WRONG)
    if kind == "shape":
        other = (*shape, 1), shape[:-1], (*shape[:-1], 2), (1, *shape), (7,), (0, 3)
        shape = pick(draw, other)
    dtype = pick(draw, [d for d in LENGTH_DTYPES if d.itemsize < 8 or not traced])
    info = np.iinfo(dtype)
    choices = [
        k
        for k in (-(2**40), -2, *range(most + 2), 300, 2**32 + 1, 2**63)
        if info.min <= k <= info.max
    ]
    random = np.random.default_rng(draw(st.integers(0, 7)))
    picks = random.integers(0, len(choices), shape)
    meaning = np.asarray(np.array(choices, dtype)[picks])
    guises = [np.asarray] if dtype.itemsize > 4 else [np.asarray, jnp.asarray]
    if not traced:
        guises += [read_only, strided]
        # Without elements a list has a shape, but no dtype.
        guises += [np.ndarray.tolist] if meaning.size and dtype != np.uint64 else []
    return Given(pick(draw, guises)(meaning), meaning)
