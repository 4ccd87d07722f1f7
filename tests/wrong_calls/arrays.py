"""Lengths that are not integers, and arrays whose shapes or dtypes do not fit.

What is not an array has the error of `jnp.asarray`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wrong_calls.form import Wrong
from wrong_calls.functions import (
    KEY,
    LENGTH_ARGUMENTS,
    LENGTHS,
    Row,
    X,
    call,
    in_32_bits,
    of_rows,
    traced,
    wrong,
)

OF_LOW_RANK = [1.5, [1, 2, 3], KEY]
SCALAR, BLOCK = np.float32(1), np.ones((3, 4, 5), np.float32)
GRADIENT = [("slice_grad", "input_gradient")]

NO_LENGTHS = [
    *[1.0, [1, 2, np.nan], [1j, 2, 3], [True, False, True], []],
    *[jnp.ones(3, np.float32), jax.random.split(KEY, 3)],
]
OF_WRONG_SHAPE = [LENGTHS[:2], jnp.ones(4, np.int32), [[1, 2], [3, 4]]]
LINES = [("reverse_subsequences", "sequence_lengths")]
LENS = [("reverse_sequence", "sequence_lens")]
PADDED = [("reverse_padded", "lengths")]

OF_INTEGERS = "must have an integer dtype; got"
OF_LINES = (
    "`sequence_lengths` must have shape {}, 1 along axis=1 and the size of `input` or "
    "1 along every other dimension; got {}"
)
OF_BATCH = (
    "`sequence_lens` must have shape ({},), the size of `input` along batch_axis={}; "
    "got {}"
)
OF_PADDED = "`lengths` must be a scalar or have shape {}, or 1 for any of them; got {}"
TIME_FIRST = dict(batch_axis=1, time_axis=0)
MESSAGES: list[Row] = [
    ("reverse_sequence", {"sequence_lens": X > 3}, TypeError,
     f"`sequence_lens` {OF_INTEGERS} bool. The lengths of a mask [batch, time] are "
     "mask.sum(axis=1)"),
    ("reverse_sequence", {"input": LENGTHS.astype(np.int64), "sequence_lens": X},
     TypeError, f"`sequence_lens` {OF_INTEGERS} float32. The array comes first, then "
     "the lengths"),
    ("reverse_subsequences", {"sequence_lengths": LENGTHS[:, None] / 1.0}, TypeError,
     f"`sequence_lengths` {OF_INTEGERS} float64. Pass `jnp.asarray(sequence_lengths, "
     "'int32')`"),
    # One length for each line
    ("reverse_subsequences", {"sequence_lengths": 3}, ValueError,
     f"{OF_LINES.format((3, 1), ())}. For one length, pass shape (1, 1)"),
    ("reverse_subsequences", {"sequence_lengths": LENGTHS}, ValueError,
     f"{OF_LINES.format((3, 1), (3,))}. Pass `jnp.expand_dims(sequence_lengths, 1)`"),
    ("reverse_subsequences", {"input": BLOCK, "sequence_lengths": LENGTHS}, ValueError,
     f"{OF_LINES.format((3, 1, 5), (3,))}. Pass `jnp.expand_dims(sequence_lengths, (1, "
     "2))`"),
    ("reverse_subsequences", {"input": BLOCK, "sequence_lengths": LENGTHS[:, None]},
     ValueError, f"{OF_LINES.format((3, 1, 5), (3, 1))}. Pass "
     "`jnp.expand_dims(sequence_lengths, 2)`"),
    ("reverse_subsequences", {"input": BLOCK, "sequence_lengths": LENGTHS[:2]},
     ValueError, OF_LINES.format((3, 1, 5), (2,))),
    # One for each entry of a batch
    ("reverse_sequence", {"batch_axis": None, "time_axis": None}, ValueError,
     f"{OF_BATCH.format(4, 1, (3,))}. If the batch is dimension 0, pass batch_axis=0"),
    ("reverse_sequence", {"sequence_lens": 3}, ValueError,
     f"{OF_BATCH.format(3, 0, ())}. To reverse all lines by one length, call "
     "`reverse_subsequences` with lengths of shape (1, 1)"),
    ("reverse_sequence", {"sequence_lens": LENGTHS[:, None]}, ValueError,
     f"{OF_BATCH.format(3, 0, (3, 1))}. Pass `jnp.ravel(sequence_lens)`"),
    ("reverse_padded", {"x": X.T}, ValueError,
     OF_PADDED.format("(4,), the sizes of `x` before axis=1", (3,))
     + ". If the time is dimension 0, pass axis=0"),
    ("reverse_padded", {"x": X[:, None], "axis": 2}, ValueError,
     OF_PADDED.format("(3, 1), the sizes of `x` before axis=2", (3,))
     + ". Pass `jnp.expand_dims(lengths, 1)`"),
    ("reverse_padded", {"x": X[0], "lengths": 3}, ValueError,
     "`axis` 1 is out of bounds for array of dimension 1. Pass axis=0"),
    ("reverse_padded", {"x": X[0], "lengths": [3], "axis": 0}, ValueError,
     "`lengths` must be a scalar; got (1,). Pass `jnp.reshape(lengths, ())`"),
    ("reverse_padded",
     {"lengths": np.ones((4, 2), int), "x": np.ones((3, 4, 2), bool), "axis": 0},
     ValueError,
     OF_PADDED.format("(4,), the sizes of `x` in dimension 1, with axis=0", (4, 2))
     + ". For one length for each line, call `reverse_subsequences` with "
     "`jnp.expand_dims(lengths, 0)`"),
]  # fmt: skip


def too_long(function: str, data: str, **changes: Any) -> Wrong:
    """A call in which the reversed axis has 2^32 elements, and no memory."""
    long = jax.ShapeDtypeStruct((2**32, 2), np.float32)
    return Wrong(
        f"{function}-long",
        lambda: jax.eval_shape(lambda x: call(function, **{data: x}, **changes), long),
        ValueError,
        f"{function}: `{data}` must have fewer than 2^32 elements along…",
    )


ROWS = [
    *wrong([("reverse_sequence", "input")], ValueError, OF_LOW_RANK),
    *wrong([("reverse_subsequences", "input")], ValueError, [SCALAR], axis=0),
    *wrong([("reverse_padded", "x")], ValueError, [SCALAR], axis=0),
    *wrong([("slice", "input")], ValueError, [SCALAR], "`offsets`…"),
    *wrong([("slice1", "input")], ValueError, [BLOCK], "`input_window_offsets`…"),
    *wrong(GRADIENT, ValueError, [BLOCK], "`output_gradient_sizes`…"),
    *wrong(GRADIENT, TypeError, [jax.random.split(KEY, (2, 2))]),
    *wrong(GRADIENT, ValueError, [X], "`input_gradient.shape[…"),
    *wrong(LENGTH_ARGUMENTS, TypeError, NO_LENGTHS),
    *wrong(LENGTH_ARGUMENTS, ValueError, OF_WRONG_SHAPE),
    *wrong([*LINES, *LENS], ValueError, [3, in_32_bits(3)]),
    *wrong(PADDED, ValueError, [LENGTHS[:, None]]),
    *wrong(PADDED, ValueError, [LENGTHS], x=X[None], axis=2),
    *wrong(LENS, ValueError, [LENGTHS], **TIME_FIRST),
    *traced(LENGTH_ARGUMENTS, 1.0, lambda length: jnp.full(3, length)),
    *of_rows(MESSAGES),
    too_long("reverse_padded", "x", lengths=3, axis=0),
    too_long("reverse_subsequences", "input", sequence_lengths=[[1, 1]], axis=0),
    too_long("reverse_sequence", "input", sequence_lens=[1, 1], **TIME_FIRST),
]
