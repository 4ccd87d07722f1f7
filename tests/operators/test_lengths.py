"""Lengths of every kind: they count by value, are clamped, and `checked` reports them.

They may be arrays of any integer dtype, made in 64-bit mode or not, or sequences of
numbers of any size, under every transformation.
"""

import array
import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, numbers
from dtypes import INTEGERS, dtype_of
from sampling import default_of, sampled_x64

import dml_jax
from dml_jax import reference

# 64-bit mode off, and on in exhaustive runs.
pytestmark = [sampled_x64, pytest.mark.usefixtures("x64")]
reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR)


def data_for(lengths: list[int]) -> np.ndarray:
    return numbers(len(lengths), 4)


def reversed_by(lengths: list[int], x: Any = None) -> np.ndarray:
    clamped = np.array([min(max(n, 0), 4) for n in lengths])
    x = data_for(lengths) if x is None else x
    return reference.reverse_sequence(x, clamped, **BATCH_MAJOR)


def wide(value: Any) -> jax.Array:
    """An array of JAX that was made in 64-bit mode."""
    with jax.enable_x64(True):
        return jnp.asarray(value)


def require_report(run: Callable[..., Any], lengths: list[int], *arrays: Any) -> None:
    """`checked` names the extremes, or gives the result if no length is wrong."""
    checked = dml_jax.checked(run)
    if all(0 <= n <= 4 for n in lengths):
        assert_same_bits(checked(*arrays), reversed_by(lengths))
        return
    with pytest.raises(ValueError, match=f"got {min(lengths)} to {max(lengths)}$"):
        checked(*arrays)


# Kinds of lengths ---------------------------------------------------------------------


def extremes(name: str) -> list[int]:
    """Numbers around 0, around the size of the axis and around every width."""
    info = jnp.iinfo(dtype_of(name))
    found = {-(2**32), -4, -1, 0, 1, 3, 4, 5, info.min, info.max}
    found |= {2**bits + offset for bits in (31, 32, 63) for offset in (-1, 0, 1, 2)}
    return sorted(n for n in found if info.min <= n <= info.max)


SIZES = [0, 3, 5, 2**31, 2**32 + 1, 2**40, 2**63, 2**64 - 1, -1, -(2**40), -(2**63)]
OF_NUMPY = [np.int8, np.uint8, np.int64, np.uint64]


def kinds() -> Iterator[tuple[str, Any, list[int]]]:
    """Names, lengths, and what they are as ints."""
    for name in INTEGERS[2:]:  # int2 has no 4
        values = extremes(name)
        given = np.array(values, object).astype(dtype_of(name))
        yield f"numpy-{name}", given, values
        yield f"jax-{name}", wide(given), values
    for other in SIZES:
        yield "list", [3, other, 2], [3, other, 2]
        if -(2**63) <= other < 2**63:
            yield "list-of-jax", [wide(n) for n in (3, other, 2)], [3, other, 2]
        for kind in OF_NUMPY:
            yield f"list-with-{kind.__name__}", [kind(2), other, 4], [2, other, 4]
    for other in (2**32, 2**40, 2**63):
        far = [2**33, other, 2**32 + 1]
        yield "far-list", far, far
        yield "far-array", np.array(far, np.uint64), far
    for one in (-(2**40), -(2**32) + 1, 2**32 + 1, 2**63 - 1):
        yield "one", np.array([one]), [one]
        yield "list-of-one", [one], [one]
    given = [1, 2, 3]
    for sequence in (tuple(given), range(1, 4), array.array("i", given)):
        yield type(sequence).__name__, sequence, given
    for make in (collections.deque, collections.UserList):
        yield make.__name__, make(given), given
    yield "none", [], []


def column(lengths: Any) -> Any:
    """One length for each line."""
    if isinstance(lengths, jax.Array):
        return jax.lax.expand_dims(lengths, [1])  # indexing would narrow it
    if isinstance(lengths, np.ndarray):
        return lengths[:, None]
    return [[n] for n in lengths] or np.zeros((0, 1), int)


KINDS = [pytest.param(*given, id=name) for name, *given in kinds()]


@pytest.mark.parametrize(("lengths", "values"), KINDS)
def test_lengths_count_by_value(lengths: Any, values: list[int]) -> None:
    x, expected = data_for(values), reversed_by(values)
    assert_same_bits(reverse(x, lengths), expected)
    lines = dml_jax.reverse_subsequences(x, column(lengths), 1)
    assert_same_bits(lines, expected)
    require_report(lambda: reverse(x, lengths), values)


# Transformations ----------------------------------------------------------------------

X = numbers(3, 4)
ARRAYS = {
    "int64": wide([2**32 + 1, -(2**32) + 2, 3]),
    "int64-min-max": wide([-(2**63), 2**63 - 1, 2]),
    "uint64": wide(np.array([2**63 + 2, 2**32 + 1, 3], np.uint64)),
    "int64-fine": wide([0, 4, 2]),
    "int32": np.array([-1, 5, 2], np.int32),
    "uint32": np.array([0, 1, 2**31], np.uint32),
    "int8": np.array([-100, 2, 3], np.int8),
}
FAR = {"numpy": np.array([0, 2**40, -(2**40)]), "tuple": (2**63, -1, 0)}
FAR |= {"deque": collections.deque([9, 2, 3])}


def single(x: jax.Array, length: jax.Array) -> jax.Array:
    return reverse(x[None], jax.lax.expand_dims(length, [0]))[0]


OF_LENGTHS = {
    "plain": reverse,
    "lines": lambda x, n: dml_jax.reverse_subsequences(x, column(n), 1),
    "gather": functools.partial(reverse, implementation="gather"),
    "inference": functools.partial(reverse, training=False),
    "jit": jax.jit(reverse),
    "vmap": jax.vmap(single),
    "jit-of-vmap": jax.jit(jax.vmap(single)),
    "vmap-of-jit": jax.vmap(jax.jit(single)),
    "export": lambda x, n: jax.export.export(jax.jit(reverse))(x, n).call(x, n),
}
OF_DATA: dict[str, Callable[..., Callable[..., Any]]] = {
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x]))[0],
    "scan": lambda f: lambda x: jax.lax.scan(lambda y, _: (f(y), None), x, length=3)[0],
    "remat": jax.checkpoint,
    "grad": lambda f: jax.grad(lambda x: jnp.sum(f(x) * X)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
    "cond": lambda f: lambda x: jax.lax.cond(x[0, 0] == 1, lambda: f(x), lambda: x),
}


@pytest.mark.parametrize("kind", default_of(ARRAYS, "int64", "int32"))
@pytest.mark.parametrize("name", OF_LENGTHS)
def test_lengths_that_are_transformed(name: str, kind: str) -> None:
    function, lengths = OF_LENGTHS[name], ARRAYS[kind]
    values = [int(n) for n in np.asarray(lengths)]
    assert_same_bits(function(X, lengths), reversed_by(values))
    assert_same_bits(jax.jit(lambda: function(X, lengths))(), reversed_by(values))
    if name not in ("vmap-of-jit", "export"):
        require_report(function, values, X, lengths)
        require_report(lambda: function(X, lengths), values)


@pytest.mark.parametrize("kind", default_of(ARRAYS | FAR, "int64", "numpy", "tuple"))
@pytest.mark.parametrize("name", OF_DATA)
def test_lengths_that_are_closed_over(name: str, kind: str) -> None:
    lengths = (ARRAYS | FAR)[kind]
    values = [int(n) for n in np.asarray(lengths, object)]
    options = {"training": False} if name == "jvp" else {}
    run = OF_DATA[name](functools.partial(reverse, sequence_lens=lengths, **options))
    assert_same_bits(run(X), reversed_by(values))
    require_report(run, values, X)


@pytest.mark.parametrize("other", [3, 300, 2**31, 2**40, 2**63, -(2**40)])
@pytest.mark.parametrize("kind", default_of([np.int64, int, np.uint64], np.int64))
@pytest.mark.parametrize("dtype", default_of(["uint32", "uint8", "int32"], "uint32"))
def test_lengths_beside_traced_ones(dtype: str, kind: Any, other: int) -> None:
    if not np.iinfo(np.uint64 if kind is int else kind).min <= other < 2**63:
        kind = int
    run = jax.jit(lambda n: reverse(X, [n, kind(other), 4]))
    assert_same_bits(run(jnp.asarray(2, dtype)), reversed_by([2, other, 4]))


def test_lengths_of_strings() -> None:
    text, far = np.array([["a", "b", "c", "d"]] * 3), [2**32 + 1, -(2**32) + 2, 3]
    np.testing.assert_array_equal(reverse(text, wide(far)), reversed_by(far, text))
