"""DxDispatch models: what they compute."""

import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from command_line import dispatch
from models import bind, buffer, floats, model, one_operator, reversal, show

import dml_jax
from dml_jax import fill_value_sequence
from dml_jax.directml.dxdispatch import load_model, run_model

EXAMPLES = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "dxdispatch"
RESULT = ["Dispatch 'reverse': 1 iterations, T ms median (CPU)"]
REVERSED = [*RESULT, "Resource 'y': 2, 1, 3, 6, 5, 4"]

# The models of Microsoft's repository that use these operators, and of ours -----------


MICROSOFT: dict[str, Any] = {
    "DML_OPERATOR_SLICE": (
        {
            "InputTensor": floats(1, 1, 5, 5),
            "OutputTensor": floats(1, 1, 3, 2),
            "DimensionCount": 4,
            "Offsets": [0, 0, 1, 1],
            "Sizes": [1, 1, 3, 2],
            "Strides": [1, 1, 1, 2],
        },
        {
            "InputTensor": buffer({"valueCount": 25, "valueStart": 1, "valueDelta": 1}),
            "OutputTensor": buffer({"valueCount": 6, "value": 0}),
        },
        "7, 9, 12, 14, 17, 19",
    ),
    "FILL_VALUE_SEQUENCE": (
        {
            "ValueDataType": "FLOAT32",
            "ValueStart": 3.2,
            "ValueDelta": 1.5,
            "OutputTensor": floats(1, 1, 1, 5),
        },
        {"OutputTensor": buffer({"valueCount": 5, "value": 0})},
        "3.2, 4.7, 6.2, 7.7, 9.2",
    ),
}


@pytest.mark.parametrize("kind", MICROSOFT)
def test_model_of_microsoft(kind: str):
    desc, resources, printed = MICROSOFT[kind]
    lines = dispatch(one_operator(kind, desc, resources), "-i", "2")
    assert lines[-1] == f"Resource 'OutputTensor': {printed}"


HALVES = ["1.5 (0x3E00)"] * 4 + ["nan (0x7E00)"] * 4 + ["65504 (0x7BFF)"] * 4
SHIPPED = {
    "reverse_subsequences": [
        "Dispatch 'reverse': 1 iterations, T ms median (CPU)",
        "Resource 'reversed': 3, 4, 1, 2, 5, 6, 7, 8, 15, 16, 13, 14, 11, 12, 9, 10, "
        "21, 22, 19, 20, 17, 18, 23, 24",
        "Resource 'reversed' written to 'reversed.npy'",
    ],
    "slice1": [
        "Dispatch 'slice': 1 iterations, T ms median (CPU)",
        "Resource 'part': 14, 16, 6, 8",
    ],
    "slice_grad": [
        "Dispatch 'put_back': 1 iterations, T ms median (CPU)",
        "Resource 'rows': 1, 0, 2, 0, -1, -1, 0, 0, 0, 0, -1, -1, 3, 0, inf, 0, -1, "
        "-1, 0, 0, 0, 0, -1, -1",
    ],
    "fill_value_constant": [
        "Dispatch 'by_bits': 1 iterations, T ms median (CPU)",
        "Dispatch 'by_number': 1 iterations, T ms median (CPU)",
        "Resource 'halves': 1.5, 1.5, 1.5, 1.5, nan, nan, nan, nan, 65504, 65504, "
        "65504, 65504",
        "Resource 'halves':",
        *(f"[{i:2}] {text}" for i, text in enumerate(HALVES)),
    ],
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_model(name: str):
    assert dispatch(EXAMPLES / f"{name}.json") == SHIPPED[name]


def test_all_shipped_models_are_tested():
    assert {path.stem for path in EXAMPLES.glob("*.json")} == set(SHIPPED)


# Resources ----------------------------------------------------------------------------


def array(values: Any, dtype: str) -> bytes:
    return np.array(values, dtype).tobytes()


PARTS = [
    {"type": "UINT32", "value": 6, "name": "count"},
    {"type": "FLOAT16", "value": -0.5},
    {"type": "DML_TENSOR_DATA_TYPE_INT64", "value": -1},
]
INITIALIZERS = {
    "constant": (buffer({"valueCount": 2, "value": 0.1}), array([0.1] * 2, "f4")),
    "array": (
        buffer([65504, -4, "nan", 1], "FLOAT16"),
        array([65504, -4, np.nan, 1], "f2"),
    ),
    "infinities": (buffer(["Inf", "-inf"]), array([np.inf, -np.inf], "f4")),
    "full name": (buffer([-1], "DML_TENSOR_DATA_TYPE_INT64"), array([-1], "i8")),
    "largest": (buffer([2**64 - 1], "UINT64"), array([2**64 - 1], "u8")),
    "double": (buffer([0.1, 5e-324], "FLOAT64"), array([0.1, 5e-324], "f8")),
    "rounded once": (buffer([1.0004882812500002], "FLOAT16"), b"\1\x3c\0\0"),
    "sequence is not accumulated": (
        buffer({"valueCount": 8, "valueStart": 0, "valueDelta": 0.1}),
        array([k * np.float64(np.float32(0.1)) for k in range(8)], "f4"),
    ),
    "sequence of bytes": (
        buffer({"valueCount": 4, "valueStart": 254, "valueDelta": 1}, "UINT8"),
        bytes([254, 255, 0, 1]),
    ),
    "mixed": (
        buffer(PARTS, "UNKNOWN"),
        array([6], "u4") + array([-0.5], "f2") + array([-1], "i8") + bytes(2),
    ),
    "mixed without a type": ({"initialValues": PARTS[:1]}, array([6], "u4")),
    "padded": (buffer([1, 2, 3], "UINT8"), bytes([1, 2, 3, 0])),
    "size": (buffer([1], "UINT8", sizeInBytes=5), bytes([1, 0, 0, 0, 0, 0, 0, 0])),
    "type": ({**buffer([7], "UINT8"), "type": "buffer"}, bytes([7, 0, 0, 0])),
    "offset": (
        buffer([7], "UINT8", sizeInBytes=4, initialValuesOffsetInBytes=2),
        bytes([0, 0, 7, 0]),
    ),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializer(tmp_path: pathlib.Path, name: str):
    resource, expected = INITIALIZERS[name]
    (tmp_path / "model.json").write_text(json.dumps(model({"r": resource})))
    loaded = load_model("model.json").resources["r"]
    assert loaded.data.tobytes() == expected


GIVEN = np.arange(6).reshape(2, 3)
ARRAYS = {
    "float32": (GIVEN.astype("<f4"), "0, 1, 2, 3, 4, 5"),
    "fortran": (np.asfortranarray(GIVEN.astype("<i2")), "0, 1, 2, 3, 4, 5"),
    "big-endian": (GIVEN.astype(">u8"), "0, 1, 2, 3, 4, 5"),
    "bool": (np.array([True, False]), "1, 0"),
    "scalar": (np.array(2.5), "2.5"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_file(tmp_path: pathlib.Path, name: str):
    given, printed = ARRAYS[name]
    np.save(tmp_path / "x.npy", given)
    resource = {"initialValues": {"sourcePath": "x.npy"}}
    lines = dispatch(model({"x": resource}, commands=[show("x")]))
    assert lines == [f"Resource 'x': {printed}"]


def test_sequences_of_many_sizes_share_programs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    sizes = set()

    def fill(*arguments: Any) -> Any:
        sizes.add(arguments[0])
        return fill_value_sequence(*arguments)

    monkeypatch.setattr(dml_jax, "fill_value_sequence", fill)
    resources = {
        str(n): buffer({"valueCount": n, "valueStart": 3, "valueDelta": -2}, "INT32")
        for n in range(1, 34)
    }
    (tmp_path / "model.json").write_text(json.dumps(model(resources)))
    loaded = load_model("model.json").resources
    for n in range(1, 34):
        assert loaded[str(n)].elements().tolist() == list(range(3, 3 - 2 * n, -2))
    assert len(sizes) == 7


def test_raw_files_are_found_beside_the_model_first(tmp_path: pathlib.Path):
    (tmp_path / "models").mkdir()
    for name, byte in {"models/a.dat": 1, "a.dat": 2, "b.bin": 3}.items():
        (tmp_path / name).write_bytes(bytes([byte]))
    resources = {n: buffer({"sourcePath": n}, "UINT8") for n in ("a.dat", "b.bin")}
    path = tmp_path / "models" / "model.json"
    path.write_text(json.dumps(model(resources, commands=map(show, resources))))
    assert dispatch(path) == ["Resource 'a.dat': 1", "Resource 'b.bin': 3"]


# Operators and bindings ---------------------------------------------------------------


def nested(tensor: Any) -> Any:
    """A tensor with all its members, below `Desc`, all names in full."""
    desc = {
        "DataType": "DML_TENSOR_DATA_TYPE_" + tensor["DataType"],
        "Flags": "DML_TENSOR_FLAG_NONE",
        "DimensionCount": len(tensor["Sizes"]),
        "Sizes": tensor["Sizes"],
        "Strides": [tensor["Sizes"][1], 1],
        "TotalTensorSizeInBytes": 4 * int(np.prod(tensor["Sizes"])),
        "GuaranteedBaseOffsetAlignment": 32,
    }
    return {"Type": "DML_TENSOR_TYPE_BUFFER", "Desc": desc}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The reversal with other values in places such as commands.0.type."""
    given: Any = reversal()
    for place, value in changes.items():
        *path, last = [int(key) if key.isdigit() else key for key in place.split(".")]
        parent = given
        for key in path:
            parent = parent[key]
        parent[last] = value
    return given


REVERSE, BIND = "dispatchables.reverse", "commands.0.bindings"
DESC = reversal()["dispatchables"]["reverse"]["desc"]
NESTED = {name: nested(v) if "Tensor" in name else v for name, v in DESC.items()}
KIND = "REVERSE_SUBSEQUENCES"
FLAGS = ["DML_EXECUTION_FLAG_DISABLE_META_COMMANDS", "DESCRIPTORS_VOLATILE"]
X = [1, 2, 3, 4, 5, 6]
OFFSETS = {  # of an element of FLOAT32, the other members of a view
    "none": (4, {}),
    "given": (2, {"elementSizeInBytes": 8}),
    "0 and a stride": (1, {"elementSizeInBytes": 0, "elementStride": 16}),
    "both": (2, {"elementSizeInBytes": 8, "elementStride": 16}),
    "no offset": (0, {"elementSizeInBytes": 2**63}),
    "a counter": (4, {"counter": "y", "counterOffsetBytes": 2**64 - 1}),
    "a count": (4, {"elementCount": 2**64 - 1, "shape": [2, 3], "format": "R32"}),
}
SAME: dict[str, dict[str, Any]] = {
    "full names": {REVERSE: {"Type": f"DML_OPERATOR_{KIND}", "Desc": NESTED}},
    "inline": {REVERSE: {"type": KIND, **DESC, "$comment": "a description"}},
    "tensor flags": {f"{REVERSE}.desc.InputTensor.Flags": ["NONE"]},
    "execution flags": {f"{REVERSE}.executionFlags": FLAGS},
    "op": {f"{REVERSE}.dmlCompileType": "DmlCompileOp"},
    "graph": {f"{REVERSE}.dmlCompileType": "DmlCompileGraph"},
    "thread groups": {"commands.0.threadGroupCount": [1, 1, 1]},
    "array of one": {f"{BIND}.OutputTensor": ["y"]},
    "other type": {"resources.x": buffer([*array(X, "f4")], "UINT8")},
    **{
        f"element size: {name}": {
            "resources.x": buffer([0] * 4 * bool(offset) + X),
            f"{BIND}.InputTensor": {"name": "x", "elementOffset": offset, **members},
        }
        for name, (offset, members) in OFFSETS.items()
    },
}


@pytest.mark.parametrize("name", SAME)
def test_models_that_do_the_same(name: str):
    assert dispatch(changed(SAME[name])) == REVERSED


def test_an_offset_in_an_output_keeps_what_is_before_and_after():
    view = {"name": "y", "elementOffset": 4}
    given = changed({"resources.y": buffer([-1] * 12), f"{BIND}.OutputTensor": view})
    line = "Resource 'y': -1, -1, -1, -1, 2, 1, 3, 6, 5, 4, -1, -1"
    assert dispatch(given)[-1] == line


@pytest.mark.parametrize(
    ("read", "written", "alignment", "rule"),
    [
        (4, 20, 32, "begin at a multiple of 32 bytes, not at 16"),
        (2, 20, 8, "begin at a multiple of 16 bytes, not at 8"),
        (24, 0, 16, "have 24 bytes for its tensor, not 16"),
        (28, 0, 16, "have 24 bytes for its tensor, not 0"),
        (0, 0, 16, "not share bytes between `OutputTensor` and `InputTensor`"),
        (0, 4, 16, "not share bytes between `OutputTensor` and `InputTensor`"),
        (4, 0, 16, "not share bytes between `OutputTensor` and `InputTensor`"),
        (0, 8, 16, None),
        (8, 0, 16, None),
    ],
)
def test_where_an_input_and_an_output_of_one_buffer_may_lie(
    read: int, written: int, alignment: int, rule: str | None
):
    changes: dict[str, Any] = {
        "resources.x": buffer([0] * 28),
        f"{REVERSE}.desc.InputTensor.GuaranteedBaseOffsetAlignment": alignment,
        f"{BIND}.InputTensor": {"name": "x", "elementOffset": read},
        f"{BIND}.OutputTensor": {"name": "x", "elementOffset": written},
    }
    if rule is None:
        assert dispatch(changed(changes))
        return
    pathlib.Path("model.json").write_text(json.dumps(changed(changes)))
    place = r"bindings(\.InputTensor)?"
    with pytest.raises(ValueError, match=rf"{place}` must {re.escape(rule)}; got "):
        load_model("model.json")


def test_comments_and_trailing_commas():
    text = json.dumps(reversal(), indent=1).replace("]", ",]").replace("}", ",}")
    text = text.replace('"Axis"', '/* of "time" */ "Axis"') + "// the end\n and more"
    assert dispatch("// a model, }\n" + text) == REVERSED


def test_names_with_the_characters_of_comments():
    text = json.dumps(reversal()).replace('"y"', '"//, ] /* \\" */"')
    assert dispatch(text)[-1] == "Resource '//, ] /* \" */': 2, 1, 3, 6, 5, 4"


SCALARS = {
    "number": ("FLOAT32", 0.1, "0.1"),
    "rounded once to half": ("FLOAT16", 1.0004882812500002, "1.00098"),
    "bits of a half": ("FLOAT16", {"UInt16": 0xFC00}, "-inf"),
    "member": ("INT8", {"Int8": -3}, "-3"),
    "infinity": ("FLOAT64", {"Float64": "inf"}, "inf"),
    "negative for an unsigned": ("UINT8", -2, "254"),
    "unsigned for a signed": ("INT16", 65535, "-1"),
    "64 bits": ("UINT64", 2**64 - 1, str(2**64 - 1)),
}


@pytest.mark.parametrize("name", SCALARS)
def test_scalar_union(name: str):
    data_type, value, printed = SCALARS[name]
    tensor = {"DataType": data_type, "Sizes": [1]}
    desc = {"OutputTensor": tensor, "ValueDataType": data_type, "Value": value}
    resources = {"OutputTensor": buffer([0], data_type)}
    lines = dispatch(one_operator("FILL_VALUE_CONSTANT", desc, resources))
    assert lines[-1] == f"Resource 'OutputTensor': {printed}"


def test_owned_inputs_are_copied_before_the_commands(tmp_path: pathlib.Path):
    """JAX would share NumPy memory that is aligned to 64 bytes."""
    zero = {"OutputTensor": floats(6), "ValueDataType": "FLOAT32", "Value": 0}
    given = changed(
        {
            f"{REVERSE}.bindings": {"InputTensor": "x"},
            f"{REVERSE}.desc.InputTensor.Flags": "OWNED_BY_DML",
            "dispatchables.zero": {"type": "FILL_VALUE_CONSTANT", "desc": zero},
        }
    )
    del given["commands"][0]["bindings"]["InputTensor"]
    given["commands"].insert(0, bind("zero", OutputTensor="x"))
    (tmp_path / "model.json").write_text(json.dumps(given))
    loaded = load_model("model.json")
    for resource in loaded.resources.values():
        space = np.zeros(resource.data.size + 64, np.uint8)
        start = -space.ctypes.data % 64
        aligned = space[start : start + resource.data.size]
        aligned[:] = resource.data
        resource.data = aligned
    run_model(loaded, report=lambda _: None)
    assert loaded.resources["x"].elements().tolist() == [0] * 6
    assert loaded.resources["y"].elements().tolist() == [2, 1, 3, 6, 5, 4]


def test_buffers_may_take_all_of_the_bytes():
    """24 + 8 + 24 bytes; a tensor expanded by strides of 0 takes none."""
    assert dispatch(reversal(), "--max_bytes", "56") == REVERSED
    strides = {f"{REVERSE}.desc.InputTensor.Strides": [0, 0]}
    given = changed({**strides, "resources.x": buffer([7])})
    assert dispatch(given, "--max_bytes", "36")[-1] == "Resource 'y': 7, 7, 7, 7, 7, 7"


def test_commands_change_resources_in_order():
    given = reversal()
    again = bind(
        "reverse", InputTensor="y", SequenceLengthsTensor="lengths", OutputTensor="x"
    )
    given["commands"] += [again, show("x")]
    assert dispatch(given) == [*REVERSED, *RESULT, "Resource 'x': 1, 2, 3, 4, 5, 6"]


@pytest.mark.usefixtures("x32")
def test_data_keeps_its_width_without_64_bit_mode():
    desc = {
        "InputTensor": {"DataType": "INT64", "Sizes": [2]},
        "OutputTensor": {"DataType": "INT64", "Sizes": [1]},
        "DimensionCount": 1,
        "InputWindowOffsets": [0],
        "InputWindowSizes": [2],
        "InputWindowStrides": [-2],
    }
    resources = {
        "InputTensor": buffer([1, 2**63 - 1], "INT64"),
        "OutputTensor": buffer([0], "INT64"),
    }
    lines = dispatch(one_operator("SLICE1", desc, resources))
    assert lines[-1] == "Resource 'OutputTensor': 9223372036854775807"
