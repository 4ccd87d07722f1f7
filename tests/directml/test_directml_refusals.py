"""Random descriptions, right and wrong: refused is what the documents refuse."""

import dataclasses
import itertools
import math
import re

import pytest
from descriptions import (
    DESCS,
    LARGEST_UINT,
    LATEST,
    T6,
    T8,
    T10,
    T11,
    U32,
    U64,
    extent,
    places_overlap,
    strides_of,
    window_of,
)
from hypothesis import event, given
from hypothesis import strategies as st

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
)

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


def test_strides_that_are_not_nested_are_followed_up_to_a_limit():
    """Each element has a place of its own, which takes a look at all of them."""

    def fill(rows):
        output = BufferTensorDesc(DataType.INT8, (rows, 2), (2, 3))
        return FillValueConstantOperatorDesc(output, DataType.INT8, ScalarUnion())

    fill(2**21).validate()
    with pytest.raises(ValueError, match="OutputTensor") as caught:
        fill(2**21 + 1).validate()
    assert str(caught.value) == (
        "DML_FILL_VALUE_CONSTANT_OPERATOR_DESC: `OutputTensor.Strides` must each step "
        "over what the smaller ones reach, for Sizes (2097153, 2); got (2, 3)"
    )
