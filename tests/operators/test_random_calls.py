"""Random calls of every function, in every dtype and under every transformation.

The layout, the values and the dtypes of data and lengths follow from the seed. Results
are those of the reference, bit for bit; only floats of sequences may differ by one unit
in the last place.
"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_sequence
from cases import (
    FUNCTIONS,
    MOVES,
    REVERSALS,
    adjoint,
    lengths_of,
    linear,
    random_case,
    with_lengths,
    with_options,
)
from dtypes import DTYPES, FLOATS, INTEGERS, dtype_of, needs_x64
from jax import export
from sampling import default_of

import dml_jax
from dml_jax.cli.verify_cases import Case

Variants = list[Case]  # of one layout, with different values
Pairs = Iterator[tuple[Any, Any]]  # what a transformation gives, and what it must be
PLATFORMS = "cpu", "cuda", "rocm", "tpu"

pytestmark = pytest.mark.usefixtures("nans_are_data", "optimized")
every_seed = pytest.mark.parametrize("seed", default_of(range(3), 0))


def dtypes_of(function: str) -> list[str]:
    """Those that the function takes."""
    refused = {"slice_grad": ["float8_e8m0fnu"]}  # has no zero
    refused["fill_value_sequence"] = ["bool", "float8_e8m0fnu"]
    return [name for name in DTYPES if name not in refused.get(function, [])]


def require_equal(case: Case, result: Any, expected: Any) -> None:
    is_sequence = case.function == "fill_value_sequence"
    compare = assert_same_sequence if is_sequence else assert_same_bits
    compare(np.asarray(result), expected)


def mode_for(*dtypes: np.dtype) -> contextlib.AbstractContextManager[None]:
    """64-bit mode, where a dtype needs it."""
    is_wide = any(map(needs_x64, dtypes))
    return jax.enable_x64(True) if is_wide else contextlib.nullcontext()


def random_variants(function: str, seed: int, names: list[str], count: int) -> Variants:
    """Cases of one layout, in dtypes and with an implementation that follow from it."""
    random = np.random.default_rng(seed)
    dtype = dtype_of(names[random.integers(len(names))])
    of_lengths = LENGTHS[random.integers(len(LENGTHS))]
    implementation = random.choice(["gather", "scatter", None])
    variants = [random_case(function, seed, dtype, values) for values in range(count)]
    if function in REVERSALS:
        variants = [
            with_lengths(case, of_lengths, i) for i, case in enumerate(variants)
        ]
    if function == "reverse_sequence":
        variants = [with_options(c, implementation=implementation) for c in variants]
    return variants


# The default run has one dtype of each width and kind.
DEFAULT = ["bool", "int4", "uint8", "float8_e4m3fn", "bfloat16", "float32"]
DEFAULT += ["int64", "float64", "complex64"]
LENGTHS = INTEGERS[2:]  # as int2 they would all be 0 or 1
OF_EVERY_DTYPE = [(f, dtype) for f in FUNCTIONS for dtype in dtypes_of(f)]


@every_seed
@pytest.mark.parametrize(
    ("function", "name"),
    default_of(OF_EVERY_DTYPE, *itertools.product(FUNCTIONS, DEFAULT)),
)
def test_dtypes(function: str, name: str, seed: int) -> None:
    # Each dtype has a layout, and so options, of its own.
    number = seed + 4 * DTYPES.index(name)
    (case,) = random_variants(function, number, [name], 1)
    with mode_for(dtype_of(name)):  # lengths of NumPy keep their width without it
        result = case.run()
        assert isinstance(result, jax.Array)
        assert not result.aval.weak_type
        require_equal(case, result, case.expected())


# Transformations ----------------------------------------------------------------------


def of_arrays(case: Case) -> Callable[..., jax.Array]:
    """The case as a function of its arrays alone, in their order."""
    return lambda *arrays: case.run(**dict(zip(case.arrays, arrays, strict=True)))


def stacked(variants: Variants, name: str, axis: int | None = 0) -> Any:
    """An array of all variants, or of the first one alone."""
    if axis is None:
        return variants[0].arrays[name]
    return np.stack([variant.arrays[name] for variant in variants], axis)


def jit(case: Case, *_: Case) -> Pairs:
    """Of arguments, and of constants."""
    yield jax.jit(of_arrays(case))(*case.arrays.values()), case.expected()
    yield jax.jit(lambda: case.run())(), case.expected()


def vmap(case: Case, *others: Case) -> Pairs:
    """All arrays are mapped, each of them along its first or last dimension."""
    variants, axes = [case, *others], [-1, 0][: len(case.arrays)]
    arrays = [
        stacked(variants, name, axis)
        for name, axis in zip(case.arrays, axes, strict=True)
    ]
    expected = np.stack([variant.expected() for variant in variants], -1)
    yield jax.vmap(of_arrays(case), axes, -1)(*arrays), expected


def vmap_each_array_alone(case: Case, *others: Case) -> Pairs:
    variants = [case, *others]
    for name in case.arrays:
        axes = [0 if other == name else None for other in case.arrays]
        arrays = [
            stacked(variants, other, axis)
            for other, axis in zip(case.arrays, axes, strict=True)
        ]
        results = [
            case.expected(**{name: variant.arrays[name]}) for variant in variants
        ]
        yield jax.vmap(of_arrays(case), axes)(*arrays), np.stack(results)


def scan(case: Case, *others: Case) -> Pairs:
    variants = [case, *others]
    arrays = [stacked(variants, name) for name in case.arrays]
    expected = np.stack([variant.expected() for variant in variants])
    yield jax.lax.map(lambda a: of_arrays(case)(*a), arrays), expected


def remat(case: Case, *_: Case) -> Pairs:
    run = jax.checkpoint(of_arrays(case))
    yield run(*map(jnp.asarray, case.arrays.values())), case.expected()


def disable_jit(case: Case, *_: Case) -> Pairs:
    with jax.disable_jit():
        yield case.run(), case.expected()


def export_for_every_platform(case: Case, *_: Case) -> Pairs:
    exported = export.export(jax.jit(of_arrays(case)), platforms=PLATFORMS)
    yield exported(*case.arrays.values()).call(*case.arrays.values()), case.expected()


def export_for_any_batch(case: Case, *others: Case) -> Pairs:
    variants, (batch,) = [case, *others], export.symbolic_shape("batch")
    arrays = [stacked(variants, name) for name in case.arrays]
    types = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in arrays]
    exported = export.export(jax.jit(jax.vmap(of_arrays(case))))(*types)
    yield exported.call(*arrays), np.stack([each.expected() for each in variants])


def of_any_size(arrays: list[np.ndarray]) -> list[jax.ShapeDtypeStruct]:
    """Types whose sizes are symbols, but for 0 and 1; equal sizes are one symbol."""
    scope = export.SymbolicScope()
    shapes = [
        ", ".join(f"n{size}" if size > 1 else str(size) for size in np.shape(x))
        for x in arrays
    ]
    return [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), x.dtype)
        for shape, x in zip(shapes, arrays, strict=True)
    ]


def export_for_any_size(case: Case, *_: Case) -> Pairs:
    """Of a reversal's arrays, and of the result of a fill."""
    arrays, function = [*case.arrays.values()], of_arrays(case)
    if case.function not in MOVES:

        def function(like: jax.Array, *scalars: jax.Array) -> jax.Array:
            return of_arrays(with_options(case, sizes=like.shape))(*scalars)

        arrays = [np.zeros(case.options["sizes"], np.int8), *arrays]
    exported = export.export(jax.jit(function), platforms=PLATFORMS)
    yield exported(*of_any_size(arrays)).call(*arrays), case.expected()


def other_mode(case: Case, *_: Case) -> Pairs:
    """Arrays that were made in 64-bit mode, and are used in the other one."""
    with jax.enable_x64(True):
        arrays = {name: jnp.asarray(array) for name, array in case.arrays.items()}
    with jax.enable_x64(False):
        yield case.run(**arrays), case.expected()
        yield jax.jit(lambda arrays: case.run(**arrays))(arrays), case.expected()
        mapped = jax.jit(jax.vmap(lambda arrays: case.run(**arrays)))
        arrays = {n: jax.lax.expand_dims(x, [0]) for n, x in arrays.items()}
        yield mapped(arrays)[0], case.expected()


def weakly_typed(case: Case, *_: Case) -> Pairs:
    arrays = {name: jnp.asarray(1.0) for name in linear(case)}
    if case.function in MOVES:
        shapes = {name: np.shape(case.arrays[name]) for name in arrays}
        arrays = {n: jnp.broadcast_to(x, shapes[n]) for n, x in arrays.items()}
    else:
        case = with_options(case, value_data_type=np.dtype(np.float32))
    assert all(jax.typeof(x).weak_type for x in arrays.values())
    result = case.run(**arrays)
    assert not result.aval.weak_type
    yield result, case.expected(**{n: np.asarray(x) for n, x in arrays.items()})


def random_keys(case: Case, *_: Case) -> Pairs:
    """Keys instead of numbers: each from where the reference moves it."""
    (name,) = linear(case)
    positions = np.arange(case.arrays[name].size).reshape(case.arrays[name].shape)
    keys = jax.random.split(jax.random.key(0, impl="rbg"), positions.shape)
    result, expected = case.run(**{name: keys}), case.expected(**{name: positions})
    assert result.dtype == keys.dtype
    data = np.asarray(jax.random.key_data(keys)).reshape(-1, 4)
    yield jax.random.key_data(result), data[expected]


def checked(case: Case, *_: Case) -> Pairs:
    """The error has the extremes of the lengths, and there is none if all are right."""
    lengths, (data,) = lengths_of(case), linear(case)
    axis = case.options.get("axis", case.options.get("time_axis"))
    size = case.arrays[data].shape[axis]
    right = np.asarray(np.clip(lengths.astype(object), 0, size), object)
    is_wrong = bool((lengths != right).any())
    ends = f"{lengths.min()} to {lengths.max()}" if is_wrong else ""
    for given in (right.astype(lengths.dtype), lengths):
        arrays = {n: given if "len" in n else x for n, x in case.arrays.items()}
        for result in checked_in_programs(dataclasses.replace(case, arrays=arrays)):
            if given is lengths and is_wrong:
                message = re.escape(f"be in [0, {size}]; got {ends}")
                with pytest.raises(ValueError, match=message):
                    result()
            else:
                yield result(), case.expected(**arrays)


def checked_in_programs(case: Case) -> Iterator[Callable[[], jax.Array]]:
    """Of arguments, of constants, and under `vmap`."""
    arrays, function = [*case.arrays.values()], of_arrays(case)
    mapped = jax.vmap(jax.jit(function))
    yield lambda: dml_jax.checked(function)(*arrays)
    yield lambda: dml_jax.checked(lambda: case.run())()
    yield lambda: dml_jax.checked(mapped)(*(x[None] for x in arrays))[0]


ANY_DTYPE = [jit, vmap, vmap_each_array_alone, scan, remat, disable_jit, other_mode]
ANY_DTYPE += [export_for_every_platform, export_for_any_batch, weakly_typed]
OF_SOME = {checked: REVERSALS, random_keys: [*REVERSALS, "slice", "slice1"]}
FILLS = ["fill_value_constant", "fill_value_sequence"]
OF_SOME[export_for_any_size] = [*REVERSALS, *FILLS]
NARROW = [name for name in FLOATS if dtype_of(name).itemsize < 4]
# XLA for TPUs has no such dtypes.
NOT_ON_TPU = ["int2", "uint2", "complex128"]


@every_seed
@pytest.mark.parametrize(
    ("transform", "function"),
    [
        *itertools.product(ANY_DTYPE, FUNCTIONS),
        *((t, function) for t, functions in OF_SOME.items() for function in functions),
    ],
)
def test_transformations(
    function: str, transform: Callable[..., Pairs], seed: int
) -> None:
    names = dtypes_of(function)
    if transform in (export_for_every_platform, export_for_any_size):
        refused = [*NOT_ON_TPU, *["float64"] * (function == "fill_value_sequence")]
        names = [name for name in names if name not in refused]
    if transform is scan:  # XLA on CPU reads and writes them as float32
        moved = ["float4_e2m1fn"] if function in MOVES else []  # it has no NaN
        names = [name for name in names if name not in NARROW or name in moved]
    if transform is other_mode and function not in MOVES:
        names = [name for name in names if not needs_x64(dtype_of(name))]
    check(transform, function, names, seed)


def check(
    transform: Callable[..., Pairs], function: str, names: list[str], seed: int
) -> None:
    number = seed + 100 * len(transform.__name__)  # not those of other transformations
    variants = random_variants(function, number, names, 3)
    arrays = [*variants[0].arrays.values()]
    # Lengths that a derivative closes over keep their width.
    is_closed_over = transform in DERIVATIVES and transform is not vjp_of_export
    wide = arrays[:1] if is_closed_over and function in MOVES else arrays
    with mode_for(*(np.asarray(array).dtype for array in wide)):
        for result, expected in transform(*variants):
            require_equal(variants[0], result, expected)


# Derivatives of what moves data: the reference, or its adjoint ------------------------


def of_data(case: Case) -> tuple[Callable[[Any], jax.Array], jax.Array]:
    """The case as a function of its data, and the data."""
    if "training" in case.options:
        case = with_options(case, training=False)
    (name,) = linear(case)
    return lambda x: case.run(**{name: x}), jnp.asarray(case.arrays[name])


def expected_of(case: Case, x: Any) -> np.ndarray:
    (name,) = linear(case)
    return case.expected(**{name: np.asarray(x)})


def vjp(case: Case, other: Case, *_: Case) -> Pairs:
    """Of the call, of its pullback, and by linear transposition."""
    function, x = of_data(case)
    y, pull_back = jax.vjp(function, x)
    cotangent = expected_of(case, other.arrays[linear(case)[0]])
    expected = adjoint(case, cotangent)
    yield pull_back(cotangent)[0], expected
    yield jax.linear_transpose(function, x)(cotangent)[0], expected
    _, push_forward = jax.vjp(lambda ct: pull_back(ct)[0], y)
    yield push_forward(x)[0], expected_of(case, x)


def jvp(case: Case, other: Case, *_: Case) -> Pairs:
    function, x = of_data(case)
    tangent = other.arrays[linear(case)[0]]
    yield jax.jvp(function, (x,), (tangent,))[1], expected_of(case, tangent)
    yield jax.linearize(jax.jit(function), x)[1](tangent), expected_of(case, tangent)


def vjp_in_other_mode(case: Case, *_: Case) -> Pairs:
    """The forward pass in 64-bit mode, and the backward pass outside it."""
    with jax.enable_x64(True):
        function, x = of_data(case)
        y, pull_back = jax.vjp(function, x)
    with jax.enable_x64(False):
        yield pull_back(y)[0], adjoint(case, np.asarray(y))
        yield jax.jvp(function, (x,), (x,))[1], expected_of(case, x)


def vjp_of_export(case: Case, other: Case, *_: Case) -> Pairs:
    """Of reversals of any size, and of slices of the case's own."""
    arrays, (name,) = [*case.arrays.values()], linear(case)
    types = of_any_size(arrays) if case.function in REVERSALS else arrays
    exported = export.export(jax.jit(of_arrays(case)), platforms=PLATFORMS)(*types)
    cotangent = expected_of(case, other.arrays[name])
    yield exported.vjp().call(*arrays, cotangent)[0], adjoint(case, cotangent)


DIFFERENTIABLE = [*FLOATS, "complex64", "complex128"]
DIFFERENTIABLE.remove("float8_e8m0fnu")  # it has no zero
DERIVATIVES = [vjp, jvp, vjp_in_other_mode, vjp_of_export]


@every_seed
@pytest.mark.parametrize("transform", DERIVATIVES)
@pytest.mark.parametrize("function", MOVES)
def test_derivatives(function: str, transform: Callable[..., Pairs], seed: int) -> None:
    names = DIFFERENTIABLE
    if transform is vjp_of_export:
        names = [name for name in names if name not in NOT_ON_TPU]
    check(transform, function, names, seed)


@every_seed
@pytest.mark.parametrize("function", [*REVERSALS, "fill_value_sequence"])
def test_nested_vmaps(function: str, seed: int) -> None:
    variants = random_variants(function, seed, ["float32"], 3)
    case = variants[0]
    first, second = (stacked(variants, name) for name in case.arrays)
    pairs = np.stack([second, second[::-1]])
    with mode_for(second.dtype):
        apart = jax.vmap(jax.vmap(of_arrays(case), (None, 0)), (0, None), 1)
        together = jax.vmap(jax.vmap(of_arrays(case)), (None, 0))
        results = [apart(first, second), together(first, pairs)]
    for i, j in np.ndindex(3, 3):
        arrays = dict(zip(case.arrays, (first[i], second[j]), strict=True))
        require_equal(case, results[0][j, i], case.expected(**arrays))
    for k, i in np.ndindex(2, 3):
        arrays = dict(zip(case.arrays, (first[i], pairs[k, i]), strict=True))
        require_equal(case, results[1][k, i], case.expected(**arrays))
