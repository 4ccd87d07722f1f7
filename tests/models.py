"""DxDispatch models as Python objects, to be written as JSON."""


def floats(*sizes, **members):
    """A tensor of FLOAT32."""
    return {"DataType": "FLOAT32", "Sizes": list(sizes), **members}


def buffer(values, data_type="FLOAT32", **members):
    return {"initialValuesDataType": data_type, "initialValues": values, **members}


def model(resources, dispatchables=None, commands=()):
    return {
        "resources": resources,
        "dispatchables": dispatchables or {},
        "commands": list(commands),
    }


def bind(name, **bindings):
    return {"type": "dispatch", "dispatchable": name, "bindings": bindings}


def show(name, **options):
    return {"type": "print", "resource": name, **options}


def save(name, path, **options):
    return {"type": "writeFile", "resource": name, "targetPath": path, **options}


def reversal(**members):
    """A model that reverses two rows of three elements."""
    desc = {
        "InputTensor": floats(2, 3),
        "SequenceLengthsTensor": {"DataType": "UINT32", "Sizes": [2, 1]},
        "OutputTensor": floats(2, 3),
        "Axis": 1,
    }
    return model(
        {
            "x": buffer([1, 2, 3, 4, 5, 6]),
            "lengths": buffer([2, 9], "UINT32"),
            "y": buffer({"valueCount": 6, "value": 0}),
        },
        {"reverse": {"type": "REVERSE_SUBSEQUENCES", "desc": desc, **members}},
        [
            bind(
                "reverse",
                InputTensor="x",
                SequenceLengthsTensor="lengths",
                OutputTensor="y",
            ),
            show("y"),
        ],
    )
