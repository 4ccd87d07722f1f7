"""ONNX's own backend tests of the nodes that are supported."""

import importlib
import unittest
import warnings
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

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


class Result(unittest.TestResult):
    """The message of every test that failed, and "" of those that passed."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.note(test, "")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.note(test, str(err[1]))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.note(test, str(err[1]))

    def note(self, test: unittest.TestCase, message: str) -> None:
        name = test.id().rpartition(".")[2].removeprefix("test_").removesuffix("_cpu")
        self.messages[name] = message


def import_modules(package: ModuleType) -> None:
    """Imports those of COUNTS; each module computes the data of its tests."""
    for name in COUNTS:
        importlib.import_module(f"{package.__name__}.{name}")


@pytest.fixture(scope="module")
def messages() -> dict[str, str]:
    result = Result()
    with warnings.catch_warnings(action="ignore"):  # values of the tests overflow
        from onnx.backend.test import BackendTest

        with mock.patch("onnx.backend.test.loader.import_recursive", import_modules):
            tests = BackendTest(onnx_backend.Backend, __name__)
        for name in COUNTS:
            tests.include(f"^test_{name.removesuffix('op')}(_.*)?_cpu$")
        for case in tests.test_cases.values():
            unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result.messages


def test_nodes(messages: dict[str, str]) -> None:
    failed = {name: text for name, text in messages.items() if text}
    assert failed.keys() == REFUSED.keys(), failed
    for name, reason in REFUSED.items():
        assert reason in failed[name], name
    passed = [name.partition("_")[0] for name in messages.keys() - REFUSED.keys()]
    for name, count in COUNTS.items():
        assert passed.count(name.removesuffix("op")) >= count, name
