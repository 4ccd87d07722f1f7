"""DirectML's descriptions: refused as documented, computed to the last byte.

NumPy's own strided views say where the elements of a tensor lie.
"""

import dataclasses
import itertools
import json
import math
import pathlib
import re

import jax
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from hypothesis import event, given
from hypothesis import strategies as st

from dml_jax import reference
from dml_jax.directml import (
    BufferTensorDesc,
    DataType,
    FeatureLevel,
    FillValueConstantOperatorDesc,
    FillValueSequenceOperatorDesc,
    ReverseSubsequencesOperatorDesc,
    ScalarUnion,
    Slice1OperatorDesc,
    SliceGradOperatorDesc,
    SliceOperatorDesc,
    TensorFlags,
    calc_buffer_tensor_size,
    compile_operator,
)

LATEST = FeatureLevel.LEVEL_6_4
LARGEST_UINT = 2**32 - 1

# The oracle ---------------------------------------------------------------------------


def packed(sizes):
    return tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def is_packed(tensor):
    triples = zip(tensor.sizes, strides_of(tensor), packed(tensor.sizes), strict=True)
    return all(size == 1 or given == wanted for size, given, wanted in triples)


def strides_of(tensor):
    return packed(tensor.sizes) if tensor.strides is None else tensor.strides


def extent(tensor):
    pairs = zip(tensor.sizes, strides_of(tensor), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def buffer_size(tensor):
    return tensor.total_tensor_size_in_bytes // tensor.data_type.dtype.itemsize


def elements(tensor, bound):
    """The elements of a tensor, as a view of what is bound to it."""
    buffer = bound.reshape(-1)
    strides = [stride * buffer.itemsize for stride in strides_of(tensor)]
    return np.lib.stride_tricks.as_strided(buffer, tensor.sizes, strides)


def window_of(desc):
    return (
        desc.input_window_offsets,
        desc.input_window_sizes,
        desc.input_window_strides,
    )


def computed(desc, inputs):
    """The elements of the output, from those of the inputs."""
    dtype, sizes = desc.output.data_type.dtype, desc.output.sizes

    def number(union):
        return np.frombuffer(union.bytes, dtype, count=1)[0]

    match desc:
        case ReverseSubsequencesOperatorDesc():
            return reference.reverse_subsequences(*inputs, desc.axis)
        case SliceOperatorDesc():
            return reference.slice(*inputs, desc.offsets, desc.sizes, desc.strides)
        case Slice1OperatorDesc():
            return reference.slice1(*inputs, *window_of(desc), sizes)
        case SliceGradOperatorDesc():
            return reference.slice_grad(*inputs, sizes, *window_of(desc))
        case FillValueConstantOperatorDesc():
            return np.full(sizes, number(desc.value), dtype)
        case FillValueSequenceOperatorDesc():
            values = number(desc.value_start), number(desc.value_delta)
            return reference.fill_value_sequence(sizes, dtype, *values)


def expected_of(desc, inputs, previous=None):
    """What is bound to the output afterwards."""
    views = map(elements, desc.inputs, inputs)
    if previous is None:
        flat = (buffer_size(desc.output),)
        shape = desc.output.sizes if is_packed(desc.output) else flat
        previous = np.zeros(shape, desc.output.data_type.dtype)
    result = previous.copy()
    elements(desc.output, result)[...] = computed(desc, list(views))
    return result


# Published vectors --------------------------------------------------------------------

CLASSES = {
    "reverse_subsequences": ReverseSubsequencesOperatorDesc,
    "slice": SliceOperatorDesc,
    "slice1": Slice1OperatorDesc,
    "slice_grad": SliceGradOperatorDesc,
    "fill_value_constant": FillValueConstantOperatorDesc,
    "fill_value_sequence": FillValueSequenceOperatorDesc,
}
VECTORS = [
    vector
    for vector in json.loads(
        pathlib.Path(__file__).with_name("operators.json").read_text()
    )
    if vector["op"] in CLASSES
]


def array_of(published):
    return np.array(published["data"], published["dtype"]).reshape(published["shape"])


def tensor_of(array):
    return BufferTensorDesc(DataType[array.dtype.name.upper()], array.shape)


def desc_of(operator, inputs, attributes, output):
    target = tensor_of(output)
    members = dict.fromkeys(f.name for f in dataclasses.fields(CLASSES[operator]))
    for name, value in attributes.items():
        if name == "value_data_type":
            members[name] = target.data_type
        elif name.startswith("value"):
            members[name] = ScalarUnion.of(target.data_type, value)
        elif name in members:
            members[name] = value
    for name, tensor in zip(CLASSES[operator].input_members, inputs, strict=True):
        members[name] = tensor_of(tensor)
    members[CLASSES[operator].output_member] = target
    return CLASSES[operator](**members)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['op']}-{v['name']}")
def test_published_vectors(vector):
    inputs = [array_of(published) for published in vector["inputs"].values()]
    output = array_of(vector["output"])
    desc = desc_of(vector["op"], inputs, vector["attributes"], output)
    assert_same_bits(compile_operator(desc)(*inputs), output)


def test_every_operator_has_a_published_vector():
    assert {vector["op"] for vector in VECTORS} == set(CLASSES)


@pytest.mark.parametrize(
    ("data_type", "sizes", "strides", "size"),
    [
        ("FLOAT32", (2, 3), None, 24),
        ("UINT8", (5,), None, 8),
        ("FLOAT16", (3,), None, 8),
        ("FLOAT32", (2, 3), (0, 1), 12),
        ("FLOAT32", (2, 3), (4, 1), 28),
    ],
)
def test_size_of_a_buffer(data_type, sizes, strides, size):
    assert calc_buffer_tensor_size(DataType[data_type], sizes, strides) == size
    tensor = BufferTensorDesc(DataType[data_type], sizes, strides)
    assert tensor.total_tensor_size_in_bytes == size


# Random descriptions ------------------------------------------------------------------


def types(names):
    return [DataType[name] for name in names.split()]


T6 = types("FLOAT32 FLOAT16 INT32 INT16 UINT32 UINT16")
T8 = [*T6, *types("INT8 UINT8")]
T10 = [*T8, *types("INT64 UINT64")]
T11 = [*T10, DataType.FLOAT64]
U32 = types("UINT32")
U64 = types("UINT32 UINT64")

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def shapes(draw):
    room, sizes = 200, []
    for _ in range(draw(st.integers(1, 8))):
        sizes.append(draw(st.integers(1, min(room, 9))))
        room //= sizes[-1]
    return tuple(draw(st.permutations(sizes)))


def places_overlap(sizes, strides):
    """Whether two elements share a place, by looking at all of them."""
    pairs = [(n, s) for n, s in zip(sizes, strides, strict=True) if n > 1]
    if len(pairs) <= 1 or any(stride == 0 for _, stride in pairs):
        return any(stride == 0 for _, stride in pairs)
    places = np.zeros((), np.int64)
    for size, stride in pairs:
        places = np.add.outer(places, np.arange(size) * stride)
    return len(set(places.ravel().tolist())) < places.size


@st.composite
def layouts(draw, sizes, is_output):
    """Strides: none, nested ones in any order with any gaps, or arbitrary ones."""
    kind = draw(st.sampled_from(["none", "packed", "nested", "nested", "arbitrary"]))
    if kind == "none":
        return None
    strides, reach = list(packed(sizes)), 1
    if kind == "arbitrary":
        most = draw(st.sampled_from([1, 2, 9]))  # 1 and 2 are windows that overlap
        strides = [draw(st.integers(1, most)) for _ in sizes]
    if kind == "nested" or (is_output and places_overlap(sizes, strides)):
        for d in draw(st.permutations(range(len(sizes)))):
            strides[d] = reach + draw(st.sampled_from([0, 0, 0, 1, 2, 5]))
            reach += (sizes[d] - 1) * strides[d]
    if not is_output and draw(st.booleans()):
        strides = [s if draw(st.integers(0, 2)) else 0 for s in strides]
    ignored = st.sampled_from([0, 1, 7, LARGEST_UINT])
    return tuple(
        draw(ignored) if size == 1 and draw(st.booleans()) else stride
        for size, stride in zip(sizes, strides, strict=True)
    )


@st.composite
def tensors(draw, data_type, sizes, is_output=False):
    strides = draw(layouts(sizes, is_output))
    tensor = BufferTensorDesc(data_type, sizes, strides)
    more = draw(st.sampled_from([None, 0, 4, 8, 36]))
    if more is None:
        return tensor
    total = -(-extent(tensor) * data_type.bits // 32) * 4 + more
    return dataclasses.replace(tensor, total_tensor_size_in_bytes=total)


@st.composite
def reversals(draw):
    data_type, sizes = draw(st.sampled_from(T11)), draw(shapes())
    axis = draw(st.integers(0, len(sizes) - 1))
    lengths_sizes = (*sizes[:axis], 1, *sizes[axis + 1 :])
    lengths = tensors(draw(st.sampled_from(U64)), lengths_sizes)
    output = tensors(data_type, sizes, is_output=True)
    source = draw(tensors(data_type, sizes))
    return ReverseSubsequencesOperatorDesc(source, draw(lengths), draw(output), axis)


@st.composite
def slices(draw):
    data_type, whole = draw(st.sampled_from(T11)), draw(shapes())
    strides = [draw(st.sampled_from([1, 1, 2, 3, LARGEST_UINT])) for _ in whole]
    sizes = [
        draw(st.integers(1, 1 + (n - 1) // stride))
        for n, stride in zip(whole, strides, strict=True)
    ]
    offsets = [
        draw(st.integers(0, n - 1 - (size - 1) * stride))
        for n, size, stride in zip(whole, sizes, strides, strict=True)
    ]
    source = draw(tensors(data_type, whole))
    output = draw(tensors(data_type, sizes, is_output=True))
    return SliceOperatorDesc(source, output, offsets, sizes, strides)


@st.composite
def windows(draw, is_gradient):
    data_type, whole = draw(st.sampled_from(T11)), draw(shapes())
    offsets = [draw(st.integers(0, n - 1)) for n in whole]
    windows = [
        draw(st.integers(1, n - offset))
        for n, offset in zip(whole, offsets, strict=True)
    ]
    stride = st.sampled_from([1, 1, -1, 2, -2, 3, -3, -(2**31), 2**31 - 1])
    strides = [draw(stride) for _ in whole]
    most = [1 + (w - 1) // abs(s) for w, s in zip(windows, strides, strict=True)]
    part = tuple(draw(st.just(n) | st.integers(1, n)) for n in most)
    window = (offsets, windows, strides)
    if is_gradient:
        source = draw(tensors(data_type, part))
        output = draw(tensors(data_type, whole, is_output=True))
        return SliceGradOperatorDesc(source, output, *window)
    source = draw(tensors(data_type, whole))
    output = draw(tensors(data_type, part, is_output=True))
    return Slice1OperatorDesc(source, output, *window)


@st.composite
def fills(draw, desc, data_types):
    data_type = draw(st.sampled_from(data_types))
    bits = st.binary(min_size=8, max_size=8).map(lambda b: ScalarUnion(bytes=b))
    small = st.integers(-9, 9).map(lambda n: ScalarUnion.of(data_type, n))
    values = [draw(bits | small) for _ in range(len(dataclasses.fields(desc)) - 2)]
    output = draw(tensors(data_type, draw(shapes()), is_output=True))
    return desc(output, data_type, *values)


DESCS = {
    "reverse_subsequences": reversals(),
    "slice": slices(),
    "slice1": windows(is_gradient=False),
    "slice_grad": windows(is_gradient=True),
    "fill_value_constant": fills(FillValueConstantOperatorDesc, T11),
    "fill_value_sequence": fills(FillValueSequenceOperatorDesc, T10),
}

# Bytes of infinities, NaNs with and without payloads, subnormals, zeros.
SPECIAL = np.array([0x00, 0x01, 0x7C, 0x7F, 0x80, 0xF0, 0xFF], np.uint8)
LENGTHS = np.array(
    [*range(11), 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1],
    np.uint64,
)


@st.composite
def bound(draw, tensor, is_lengths=False):
    """An array or a buffer for a tensor, of random bits."""
    random = np.random.default_rng(draw(SEEDS))
    dtype = tensor.data_type.dtype
    shape = (buffer_size(tensor) + draw(st.sampled_from([0, 0, 1, 6])),)
    if is_packed(tensor) and draw(st.booleans()):
        shape = tensor.sizes
    if is_lengths:
        return random.choice(LENGTHS[LENGTHS <= np.iinfo(dtype).max], shape).astype(
            dtype
        )
    size = (math.prod(shape), dtype.itemsize)
    content = random.integers(0, 256, size, np.uint8)
    special = random.choice(SPECIAL, size)
    content = np.where(random.random((size[0], 1)) < 0.5, special, content)
    return np.frombuffer(content.tobytes(), dtype).reshape(shape)


@pytest.mark.parametrize("operator", DESCS)
@given(data=st.data())
def test_every_byte_is_as_in_numpy(operator, data):
    desc = data.draw(DESCS[operator])
    inputs = [
        data.draw(bound(tensor, member == "sequence_lengths_tensor"))
        for member, tensor in zip(desc.input_members, desc.inputs, strict=True)
    ]
    previous = data.draw(st.none() | bound(desc.output))
    expected = expected_of(desc, inputs, previous)
    is_wide = any(t.data_type.bits == 64 for t in (*desc.inputs, desc.output))
    with jax.enable_x64(is_wide or data.draw(st.booleans())):
        result = np.array(compile_operator(desc)(*inputs, outputs=[previous]))
    if isinstance(desc, FillValueSequenceOperatorDesc):
        views = elements(desc.output, result), elements(desc.output, expected)
        assert_same_floats(*views)
        views[0][...] = views[1]  # the payload of a NaN is not defined
    assert_same_bits(result, expected)


# Refusals -----------------------------------------------------------------------------

TABLES = {  # from which level on: fewest and most dimensions, data types, of lengths
    ReverseSubsequencesOperatorDesc: {
        0x2100: (4, 4, T8, U32),
        0x3000: (4, 5, T8, U32),
        0x4000: (1, 8, T8, U32),
        0x5000: (1, 8, T11, U64),
    },
    SliceOperatorDesc: {
        0x1000: (4, 5, T6),
        0x2100: (4, 5, T8),
        0x3000: (1, 8, T8),
        0x4100: (1, 8, T11),
    },
    Slice1OperatorDesc: {
        0x2100: (4, 5, T8),
        0x3000: (1, 8, T8),
        0x4100: (1, 8, T11),
    },
    SliceGradOperatorDesc: {
        0x3000: (4, 5, T8),
        0x3100: (1, 8, T8),
        0x4100: (1, 8, T11),
    },
    FillValueSequenceOperatorDesc: {
        0x2100: (4, 4, T8),
        0x4000: (1, 8, T8),
        0x5000: (1, 8, T10),
    },
    FillValueConstantOperatorDesc: {
        0x2100: (4, 4, T8),
        0x4000: (1, 8, T8),
        0x4100: (1, 8, T11),
    },
}


def documented_rules(desc, level):
    """Whether each of DirectML's rules holds; those after a broken one may fail."""
    rows = [row for since, row in TABLES[type(desc)].items() if since <= level]
    yield bool(rows)
    fewest, most, data_types, *of_lengths = rows[-1]
    for member in (*desc.input_members, desc.output_member):
        tensor = getattr(desc, member)
        is_lengths = member == "sequence_lengths_tensor"
        yield tensor.data_type in (of_lengths[0] if is_lengths else data_types)
        yield fewest <= len(tensor.sizes) <= most
        yield from tensor_rules(tensor)
    output = desc.output
    yield output.flags == 0
    yield not places_overlap(output.sizes, strides_of(output))
    match desc:
        case ReverseSubsequencesOperatorDesc():
            source, sizes = desc.input_tensor, list(desc.input_tensor.sizes)
            yield output.data_type == source.data_type
            yield output.sizes == source.sizes
            yield desc.axis < len(sizes)
            sizes[desc.axis] = 1
            yield list(desc.sequence_lengths_tensor.sizes) == sizes
        case SliceOperatorDesc():
            yield output.data_type == desc.input_tensor.data_type
            whole = desc.input_tensor.sizes
            yield output.sizes == desc.sizes
            members = (whole, desc.offsets, desc.sizes, desc.strides)
            yield len({len(member) for member in members}) == 1
            for n, offset, size, stride in zip(*members, strict=True):
                yield stride >= 1
                yield offset + stride * (size - 1) < n
        case Slice1OperatorDesc():
            yield from window_rules(desc, desc.input_tensor, output)
        case SliceGradOperatorDesc():
            yield from window_rules(desc, output, desc.input_gradient_tensor)
        case _:
            yield desc.value_data_type == output.data_type


def tensor_rules(tensor):
    itemsize = tensor.data_type.bits // 8
    alignment = tensor.guaranteed_base_offset_alignment
    yield min(tensor.sizes) >= 1
    yield math.prod(tensor.sizes) <= LARGEST_UINT
    yield extent(tensor) <= LARGEST_UINT  # else a place does not fit a UINT
    yield tensor.total_tensor_size_in_bytes >= extent(tensor) * itemsize
    yield tensor.total_tensor_size_in_bytes <= -(-LARGEST_UINT * itemsize // 4) * 4
    yield tensor.total_tensor_size_in_bytes % 4 == 0
    yield alignment in (0, *(2**n for n in range(32) if 2**n >= itemsize))


def window_rules(desc, whole, part):
    yield whole.data_type == part.data_type
    members = (whole.sizes, part.sizes, *window_of(desc))
    yield len({len(member) for member in members}) == 1
    for n, size, offset, window, stride in zip(*members, strict=True):
        yield stride != 0
        yield window >= 1
        yield offset + window <= n
        yield size <= 1 + (window - 1) // abs(stride)


def assert_validated(desc, level):
    is_accepted = all(documented_rules(desc, level))
    if is_accepted:
        desc.validate(level)
        return "accepted"
    with pytest.raises(ValueError, match=r"; got .") as caught:
        desc.validate(level)
    form = rf"{desc.struct}: `[A-Z][\w.\[\] +*()-]*` must .+; got .+"
    assert re.fullmatch(form, str(caught.value)), caught.value
    return "refused"


def neighbours(desc):
    """Descriptions that differ from `desc` in one member of it or of a tensor."""
    for field in dataclasses.fields(desc):
        value = getattr(desc, field.name)
        match value:
            case BufferTensorDesc():
                others = tensor_neighbours(value)
            case tuple() if field.name == "input_window_strides":
                others = number_neighbours(value, -(2**31), 2**31 - 1)
            case tuple():
                others = number_neighbours(value)
            case DataType():
                others = DataType
            case int():
                others = {value + 1, max(value - 1, 0), LARGEST_UINT}
            case _:
                others = []
        for other in others:
            yield dataclasses.replace(desc, **{field.name: other})


def number_neighbours(numbers, least=0, most=LARGEST_UINT):
    for d, number in enumerate(numbers):
        for other in (number - 1, number + 1, 0, least, most):
            if least <= other <= most:
                yield (*numbers[:d], other, *numbers[d + 1 :])
    yield numbers[:-1]
    yield (*numbers, 1)


def tensor_neighbours(tensor):
    sizes, total = tensor.sizes, tensor.total_tensor_size_in_bytes
    changes = [{"data_type": t} for t in DataType]
    changes += [{"sizes": n, "strides": None} for n in number_neighbours(sizes)]
    all_strides = number_neighbours(strides_of(tensor))
    changes += [{"strides": n} for n in all_strides if len(n) == len(sizes)]
    changes = [{"total_tensor_size_in_bytes": None, **change} for change in changes]
    totals = [total + more for more in (-4, -1, 1, 4, 2**36) if total + more >= 0]
    changes += [{"total_tensor_size_in_bytes": other} for other in totals]
    alignments = (1, 2, 3, 4, 8, 12, 16, 2**31)
    changes += [{"guaranteed_base_offset_alignment": n} for n in alignments]
    changes.append({"flags": TensorFlags.OWNED_BY_DML})
    return [dataclasses.replace(tensor, **change) for change in changes]


@pytest.mark.parametrize("operator", DESCS)
@given(data=st.data())
def test_refused_is_what_the_documents_refuse(operator, data):
    desc = data.draw(DESCS[operator])
    assert assert_validated(desc, LATEST) == "accepted"
    some = itertools.islice(neighbours(desc), data.draw(st.integers(0, 4)), None, 5)
    verdicts = [assert_validated(neighbour, LATEST) for neighbour in some]
    level = data.draw(st.sampled_from(FeatureLevel))
    verdicts.append(assert_validated(desc, level))
    share = verdicts.count("accepted") / len(verdicts)
    event("accepted", f"{share:.1f}")


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (4, 3), (2, 3, 2)], ids=str)
def test_strides_of_an_output_give_each_element_its_place(sizes):
    verdicts = set()
    for strides in itertools.product(range(8), repeat=len(sizes)):
        output = BufferTensorDesc(DataType.INT8, sizes, strides)
        desc = FillValueConstantOperatorDesc(output, DataType.INT8, ScalarUnion())
        verdicts.add(assert_validated(desc, LATEST))
    assert verdicts == {"accepted", "refused"}


@pytest.mark.parametrize("desc", TABLES, ids=lambda desc: desc.__name__)
def test_levels_are_as_in_the_tables(desc):
    verdicts = []
    for rank in range(10):
        ones = (1,) * rank
        for data_type in DataType:
            tensor = BufferTensorDesc(data_type, ones)
            if issubclass(desc, ReverseSubsequencesOperatorDesc):
                float32 = BufferTensorDesc(DataType.FLOAT32, ones)
                uint32 = BufferTensorDesc(DataType.UINT32, ones)
                descs = [desc(tensor, uint32, tensor, 0)]
                descs.append(desc(float32, tensor, float32, 0))
            elif "value_data_type" in desc.__dataclass_fields__:
                values = [ScalarUnion()] * (len(dataclasses.fields(desc)) - 2)
                descs = [desc(tensor, data_type, *values)]
            else:
                descs = [desc(tensor, tensor, (0,) * rank, ones, ones)]
            pairs = itertools.product(descs, FeatureLevel)
            verdicts += itertools.starmap(assert_validated, pairs)
    assert set(verdicts) == {"accepted", "refused"}


# Transformations ----------------------------------------------------------------------

FLOAT32 = DataType.FLOAT32


def tensor(sizes, strides=None, data_type=FLOAT32, extra=0):
    needed = calc_buffer_tensor_size(data_type, sizes, strides)
    return BufferTensorDesc(data_type, sizes, strides, needed + extra)


def moves(data_type):
    """Descriptions in every way to read and to write, each with lengths or none."""
    cube, line = (2, 3, 4), (2, 1, 4)
    lengths = tensor(line, (1, 1, 0), DataType.UINT32)
    window = ((1, 0, 1), (1, 3, 3), (1, -2, 2))

    def of(sizes, *strides, extra=8):
        return tensor(sizes, *strides, data_type=data_type, extra=extra)

    nested, overlapping, woven = (2, 17, 4), (1, 1, 0), (3, 2, 12)
    padded = (40, 13, 3)
    reverse, slice1 = ReverseSubsequencesOperatorDesc, Slice1OperatorDesc
    return {
        "packed": reverse(of(cube, extra=0), lengths, of(cube, extra=0), 1),
        "packed-larger": reverse(of(cube), lengths, of(cube), 1),
        "nested": reverse(of(cube, nested), lengths, of(cube, padded), 1),
        "woven": reverse(of(cube, overlapping), lengths, of(cube, woven), 1),
        "slice": SliceOperatorDesc(
            of(cube, nested), of((1, 2, 2), (9, 2, 5)), (1, 0, 1), (1, 2, 2), (5, 2, 2)
        ),
        "slice1": slice1(of(cube, overlapping), of((1, 2, 2), (9, 1, 1 + 2)), *window),
        "slice_grad": SliceGradOperatorDesc(
            of((1, 2, 2), (9, 2, 5)), of(cube, padded), *window
        ),
    }


MOVES = moves(FLOAT32)


def arrays_of(desc, *batch):
    """Whole numbers in the buffers of the inputs and in that of the output before."""
    random = np.random.default_rng(len(batch))
    return [
        random.integers(
            0, 5 if t.data_type in U32 else 99, (*batch, buffer_size(t))
        ).astype(t.data_type.dtype)
        for t in (*desc.inputs, desc.output)
    ]


def with_buffer(desc):
    """The compiled operator as a function of the inputs and the buffer before."""
    compiled = compile_operator(desc)
    return lambda *arrays: compiled(*arrays[:-1], outputs=arrays[-1:])


def expected_with_buffer(desc, *arrays):
    return expected_of(desc, arrays[:-1], arrays[-1])


@pytest.mark.parametrize("mapped", [0, 1, -1, None])  # the data, lengths, buffer, all
@pytest.mark.parametrize("name", MOVES)
def test_vmap_equals_a_loop(name, mapped):
    desc = MOVES[name]
    arrays, batches = arrays_of(desc), arrays_of(desc, 3)
    indices = range(len(arrays))
    axes = [0 if mapped is None or i == indices[mapped] else None for i in indices]
    pairs = [
        (array, [array] * 3) if axis is None else (batch, batch)
        for array, batch, axis in zip(arrays, batches, axes, strict=True)
    ]
    result = jax.vmap(with_buffer(desc), axes)(*(array for array, _ in pairs))
    entries = zip(*(entries for _, entries in pairs), strict=True)
    for actual, entry in zip(result, entries, strict=True):
        assert_same_bits(actual, expected_with_buffer(desc, *entry))


@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16"])
@pytest.mark.parametrize("name", MOVES)
def test_jacobians(name, data_type):
    """Ones and zeros: where the data go, and which places of the buffer are kept."""
    desc = moves(DataType[data_type])[name]
    x, *lengths, previous = arrays_of(desc)
    units = np.eye(x.size + previous.size, dtype=x.dtype)
    columns = [
        expected_with_buffer(desc, unit[: x.size], *lengths, unit[x.size :])
        for unit in units
    ]
    expected = np.split(np.stack(columns, -1), [x.size], -1)
    for jacobian in (jax.jacrev, jax.jacfwd):
        derivative = jacobian(with_buffer(desc), (0, len(desc.inputs)))
        actual = jax.jit(derivative)(x, *lengths, previous)
        jax.tree.map(assert_same_bits, actual, tuple(expected))


@pytest.mark.parametrize("name", MOVES)
def test_transpose_is_the_adjoint(name):
    """<f(x), y> = <x, f^T(y)>, of whole numbers, so exactly."""
    desc = MOVES[name]
    x, *lengths, previous = arrays_of(desc)

    def linear(x, previous):
        return with_buffer(desc)(x, *lengths, previous)

    y = previous[::-1].copy()
    result = jax.jit(linear)(x, previous)
    assert_same_bits(result, expected_with_buffer(desc, x, *lengths, previous))
    by_x, by_previous = jax.linear_transpose(linear, x, previous)(y)
    assert np.vdot(result, y) == np.vdot(x, by_x) + np.vdot(previous, by_previous)


# Compiled text ------------------------------------------------------------------------

BIG = (64, 128, 256)


def texts_of(desc):
    """The program as XLA gets it, and the top level of what XLA makes of it."""
    buffers = [
        jax.ShapeDtypeStruct((buffer_size(t),), t.data_type.dtype) for t in desc.inputs
    ]
    lowered = jax.jit(compile_operator(desc)).lower(*buffers)
    entry = re.search(r"^ENTRY .*?^}", lowered.compile().as_text(), re.M | re.S)
    return lowered.as_text(), entry[0]


def big_reversal(source=None, output=None, lengths=(1, 1, 0)):
    return ReverseSubsequencesOperatorDesc(
        tensor(BIG, source),
        tensor((64, 1, 256), lengths, DataType.UINT32),
        tensor(BIG, output),
        axis=1,
    )


@pytest.mark.parametrize("strides", [(1, 1, 0), None], ids=["broadcast", "packed"])
def test_broadcast_lengths_are_not_expanded(strides):
    """Packed lengths show that the texts would say so."""
    lowered, entry = texts_of(big_reversal(lengths=strides))
    is_expanded = bool(re.search(r"x256xu?i(32|64)>", lowered))
    integers = re.findall(r"\b[us](?:32|64)\[([\d,]+)\]", entry)
    most = max(math.prod(map(int, shape.split(","))) for shape in integers)
    assert (is_expanded, most) == ((True, 64 * 256) if strides is None else (False, 64))


@pytest.mark.parametrize(
    "desc",
    [
        big_reversal(source=(1, 128 * 256, 128)),
        big_reversal(source=(130 * 260, 260, 1)),
        big_reversal(source=(2, 260 * 130, 260)),
        big_reversal(output=(1, 64 * 256, 64)),
        SliceOperatorDesc(
            tensor(BIG, (2, 260 * 130, 260)),
            tensor((9, 9, 9)),
            offsets=(1, 2, 3),
            sizes=(9, 9, 9),
            strides=(1, 2, 3),
        ),
    ],
    ids=["permuted", "padded", "both", "permuted-output", "slice"],
)
def test_layouts_are_read_in_the_same_pass(desc):
    _, entry = texts_of(desc)
    instructions = re.findall(r" = \S+ ([\w-]+)\(", entry)
    assert instructions == ["parameter"] * len(desc.inputs) + ["fusion"]


@pytest.mark.parametrize("name", MOVES)
def test_nested_layouts_are_neither_gathered_nor_scattered(name):
    desc = MOVES[name]
    found = re.findall(r"stablehlo\.(gather|scatter)\"", texts_of(desc)[0])
    own = ["gather"] if isinstance(desc, ReverseSubsequencesOperatorDesc) else []
    others = {"woven": ["gather", "scatter"], "slice1": ["gather"]}.get(name, [])
    assert sorted(found) == sorted(own + others)


def test_backward_pass_of_strided_reversal_has_no_scatter():
    desc = MOVES["nested"]
    arrays = arrays_of(desc)
    _, pullback = jax.vjp(with_buffer(desc), *arrays)
    lowered = jax.jit(pullback).lower(arrays[-1])
    assert "scatter" not in lowered.as_text()
    assert not re.search(r"\bscatter\(", lowered.compile().as_text())


def test_equal_descriptions_share_a_program(monkeypatch):
    traced = []
    evaluate = SliceOperatorDesc.evaluate

    def counted(desc, *inputs):
        traced.append(desc)
        return evaluate(desc, *inputs)

    def run(stride):
        window = ((0, 0), (3, 7), (stride, 1))
        desc = SliceOperatorDesc(tensor((11, 7)), tensor((3, 7)), *window)
        compile_operator(desc)(np.zeros((11, 7), np.float32))
        return len(traced)

    monkeypatch.setattr(SliceOperatorDesc, "evaluate", counted)
    assert [run(2), run(2), run(3), run(2)] == [1, 1, 2, 2]
