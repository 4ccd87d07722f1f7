"""Descriptions with members of any kind, and operators called with any arrays."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arguments import NO_ARRAYS, WRONG, Given, choice, integers, pick, sequences
from assertions import assert_same_bits, assert_same_floats
from descriptions import (
    DESCS,
    LARGEST_UINT,
    LATEST,
    bound,
    buffer_size,
    elements,
    expected_of,
    is_packed,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import Refusal, outcome_of
from test_directml_refusals import documented_rules

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion


@functools.cache
def pool(operator):
    """Some descriptions, always the same, so that each is compiled once."""
    found = []

    @settings(max_examples=40, derandomize=True, database=None, deadline=None)
    @given(DESCS[operator])
    def collect(desc):
        found.append(desc)

    collect()
    return list(dict.fromkeys(found))[-20:]


@pytest.fixture(scope="module", params=DESCS)
def operator(request):
    pool(request.param)  # before an example asks for it
    return request.param


# Members ------------------------------------------------------------------------------

NO_TYPES = [None, "FLOAT32", np.float32, np.dtype("f4"), True, 14, -1, 99, 1.0, 2**70]
NO_TENSORS = [
    None,
    {},
    BufferTensorDesc,
    (1, 2),
    DataType.INT8,
    np.ones(2),
    "tensor",
    1,
]
NO_UNIONS = [None, 1.0, 3, b"\0" * 8, ScalarUnion, {"float32": 1.0}, np.float32(1), "1"]
DEFAULTS = {"strides", "total_tensor_size_in_bytes"}  # which None stands for
LIMITS = {
    "input_window_strides": (-(2**31), 2**31 - 1),
    "total_tensor_size_in_bytes": (0, 2**64 - 1),
    "flags": (0, 1),
}


def members(draw, desc, most):
    """The members of a description, of which up to `most` are spoilt."""
    fields = dataclasses.fields(desc)
    bad = {pick(draw, fields).name for _ in range(draw(st.integers(0, most)))}
    result, as_it_is = {}, draw(st.booleans())
    for field in fields:
        value, name = getattr(desc, field.name), field.name
        result[name] = Given(value, value)
        if name in bad or not as_it_is:
            result[name] = member(draw, name, value, name in bad)
        if type(desc) is BufferTensorDesc and name in DEFAULTS:
            if result[name].value is None:
                result[name] = Given(None, None)
    return result


def member(draw, name, value, spoilt):
    least, most = LIMITS.get(name, (0, LARGEST_UINT))
    if isinstance(value, BufferTensorDesc):
        if spoilt and draw(st.integers(0, 2)) == 0:
            return Given(pick(draw, NO_TENSORS), WRONG)
        return built(BufferTensorDesc, members(draw, value, 2 * spoilt))
    if isinstance(value, ScalarUnion) or value is None:
        wrong = NO_UNIONS if value else [1, "", {1}, 1.5, [0.5], ["1"]]
        return Given(pick(draw, wrong), WRONG) if spoilt else Given(value, value)
    if isinstance(value, DataType):
        kind = pick(draw, [DataType, int, np.int64])
        others = [t for t in DataType] if spoilt else [value]
        right = pick(draw, others)
        if spoilt and draw(st.booleans()):
            return Given(pick(draw, NO_TYPES), WRONG)
        return Given(kind(right), right)
    if isinstance(value, tuple):
        found = sequences(draw, value, spoilt)
    else:
        found = integers(draw, int(value), spoilt)
    numbers = found.meaning if isinstance(value, tuple) else (found.meaning,)
    if found.meaning is WRONG or any(not least <= n <= most for n in numbers):
        return Given(found.value, WRONG)
    return found


def built(kind, members):
    """A description as it is meant, and as it is to be made."""
    meanings = {name: given.meaning for name, given in members.items()}
    are_wrong = any(meaning is WRONG for meaning in meanings.values())
    if kind is BufferTensorDesc and not are_wrong and meanings["strides"] is not None:
        are_wrong = len(meanings["strides"]) != len(meanings["sizes"])
    make = functools.partial(make_of, kind, members)
    return Given(make, WRONG if are_wrong else kind(**meanings))


def make_of(kind, members):
    values = {name: given.value for name, given in members.items()}
    calls = {n: v() for n, v in values.items() if isinstance(v, functools.partial)}
    return kind(**{**values, **calls})


@given(data=st.data())
def test_members(operator, data):
    desc = pick(data.draw, pool(operator))
    kind = type(desc)
    make, meaning = built(kind, members(data.draw, desc, 2))
    heads = f"{kind.__name__}: ", "BufferTensorDesc: ", f"{desc.struct}: "
    result = outcome_of(lambda: dml.compile_operator(make()), *heads)
    accepted = meaning is not WRONG and all(documented_rules(meaning, LATEST))
    if accepted:
        assert not isinstance(result, Refusal), result
        assert result.steps[0].operator == meaning
    else:
        assert isinstance(result, Refusal), meaning


SCALARS = [
    0,
    1,
    -1,
    300,
    2**31,
    2**63,
    2**64,
    0.5,
    1e39,
    math.nan,
    math.inf,
    True,
    None,
]
SCALARS += ["1", b"12345678", b"1234567", 1j, np.float32(2), np.int8(3), jnp.int32(4)]
SCALARS += [np.ones(1), jnp.ones(2), [1], object(), np.longdouble(1), bytearray(8)]
MEMBERS = ["bytes", "int8", "uint16", "int32", "uint64", "float32", "float64"]


@given(st.dictionaries(choice([*MEMBERS, "float16", "int4", "x"]), choice(SCALARS)))
def test_unions(members):
    result = outcome_of(lambda: ScalarUnion(**members), "ScalarUnion: ")
    if len(members) > 1 or not members.keys() <= {*MEMBERS}:
        assert isinstance(result, Refusal)
    elif not isinstance(result, Refusal):
        assert len(result.bytes) == 8
        for name, value in members.items():
            assert_scalar(getattr(result, name), name, value)


def assert_scalar(stored, name, value):
    if name.startswith("float"):
        np.testing.assert_equal(stored, float(np.dtype(name).type(float(value))))
    elif name != "bytes":
        assert (stored - int(value)) % 2 ** np.iinfo(name).bits == 0
    else:
        assert stored == bytes(value)


# Arrays -------------------------------------------------------------------------------


def bindings(draw, tensor, is_lengths, spoilt):
    """What is bound to a tensor: an array that fits, or something else."""
    array = draw(bound(tensor, is_lengths))
    if not spoilt:
        return Given(pick(draw, [np.asarray, jnp.asarray])(array), array)
    kinds = ["none", "dtype", "short", "rank", "shape"]
    if array.dtype.itemsize < 4:  # of the others, Python's numbers may be
        kinds.append("list")
    kind, size = pick(draw, kinds), buffer_size(tensor)
    if kind == "none":
        value = pick(draw, [*NO_ARRAYS, "abc", [["a"]]])
        return Given(value, WRONG)
    other = {
        "dtype": lambda: np.zeros(
            array.shape, pick(draw, [np.float32, np.int16, bool])
        ),
        "short": lambda: array.reshape(-1)[: pick(draw, [0, size - 1, size, -1])],
        "rank": lambda: pick(draw, [array[None], array[..., None], array.reshape(-1)]),
        "shape": lambda: pick(
            draw, [array.T, array.repeat(2), np.zeros((), array.dtype)]
        ),
        "list": lambda: array.tolist(),
    }[kind]()
    fits = isinstance(other, np.ndarray) and fits_into(tensor, other)
    return Given(other, other if fits else WRONG)


def fits_into(tensor, array):
    if array.dtype != tensor.data_type.dtype:
        return False
    is_buffer = array.ndim == 1 and array.size >= buffer_size(tensor)
    return is_buffer or (is_packed(tensor) and array.shape == tensor.sizes)


@given(data=st.data())
def test_arrays(operator, data):
    desc = pick(data.draw, pool(operator))
    tensors = [*desc.inputs, desc.output]
    is_wide = any(tensor.data_type.bits == 64 for tensor in tensors)
    with jax.enable_x64(is_wide):
        compiled = dml.compile_operator(desc)
        names = [*desc.input_members, "output"]
        bad = {pick(data.draw, names) for _ in range(data.draw(st.integers(0, 1)))}
        *inputs, previous = [
            bindings(data.draw, tensor, name == "sequence_lengths_tensor", name in bad)
            for name, tensor in zip(names, tensors, strict=True)
        ]
        if "output" not in bad and data.draw(st.booleans()):
            previous = Given(None, None)
        arrays = [given.value for given in inputs]
        outputs = [previous.value]
        result = outcome_of(
            lambda: compiled(*arrays, outputs=outputs), f"{compiled.name}: "
        )
    # A previous output that is None is none.
    is_none = previous.value is None
    meanings = [given.meaning for given in (*inputs, previous)]
    if any(m is WRONG for m in meanings[:-1]) or (
        meanings[-1] is WRONG and not is_none
    ):
        assert isinstance(result, Refusal)
        return
    assert not isinstance(result, Refusal), result
    expected = expected_of(desc, meanings[:-1], None if is_none else meanings[-1])
    result = np.array(result)
    if operator == "fill_value_sequence":
        views = elements(desc.output, result), elements(desc.output, expected)
        assert_same_floats(*views)
        views[0][...] = views[1]  # the payload of a NaN is not defined
    assert_same_bits(result, expected)


@given(choice(NO_ARRAYS), choice(["desc", "level", "graph"]))
def test_no_descriptions(value, place):
    fill = dml.FillValueConstantOperatorDesc(
        BufferTensorDesc(DataType.INT8, (4,)), DataType.INT8, ScalarUnion(int8=1)
    )
    calls = {
        "desc": lambda: dml.compile_operator(value),
        "level": lambda: dml.compile_operator(fill, value),
        "graph": lambda: dml.compile_graph(value),
    }
    heads = "compile_operator: ", "compile_graph: "
    assert isinstance(outcome_of(calls[place], *heads), Refusal)
