"""Wrong arrays and wrong lengths."""

import array
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from forms import Arrayed

from wrong_calls.functions import (
    ARRAYS,
    DATES,
    KEY,
    LENGTH_ARGUMENTS,
    LENGTHS,
    Row,
    Untyped,
    X,
    in_32_bits,
    in_x64,
    of_rows,
    traced,
    wrong,
)

NOT_CONVERTIBLE = [None, {"a": 1}, iter([1, 1]), [[1, 2], [3]], [None] * 3]
NO_ARRAYS = [*NOT_CONVERTIBLE, int, Untyped(), Arrayed(np.zeros(4, "V4"))]
NO_ARRAYS += [jax.ShapeDtypeStruct((3, 4), name) for name in ("int32", "float32")]
NO_ARRAYS += [[np.float16(1), None], [jax.ShapeDtypeStruct((), "int32")]]
NO_ARRAYS += [np.ma.array(X, mask=X > 3)]
TEXT = ["abc", np.array([["a", "b"]]), np.array([[1, None]], object)]
RECORDS = np.zeros(3, [("a", np.int32)])
NO_DTYPES = [DATES, RECORDS, X.astype(">f4"), X.astype(np.longdouble)]
NO_DTYPES += [np.zeros((3, 4), jax.dtypes.float0)]
NEWER = [getattr(ml_dtypes, name, "V1") for name in ("float6_e2m3fn", "int1")]
NO_DTYPES += [np.zeros((3, 4), dtype) for dtype in NEWER]
NARROWED = [X.astype("int64"), X.astype("complex128"), np.int64(3)]
NARROWED += [array.array("q", [2**40]), [np.array([2**40, 1])]]
TOO_LARGE = [[[2**31]], [[2**70]], -(2**70), [[1e39]]]
OF_LOW_RANK = [1.5, "abc", [1, 2, 3], KEY]
SCALAR, BLOCK = np.float32(1), np.ones((3, 4, 5), np.float32)
GRADIENT = [("slice_grad", "input_gradient")]

NO_LENGTHS = [
    *[*NOT_CONVERTIBLE, "abc", ["1", "2", "3"], 1.0, [1, 2, np.nan], [1j, 2, 3]],
    *[[True, False, True], jnp.ones(3, np.float32), jax.random.split(KEY, 3)],
    *[np.array([1, 2, 3], object), DATES, RECORDS],
    *[LENGTHS.astype(">i4"), np.ma.array(LENGTHS, mask=[0, 1, 0])],
]
OF_WRONG_SHAPE = [LENGTHS[:2], jnp.ones(4, np.int32), [], [[1, 2], [3, 4]]]
LINES = [("reverse_subsequences", "sequence_lengths")]
LENS = [("reverse_sequence", "sequence_lens")]
PADDED = [("reverse_padded", "lengths")]
STRINGS = np.array([["a", "b"]] * 3)


class Tensor:
    """An array of another library, whose conversion fails."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Use tensor.detach()")

    def __repr__(self) -> str:
        return "tensor([1.], requires_grad=True)"


CONVERTIBLE = "`input` must be an array or convertible to one; got"
TURN_ON = (
    "enable it with `jax.config.update('jax_enable_x64', True)` or inside `with "
    "jax.enable_x64(True):`"
)
KNOWN = "must have a dtype that JAX knows; got"
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
LONG, TIME_FIRST = np.broadcast_to(SCALAR, (2**32, 2)), dict(batch_axis=1, time_axis=0)
TOO_LONG = "`input` must have fewer than 2^32 elements along…"
MESSAGES: list[Row] = [
    ("reverse_subsequences", {"input": {1}}, TypeError, f"{CONVERTIBLE} set {{1}}"),
    ("slice1", {"input": [[1, 2], np.ones(3)]}, TypeError,
     f"{CONVERTIBLE} list [[1, 2], array([1., 1., 1.])]. Its rows have different "
     "sizes: pad them to one size"),
    ("reverse_subsequences", {"input": Tensor()}, TypeError,
     f"{CONVERTIBLE} Tensor tensor([1.], requires_grad=True), which cannot be "
     "converted: Use tensor.detach()"),
    ("slice", {"input": X.astype(np.int64)}, ValueError,
     f"`input` has dtype int64, which needs 64-bit mode; {TURN_ON}, or use a narrower "
     "dtype, such as 'int32'"),
    ("slice", {"input": [[2**31]]}, OverflowError,
     "`input` must fit int32; got list [[2147483648]]. Wider numbers need 64-bit mode; "
     f"{TURN_ON}"),
    ("slice", {"input": DATES}, TypeError,
     f"`input` {KNOWN} datetime64[D]. Pass `x.view('int64')` in 64-bit mode"),
    ("slice", {"input": np.ma.array(X)}, TypeError,
     "`input` must be an array without a mask; got MaskedArray. Call `.filled(value)`"),
    ("reverse_sequence", {"sequence_lens": LENGTHS.astype(">i4")}, TypeError,
     f"`sequence_lens` {KNOWN} >i4. Convert it by `.astype('int32')`"),
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
    # Lines of 2^32 elements, which take no memory until they are copied
    ("reverse_subsequences", {"input": LONG, "sequence_lengths": [[1, 1]], "axis": 0},
     ValueError, TOO_LONG),
    ("reverse_sequence", {"input": LONG, "sequence_lens": [1, 1]} | TIME_FIRST,
     ValueError, TOO_LONG),
]  # fmt: skip

# Numbers beside arrays of JAX, and lengths beyond 64 bits.
BESIDE = [[jnp.float32(1), 1e39], [jnp.float32(1), 10**39], [jnp.int8(1), 300]]
WIDE_BESIDE = [[jnp.float32(1), wide] for wide in (np.float64(1e300), np.int64(2**40))]
BEYOND = [[2**64, -1, 0], [10**5000, -1, 0], [1, 2, -(2**64)]]

ROWS = [
    *wrong(ARRAYS, TypeError, NO_ARRAYS + NO_DTYPES),
    *wrong(ARRAYS, ValueError, NARROWED),
    *wrong(ARRAYS, OverflowError, TOO_LARGE),
    # reverse_sequence also reverses text.
    *wrong([pair for pair in ARRAYS if pair[0] != "reverse_sequence"], TypeError, TEXT),
    *wrong([("reverse_sequence", "input")], ValueError, OF_LOW_RANK),
    *wrong([("reverse_subsequences", "input")], ValueError, [SCALAR], axis=0),
    *wrong([("reverse_padded", "x")], ValueError, [SCALAR], axis=0),
    *wrong([("slice", "input")], ValueError, [SCALAR], "`offsets`…"),
    *wrong([("slice1", "input")], ValueError, [BLOCK], "`input_window_offsets`…"),
    *wrong(GRADIENT, ValueError, [BLOCK], "`output_gradient_sizes`…"),
    *wrong(GRADIENT, TypeError, [jax.random.split(KEY, (2, 2))]),
    *wrong(GRADIENT, ValueError, [X], "`input_gradient.shape[…"),
    *wrong(LENGTH_ARGUMENTS, TypeError, NO_LENGTHS),
    *wrong(LENGTH_ARGUMENTS, OverflowError, [[2**70, 1, 1]]),
    *wrong(LENGTH_ARGUMENTS, ValueError, OF_WRONG_SHAPE),
    *wrong([*LINES, *LENS], ValueError, [3, in_32_bits(3)]),
    *wrong(PADDED, ValueError, [LENGTHS[:, None]]),
    *wrong(PADDED, ValueError, [LENGTHS], x=X[None], axis=2),
    *wrong(LENS, ValueError, [LENGTHS], **TIME_FIRST),
    *traced(LENGTH_ARGUMENTS, 1.0, lambda length: jnp.full(3, length)),
    *traced(LENS, 1, lambda n: jnp.full(3, n), "`input` of dtype <U1…", input=STRINGS),
    *wrong(ARRAYS, OverflowError, BESIDE, "`{}` must fit the dtype…"),
    *wrong(ARRAYS, ValueError, WIDE_BESIDE, "`{}` has dtype …64, which needs…"),
    *wrong(LENS, OverflowError, BEYOND, "`{}` must fit int64 or uint64; got …"),
    *map(in_x64, wrong(LENS, OverflowError, BEYOND)),
    *map(in_x64, wrong(ARRAYS, OverflowError, [[[2**70]]])),
    *map(in_x64, wrong(ARRAYS, TypeError, [None])),
    *of_rows(MESSAGES),
]
