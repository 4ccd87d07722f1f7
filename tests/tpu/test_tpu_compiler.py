"""TPU's compiler compiles every operator for every generation, or we refuse it.

The compiler needs no TPU. It comes with the extra `tpu`, in an environment of its own,
in which .ci/run runs these tests.
"""

import re

import pytest
import tpu_compiler
import tpu_programs
from cases import EXAMPLES
from dtypes import DTYPES, INTEGERS, SEQUENCE_FLOATS
from tpu_compiler import GENERATIONS, Outcome

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        not tpu_compiler.is_installed(),
        reason="needs the extra `tpu`, which .ci/run installs for these tests",
    ),
]

REFUSED = {"int2", "uint2", "complex128"}
# The other generations have one of each width.
WITH_ALL_DTYPES = "v5e"
OF_EACH_WIDTH = {"int2", "int4", "uint8", "bfloat16", "float32", "int64", "complex64"}


def dtypes_of(operator: str, generation: str) -> list[str]:
    dtypes = DTYPES
    if operator == "fill_value_sequence":
        dtypes = [*INTEGERS, *SEQUENCE_FLOATS, "complex64", "complex128"]
    if operator == "fill_value_constant":  # XLA for TPUs has no int2
        dtypes = [name for name in DTYPES if name not in ("int2", "uint2")]
    if operator == "slice_grad":
        dtypes = [name for name in DTYPES if name != "float8_e8m0fnu"]  # has no zero
    has_all = generation == WITH_ALL_DTYPES
    return [name for name in dtypes if has_all or name in OF_EACH_WIDTH]


def compiled(
    generation: str, keys: list[tuple[str, str, str]]
) -> dict[tuple[str, str, str], Outcome]:
    """The outcomes of named cases under a transform, with data of a dtype."""
    cases = [
        tpu_compiler.Case(
            "-".join(key),
            "tpu_programs:program",
            dict(zip(("case", "transform", "dtype"), key, strict=True)),
        )
        for key in keys
    ]
    outcomes = tpu_compiler.compile_cases(cases, generation)
    return dict(zip(keys, outcomes, strict=True))


def failures(outcomes: dict[tuple[str, str, str], Outcome]) -> list[str]:
    """All but what is refused by an error of ours when it is lowered."""
    return [
        f"{outcome.name}: {outcome.failed}: {outcome.error}"
        for key, outcome in outcomes.items()
        if outcome.failed and not is_refused(key[2], outcome)
    ]


def is_refused(dtype: str, outcome: Outcome) -> bool:
    component = "float64" if dtype == "complex128" else dtype
    message = rf": dtype ({dtype}|{component}) is not supported on TPU$"
    return outcome.failed == "lowering" and bool(re.search(message, outcome.error))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_operator_and_dtype(generation: str) -> None:
    """Forward, and derivatives in float32, and of one generation in others."""
    differentiable = {"float32"}
    if generation == WITH_ALL_DTYPES:
        differentiable |= {"bfloat16", "complex64"}
    outcomes = compiled(
        generation,
        [
            (case, transform, dtype)
            for case in EXAMPLES
            for dtype in dtypes_of(EXAMPLES[case].function, generation)
            for transform in tpu_programs.TRANSFORMS
            if transform == "forward" or dtype in differentiable
        ],
    )
    assert not failures(outcomes)
    for case in EXAMPLES:
        refused = {
            dtype
            for (name, transform, dtype), outcome in outcomes.items()
            if name == case and transform == "forward" and outcome.failed
        }
        # TPUs have no float64 of which every bit is right.
        known = REFUSED | ({"float64"} if case == "fill_value_sequence" else set())
        if case == "fill_value_constant":
            known = set()
        dtypes = dtypes_of(EXAMPLES[case].function, generation)
        assert refused == known.intersection(dtypes), case
