"""DxDispatch models: what they compute, print and write."""

import json
import pathlib
import re

import numpy as np
import pytest
from assertions import assert_same_bits
from models import bind, buffer, floats, model, reversal, show

from dml_jax import cli
from dml_jax.directml.dxdispatch import Timing, load_model, run_model

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "dxdispatch"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def dispatch(tmp_path, capsys):
    """Runs a model, a path or an object, and gives its lines, times as T."""

    def run(model, *options):
        path = model
        if not isinstance(model, pathlib.Path):
            path = tmp_path / "model.json"
            path.write_text(model if isinstance(model, str) else json.dumps(model))
        status = cli.main(["dispatch", str(path), *options])
        output = capsys.readouterr()
        assert (status, output.err) == (0, "")
        first, *lines = output.out.splitlines()
        assert re.fullmatch("Running on '.*'", first)
        return [re.sub(r"\d+\.\d{4} ms", "T ms", line) for line in lines]

    return run


RESULT = ["Dispatch 'reverse': 1 iterations, T ms median (CPU)"]
REVERSED = [*RESULT, "Resource 'y': 2, 1, 3, 6, 5, 4"]


# The models of Microsoft's repository that use these operators, and of ours -----------


def test_slice_of_microsoft(dispatch):
    desc = {
        "InputTensor": floats(1, 1, 5, 5),
        "OutputTensor": floats(1, 1, 3, 2),
        "DimensionCount": 4,
        "Offsets": [0, 0, 1, 1],
        "Sizes": [1, 1, 3, 2],
        "Strides": [1, 1, 1, 2],
    }
    numbers = {"valueCount": 25, "valueStart": 1, "valueDelta": 1}
    lines = dispatch(
        model(
            {"input": buffer(numbers), "output": buffer({"valueCount": 6, "value": 0})},
            {"slice": {"type": "DML_OPERATOR_SLICE", "desc": desc}},
            [bind("slice", InputTensor="input", OutputTensor="output"), show("output")],
        )
    )
    assert lines[-1] == "Resource 'output': 7, 9, 12, 14, 17, 19"


def test_fill_value_sequence_of_microsoft(dispatch):
    desc = {
        "ValueDataType": "FLOAT32",
        "ValueStart": 3.2,
        "ValueDelta": 1.5,
        "OutputTensor": floats(1, 1, 1, 5),
    }
    lines = dispatch(
        model(
            {"Out": buffer({"valueCount": 5, "value": 0})},
            {"fill": {"type": "DML_OPERATOR_FILL_VALUE_SEQUENCE", "desc": desc}},
            [bind("fill", OutputTensor="Out"), show("Out")],
        )
    )
    assert lines[-1] == "Resource 'Out': 3.2, 4.7, 6.2, 7.7, 9.2"


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
def test_shipped_model(dispatch, name):
    assert dispatch(EXAMPLES / f"{name}.json") == SHIPPED[name]


def test_all_shipped_models_are_tested():
    assert {path.stem for path in EXAMPLES.glob("*.json")} == set(SHIPPED)


# Resources ----------------------------------------------------------------------------


def array(values, dtype):
    return np.array(values, dtype).tobytes()


PARTS = [
    {"type": "UINT32", "value": 6, "name": "count"},
    {"type": "FLOAT16", "value": -0.5},
    {"type": "DML_TENSOR_DATA_TYPE_INT64", "value": -1},
]
INITIALISERS = {
    "constant": (buffer({"valueCount": 2, "value": 0.1}), array([0.1] * 2, "f4")),
    "array": (
        buffer([65504, -4, "nan", 1], "FLOAT16"),
        array([65504, -4, np.nan, 1], "f2"),
    ),
    "infinities": (buffer(["Inf", "-inf"]), array([np.inf, -np.inf], "f4")),
    "full name": (buffer([-1], "DML_TENSOR_DATA_TYPE_INT64"), array([-1], "i8")),
    "largest": (buffer([2**64 - 1], "UINT64"), array([2**64 - 1], "u8")),
    "double": (buffer([0.1, 5e-324], "FLOAT64"), array([0.1, 5e-324], "f8")),
    "sequence": (
        buffer({"valueCount": 4, "valueStart": 1, "valueDelta": 2.5}),
        array([1, 3.5, 6, 8.5], "f4"),
    ),
    "sequence is not accumulated": (
        buffer({"valueCount": 8, "valueStart": 0, "valueDelta": 0.1}),
        array([k * np.float64(np.float32(0.1)) for k in range(8)], "f4"),
    ),
    "sequence of bytes": (
        buffer({"valueCount": 4, "valueStart": 254, "valueDelta": 1}, "UINT8"),
        bytes([254, 255, 0, 1]),
    ),
    "list": (
        buffer(PARTS, "UNKNOWN"),
        array([6], "u4") + array([-0.5], "f2") + array([-1], "i8") + bytes(2),
    ),
    "list without a type": ({"initialValues": PARTS[:1]}, array([6], "u4")),
    "rounded up": (buffer([1, 2, 3], "UINT8"), bytes([1, 2, 3, 0])),
    "size": (buffer([1], "UINT8", sizeInBytes=5), bytes([1, 0, 0, 0, 0, 0, 0, 0])),
    "offset": (
        buffer([7], "UINT8", sizeInBytes=4, initialValuesOffsetInBytes=2),
        bytes([0, 0, 7, 0]),
    ),
}


@pytest.mark.parametrize("name", INITIALISERS)
def test_initialiser(tmp_path, name):
    resource, expected = INITIALISERS[name]
    (tmp_path / "model.json").write_text(json.dumps(model({"r": resource})))
    loaded = load_model("model.json").resources["r"]
    assert loaded.data.tobytes() == expected


GIVEN = np.arange(6).reshape(2, 3)


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        (GIVEN.astype("<f4"), "0, 1, 2, 3, 4, 5"),
        (np.asfortranarray(GIVEN.astype("<i2")), "0, 1, 2, 3, 4, 5"),
        (GIVEN.astype(">u8"), "0, 1, 2, 3, 4, 5"),
        (np.array([True, False]), "1, 0"),
        (np.array(2.5), "2.5"),
    ],
    ids=["float32", "fortran", "big-endian", "bool", "scalar"],
)
def test_numpy_file(tmp_path, dispatch, given, printed):
    np.save(tmp_path / "x.npy", given)
    resource = {"initialValues": {"sourcePath": "x.npy"}}
    assert dispatch(model({"x": resource}, commands=[show("x")])) == [
        f"Resource 'x': {printed}"
    ]


def test_raw_files_are_found_beside_the_model_first(tmp_path, dispatch):
    (tmp_path / "models").mkdir()
    for folder, name, byte in [
        ("models", "a.dat", 1),
        (".", "a.dat", 2),
        (".", "b.bin", 3),
    ]:
        (tmp_path / folder / name).write_bytes(bytes([byte]))
    resources = {n: buffer({"sourcePath": n}, "UINT8") for n in ("a.dat", "b.bin")}
    path = tmp_path / "models" / "model.json"
    path.write_text(json.dumps(model(resources, commands=map(show, resources))))
    assert dispatch(path) == ["Resource 'a.dat': 1", "Resource 'b.bin': 3"]


# Operators and bindings ---------------------------------------------------------------


def nested(desc):
    """Every tensor with all its members, below `Desc`, all names in full."""
    for name, tensor in list(desc.items()):
        if name.endswith("Tensor"):
            desc[name] = {
                "Type": "DML_TENSOR_TYPE_BUFFER",
                "Desc": {
                    "DataType": "DML_TENSOR_DATA_TYPE_" + tensor["DataType"],
                    "Flags": "DML_TENSOR_FLAG_NONE",
                    "DimensionCount": len(tensor["Sizes"]),
                    "Sizes": tensor["Sizes"],
                    "Strides": [tensor["Sizes"][1], 1],
                    "TotalTensorSizeInBytes": 4 * int(np.prod(tensor["Sizes"])),
                    "GuaranteedBaseOffsetAlignment": 32,
                },
            }
    return desc


def written(how):
    """The reversal, with its description written in another way."""
    given = reversal()
    reverse = given["dispatchables"]["reverse"]
    desc = reverse.pop("desc")
    if how == "nested":
        return given | {
            "dispatchables": {
                "reverse": {
                    "Type": "DML_OPERATOR_REVERSE_SUBSEQUENCES",
                    "Desc": nested(desc),
                }
            }
        }
    if how == "inline":
        reverse.update(desc)
    if how == "flags":
        reverse["desc"] = desc
        desc["InputTensor"]["Flags"] = ["NONE"]
        reverse["executionFlags"] = [
            "DML_EXECUTION_FLAG_DISABLE_META_COMMANDS",
            "DESCRIPTORS_VOLATILE",
        ]
    return given


@pytest.mark.parametrize("how", ["nested", "inline", "flags"])
def test_description_written_otherwise(dispatch, how):
    assert dispatch(written(how)) == REVERSED


@pytest.mark.parametrize("kind", ["DmlCompileOp", "DmlCompileGraph"])
def test_compile_type(dispatch, kind):
    assert dispatch(reversal(dmlCompileType=kind)) == REVERSED


def test_comments_and_trailing_commas(dispatch):
    text = json.dumps(reversal(), indent=1).replace("]", ",]").replace("}", ",}")
    text = text.replace('"Axis"', '/* of "time" */ "Axis"') + "// the end\n and more"
    assert dispatch("// a model, }\n" + text) == REVERSED


def test_names_may_hold_anything(dispatch):
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
def test_scalar_union(dispatch, name):
    data_type, value, printed = SCALARS[name]
    desc = {
        "OutputTensor": {"DataType": data_type, "Sizes": [1]},
        "ValueDataType": data_type,
        "Value": value,
    }
    lines = dispatch(
        model(
            {"r": buffer([0], data_type)},
            {"fill": {"type": "FILL_VALUE_CONSTANT", "desc": desc}},
            [bind("fill", OutputTensor="r"), show("r")],
        )
    )
    assert lines[-1] == f"Resource 'r': {printed}"


def test_owned_input_is_read_before_the_commands(dispatch):
    given = reversal(bindings={"InputTensor": "x"})
    desc = given["dispatchables"]["reverse"]["desc"]
    desc["InputTensor"]["Flags"] = "OWNED_BY_DML"
    zero = {"OutputTensor": floats(6), "ValueDataType": "FLOAT32", "Value": 0}
    given["dispatchables"]["zero"] = {"type": "FILL_VALUE_CONSTANT", "desc": zero}
    del given["commands"][0]["bindings"]["InputTensor"]
    given["commands"].insert(0, bind("zero", OutputTensor="x"))
    lines = dispatch({**given, "commands": [*given["commands"], show("x")]})
    assert lines[1:] == [*REVERSED, "Resource 'x': 0, 0, 0, 0, 0, 0"]


def test_owned_input_has_memory_of_its_own(tmp_path):
    """JAX takes NumPy memory as its own where it is aligned to 64 bytes."""
    given = reversal(bindings={"InputTensor": "x"})
    given["dispatchables"]["reverse"]["desc"]["InputTensor"]["Flags"] = "OWNED_BY_DML"
    zero = {"OutputTensor": floats(6), "ValueDataType": "FLOAT32", "Value": 0}
    given["dispatchables"]["zero"] = {"type": "FILL_VALUE_CONSTANT", "desc": zero}
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
    run_model(loaded, report=lambda line: None)
    assert loaded.resources["y"].elements().tolist() == [2, 1, 3, 6, 5, 4]


def test_buffers_may_take_all_of_the_bytes(dispatch):
    """24 + 8 + 24 bytes; a stride of 0 that stands for more takes none."""
    assert dispatch(reversal(), "--max_bytes", "56") == REVERSED
    given = reversal()
    desc = given["dispatchables"]["reverse"]["desc"]
    desc["InputTensor"]["Strides"] = [0, 0]
    given["resources"]["x"] = buffer([7])
    assert dispatch(given, "--max_bytes", "36")[-1] == "Resource 'y': 7, 7, 7, 7, 7, 7"


def test_bindings_are_names_objects_or_arrays_of_one(dispatch):
    given = reversal()
    given["resources"]["x"] = buffer([0] * 4 + [1, 2, 3, 4, 5, 6])
    bindings = given["commands"][0]["bindings"]
    bindings["InputTensor"] = {
        "name": "x",
        "elementOffset": 4,
        "elementCount": 6,
        "elementStride": 4,
        "format": "R32_FLOAT",
    }
    bindings["OutputTensor"] = ["y"]
    given["commands"][0]["threadGroupCount"] = [1, 1, 1]
    assert dispatch(given) == REVERSED


ELEMENT_SIZES = {  # of a resource of FLOAT32: the element at which a tensor begins
    "none": ({}, 4),
    "0": ({"elementSizeInBytes": 0}, 4),
    "given": ({"elementSizeInBytes": 8}, 2),
    "a stride of 0": ({"elementStride": 0}, 4),
    "a stride": ({"elementStride": 16}, 1),
    "0 and a stride": ({"elementSizeInBytes": 0, "elementStride": 16}, 1),
    "both": ({"elementSizeInBytes": 8, "elementStride": 16}, 2),
    "no offset": ({"elementSizeInBytes": 2**63}, 0),
    "a count of 0": ({"elementCount": 0}, 4),
    "a count": ({"elementCount": 2**64 - 1, "shape": [2, 3]}, 4),
}


@pytest.mark.parametrize("kind", ["DmlCompileOp", "DmlCompileGraph"])
@pytest.mark.parametrize("name", ELEMENT_SIZES)
def test_an_offset_counts_elements(dispatch, name, kind):
    members, offset = ELEMENT_SIZES[name]
    given = reversal(dmlCompileType=kind)
    values = [0] * 4 * bool(offset) + [1, 2, 3, 4, 5, 6]
    given["resources"]["x"] = buffer(values)
    bindings = given["commands"][0]["bindings"]
    bindings["InputTensor"] = {"name": "x", "elementOffset": offset, **members}
    assert dispatch(given) == REVERSED


def test_an_offset_in_an_output_keeps_what_is_before_and_after(dispatch):
    given = reversal()
    given["resources"]["y"] = buffer([-1] * 12)
    bindings = given["commands"][0]["bindings"]
    bindings["OutputTensor"] = {
        "name": "y",
        "elementOffset": 4,
        "elementSizeInBytes": 0,
    }
    line = "Resource 'y': -1, -1, -1, -1, 2, 1, 3, 6, 5, 4, -1, -1"
    assert dispatch(given)[-1] == line


def test_resources_are_reinterpreted(dispatch):
    given = reversal()
    given["resources"]["x"] = buffer(
        np.array([1, 2, 3, 4, 5, 6], "f4").view("u1").tolist(), "UINT8"
    )
    assert dispatch(given) == REVERSED


def test_commands_change_resources_in_order(dispatch):
    given = reversal()
    again = bind(
        "reverse", InputTensor="y", SequenceLengthsTensor="lengths", OutputTensor="x"
    )
    given["commands"] += [again, show("x")]
    assert dispatch(given) == [*REVERSED, *RESULT, "Resource 'x': 1, 2, 3, 4, 5, 6"]


def test_model_runs_from_python(tmp_path):
    (tmp_path / "model.json").write_text(json.dumps(reversal()))
    loaded = load_model(tmp_path / "model.json")
    lines = []
    run_model(loaded, Timing(iterations=2), report=lines.append)
    assert len(lines) == 2
    result = np.frombuffer(loaded.resources["y"].data, np.float32)
    assert_same_bits(result, np.array([2, 1, 3, 6, 5, 4], np.float32))
