"""Wrong members of DirectML's structures, which their constructors refuse."""

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion
from wrong_calls.form import Wrong

X = BufferTensorDesc(DataType.FLOAT32, (2, 3))
LENGTHS = BufferTensorDesc(DataType.UINT32, (2, 1))
ONE = ScalarUnion(float32=1)
FILL = dml.FillValueConstantOperatorDesc(X, DataType.FLOAT32, ONE)
NODE, DATA = dml.OperatorGraphNodeDesc(FILL), dml.ConstantDataGraphNodeDesc(b"1234")
WINDOW = (0, 0), (2, 3), (1, -1)


def gemm(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    dml.SliceOperatorDesc: (X, X, (0, 0), (2, 3), (1, 1)),
    dml.Slice1OperatorDesc: (X, X, *WINDOW),
    dml.SliceGradOperatorDesc: (X, X, *WINDOW),
    dml.ReverseSubsequencesOperatorDesc: (X, LENGTHS, X, 1),
    dml.FillValueSequenceOperatorDesc: (X, 1, ONE, ONE),
    dml.FillValueConstantOperatorDesc: (X, 1, ONE),
    BufferTensorDesc: (1, (2, 3), (3, 1), 24, 0, 16),
    dml.calc_buffer_tensor_size: (1, (2, 3), (3, 1)),
    dml.OperatorGraphNodeDesc: (FILL, "fill"),
    dml.ConstantDataGraphNodeDesc: (b"1234", None),
    dml.FunctionGraphNodeDesc: (gemm, (X, X), (X,), "gemm"),
    dml.InputGraphEdgeDesc: (0, 0, 0, "x"),
    dml.OutputGraphEdgeDesc: (0, 0, 0, None),
    dml.IntermediateGraphEdgeDesc: (0, 0, 1, 0, None),
    dml.GraphDesc: (0, 1, (NODE, DATA), (), (dml.OutputGraphEdgeDesc(0, 0, 0),), ()),
}


def named(make: Any, values: tuple[Any, ...]) -> dict[str, Any]:
    names = [*inspect.signature(make).parameters]
    for name in names[len(values) :]:
        raise ValueError(f"ARGUMENTS lacks a value for {make.__name__}.{name}")
    return dict(zip(names, values, strict=True))


VALID: dict[Any, dict[str, Any]] = {
    make: named(make, ARGUMENTS[make]) for make in ARGUMENTS
}
Values = list[tuple[Any, type[Exception]]]
NOT_INTEGERS: Values = [(value, TypeError) for value in (2.0, True, None)]
UINTS: Values = [(-1, ValueError), (2**32, ValueError)]
OUTSIDE: dict[str, Values] = {  # by member; all others are UINTs
    "input_window_strides": [(-(2**31) - 1, ValueError), (2**31, ValueError)],
    "total_tensor_size_in_bytes": [(-1, ValueError), (2**64, ValueError)],
    "flags": [(-1, ValueError), (2, ValueError)],
}
NOT_SEQUENCES: Values = [(value, TypeError) for value in (3, "12", {1})]
NO_TYPES = [14, "FLOAT", float, np.floating, np.dtype(">f4")]
NOT_OF_A_TYPE = [np.zeros(1, np.float32), None, True]
OTHERS: dict[str, Values] = {  # by the end of the member's name
    "data_type": [
        *[(value, ValueError) for value in NO_TYPES],
        *[(value, TypeError) for value in NOT_OF_A_TYPE],
    ],
    "_tensor": [(None, TypeError), ((2, 3), TypeError)],
    "value": [(1.0, TypeError), (b"12345678", TypeError)],
    "value_start": [(1.0, TypeError)],
    "value_delta": [(b"12345678", TypeError)],
    "operator": [(None, TypeError), ("SLICE", TypeError)],
    "data": [("ab", TypeError), (np.zeros(2, np.uint8), TypeError)],
    "name": [(5, TypeError), (b"a", TypeError), ("", ValueError)],
    "nodes": [(None, TypeError), ({}, TypeError)],
    "_edges": [(None, TypeError), ("a", TypeError)],
    "puts": [(X, TypeError)],
}


def members() -> Iterator[Wrong]:
    """A few values of every kind for every member of every structure."""
    for make, valid in VALID.items():
        for name, value in valid.items():
            endings = [ending for ending in OTHERS if name.endswith(ending)]
            outside = OUTSIDE.get(name, UINTS)
            if endings:
                given = OTHERS[max(endings)]
            elif callable(value):
                given = []  # in MESSAGES
            elif isinstance(value, tuple):
                given = NOT_SEQUENCES
                for element, error in [*NOT_INTEGERS, *outside]:
                    yield refused(make, {name: (0, element)}, error, f"{name}[1]")
            else:
                given = [*NOT_INTEGERS, *outside]
                if name == "total_tensor_size_in_bytes":  # None stands for its default
                    given = [row for row in given if row[0] is not None]
            for wrong, error in given:
                yield refused(make, {name: wrong}, error, name)


def refused(
    make: Any, changes: dict[str, Any], error: type[Exception], member: str
) -> Wrong:
    return changed(make, changes, error, f"`{member}` must …; got …")


def changed(
    make: Any, changes: dict[str, Any], error: type[Exception], message: str
) -> Wrong:
    run = functools.partial(make, **{**VALID[make], **changes})
    name = "-".join([make.__name__, *changes])
    return Wrong(name, run, error, f"{make.__name__}: {message}")


CONSTANT, FUNCTION = dml.FillValueConstantOperatorDesc, dml.FunctionGraphNodeDesc
TYPE = "`data_type` must be a DataType such as DataType.FLOAT32, its name or its NumPy "
TYPE += "dtype; got"
UNION = "`value` must be a ScalarUnion such as ScalarUnion(float32=1.0); got"
CALLABLE = "`function` must be callable and hashable; got"
UNHASHABLE = type("Layer", (), {"__call__": gemm, "__hash__": None})()
MESSAGES = [
    (BufferTensorDesc, {"strides": (3,)}, ValueError, "`strides` must …; got …"),
    (dml.calc_buffer_tensor_size, {"strides": (3,)}, ValueError, "`strides` must …"),
    (BufferTensorDesc, {"data_type": 14}, ValueError, f"{TYPE} int 14"),
    (BufferTensorDesc, {"data_type": np.dtype("bool")}, ValueError,
     f"{TYPE} BoolDType dtype('bool'). DirectML has no bool; use UINT8"),
    (BufferTensorDesc, {"data_type": np.complex64}, ValueError,
     f"{TYPE} the class complex64. DirectML has no complex type"),
    (BufferTensorDesc, {"flags": "OWNED_BY_DML"}, TypeError,
     "`flags` must be TensorFlags.NONE or TensorFlags.OWNED_BY_DML; got str "
     "'OWNED_BY_DML'"),
    (dml.SliceOperatorDesc, {"offsets": (0, -1)}, ValueError,
     "`offsets[1]` must be 0 to 4294967295; got -1"),
    (CONSTANT, {"value": ScalarUnion}, TypeError,
     f"{UNION} the class ScalarUnion; make an object of it"),
    (CONSTANT, {"value": 3.0}, TypeError, f"{UNION} float 3.0"),
    (dml.GraphDesc, {"nodes": [NODE, FILL]}, TypeError,
     "`nodes[1]` must be OperatorGraphNodeDesc or …; got …"),
    *[(dml.GraphDesc, {name: [part]}, TypeError, f"`{name}[0]` must …; got …")
      for name, part in [
          ("nodes", FILL),
          ("input_edges", dml.OutputGraphEdgeDesc(0, 0, 0)),
          ("output_edges", dml.InputGraphEdgeDesc(0, 0, 0)),
          ("intermediate_edges", (0, 0, 1, 0)),
      ]],
    (FUNCTION, {"function": 3}, TypeError, f"{CALLABLE} int…"),
    (FUNCTION, {"function": UNHASHABLE}, TypeError, f"{CALLABLE} Layer…"),
    (FUNCTION, {"outputs": [3]}, TypeError,
     "`outputs[0]` must be a BufferTensorDesc…; got …"),
    (FUNCTION, {"outputs": []}, ValueError, "`outputs` must not be empty; got ()"),
]  # fmt: skip

EIGHT = b"12345678"
UNIONS: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, "members", {"int8": 1, "uint8": 1}),
    (TypeError, "members", {"float16": 1.0}),
    (TypeError, "int8", {"int8": 1.5}),
    (TypeError, "int8", {"int8": True}),
    (TypeError, "int32", {"int32": np.ones(1)}),
    (TypeError, "bytes", {"bytes": "12345678"}),
    (ValueError, "bytes", {"bytes": EIGHT + b"9"}),
    *[
        (OverflowError, name, {name: value})
        for bits in (8, 16, 32, 64)
        for name in (f"int{bits}", f"uint{bits}")
        for value in (-(2 ** (bits - 1)) - 1, 2**bits)
    ],
]
OF_UNIONS = [
    Wrong(
        "ScalarUnion-traced",
        lambda: jax.jit(lambda x: ScalarUnion(float32=x).uint32)(np.float32(1)),
        TypeError,
        "ScalarUnion: `float32` must be a static number; got trac…",
    ),
    Wrong(
        "ScalarUnion.read-INT4",
        lambda: ScalarUnion().read(DataType.INT4),
        ValueError,
        "…at least 8 bits; got INT4",
    ),
]

ROWS = [
    *members(),
    *[changed(*row) for row in MESSAGES],
    *[
        Wrong(
            "-".join(["ScalarUnion", *given]),
            functools.partial(ScalarUnion, **given),
            error,
            f"ScalarUnion: `{member}` must …; got …",
        )
        for error, member, given in UNIONS
    ],
    *OF_UNIONS,
]
