"""ONNX's own backend node tests, of which these must exist and pass."""

import importlib
import re
import unittest
import warnings
from unittest import mock

import pytest

from dml_jax import onnx_backend

PASS = """
reversesequence_time reversesequence_batch reversesequence_bfloat16 slice slice_neg
slice_start_out_of_bounds slice_end_out_of_bounds slice_default_axes slice_default_steps
slice_neg_steps slice_negative_axes range_float_type_positive_delta
range_float16_type_positive_delta range_bfloat16_type_positive_delta
range_int32_type_negative_delta constantofshape_float_ones constantofshape_int_zeros
constantofshape_int_shape_zero constant identity cast_FLOAT_to_FLOAT16
cast_FLOAT_to_DOUBLE cast_FLOAT16_to_FLOAT cast_FLOAT16_to_DOUBLE cast_DOUBLE_to_FLOAT
cast_DOUBLE_to_FLOAT16 cast_FLOAT_to_BFLOAT16 cast_BFLOAT16_to_FLOAT cast_FLOAT_to_INT4
cast_FLOAT16_to_UINT4 cast_INT4_to_FLOAT cast_UINT4_to_UINT8 cast_FLOAT_to_UINT2
cast_FLOAT_to_FLOAT4E2M1 cast_FLOAT_to_FLOAT8E4M3FN cast_FLOAT_to_FLOAT8E4M3FNUZ
cast_FLOAT16_to_FLOAT8E5M2 cast_FLOAT16_to_FLOAT8E5M2FNUZ cast_FLOAT8E4M3FN_to_FLOAT
cast_FLOAT8E5M2_to_FLOAT16 cast_no_saturate_FLOAT_to_FLOAT8E4M3FN
cast_no_saturate_FLOAT_to_FLOAT8E4M3FNUZ cast_no_saturate_FLOAT16_to_FLOAT8E5M2
cast_no_saturate_FLOAT16_to_FLOAT8E5M2FNUZ cast_e8m0_FLOAT8E8M0_to_FLOAT
cast_FLOAT16_to_FLOAT4E2M1 cast_FLOAT16_to_FLOAT8E4M3FNUZ cast_FLOAT16_to_FLOAT8E4M3FN
cast_FLOAT16_to_INT2 cast_FLOAT16_to_INT4 cast_FLOAT16_to_UINT2
cast_FLOAT4E2M1_to_FLOAT16 cast_FLOAT4E2M1_to_FLOAT cast_FLOAT8E4M3FNUZ_to_FLOAT16
cast_FLOAT8E4M3FNUZ_to_FLOAT cast_FLOAT8E4M3FN_to_FLOAT16 cast_FLOAT8E5M2FNUZ_to_FLOAT16
cast_FLOAT8E5M2FNUZ_to_FLOAT cast_FLOAT8E5M2_to_FLOAT cast_FLOAT_to_FLOAT8E5M2FNUZ
cast_FLOAT_to_FLOAT8E5M2 cast_FLOAT_to_INT2 cast_FLOAT_to_UINT4 cast_INT2_to_FLOAT16
cast_INT2_to_FLOAT cast_INT2_to_INT8 cast_INT4_to_FLOAT16 cast_INT4_to_INT8
cast_UINT2_to_FLOAT16 cast_UINT2_to_FLOAT cast_UINT2_to_UINT8 cast_UINT4_to_FLOAT16
cast_UINT4_to_FLOAT cast_e8m0_FLOAT8E8M0_to_FLOAT16
cast_no_saturate_FLOAT16_to_FLOAT8E4M3FNUZ cast_no_saturate_FLOAT16_to_FLOAT8E4M3FN
cast_no_saturate_FLOAT_to_FLOAT8E5M2FNUZ cast_no_saturate_FLOAT_to_FLOAT8E5M2
""".split()
NOT_COVERED = {
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
# ONNX's modules that have them.
MODULES = "reversesequence slice rangeop constantofshape constant identity cast".split()


class Result(unittest.TestResult):
    """The message of every test that failed, and None of those that passed."""

    def __init__(self):
        super().__init__()
        self.messages = {}

    def addSuccess(self, test):
        self.messages[name_of(test)] = None

    def addFailure(self, test, error):
        self.messages[name_of(test)] = str(error[1])

    addError = addFailure


def name_of(test):
    return test.id().rpartition(".")[2].removeprefix("test_").removesuffix("_cpu")


def import_modules(package):
    """Instead of all of them, which make the data of their tests."""
    for name in MODULES:
        importlib.import_module(f"{package.__name__}.{name}")


@pytest.fixture(scope="module")
def messages():
    result = Result()
    names = "|".join(map(re.escape, [*PASS, *NOT_COVERED]))
    with warnings.catch_warnings(action="ignore"):  # values of the tests overflow
        from onnx.backend.test import BackendTest

        with mock.patch("onnx.backend.test.loader.import_recursive", import_modules):
            tests = BackendTest(onnx_backend.Backend, __name__)
        tests.include(f"^test_({names})_cpu$")
        for case in tests.test_cases.values():
            unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result.messages


def test_nodes_pass(messages):
    assert {
        name: messages.get(name, "does not exist") for name in PASS
    } == dict.fromkeys(PASS)


def test_what_is_not_covered_is_refused(messages):
    for name, reason in NOT_COVERED.items():
        assert reason in messages[name], name
