"""Lengths that are no integers, or not one for each line."""

import jax
import jax.numpy as jnp
import numpy as np

from wrong_calls.arrays import NO_ARRAY, NO_DTYPE, NO_MASK
from wrong_calls.calls import (
    DATES,
    KEY,
    LENGTHS,
    LINE_LENGTHS,
    bad,
    for_each,
    generator,
    in_32_bits,
    traced,
)

NO_INTEGERS = "must have an integer dtype; got "


def shape_errors(what, lengths, got):
    """Lengths of a wrong shape, for both reversals."""
    return [
        bad(
            "reverse_subsequences",
            f"sequence_lengths-{what}",
            dict(sequence_lengths=lengths),
            ValueError,
            "`sequence_lengths` must have shape (3, 1), 1 along axis=1 and the size of "
            f"`input` or 1 along every other dimension; got {got}",
        ),
        bad(
            "reverse_sequence",
            f"sequence_lens-{what}",
            dict(sequence_lens=lengths),
            ValueError,
            "`sequence_lens` must have shape (3,), the size of `input` along "
            f"batch_axis=0; got {got}",
        ),
    ]


LENGTH_ERRORS = [
    *for_each(
        LINE_LENGTHS,
        [
            ("none", None, TypeError, NO_ARRAY + "NoneType …"),
            ("set", {1, 2, 3}, TypeError, NO_ARRAY + "set …"),
            ("dict", {"a": 1}, TypeError, NO_ARRAY + "dict …"),
            ("generator", generator(), TypeError, NO_ARRAY + "generator …"),
            ("nones", [None, None, None], TypeError, NO_ARRAY + "list …"),
            ("ragged", [[1, 2], [3]], TypeError, NO_ARRAY + "list …"),
            ("string", "abc", TypeError, NO_ARRAY + "str …"),
            ("strings", ["1", "2", "3"], TypeError, NO_ARRAY + "list …"),
            ("float", 1.0, TypeError, NO_INTEGERS + "float64"),
            ("floats", [1.0, 2.0, 3.0], TypeError, NO_INTEGERS + "float64"),
            ("nan", [1, 2, np.nan], TypeError, NO_INTEGERS + "float64"),
            ("inf", [1, 2, np.inf], TypeError, NO_INTEGERS + "float64"),
            ("complex", [1j, 2, 3], TypeError, NO_INTEGERS + "complex128"),
            ("bools", [True, False, True], TypeError, NO_INTEGERS + "bool"),
            ("jax-floats", jnp.ones(3, np.float32), TypeError, NO_INTEGERS + "float32"),
            ("jax-bools", jnp.ones(3, bool), TypeError, NO_INTEGERS + "bool"),
            ("keys", jax.random.split(KEY, 3), TypeError, NO_INTEGERS + "key<fry>"),
            (
                "objects",
                np.array([1, 2, 3], object),
                TypeError,
                NO_INTEGERS + "object",
            ),
            ("dates", DATES, TypeError, NO_INTEGERS + "datetime64[D]"),
            (
                "durations",
                np.array([1, 2, 3], "m8[s]"),
                TypeError,
                NO_INTEGERS + "timedelta64[s]",
            ),
            (
                "structured",
                np.zeros(3, [("a", np.int32)]),
                TypeError,
                NO_INTEGERS + "[('a', '<i4')]",
            ),
            ("big-endian", LENGTHS.astype(">i4"), TypeError, NO_DTYPE + ">i4"),
            ("big-endian-64", LENGTHS.astype(">i8"), TypeError, NO_DTYPE + ">i8"),
            ("masked", np.ma.array(LENGTHS, mask=[0, 1, 0]), TypeError, NO_MASK),
            (
                "huge",
                [2**70, 1, 1],
                OverflowError,
                f"must fit int64 or uint64; got {2**70}",
            ),
        ],
    ),
    *shape_errors("rank-0", 3, "()"),
    *shape_errors("traceable-rank-0", in_32_bits(3), "()"),
    *shape_errors("too-few", LENGTHS[:2], "(2,)"),
    *shape_errors("too-many", jnp.ones(4, np.int32), "(4,)"),
    *shape_errors("empty", [], "(0,)"),
    *shape_errors("2-d", [[1, 2], [3, 4]], "(2, 2)"),
    *shape_errors("transposed", LENGTHS[None], "(1, 3)"),
    shape_errors("of-the-other-1", LENGTHS, "(3,)")[0],
    shape_errors("of-the-other-2", LENGTHS[:, None], "(3, 1)")[1],
    shape_errors("broadcast", LENGTHS[:1], "(1,)")[1],
    bad(
        "reverse_sequence",
        "sequence_lens-along-time",
        dict(sequence_lens=LENGTHS, batch_axis=1, time_axis=0),
        ValueError,
        "`sequence_lens` must have shape (4,), the size of `input` along batch_axis=1; "
        "got (3,)",
    ),
    *[
        traced(
            function,
            name,
            1.0,
            f"`{name}` must have an integer dtype; got float32",
            lambda length: jnp.full(3, length),
        )
        for function, name in LINE_LENGTHS
    ],
    traced(
        "reverse_sequence",
        "sequence_lens",
        1,
        "`input` of dtype <U1 must come with `sequence_lens` that are concrete, "
        "outside of jit, vmap and grad; got traced int32 array of shape (3,)",
        lambda length: jnp.full(3, length),
        input=np.array([["a", "b"]] * 3),
    )._replace(id="reverse_sequence-sequence_lens-traced-for-strings"),
]
