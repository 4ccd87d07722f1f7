"""Descriptions with members of any kind: the operator is right, or it is refused."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from calls import near_values
from descriptions import DESCS, bound, elements, expected_of
from hypothesis import strategies as st
from outcomes import Refusal, outcome_of

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType

every_operator = pytest.mark.parametrize("operator", DESCS)


def near_members(draw: Any, name: str, value: Any) -> Any:
    """Something of the right kind that may be refused."""
    if isinstance(value, BufferTensorDesc):
        field = draw(st.sampled_from(dataclasses.fields(value))).name
        near = near_members(draw, field, getattr(value, field))
        return dataclasses.replace(value, **{field: near})
    if isinstance(value, DataType):
        return draw(st.sampled_from(list(DataType)))
    if isinstance(value, (int, tuple)):
        plain = value if isinstance(value, tuple) else int(value)
        return near_values(lambda v: draw(st.sampled_from(v)), name, plain)
    return value


def compiled(desc: Any, changes: dict[str, Any]) -> Any:
    return dml.compile_operator(dataclasses.replace(desc, **changes))


@every_operator
def test_right_members_give_the_reference(operator: str, fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        require_reference(data.draw, compiled(data.draw(DESCS[operator]), {}))


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
    inputs = [
        draw(bound(tensor, member == "sequence_lengths_tensor"))
        for member, tensor in zip(desc.input_members, desc.inputs, strict=True)
    ]
    previous = draw(st.none() | bound(desc.output))
    is_wide = any(tensor.data_type.bits == 64 for tensor in tensors)
    with jax.enable_x64(is_wide or draw(st.booleans())):
        result = np.array(operator(*inputs, outputs=[previous]))
    expected = expected_of(desc, inputs, previous)
    if isinstance(desc, dml.FillValueSequenceOperatorDesc):
        views = elements(desc.output, result), elements(desc.output, expected)
        assert_same_floats(*views)
        views[0][...] = views[1]  # the payload of a NaN is not defined
    assert_same_bits(result, expected)
