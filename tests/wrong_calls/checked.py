"""Calls of `checked`, and lengths that it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import dml_jax
from wrong_calls.calls import LENGTHS, Bad, X, reverse

LOST = (
    "checked: the error can only be read outside of transformations; wrap the "
    "outermost function, as in `checked(jax.jit(fn))`"
)

CHECKED = dml_jax.checked(reverse)
BATCH = np.stack([X, X]), np.stack([LENGTHS, LENGTHS])
CHECKED_ERRORS = [
    *[
        Bad(
            f"checked-fn-{what}",
            functools.partial(dml_jax.checked, value),
            TypeError,
            f"checked: `fn` must be callable; got {got}",
        )
        for what, value, got in [
            ("int", 3, "int 3"),
            ("none", None, "NoneType None"),
            ("string", "reverse", "str 'reverse'"),
            ("array", X, "float32 array of shape (3, 4)"),
        ]
    ],
    *[
        Bad(f"checked-under-{what}", run, TypeError, LOST)
        for what, run in [
            ("jit", lambda: jax.jit(CHECKED)(X, LENGTHS)),
            ("jit-of-nothing", lambda: jax.jit(lambda: CHECKED(X, LENGTHS))()),
            ("vmap", lambda: jax.vmap(CHECKED)(*BATCH)),
            ("grad", lambda: jax.grad(lambda x: CHECKED(x, LENGTHS).sum())(X)),
            ("jvp", lambda: jax.jvp(lambda x: CHECKED(x, LENGTHS), (X,), (X,))),
            ("remat", lambda: jax.checkpoint(CHECKED)(X, LENGTHS)),
            ("eval_shape", lambda: jax.eval_shape(CHECKED, X, LENGTHS)),
            (
                "scan",
                lambda: jax.lax.scan(lambda i, xs: (i, CHECKED(*xs)), 0, BATCH),
            ),
            ("checked", lambda: dml_jax.checked(CHECKED)(X, LENGTHS)),
        ]
    ],
    *[
        Bad(
            f"checked-{what}",
            functools.partial(CHECKED, X, lengths),
            ValueError,
            f"reverse_sequence: `sequence_lens` must be in [0, 4]; got {got}",
        )
        for what, lengths, got in [
            ("too-long", np.array([2, 5, 3], np.int32), "2 to 5"),
            ("negative", np.array([2, -1, 3], np.int8), "-1 to 3"),
            ("both", jnp.array([7, -2, 3], np.int32), "-2 to 7"),
            ("too-long-uint32", np.full(3, 2**31, np.uint32), f"{2**31} to {2**31}"),
        ]
    ],
    Bad(
        "checked-line-lengths",
        functools.partial(
            dml_jax.checked(lambda n: dml_jax.reverse_subsequences(X, n, -2)),
            np.array([[0, 4, 1, 2]], np.int32),
        ),
        ValueError,
        "reverse_subsequences: `sequence_lengths` must be in [0, 3]; got 0 to 4",
    ),
    Bad(
        "checked-static-error",
        functools.partial(CHECKED, X, LENGTHS[:2]),
        ValueError,
        "reverse_sequence: `sequence_lens` must have shape (3,), the size of `input` "
        "along batch_axis=0; got (2,)",
    ),
    # jit takes 64-bit integers modulo 2^32, and 2^33 + 1 would pass for 1.
    Bad(
        "checked-wide-argument",
        functools.partial(CHECKED, X, np.array([1, 2**33 + 1, 3])),
        ValueError,
        "checked: arguments must fit 32 bits outside of 64-bit mode, or JAX takes them "
        f"modulo 2^32; got {2**33 + 1}",
    ),
]
