"""ONNX's own backend tests of the nodes that are supported."""

import importlib
import unittest
import warnings
from types import ModuleType
from unittest import mock

from dml_jax import onnx_backend

# The modules of ONNX that define the tests, and how many of them must pass.
COUNTS = {
    "reversesequence": 3,
    "slice": 8,
    "rangeop": 4,
    "constantofshape": 3,
    "constant": 1,
    "identity": 1,
    "cast": 58,
}
# What is in the message of those that are refused.
REFUSED = {
    # The function body of Range needs Loop.
    "range_float_type_positive_delta_expanded": "Loop",
    "range_float16_type_positive_delta_expanded": "Loop",
    "range_bfloat16_type_positive_delta_expanded": "Loop",
    "range_int32_type_negative_delta_expanded": "Loop",
    # Sequences and optional values are not arrays.
    "identity_sequence": "not a tensor",
    "identity_opt": "not a tensor",
    # Powers of two have no zero, and a rounding of their own.
    "cast_e8m0_FLOAT_to_FLOAT8E8M0": "float8_e8m0fnu",
    "cast_e8m0_FLOAT16_to_FLOAT8E8M0": "float8_e8m0fnu",
}


def name_of(test: unittest.TestCase) -> str:
    return test.id().rpartition(".")[2].removeprefix("test_").removesuffix("_cpu")


def import_modules(package: ModuleType) -> None:
    """Imports those of COUNTS; each module computes the data of its tests."""
    for name in COUNTS:
        importlib.import_module(f"{package.__name__}.{name}")


def run_tests() -> tuple[list[str], dict[str, str]]:
    """The names of those that passed, and why the others failed."""
    result, ran = unittest.TestResult(), []
    with warnings.catch_warnings(action="ignore"):  # values of the tests overflow
        from onnx.backend.test import BackendTest

        with mock.patch("onnx.backend.test.loader.import_recursive", import_modules):
            tests = BackendTest(onnx_backend.Backend, __name__)
        for name in COUNTS:
            tests.include(f"^test_{name.removesuffix('op')}(_.*)?_cpu$")
        for case in tests.test_cases.values():
            suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
            ran += map(name_of, suite)
            suite.run(result)
    failed = {name_of(t): why for t, why in result.failures + result.errors}
    others = failed.keys() | {name_of(t) for t, _ in result.skipped}
    return [name for name in ran if name not in others], failed


def test_nodes() -> None:
    passed, failed = run_tests()
    assert failed.keys() == REFUSED.keys(), failed
    for name, reason in REFUSED.items():
        assert reason in failed[name], name
    kinds = [name.partition("_")[0] for name in passed]
    for name, count in COUNTS.items():
        assert kinds.count(name.removesuffix("op")) >= count, name
