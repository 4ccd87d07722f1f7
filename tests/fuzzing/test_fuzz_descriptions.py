"""Descriptions with members of any kind: the operator is right, or it is refused."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from descriptions import DESCS, bound, elements, expected_of
from hypothesis import strategies as st
from outcomes import Refusal, outcome_of
from strategies import NO_ARRAYS, NO_INTEGERS, NO_SEQUENCES, near_values

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion

NO_TYPES = [None, "FLOAT32", np.float32, np.dtype("f4"), True, 14, -1, 1.0, 2**70]
NO_TENSORS = [None, {}, BufferTensorDesc, (1, 2), DataType.INT8, np.ones(2), "x", 1]
NO_UNIONS = [None, 1.0, 3, b"\0" * 8, ScalarUnion, {"float32": 1.0}, np.float32(1)]
WRONG = {
    BufferTensorDesc: NO_TENSORS,
    ScalarUnion: NO_UNIONS,
    DataType: NO_TYPES,
    tuple: NO_SEQUENCES,
    int: NO_INTEGERS,
}
every_operator = pytest.mark.parametrize("operator", DESCS)


def wrong_members(kind: type, name: str, value: Any) -> list[Any]:
    """What a member can never be; None stands for the defaults of a tensor."""
    if value is None:
        return ["", {1}, 1.5, [0.5], ["1"]]
    wrong = next(wrong for of, wrong in WRONG.items() if isinstance(value, of))
    is_optional = kind is BufferTensorDesc and name in ("strides", "flags")
    is_optional |= name == "total_tensor_size_in_bytes"
    return [w for w in wrong if w is not None or not is_optional]


def near_members(draw: Any, name: str, value: Any) -> Any:
    """Something of the right kind that may be refused."""
    if isinstance(value, BufferTensorDesc):
        field = draw(st.sampled_from(dataclasses.fields(value))).name
        near = near_members(draw, field, getattr(value, field))
        return dataclasses.replace(value, **{field: near})
    if isinstance(value, DataType):
        return draw(st.sampled_from(list(DataType)))
    if isinstance(value, (int, tuple)):
        return near_values(
            draw, name, value if isinstance(value, tuple) else int(value)
        )
    return value


def compiled(desc: Any, changes: dict[str, Any]) -> Any:
    return dml.compile_operator(dataclasses.replace(desc, **changes))


@every_operator
def test_one_wrong_member_is_refused(operator: str, fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        desc = data.draw(DESCS[operator])
        field = data.draw(st.sampled_from(dataclasses.fields(desc))).name
        value = getattr(desc, field)
        if isinstance(value, BufferTensorDesc) and data.draw(st.booleans()):
            inner = data.draw(st.sampled_from(dataclasses.fields(value))).name
            wrong = wrong_members(BufferTensorDesc, inner, getattr(value, inner))
            wrong = {inner: data.draw(st.sampled_from(wrong))}
            call = lambda: dataclasses.replace(value, **wrong)  # noqa: E731
            result = outcome_of(call, "BufferTensorDesc: ")
        else:
            wrong = data.draw(st.sampled_from(wrong_members(type(desc), field, value)))
            heads = f"{type(desc).__name__}: ", f"{desc.struct}: "
            result = outcome_of(lambda: compiled(desc, {field: wrong}), *heads)
        assert isinstance(result, Refusal)


@every_operator
def test_near_members_are_refused_or_give_the_reference(
    operator: str, fuzz: Any
) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        desc = data.draw(DESCS[operator])
        field = data.draw(st.sampled_from(dataclasses.fields(desc))).name

        def changed() -> Any:
            return compiled(desc, {field: near_members(data.draw, field, value)})

        value = getattr(desc, field)
        heads = f"{type(desc).__name__}: ", "BufferTensorDesc: ", f"{desc.struct}: "
        result = outcome_of(changed, *heads)
        if not isinstance(result, Refusal):
            require_reference(data.draw, result)


def require_reference(draw: Any, operator: Any) -> None:
    """The operator gives what NumPy gives, on random bits."""
    desc = operator.steps[0].operator
    tensors = [*desc.inputs, desc.output]
    if any(tensor.total_tensor_size_in_bytes > 2**16 for tensor in tensors):
        return
    *inputs, previous = [
        draw(bound(tensor, member == "sequence_lengths_tensor"))
        for member, tensor in zip([*desc.input_members, ""], tensors, strict=True)
    ]
    with jax.enable_x64(any(tensor.data_type.bits == 64 for tensor in tensors)):
        result = np.array(operator(*inputs, outputs=[previous]))
    expected = expected_of(desc, inputs, previous)
    if isinstance(desc, dml.FillValueSequenceOperatorDesc):
        views = elements(desc.output, result), elements(desc.output, expected)
        assert_same_floats(*views)
        views[0][...] = views[1]  # the payload of a NaN is not defined
    assert_same_bits(result, expected)


@every_operator
def test_arrays_that_do_not_fit_are_refused(operator: str, fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        desc = data.draw(DESCS[operator])
        tensors = [*desc.inputs, desc.output]
        run = dml.compile_operator(desc)
        arrays = [data.draw(bound(tensor)) for tensor in tensors]
        spoilt = data.draw(st.integers(0, len(arrays) - 1))
        is_output = spoilt == len(arrays) - 1
        unfit = [a for a in NO_ARRAYS if a is not None or not is_output]
        unfit += [arrays[spoilt][None], arrays[spoilt].reshape(-1)[:0], "abc", [["a"]]]
        unfit += [arrays[spoilt].view(np.int8).reshape(-1).astype(bool)]
        arrays[spoilt] = data.draw(st.sampled_from(unfit))
        with jax.enable_x64(True):
            call = lambda: run(*arrays[:-1], outputs=arrays[-1:])  # noqa: E731
            result = outcome_of(call, f"{run.name}: ")
        assert isinstance(result, Refusal)


SCALARS = [0, 1, -1, 300, 2**31, 2**63, 2**64, 0.5, 1e39, math.nan, math.inf, True]
SCALARS += [None, "1", b"12345678", b"1234567", 1j, np.float32(2), np.int8(3)]
SCALARS += [np.ones(1), jnp.int32(4), [1], object(), np.longdouble(1), bytearray(8)]
MEMBERS = ["bytes", "int8", "uint16", "int32", "uint64", "float32", "float64"]


def test_unions_hold_a_scalar_or_refuse_it(fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([*MEMBERS, "float16", "int4", "x"]))
        value = data.draw(st.sampled_from(SCALARS))
        result = outcome_of(lambda: ScalarUnion(**{name: value}), "ScalarUnion: ")
        if isinstance(result, Refusal):
            return
        assert len(result.bytes) == 8
        stored = getattr(result, name)
        if name.startswith("float"):
            np.testing.assert_equal(stored, float(np.dtype(name).type(float(value))))
        elif name == "bytes":
            assert stored == bytes(value)
        else:
            assert (stored - int(value)) % 2 ** np.iinfo(name).bits == 0


def test_what_is_no_description_is_refused(fuzz: Any) -> None:
    fill = dml.FillValueConstantOperatorDesc(
        BufferTensorDesc(DataType.INT8, (4,)), DataType.INT8, ScalarUnion(int8=1)
    )

    @fuzz
    def check(data: st.DataObject) -> None:
        value = data.draw(st.sampled_from(NO_ARRAYS))
        calls = [
            lambda: dml.compile_operator(value),
            lambda: dml.compile_operator(fill, value),
            lambda: dml.compile_graph(value),
        ]
        heads = "compile_operator: ", "compile_graph: "
        call = data.draw(st.sampled_from(calls))
        assert isinstance(outcome_of(call, *heads), Refusal)
