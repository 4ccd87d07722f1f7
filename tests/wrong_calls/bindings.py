"""What cannot be compiled, and what cannot be bound to a compiled operator or graph."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from descriptions import copy_of
from graphs import graph, tensor

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion
from wrong_calls.form import Wrong
from wrong_calls.structures import FILL, LENGTHS, VALID, X

REVERSE = dml.ReverseSubsequencesOperatorDesc(X, LENGTHS, X, 1)
PADDED = copy_of(BufferTensorDesc(DataType.FLOAT32, (2, 3), (4, 1)))
ARRAY, NUMBERS = jnp.zeros((2, 3), np.float32), jnp.ones((2, 1), jnp.uint32)
INTEGERS = np.ones((2, 1), np.int32)
FLAT = {size: jnp.zeros(size, np.float32) for size in (5, 6, 7, 9)}
OF_OTHER_DTYPES = [np.ones((2, 3), np.float16), NUMBERS, [[1, 2, 3], [4, 5, 6]]]


def wide(dtype: str) -> dml.OperatorDesc:
    return copy_of(BufferTensorDesc(DataType[dtype.upper()], (2, 3)))


# The operator, the inputs, the outputs, the error, and the message.
BOUND: list[tuple[dml.OperatorDesc, Any, Any, type[Exception], str]] = [
    (REVERSE, [ARRAY], None, TypeError,
     "`inputs` must have 2 arrays, one for each tensor (InputTensor, "
     "SequenceLengthsTensor); got 1"),
    (FILL, [ARRAY], None, TypeError, "`inputs` …"),
    (FILL, [], [ARRAY] * 3, TypeError, "`outputs` …"),
    (FILL, [], ARRAY, TypeError, "`outputs` …"),
    *[(copy_of(X), [value], None, TypeError, "`InputTensor` …")
      for value in OF_OTHER_DTYPES],
    (REVERSE, [ARRAY, INTEGERS], None, TypeError, "`SequenceLengthsTensor` …"),
    (FILL, [], [NUMBERS], TypeError, "`OutputTensor` …"),
    (REVERSE, [ARRAY.T, NUMBERS], None, ValueError,
     "`InputTensor` must have shape (2, 3) or be a flat buffer of at least 6 elements; "
     "got shape (3, 2)"),
    (REVERSE, [FLAT[9].reshape(1, 9), NUMBERS], None, ValueError, "`InputTensor` …"),
    (FILL, [], [FLAT[5]], ValueError, "`OutputTensor` …"),
    (PADDED, [ARRAY], None, ValueError, "`InputTensor` …"),
    (PADDED, [FLAT[6]], None, ValueError, "`InputTensor` …"),
    (PADDED, [FLAT[7]], [ARRAY], ValueError, "`OutputTensor` …"),
    *[(wide(dtype), [np.zeros((2, 3), dtype)], None, ValueError, "`InputTensor` …")
      for dtype in ("float64", "int64")],
    (copy_of(X), [np.ones((2, 3))], None, TypeError,
     "`InputTensor` must have dtype float32; got float64. Convert it by "
     "`.astype('float32')`"),
    (wide("int32"), [np.ones((2, 3), np.int64)], None, TypeError, "`InputTensor` …"),
    (REVERSE, [ARRAY, np.ones((2, 1), np.uint64)], None, TypeError,
     "`SequenceLengthsTensor` …"),
    (FILL, [], [np.ones((2, 3))], TypeError, "`OutputTensor` …"),
    (wide("int16"), [[1.0, 2.0]], None, TypeError,
     "`InputTensor` must have dtype int16; got float32. Convert it by "
     "`.astype('int16')`"),
]  # fmt: skip


def bound(desc: dml.OperatorDesc, inputs: Any, outputs: Any, *expected: Any) -> Wrong:
    error, message = expected
    run = functools.partial(dml.compile_operator(desc), *inputs, outputs=outputs)
    name = f"{desc.type.name}-{len(inputs)}-inputs"
    return Wrong(name, run, error, f"DML_OPERATOR_{desc.type.name}: {message}")


def wide_output(name: str) -> Wrong:
    """An output of 64 bits needs the mode, or an array that has them."""
    given = tensor((2,), name)
    nodes = [bytes(range(16)), copy_of(given)]
    return Wrong(
        f"output-of-{name}",
        dml.compile_graph(graph(nodes, [], [(1, 0)], [(0, 1, 0)])),
        ValueError,
        f"DML_GRAPH: `output 0` has dtype {given.data_type.dtype}, which needs 64-bit "
        "mode…",
    )


def without_the_last_bytes() -> None:
    """An input of seven words, which is read as words and as pairs of words."""
    words, pairs = (
        BufferTensorDesc(DataType[name], sizes, None, 28)
        for name, sizes in [("INT32", (7,)), ("INT64", (3,))]
    )
    edges = [(0, 0, 0), (0, 1, 0)]
    desc = graph([copy_of(pairs), copy_of(words)], edges, [(0, 0), (1, 1)])
    with jax.enable_x64(True):
        dml.compile_graph(desc)(np.zeros((1, 3), np.int64))


WIDE_FILL = dml.FillValueConstantOperatorDesc(
    BufferTensorDesc(DataType.FLOAT64, (2,)), DataType.FLOAT64, ScalarUnion(float64=1)
)
GRAPH = dml.GraphDesc(**VALID[dml.GraphDesc])
NOT_COMPILED: list[tuple[Any, tuple[Any, ...], type[Exception], str]] = [
    (dml.compile_operator, ("SLICE",), TypeError, "`desc` must be an …"),
    (dml.compile_graph, (3,), TypeError, "`desc` must be a …; got …"),
    *[(function, (desc, level), error, "`feature_level` must be a …")
      for function, desc in [(dml.compile_operator, FILL), (dml.compile_graph, GRAPH)]
      for level, error in [(5, ValueError), ("6_4", TypeError), (None, TypeError)]],
]  # fmt: skip

ROWS = [
    *[bound(*row) for row in BOUND],
    *[
        Wrong(
            f"{function.__name__}-{len(arguments)}-arguments",
            functools.partial(function, *arguments),
            error,
            f"{function.__name__}: {message}",
        )
        for function, arguments, error, message in NOT_COMPILED
    ],
    Wrong(
        "wide-fill",
        dml.compile_operator(WIDE_FILL),
        ValueError,
        "DML_OPERATOR_FILL_VALUE_CONSTANT: `OutputTensor` has dtype float64, which "
        "needs 64-bit mode…",
    ),
    *map(wide_output, ["FLOAT64", "INT64"]),
    Wrong(
        "without-the-last-bytes",
        without_the_last_bytes,
        ValueError,
        "DML_GRAPH: `input 0` must … of at least 4 elements…",
    ),
]
