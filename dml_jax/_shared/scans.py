"""A scan with weights, whose derivatives are taken for all steps at once.

With `carry[t + 1], y[t] = step(weights, carry[t], x[t])`, the tangents of step t are

    d_carry[t + 1], d_y[t] = A[t] d_carry[t] + B[t] (d_weights, d_x[t])

Only the products with A[t], the derivative by the carry, depend on the order of steps,
and only they are in a loop. `jax.vmap` computes everything else for all steps at once,
from the carries that the forward loop keeps. In reverse mode, the gradient of a weight
is then one product over all steps. The backward loop of `lax.scan` has a product for
each step instead, adds it to the gradient in the dtype of the weight, and exchanges it
between devices if the batch is sharded. The rule is a `custom_jvp` of JAX operations,
so that all modes and orders are JAX's.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.extend.core import Literal, jaxpr_as_fun

from dml_jax._shared import jax_versions, wide_sums
from dml_jax._shared.loops import loop

Step: TypeAlias = Callable[[Any, Any, Any], tuple[Any, Any]]


def scan(
    step: Step,
    weights: Any,
    init: Any,
    xs: Any,
    unroll: int | bool | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`lax.scan` of step(weights, carry, x), with 8 steps an iteration on a GPU.

    `init` may be sharded in another way than the carry after a step.
    """
    if jax.tree.leaves(xs)[0].shape[0] == 0:
        return lax.scan(functools.partial(step, weights), init, xs)
    row = jax.tree.map(lambda x: lax.index_in_dim(x, 0, keepdims=False), xs)
    leaves, tree = jax.tree.flatten(init)
    while True:  # a carry that becomes another one passes its sharding on a step later
        trace = jax.make_jaxpr(step, return_shape=True)
        traced, results = trace(weights, tree.unflatten(leaves), row)
        types = [*map(jax.typeof, leaves)]
        leaves = [*map(_placed, leaves, traced.out_avals)]
        if types == [*map(jax.typeof, leaves)]:
            break

    def pure(operands: Any, carry: Any, x: Any) -> tuple[list[Any], list[Any]]:
        constants, weights = operands  # a step may close over arrays
        function = jaxpr_as_fun(traced.replace(consts=constants))
        found = function(*jax.tree.leaves((weights, carry, x)))
        return found[: len(leaves)], found[len(leaves) :]

    carry, ys, _ = _scan(pure, unroll, reverse, (traced.consts, weights), leaves, xs)
    return jax.tree.unflatten(jax.tree.structure(results), [*carry, *ys])


def _placed(x: Any, after: Any) -> jax.Array:
    """A carry with the sharding that it has after a step: `lax.scan` takes no other."""
    x = jax_versions.vary_over(jnp.asarray(x), jax_versions.varying_axes(after))
    is_placed = after.sharding in (None, jax.typeof(x).sharding)
    return x if is_placed else jax.sharding.reshard(x, after.sharding)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _scan(
    step: Step, unroll: Any, reverse: bool, weights: Any, init: list[Any], xs: Any
) -> tuple[list[Any], list[Any], list[Any]]:
    """The last carry, the outputs, and the carry before each step."""

    def body(carry: Any, x: Any) -> Any:
        new, y = step(weights, carry, x)
        return new, (y, carry)

    carry, (ys, carries) = loop(body, init, xs, unroll, reverse)
    return carry, ys, carries


@functools.partial(_scan.defjvp, symbolic_zeros=True)
def _jvp(step: Step, unroll: Any, reverse: bool, primals: Any, tangents: Any) -> Any:
    weights, init, xs = primals
    d_weights, d_init, d_xs = tangents
    results = _, _, carries = _scan(step, unroll, reverse, *primals)
    direct = _by_weights(step, (weights, xs), (d_weights, d_xs), carries)
    by_carry, residuals = _by_carry(step, weights, carries, xs)

    def body(d_carry: Any, row: Any) -> Any:
        d_new, d_y = jax.tree.map(jnp.add, by_carry(row[1], d_carry), row[0])
        return d_new, (d_y, d_carry)

    d_init = [
        zero_from_primal(x) if isinstance(d, SymbolicZero) else d
        for x, d in zip(init, d_init, strict=True)
    ]
    rows = direct, residuals
    d_last, (d_ys, d_carries) = loop(body, _floats(d_init), rows, unroll, reverse)
    leaves, tree = jax.tree.flatten(results)
    zeros = zero_from_primal(leaves, symbolic_zeros=True)
    found = _merged(zeros, map(_is_float, leaves), [*d_last, *d_ys, *d_carries])
    return results, tree.unflatten(found)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _floats(leaves: Iterable[Any]) -> list[Any]:
    return [x for x in leaves if _is_float(x)]


def _merged(leaves: Any, moves: Iterable[bool], values: Any) -> list[Any]:
    """`leaves`, of which those that move are `values`."""
    values = iter(values)
    return [next(values) if m else x for x, m in zip(leaves, moves, strict=True)]


def _by_weights(step: Step, primals: Any, tangents: Any, carries: list[Any]) -> Any:
    """What the tangents of weights and inputs add to those of carries and outputs."""
    leaves, tree = jax.tree.flatten(primals)
    pairs = list(zip(leaves, jax.tree.leaves(tangents), strict=True))
    moves = [_is_float(x) and not isinstance(d, SymbolicZero) for x, d in pairs]
    moving = [pair for pair, m in zip(pairs, moves, strict=True) if m]

    def results(values: list[Any]) -> Any:
        weights, xs = tree.unflatten(_merged(leaves, moves, values))
        return [*map(_floats, jax.vmap(step, (None, 0, 0))(weights, carries, xs))]

    _, linear = jax.linearize(results, [x for x, _ in moving])
    return wide_sums.transposed_in_float32(linear, [d for _, d in moving])


def _by_carry(step: Step, weights: Any, carries: list[Any], xs: Any) -> Any:
    """The derivative by the carry, a function of what varies by step, and that."""
    structure: Any = None

    def residuals(weights: Any, carry: list[Any], x: Any) -> list[Any]:
        nonlocal structure

        def results(floats: list[Any]) -> Any:
            mixed = _merged(carry, map(_is_float, carry), floats)
            return [*map(_floats, step(weights, mixed, x))]

        _, linear = jax.linearize(results, _floats(carry))
        found, structure = jax.tree.flatten(linear)
        return found

    row = jax.tree.map(lambda x: lax.index_in_dim(x, 0, keepdims=False), (carries, xs))
    jaxpr = jax.make_jaxpr(residuals)(weights, *row).jaxpr
    varying = set(jaxpr.invars[len(jax.tree.leaves(weights)) :])
    for equation in jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in varying for v in equation.invars):
            varying.update(equation.outvars)
    varies = [not isinstance(v, Literal) and v in varying for v in jaxpr.outvars]
    axes = [0 if v else None for v in varies]
    found = jax.vmap(residuals, (None, 0, 0), axes)(weights, carries, xs)

    def linear(of_step: list[Any], d_carry: list[Any]) -> Any:
        return jax.tree.unflatten(structure, _merged(found, varies, of_step))(d_carry)

    return linear, [x for x, v in zip(found, varies, strict=True) if v]
