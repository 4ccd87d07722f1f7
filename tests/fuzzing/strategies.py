"""Strategies for calls of the public functions.

Arguments are right by construction: they are drawn as NumPy arrays, tuples and numbers,
which the reference takes, and are written in one of the forms that the functions take.
`near_values` may be right or wrong.
"""

import array
import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from dtypes import dtype_of, random_elements
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy], Any]


class Call(NamedTuple):
    """Arguments as the function gets them, and as its reference gets them."""

    function: str
    values: dict[str, Any]
    plain: dict[str, Any]

    def replaced(self, name: str, value: Any) -> "Call":
        values, plain = ({**part, name: value} for part in (self.values, self.plain))
        return self._replace(values=values, plain=plain)


class Index:
    """What operator.index takes."""

    def __init__(self, number: int):
        self.number = number

    def __index__(self) -> int:
        return self.number


class Arrayed:
    """What NumPy takes for an array."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array


def read_only(array: np.ndarray) -> np.ndarray:
    array = np.array(array)
    array.flags.writeable = False
    return array


def strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array[..., None], 2, axis=-1)[..., 1]


# Forms in which an argument may be written --------------------------------------------

INTEGER_FORMS = [int, np.int64, np.int8, np.array, jnp.int32, Index]
SEQUENCE_FORMS = [
    *[tuple, list, collections.deque, collections.UserList, np.array],
    *[lambda n: np.array(n, np.int8), lambda n: jnp.array(n, jnp.int32)],
    *[lambda n: [np.int16(k) for k in n], lambda n: tuple(map(Index, n))],
    *[lambda n: [jnp.int32(k) for k in n], lambda n: np.array([n, n]).T[:, 0]],
    *[lambda n: array.array("i", n)],
]
ARRAY_FORMS = [np.asarray, jnp.asarray, read_only, strided, np.asfortranarray, Arrayed]
LENGTH_FORMS = [np.asarray, read_only, strided]
NUMBER_FORMS = [lambda n: n, np.asarray, jnp.asarray]
DTYPE_FORMS = [np.dtype, str, lambda dtype: dtype.type]
OPTIONS = {
    "training": [True, False, np.True_],
    "lda_coeff": [1.0, 0, 0.5, -2, np.float16(3), np.array(2), jnp.float32(4), 2**70],
    "name": ["n", None],
    "implementation": ["gather", "scatter", None],
}
ARRAYS = {
    "x",
    "lengths",
    "input",
    "input_gradient",
    "sequence_lengths",
    "sequence_lens",
}
ARRAYS |= {"value", "value_start", "value_delta"}


def forms_of(name: str, plain: Any) -> list[Callable[[Any], Any]]:
    if "lens" in name or "lengths" in name:
        return LENGTH_FORMS
    if isinstance(plain, np.ndarray):
        return ARRAY_FORMS
    kinds = {tuple: SEQUENCE_FORMS, int: INTEGER_FORMS, np.dtype: DTYPE_FORMS}
    forms = (forms for kind, forms in kinds.items() if isinstance(plain, kind))
    return next(forms, NUMBER_FORMS)


# Right arguments ----------------------------------------------------------------------

NARROW = ["float32", "int32", "int8", "bool", "bfloat16", "complex64"]
WIDE = ["float64", "int64", "uint64", "complex128"]
FILLED = [*NARROW, "uint8", "int4", "float16", "float8_e4m3fn", "float4_e2m1fn"]
SEEDS = st.integers(0, 3)


@st.composite
def arrays(draw: Draw, dtypes: list[str], shape: tuple[int, ...] | None = None):
    if shape is None:
        shape = draw(st.sampled_from([(4,), (3, 4), (2, 3, 2), (1, 4), (0, 3)]))
    dtype, size = dtype_of(draw(st.sampled_from(dtypes))), int(np.prod(shape))
    return random_elements(dtype, size, draw(SEEDS)).reshape(shape)


@st.composite
def windows(draw: Draw, shape: tuple[int, ...]):
    """Offsets, sizes and strides of a window in a shape, and what it gives."""
    offsets = tuple(draw(st.integers(0, size)) for size in shape)
    pairs = zip(shape, offsets, strict=True)
    sizes = tuple(draw(st.integers(0, size - offset)) for size, offset in pairs)
    strides = tuple(draw(st.sampled_from([1, 2, -1, -2, 3])) for _ in shape)
    pairs = zip(sizes, strides, strict=True)
    return offsets, sizes, strides, tuple(-(-size // abs(s)) for size, s in pairs)


def lengths_of(draw: Draw, shape: tuple[int, ...]) -> np.ndarray:
    """Lengths within and beyond an axis, some of them beyond 32 bits."""
    dtype = np.dtype(draw(st.sampled_from(["i4", "u1", "i8", "u4", "u8"])))
    info = np.iinfo(dtype)
    numbers = [-(2**40), -2, *range(6), 300, 2**32 + 1, 2**63]
    numbers = [n for n in numbers if info.min <= n <= info.max]
    random = np.random.default_rng(draw(SEEDS))
    return np.array(numbers, dtype)[random.integers(0, len(numbers), shape)]


def reverse_padded(draw: Draw, dtypes: list[str]) -> dict[str, Any]:
    x = draw(arrays(dtypes))
    axis = draw(st.integers(0, x.ndim - 1))
    batch = x.shape[:axis] or x.shape[1:2]
    shape = [draw(st.sampled_from([1, size])) for size in batch]
    lengths = lengths_of(draw, draw(st.sampled_from([(), tuple(shape)])))
    axis -= draw(st.sampled_from([0, x.ndim]))
    return {"x": x, "lengths": lengths, "axis": axis}


def reverse_subsequences(draw: Draw, dtypes: list[str]) -> dict[str, Any]:
    x = draw(arrays(dtypes))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    shape = [draw(st.sampled_from([1, size])) for size in x.shape]
    shape[axis] = 1
    lengths = lengths_of(draw, tuple(shape))
    return {"input": x, "sequence_lengths": lengths, "axis": axis}


def reverse_sequence(draw: Draw, dtypes: list[str]) -> dict[str, Any]:
    shape = draw(st.sampled_from([(3, 4), (2, 3, 2), (0, 3)]))
    x, batch = draw(arrays(dtypes, shape)), draw(st.integers(0, 1))
    lengths = lengths_of(draw, shape[batch : batch + 1])
    axes = {"batch_axis": batch, "time_axis": 1 - batch}
    return {"input": x, "sequence_lens": lengths, **axes}


def slice_(draw: Draw, dtypes: list[str]) -> dict[str, Any]:
    x = draw(arrays(dtypes))
    offsets, _, strides, sizes = draw(windows(x.shape))
    strides = tuple(map(abs, strides))
    return {"input": x, "offsets": offsets, "sizes": sizes, "strides": strides}


WINDOW = "input_window_offsets", "input_window_sizes", "input_window_strides"


def slice1(draw: Draw, dtypes: list[str]) -> dict[str, Any]:
    x = draw(arrays(dtypes))
    *window, sizes = draw(windows(x.shape))
    sizes = {"output_sizes": sizes} if draw(st.booleans()) else {}
    return {"input": x, **dict(zip(WINDOW, window, strict=True)), **sizes}


def slice_grad(draw: Draw, dtypes: list[str]) -> dict[str, Any]:
    shape = draw(st.sampled_from([(4,), (3, 4), (2, 3, 2), (0, 3)]))
    *window, sizes = draw(windows(shape))
    gradient = {"input_gradient": draw(arrays(dtypes, sizes))}
    window = dict(zip(WINDOW, window, strict=True))
    return {**gradient, "output_gradient_sizes": shape, **window}


def fill(draw: Draw, dtypes: list[str], names: list[str]) -> dict[str, Any]:
    dtypes = [*FILLED, *dtypes[len(NARROW) :]]
    if len(names) > 1:
        dtypes.remove("bool")
    dtype = dtype_of(draw(st.sampled_from(dtypes)))
    sizes = draw(st.sampled_from([(), (3,), (2, 2), (0, 3)]))
    elements = random_elements(dtype, 16, draw(SEEDS))
    numbers = {name: elements[draw(st.integers(0, 15))] for name in names}
    return {"sizes": sizes, "value_data_type": dtype, **numbers}


PLAIN = {
    "reverse_padded": reverse_padded,
    "reverse_subsequences": reverse_subsequences,
    "reverse_sequence": reverse_sequence,
    "slice": slice_,
    "slice1": slice1,
    "slice_grad": slice_grad,
    "fill_value_constant": lambda *args: fill(*args, ["value"]),
    "fill_value_sequence": lambda *args: fill(*args, ["value_start", "value_delta"]),
}


@st.composite
def calls(draw: Draw, function: str, x64: bool = False):
    """A call that gives a result, with options where it has some."""
    plain = PLAIN[function](draw, NARROW + WIDE * x64)
    values = {
        name: draw(st.sampled_from(forms_of(name, value)))(value)
        for name, value in plain.items()
    }
    names = list(OPTIONS) if function == "reverse_sequence" else []
    if function == "reverse_subsequences":
        names = ["implementation"]
    options = {n: draw(st.sampled_from(OPTIONS[n])) for n in names if draw(SEEDS) == 0}
    return Call(function, {**values, **options}, plain)


# Near ones ---------------------------------------------------------------------------

FAR = [2**31, -(2**31), 2**49, 2**63 - 1, -(2**63), 2**64, 2**70, -(2**70)]
REALS = [
    *[0, 1, -3, 255, 256, -128, -129, 2**24 + 1, 2**31, 2**32, 2**63, 2**64, 2**70],
    *[0.0, -0.0, 0.1, -1 / 3, 2.5, 500.0, 65504.0, 65600.0, 1e-45, 1e39, 1e-320, 1e308],
    *[float("nan"), float("inf"), 10**400, True, False, 1j, 2 - 0.5j],
]


def near_values(draw: Draw, name: str, plain: Any) -> Any:
    """Something of the right kind that a call may refuse."""
    if isinstance(plain, int):
        return draw(st.sampled_from([plain - 1, plain + 1, -plain - 1, *FAR]))
    if isinstance(plain, tuple):
        numbers, more = list(plain), draw(st.integers(-1, 2))
        if more == 1 or not numbers:
            return (*numbers, draw(st.sampled_from([0, 1, 2])))
        d = draw(st.integers(0, len(numbers) - 1))
        far = FAR[2:] if "sizes" in name else FAR  # 2^31 elements are no error
        near = [numbers[d] - 1, numbers[d] + 1, -numbers[d], 0, *far]
        numbers[d : d + 1] = [draw(st.sampled_from(near))] if more >= 0 else []
        return tuple(numbers)
    if name.startswith("sequence_len"):
        shape = plain.shape
        others = [(*shape, 1), shape[:-1], (*shape[:-1], 2), (1, *shape), (7,), (0, 3)]
        return lengths_of(draw, draw(st.sampled_from(others)))
    if isinstance(plain, np.ndarray):
        return draw(arrays([*NARROW, *WIDE]))
    if isinstance(plain, np.dtype):
        return dtype_of(draw(st.sampled_from([*FILLED, *WIDE])))
    return draw(st.sampled_from(REALS))
