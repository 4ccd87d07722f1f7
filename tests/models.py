"""DxDispatch models as Python objects, to be written as JSON."""

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]


def floats(*sizes: int, **members: Any) -> Json:
    """A tensor of FLOAT32."""
    return {"DataType": "FLOAT32", "Sizes": list(sizes), **members}


def buffer(values: Any, data_type: str = "FLOAT32", **members: Any) -> Json:
    return {"initialValuesDataType": data_type, "initialValues": values, **members}


def model(
    resources: Json, dispatchables: Json | None = None, commands: Iterable[Json] = ()
) -> Json:
    return {
        "resources": resources,
        "dispatchables": dispatchables or {},
        "commands": list(commands),
    }


def bind(name: str, **bindings: Any) -> Json:
    return {"type": "dispatch", "dispatchable": name, "bindings": bindings}


def show(name: str, **options: Any) -> Json:
    return {"type": "print", "resource": name, **options}


def save(name: str, path: str, **options: Any) -> Json:
    return {"type": "writeFile", "resource": name, "targetPath": path, **options}


def one_operator(
    kind: str, desc: Json, resources: Json, output: str = "OutputTensor"
) -> Json:
    """A model that runs an operator on buffers named as its tensors, and prints one."""
    return model(
        resources,
        {"operator": {"type": kind, "desc": desc}},
        [bind("operator", **{name: name for name in resources}), show(output)],
    )


def reversal(**members: Any) -> Json:
    """A model that reverses two rows of three elements."""
    desc = {
        "InputTensor": floats(2, 3),
        "SequenceLengthsTensor": {"DataType": "UINT32", "Sizes": [2, 1]},
        "OutputTensor": floats(2, 3),
        "Axis": 1,
    }
    bindings = {
        "InputTensor": "x",
        "SequenceLengthsTensor": "lengths",
        "OutputTensor": "y",
    }
    return model(
        {
            "x": buffer([1, 2, 3, 4, 5, 6]),
            "lengths": buffer([2, 9], "UINT32"),
            "y": buffer({"valueCount": 6, "value": 0}),
        },
        {"reverse": {"type": "REVERSE_SUBSEQUENCES", "desc": desc, **members}},
        [bind("reverse", **bindings), show("y")],
    )
