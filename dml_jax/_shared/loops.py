"""Loops over steps, with as many steps in an iteration as suits the platform."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.export
from jax import lax

# Between the iterations of a loop, a GPU waits: with one step in an iteration, training
# takes about twice as long. On a CPU, it does not.
STEPS_ON_GPU = 8


def loop(
    body: Callable[..., Any], init: Any, xs: Any, unroll: Any, reverse: bool
) -> tuple[Any, Any]:
    """`lax.scan` of a body, with 8 steps an iteration on a GPU if `unroll` is None."""
    scan = functools.partial(lax.scan, body, reverse=reverse)
    if jax.export.is_symbolic_dim(jax.tree.leaves(xs)[0].shape[0]):
        unroll = 1  # `lax.scan` cannot unroll it
    if unroll is not None:
        return scan(init, xs, unroll=unroll)
    gpu = functools.partial(scan, unroll=STEPS_ON_GPU)
    return lax.platform_dependent(init, xs, cuda=gpu, rocm=gpu, default=scan)
