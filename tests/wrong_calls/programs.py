"""Programs that `checked`, and derivatives of the training mode, refuse."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import BATCH_MAJOR

import dml_jax
from wrong_calls.form import Wrong
from wrong_calls.functions import LENGTHS, X

reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR)
CHECKED = dml_jax.checked(reverse)
BATCH = np.stack([X, X]), np.stack([LENGTHS, LENGTHS])
UNDER: dict[str, Any] = {
    "jit": lambda: jax.jit(CHECKED)(X, LENGTHS),
    "jit-of-nothing": lambda: jax.jit(lambda: CHECKED(X, LENGTHS))(),
    "vmap": lambda: jax.vmap(CHECKED)(*BATCH),
    "grad": lambda: jax.grad(lambda x: CHECKED(x, LENGTHS).sum())(X),
    "jvp": lambda: jax.jvp(lambda x: CHECKED(x, LENGTHS), (X,), (X,)),
    "remat": lambda: jax.checkpoint(CHECKED)(X, LENGTHS),
    "eval_shape": lambda: jax.eval_shape(CHECKED, X, LENGTHS),
    "scan": lambda: jax.lax.scan(lambda i, xs: (i, CHECKED(*xs)), 0, BATCH),
    "checked": lambda: dml_jax.checked(CHECKED)(X, LENGTHS),
}
OF_ONE_LENGTH = dml_jax.checked(lambda x, n: reverse(x, jnp.broadcast_to(n, 3)))


ROWS = [
    *[
        Wrong(f"checked-{name}", run, TypeError, "checked: …outside transformations…")
        for name, run in UNDER.items()
    ],
    Wrong(
        "checked-no-function",
        lambda: dml_jax.checked(X),  # type: ignore
        TypeError,
        "checked: `fn` must be callable; got …",
    ),
    *[
        Wrong(
            f"checked-{value}",
            functools.partial(OF_ONE_LENGTH, X, form(value)),
            ValueError,
            f"checked: arguments must fit 32 bits …; got {value}",
        )
        for value in (2**31 + 5, -(2**40))
        for form in (np.int64, lambda value: np.array([0, 1, value]))
    ],
    Wrong(
        "checked-shape",
        lambda: CHECKED(X, LENGTHS[:2]),
        ValueError,
        "reverse_sequence: `sequence_lens` must ha…",
    ),
    Wrong(
        "forward-mode",
        lambda: jax.jvp(lambda x: reverse(x, LENGTHS, lda_coeff=0.5), (X,), (X,)),
        TypeError,
        "can't apply forward-mode autodiff (jvp) to a custom_vjp function.…",
    ),
]
