"""Random calls, whose arguments are written in the forms that the functions take.

The arguments are right by construction: `cases` has them as NumPy arrays, tuples and
numbers, which the reference takes. `near_values` may be right or wrong.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from cases import REVERSALS, random_case, with_lengths
from dtypes import DTYPES, dtype_of, needs_x64
from forms import forms_of

from dml_jax.cli.verify_cases import random_bits

Choose = Callable[[Sequence[Any]], Any]  # one of several values


class Call(NamedTuple):
    """Arguments as the function gets them, and as its reference gets them."""

    function: str
    values: dict[str, Any]
    plain: dict[str, Any]

    def replaced(self, name: str, value: Any) -> "Call":
        values, plain = ({**part, name: value} for part in (self.values, self.plain))
        return self._replace(values=values, plain=plain)


OPTIONS = {
    "training": [True, False, np.True_],
    "lda_coeff": [1.0, 0, 0.5, -2, np.float16(3), np.array(2), jnp.float32(4), 2**70],
    "name": ["n", None],
    "implementation": ["gather", "scatter", None],
}
LENGTH_DTYPES = ["int32", "uint8", "int64", "uint32", "uint64"]


def chooser(random: np.random.Generator) -> Choose:
    return lambda values: values[random.integers(len(values))]


def random_call(function: str, seed: int, x64: bool = False) -> Call:
    """A call that gives a result, with options where it has some."""
    random = np.random.default_rng(seed)
    choose = chooser(random)
    refused = ["bool", "float8_e8m0fnu"]  # by some of the functions
    names = [name for name in DTYPES if name not in refused]
    dtypes = [d for d in map(dtype_of, names) if x64 or not needs_x64(d)]
    case = random_case(function, seed, choose(dtypes))
    if function in REVERSALS:
        case = with_lengths(case, choose(LENGTH_DTYPES), seed)
    plain = {**case.arrays, **case.options}
    options = {name: plain.pop(name) for name in OPTIONS if name in plain}
    if function == "reverse_sequence":
        options |= {n: choose(OPTIONS[n]) for n in OPTIONS if random.random() < 0.3}
    values = {n: choose(forms_of(n, value))(value) for n, value in plain.items()}
    return Call(function, values | options, plain)


# Near ones ----------------------------------------------------------------------------

FAR = [2**31, -(2**31), 2**49, 2**63 - 1, -(2**63), 2**64, 2**70, -(2**70)]
REALS = [
    *[0, 1, -3, 255, 256, -128, -129, 2**24 + 1, 2**31, 2**32, 2**63, 2**64, 2**70],
    *[0.0, -0.0, 0.1, -1 / 3, 2.5, 500.0, 65504.0, 65600.0, 1e-45, 1e39, 1e-320, 1e308],
    *[float("nan"), float("inf"), 10**400, True, False, 1j, 2 - 0.5j],
]


def near_values(choose: Choose, name: str, plain: Any) -> Any:
    """Something of the right kind that a call may refuse."""
    if isinstance(plain, int):
        return choose([plain - 1, plain + 1, -plain - 1, *FAR])
    if isinstance(plain, tuple):
        numbers, more = list(plain), choose([-1, 0, 1, 2])
        if more == 1 or not numbers:
            return (*numbers, choose([0, 1, 2]))
        d = choose(range(len(numbers)))
        far = FAR[2:] if "sizes" in name else FAR  # 2^31 elements are no error
        near = [numbers[d] - 1, numbers[d] + 1, -numbers[d], 0, *far]
        numbers[d : d + 1] = [choose(near)] if more >= 0 else []
        return tuple(numbers)
    if "len" in name:
        shape = plain.shape
        others = [(*shape, 1), shape[:-1], (*shape[:-1], 2), (1, *shape), (7,), (0, 3)]
        return np.ones(choose(others), choose(LENGTH_DTYPES))
    if isinstance(plain, np.ndarray):
        shape = choose([(4,), (3, 4), (2, 3, 2), (1, 4), (0, 3), plain.shape])
        dtype = dtype_of(choose(DTYPES))
        return random_bits(np.random.default_rng(choose(range(9))), dtype, shape)
    if isinstance(plain, np.dtype):
        return dtype_of(choose(DTYPES))
    return choose(REALS)
