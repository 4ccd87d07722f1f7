"""ONNX's own backend tests of the nodes that are supported."""

import importlib
import pathlib
import re
import unittest
import warnings
from types import ModuleType
from typing import Any
from unittest import mock

import onnx
import onnx.defs
import pytest
from sampling import default_of

from dml_jax import onnx_backend
from dml_jax.onnx_backend._operators import MICROSOFT, OPERATORS
from dml_jax.onnx_backend._operators import REFUSED as REASONS
from dml_jax.onnx_backend._validation import NEWEST_OPSET

ALL_COUNT = 1298  # of the tests that pass
# Without -m exhaustive, the last one of each operator, and those whose names begin so:
# other attributes, and dtypes that ONNX Runtime has not.
ALWAYS = (
    *("quantizelinear", "nonmaxsuppression", "resize_tf_crop", "gridsample_border"),
    *("isinf_negative", "reduce_l1_default", "reduce_log_sum_default", "stft"),
    *("reduce_sum_square_default", "cast_FLOAT_to_INT4", "pow_types_float32_int32"),
    "resize_upsample_scales_linear_align",
)
# Sequences and optional values are not arrays.
SEQUENCES = """
identity_sequence identity_opt if_seq if_opt loop13_seq loop16_seq_none
optional_get_element_sequence optional_get_element_optional_sequence
optional_get_element_optional_tensor optional_has_element_optional_input
optional_has_element_tensor_input optional_has_element_empty_optional_input
sequence_insert_at_back sequence_insert_at_front sequence_map_extract_shapes
sequence_map_add_1_sequence_1_tensor sequence_map_add_2_sequences
sequence_map_identity_1_sequence sequence_map_identity_1_sequence_1_tensor
sequence_map_identity_2_sequences split_to_sequence_1 split_to_sequence_2
split_to_sequence_nokeepdims
"""
RANDOM = """
bernoulli bernoulli_double bernoulli_seed training_dropout training_dropout_mask
training_dropout_default training_dropout_default_mask
"""
# What is in the message of those that are refused.
REFUSED = {
    **dict.fromkeys(SEQUENCES.split(), "not a tensor"),
    # NumPy's rounding error of 2e-7 where the exact result is zero; 1e-7 is tolerated.
    "dft_inverse": "Max absolute difference among violations: 1.907",
    "dft_inverse_opset19": "Max absolute difference among violations: 1.907",
    # Version 8 of Scan has batches; version 9 replaced it.
    "scan_sum": "Scan 'y, z' of opset 8",
    # Powers of two have no zero, and a rounding of their own.
    "cast_e8m0_FLOAT_to_FLOAT8E8M0": "float8_e8m0fnu",
    "cast_e8m0_FLOAT16_to_FLOAT8E8M0": "float8_e8m0fnu",
    # Random numbers are those of NumPy's generator.
    **dict.fromkeys(RANDOM.split(), "Mismatched elements"),
}


def name_of(test: unittest.TestCase) -> str:
    return test.id().rpartition(".")[2].removeprefix("test_").removesuffix("_cpu")


# The data of their tests takes long to compute; `test_onnx_runtime.py` has others.
POOLS = {"averagepool", "lppool", "maxpool"}


def node_tests(are_all: bool) -> list[Any]:
    """Those of modules for operators that are supported, on the CPU."""
    assert onnx.__file__ is not None
    folder = pathlib.Path(onnx.__file__).parent / "backend/test/case/node"
    kinds = {kind.lower() for kind in OPERATORS}
    modules = [
        path.stem
        for path in sorted(folder.glob("[a-z]*.py"))
        if {(name := path.stem.replace("_", "")), name.removesuffix("op")} & kinds
        and (are_all or name not in POOLS)
    ]

    def import_modules(package: ModuleType) -> None:
        """Imports only `modules`; each computes the data of its tests."""
        for name in modules:
            importlib.import_module(f"{package.__name__}.{name}")

    with warnings.catch_warnings(action="ignore"):  # values of the tests overflow
        from onnx.backend.test import BackendTest

        with mock.patch("onnx.backend.test.loader.import_recursive", import_modules):
            tests = BackendTest(onnx_backend.Backend, __name__)
        cases = tests.test_cases["OnnxBackendNodeModelTest"]
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(cases)
    return [t for t in suite if re.search(r"^(?!.*_expanded).*_cpu$", t.id())]


@pytest.mark.parametrize("are_all", default_of([False, True], False))
def test_nodes(are_all: bool) -> None:
    result, tests = unittest.TestResult(), node_tests(are_all)
    last = {name_of(test).partition("_")[0]: test for test in tests}
    always = (test for test in tests if name_of(test).startswith(ALWAYS))
    chosen = {*(tests if are_all else last.values()), *always}
    with warnings.catch_warnings(action="ignore"):
        for test in chosen:
            test.run(result)
    failed = {name_of(t): why for t, why in result.failures + result.errors}
    for name, reason in failed.items():
        assert name in REFUSED, f"{name}: {reason}"
        assert REFUSED[name] in reason, name
    skipped = {name_of(test) for test, _ in result.skipped}
    passed = {name_of(test) for test in chosen} - failed.keys() - skipped
    assert len(passed) >= (ALL_COUNT if are_all else 180)
    if are_all:
        assert failed.keys() == REFUSED.keys()


# ONNX Runtime has them in ONNX's domain from version 1 on.
OF_ONNX_RUNTIME = "LayerNormalization", "SimplifiedLayerNormalization"


def test_every_version_from_9_on_is_supported() -> None:
    versions: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            versions.setdefault(schema.name, set()).add(schema.since_version)
    for kind, operator in OPERATORS.items():
        if kind in OF_ONNX_RUNTIME:
            assert operator.since == 1, kind
            continue
        before = [version for version in versions[kind] if version <= 9]
        assert operator.since in versions[kind], kind
        assert operator.since <= max(before, default=min(versions[kind])), kind
    assert max(max(numbers) for numbers in versions.values()) <= NEWEST_OPSET


def test_every_operator_of_onnx_is_supported_or_refused_with_a_reason() -> None:
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    known = OPERATORS.keys() | REASONS.keys()
    assert names == known - {"SimplifiedLayerNormalization", "com.microsoft.nchwc"}
    assert not OPERATORS.keys() & REASONS.keys()
    assert all(operator.since == 1 for operator in MICROSOFT.values())
