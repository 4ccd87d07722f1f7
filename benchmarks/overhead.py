"""What public functions add to their compiled cores, and backward to forward passes.

    python benchmarks/overhead.py

prints medians of ratios, each between two figures of the same moment, since the speed
of a machine drifts. Times are wall-clock times, blocked on results.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

import dml_jax
from dml_jax import _fill, _reverse, _slice

X = jnp.ones((3, 5, 4))
LENGTHS = jnp.array([1, 2, 3])
WINDOW = ((0, 1, 0), (3, 4, 4), (2, -2, 3))
BATCH_MAJOR = dict(batch_axis=0, time_axis=1)


def calls():
    """For each operator a call of the public function, and of the core it ends in."""
    lines = LENGTHS[:, None, None]
    node = _reverse._Node(0, 1, True, None, None, None)
    sliced = _slice._lattice_of_slice(X.shape, (0, 1, 0), (2, 2, 2), (1, 2, 3))
    window = _slice._lattice_of_window("slice1", X.shape, *WINDOW, None)
    gradient = dml_jax.slice1(X, *WINDOW)
    adjoint = _slice._lattice_of_window("slice_grad", X.shape, *WINDOW, gradient.shape)
    start, delta, dtype = np.float32(1), np.float32(2), np.dtype(np.float32)
    yield (
        "reverse_subsequences",
        lambda: dml_jax.reverse_subsequences(X, lines, 1),
        lambda: _reverse._reverse_subsequences(X, lines, axis=1, implementation=None),
    )
    yield (
        "reverse_sequence",
        lambda: dml_jax.reverse_sequence(X, LENGTHS, **BATCH_MAJOR),
        lambda: _reverse._reverse_sequence(X, LENGTHS, 1.0, node),
    )
    yield (
        "slice",
        lambda: dml_jax.slice(X, (0, 1, 0), (2, 2, 2), (1, 2, 3)),
        lambda: _slice._take(X, sliced),
    )
    yield (
        "slice1",
        lambda: dml_jax.slice1(X, *WINDOW),
        lambda: _slice._take(X, window),
    )
    yield (
        "slice_grad",
        lambda: dml_jax.slice_grad(gradient, X.shape, *WINDOW),
        lambda: _slice._put(gradient, X.shape, adjoint),
    )
    yield (
        "fill_value_sequence",
        lambda: dml_jax.fill_value_sequence(X.shape, "float32", 1.0, 2.0),
        lambda: _fill._sequence(start, delta, sizes=X.shape, dtype=dtype),
    )
    yield (
        "fill_value_constant",
        lambda: dml_jax.fill_value_constant(X.shape, "float32", 1.0),
        lambda: _fill._constant(start, sizes=X.shape, dtype=dtype),
    )


def passes():
    """For each of two shapes a compiled backward and a compiled forward reversal."""
    for name, shape in (("[32, 512, 256]", (32, 512, 256)), ("rows", (1024, 4096))):
        random = np.random.default_rng(0)
        lengths = jnp.asarray(random.integers(0, shape[1] + 1, shape[0]))
        x = jnp.asarray(random.normal(size=shape).astype(np.float32))

        def reverse(x, lengths=lengths):
            return dml_jax.reverse_sequence(x, lengths, **BATCH_MAJOR)

        forward = jax.jit(reverse)
        backward = jax.jit(lambda ct, f=reverse: jax.vjp(f, jnp.zeros_like(ct))[1](ct))
        yield (
            f"backward of {name}",
            lambda b=backward, x=x: b(x),
            lambda f=forward, x=x: f(x),
        )


def seconds(function, repeats):
    start = time.perf_counter()
    for _ in range(repeats):
        result = function()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / repeats


def compare(name, function, base, repeats):
    for warm_up in (function, base):
        seconds(warm_up, repeats)
    pairs = np.array(
        [(seconds(function, repeats), seconds(base, repeats)) for _ in range(25)]
    )
    ratios = pairs[:, 0] / pairs[:, 1]
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    first, second = 1e6 * np.median(pairs, axis=0)
    print(
        f"{name:28}{first:10.1f}{second:10.1f}{median:8.2f}   ({low:.2f} to {high:.2f})"
    )


def main():
    print(f"{'':28}{'us':>10}{'base, us':>10}{'ratio':>8}   (quartiles)")
    for name, public, core in calls():
        compare(name, public, core, 500)
    for name, backward, forward in passes():
        compare(name, backward, forward, 3)


if __name__ == "__main__":
    main()
