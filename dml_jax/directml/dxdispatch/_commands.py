"""The commands of a model."""

from __future__ import annotations

import dataclasses
import math
import pathlib

from dml_jax.directml._types import TENSOR_DIMENSION_COUNT_MAX1, DataType
from dml_jax.directml.dxdispatch import _files
from dml_jax.directml.dxdispatch._dispatchables import (
    Dispatchable,
    View,
    is_owned,
    parse_resource_name,
    parse_views,
)
from dml_jax.directml.dxdispatch._json import Entry
from dml_jax.directml.dxdispatch._resources import Resource


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """The command that runs an operator on resources."""

    dispatchable: str
    views: dict[str, View]


@dataclasses.dataclass(frozen=True)
class Print:
    """The command that prints a resource."""

    resource: str
    is_verbose: bool


@dataclasses.dataclass(frozen=True)
class WriteFile:
    """The command that writes a resource to a file."""

    resource: str
    path: pathlib.Path
    target: str
    dimensions: tuple[int, ...]


def parse_command(
    entry: Entry,
    folder: pathlib.Path,
    resources: dict[str, Resource],
    dispatchables: dict[str, Dispatchable],
) -> Dispatch | Print | WriteFile:
    """A command, with all that it names found and measured."""
    members = dict(entry.named())
    if "type" not in members:
        raise entry.refused("have a member `type`")
    kind = members["type"].text().lower()
    if kind == "dispatch":
        return _dispatch(entry, resources, dispatchables)
    if kind == "print":
        members = entry.members(("type", "resource"), ("verbose",))
        name = parse_resource_name(members["resource"], resources)
        _require_type(members["resource"], resources[name])
        is_verbose = "verbose" in members and members["verbose"].flag()
        return Print(name, is_verbose)
    if kind == "writefile":
        return _write_file(entry, folder, resources)
    raise members["type"].refused("be dispatch, print or writeFile")


def _dispatch(entry, resources, dispatchables):
    required = ("type", "dispatchable", "bindings")
    members = entry.members(required, optional=("threadGroupCount",))
    name = members["dispatchable"].text()
    if name not in dispatchables:
        raise members["dispatchable"].refused("be the name of a dispatchable")
    operator = dispatchables[name].operator
    inputs = {n: tensor for n, tensor in operator.inputs if not is_owned(tensor)}
    outputs = dict(operator.outputs)
    views = parse_views(members["bindings"], inputs | outputs, resources)
    for output, tensor in outputs.items():
        for name_of_input, other in inputs.items():
            if _overlap(views[output], tensor, views[name_of_input], other):
                rule = f"not share bytes between `{output}` and `{name_of_input}`"
                raise members["bindings"].refused(rule)
    return Dispatch(name, views)


def _overlap(view, tensor, other_view, other):
    starts = view.offset, other_view.offset
    ends = (
        view.offset + tensor.total_tensor_size_in_bytes,
        other_view.offset + other.total_tensor_size_in_bytes,
    )
    return view.resource == other_view.resource and max(starts) < min(ends)


def _write_file(entry, folder, resources):
    required = ("type", "resource", "targetPath")
    members = entry.members(required, optional=("dimensions",))
    name = parse_resource_name(members["resource"], resources)
    path = _files.target_path(members["targetPath"], folder)
    dimensions = ()
    if path.suffix.lower() == ".npy":
        _require_type(members["resource"], resources[name])
        dimensions = (resources[name].elements().size,)
        if "dimensions" in members:
            items = members["dimensions"].items(most=TENSOR_DIMENSION_COUNT_MAX1)
            given = tuple(item.integer(1, 2**32 - 1) for item in items)
            if math.prod(given) > dimensions[0]:
                rule = f"have a product of at most {dimensions[0]}, its elements"
                raise members["dimensions"].refused(rule)
            dimensions = given or dimensions
    return WriteFile(name, path, members["targetPath"].value, dimensions)


def _require_type(entry, resource):
    if resource.data_type is DataType.UNKNOWN:
        raise entry.refused("be a resource with an `initialValuesDataType`")
