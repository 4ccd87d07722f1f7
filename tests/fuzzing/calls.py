"""Random calls, of which an argument is changed to one that may be right or wrong."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cases import REVERSALS, random_case, with_lengths
from dtypes import DTYPES, X64_ONLY, dtype_of, needs_x64

from dml_jax.cli.verify_cases import random_bits

Choose = Callable[[Sequence[Any]], Any]  # one of several values

OPTIONS = "training", "lda_coeff", "implementation"  # of no effect on a result
LENGTH_DTYPES = ["int32", "uint8", "int64", "uint32", "uint64"]


def chooser(random: np.random.Generator) -> Choose:
    return lambda values: values[random.integers(len(values))]


def random_arguments(function: str, seed: int, x64: bool = False) -> dict[str, Any]:
    """The arguments of a call that gives a result, as the reference takes them."""
    choose = chooser(np.random.default_rng(seed))
    refused = ["bool", "float8_e8m0fnu"]  # by some of the functions
    names = [name for name in DTYPES if name not in refused]
    dtypes = [d for d in map(dtype_of, names) if x64 or not needs_x64(d)]
    case = random_case(function, seed, choose(dtypes))
    if function in REVERSALS:
        case = with_lengths(case, choose(LENGTH_DTYPES), seed)
    arguments = {**case.arrays, **case.options}
    return {name: x for name, x in arguments.items() if name not in OPTIONS}


FAR = [2**31, -(2**31), 2**49, 2**63 - 1, -(2**63)]
REALS = [
    *[0, 1, -3, 255, 256, -128, -129, 2**24 + 1, 2**31, 2**32, 2**63],
    *[0.0, -0.0, 0.1, -1 / 3, 2.5, 500.0, 65504.0, 65600.0, 1e-45, 1e39, 1e-320, 1e308],
    *[float("nan"), float("inf"), True, False, 1j, 2 - 0.5j],
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
        dtype = dtype_of(choose([name for name in DTYPES if name not in X64_ONLY]))
        return random_bits(np.random.default_rng(choose(range(9))), dtype, shape)
    if isinstance(plain, np.dtype):
        return dtype_of(choose(DTYPES))
    return choose(REALS)
