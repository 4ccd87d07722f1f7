"""What is refused in 64-bit mode."""

import jax

from wrong_calls.arrays import NO_ARRAY
from wrong_calls.calls import ARRAYS, bad, for_each
from wrong_calls.fills import overflow, range_error


def in_x64(row):
    def run():
        with jax.enable_x64(True):
            return row.call()

    return row._replace(id=f"x64-{row.id}", call=run)


X64_ERRORS = [
    in_x64(row)
    for row in [
        *range_error("int64", 2**64, -(2**63), 2**64 - 1),
        *range_error("uint64", -(2**63) - 1, -(2**63), 2**64 - 1),
        *overflow("float64", 10**400, "1.7976931348623157e+308", "1000…"),
        bad(
            "reverse_sequence",
            "lda_coeff-overflow",
            dict(lda_coeff=10**400),
            OverflowError,
            "`lda_coeff` must fit float64, whose largest value is "
            "1.7976931348623157e+308; got 1000…",
        ),
        *for_each(
            ARRAYS,
            [
                ("huge", [[2**70]], OverflowError, "must fit int64; got list …"),
                ("none", None, TypeError, NO_ARRAY + "NoneType …"),
            ],
        ),
    ]
]
