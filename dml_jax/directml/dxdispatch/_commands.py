"""The commands of a model."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import TypeAlias

from dml_jax.directml import TENSOR_DIMENSION_COUNT_MAX1, DataType
from dml_jax.directml.dxdispatch._dispatchables import Dispatchable, View, parse_views
from dml_jax.directml.dxdispatch._json import Entry
from dml_jax.directml.dxdispatch._resources import Context, Resource


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """Runs an operator on views of resources, given by the names of its tensors."""

    dispatchable: str
    views: dict[str, View]


@dataclasses.dataclass(frozen=True)
class Print:
    """Prints a resource."""

    resource: str
    is_verbose: bool


@dataclasses.dataclass(frozen=True)
class WriteFile:
    """Writes a resource to a file.

    Attributes:
      resource: its name.
      path: the file, with links resolved.
      target: the file as the model names it.
      dimensions: the shape of the array in an .npy file.
    """

    resource: str
    path: pathlib.Path
    target: str
    dimensions: tuple[int, ...]


Command: TypeAlias = Dispatch | Print | WriteFile


def parse_command(
    entry: Entry, dispatchables: dict[str, Dispatchable], context: Context
) -> Command:
    """A command whose resources exist and are large enough."""
    given = entry.entries()
    if "type" not in given:
        raise entry.error("have a member `type`")
    kind = given["type"].text().lower()
    if kind == "dispatch":
        return _dispatch(entry, dispatchables, context)
    if kind == "print":
        members = entry.members(("type", "resource"), {"verbose": False})
        _typed_resource(members["resource"], context)
        return Print(members["resource"].value, members["verbose"].flag())
    if kind == "writefile":
        return _write_file(entry, context)
    raise given["type"].error("be dispatch, print or writeFile")


def _dispatch(
    entry: Entry, dispatchables: dict[str, Dispatchable], context: Context
) -> Dispatch:
    required = ("type", "dispatchable", "bindings")
    members = entry.members(required, {"threadGroupCount": None})
    name = members["dispatchable"].text()
    if name not in dispatchables:
        raise members["dispatchable"].error("be the name of a dispatchable")
    operator, owned = dispatchables[name].operator, dispatchables[name].owned
    inputs = {name: tensor for name, tensor in operator.inputs if name not in owned}
    views = parse_views(members["bindings"], inputs | dict(operator.outputs), context)
    for output, _ in operator.outputs:
        for input in inputs:
            if views[output].overlaps(views[input]):
                raise members["bindings"].error(
                    f"not share bytes between `{output}` and `{input}`"
                )
    return Dispatch(name, views)


def _write_file(entry: Entry, context: Context) -> WriteFile:
    required = ("type", "resource", "targetPath")
    members = entry.members(required, {"dimensions": []})
    context.resource(members["resource"])
    path = context.folders.target_path(members["targetPath"])
    dimensions = ()
    if path.suffix.lower() == ".npy":
        size = _typed_resource(members["resource"], context).elements().size
        elements = members["dimensions"].elements(TENSOR_DIMENSION_COUNT_MAX1)
        dimensions = tuple(e.integer(range(1, 2**32)) for e in elements) or (size,)
        if math.prod(dimensions) > size:
            raise members["dimensions"].error(
                f"have a product of at most {size}, the number of elements"
            )
    name, target = members["resource"].value, members["targetPath"].value
    return WriteFile(name, path, target, dimensions)


def _typed_resource(entry: Entry, context: Context) -> Resource:
    resource = context.resource(entry)
    if resource.data_type is DataType.UNKNOWN:
        raise entry.error("be a resource with an `initialValuesDataType`")
    return resource
