"""DxDispatch models, which have buffers, operators and commands."""

import dataclasses
import json
import math
import pathlib
from typing import NamedTuple, TypeAlias

from dml_jax.directml import TENSOR_DIMENSION_COUNT_MAX1, DataType, FeatureLevel
from dml_jax.directml._types import LATEST
from dml_jax.directml.dxdispatch._dispatchables import (
    Dispatchable,
    View,
    parse_dispatchable,
    parse_views,
)
from dml_jax.directml.dxdispatch._files import Folders
from dml_jax.directml.dxdispatch._json import Entry, parse
from dml_jax.directml.dxdispatch._resources import Context, Resource, parse_resource

MOST_BYTES = 2**32  # 4 GiB


class Dispatch(NamedTuple):
    """Runs an operator on views of resources, given by the names of its tensors."""

    dispatchable: str
    views: dict[str, View]


class Print(NamedTuple):
    """Prints a resource."""

    resource: str
    is_verbose: bool


class WriteFile(NamedTuple):
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


@dataclasses.dataclass(frozen=True)
class Model:
    """A model, which is validated as a whole before any command runs.

    Attributes:
      resources: its buffers by name; `run_model` changes their contents.
      dispatchables: its operators by name.
      commands: its commands in the order in which they run.
      command_texts: the commands as JSON.
    """

    resources: dict[str, Resource]
    dispatchables: dict[str, Dispatchable]
    commands: tuple[Command, ...]
    command_texts: tuple[str, ...]


def load_model(
    path: str | pathlib.Path,
    max_bytes: int = MOST_BYTES,
    *,
    input_path: str | pathlib.Path | None = None,
    output_path: str | pathlib.Path | None = None,
    feature_level: FeatureLevel = LATEST,
) -> Model:
    """Reads a model and all files that it refers to.

    Args:
      path: the JSON file. As in DxDispatch, it may be relative to `input_path`.
      max_bytes: the maximum size of all buffers together. An input with overlapping
        elements, which are copied, must fit into what the buffers leave.
      input_path: the folder of the files that the model reads; None for its own.
      output_path: the folder of the files that it writes; None for the current one.
      feature_level: the level at which operators are validated.

    Returns:
      The model.

    Raises:
      ValueError: the model is invalid; the message names the file, the location in it,
        the rule and the value. Or `input_path` is not a folder that exists.
      NotImplementedError: the model has an operator, a deferred buffer or an image,
        which this package lacks.
      OSError: the file cannot be read.
    """
    path = pathlib.Path(path)
    if input_path is not None and not pathlib.Path(input_path).is_dir():
        raise ValueError(f"`input_path` must be a folder that exists; got {input_path}")
    if output_path is not None and not _is_folder(pathlib.Path(output_path)):
        raise ValueError(f"`output_path` must be a folder; got {output_path}")
    if input_path is not None and not path.exists():
        path = pathlib.Path(input_path, path)
    current = pathlib.Path.cwd()
    folders = Folders(
        of_model=path.parent,
        of_inputs=path.parent if input_path is None else pathlib.Path(input_path),
        of_outputs=current if output_path is None else pathlib.Path(output_path),
        current=current,
    )
    try:
        text = path.read_text("utf-8-sig")
        return _model(parse(text), Context(folders, feature_level, max_bytes))
    except UnicodeDecodeError as error:
        rule = "`the model` must be JSON in UTF-8"
        raise ValueError(f"{path}: {rule}; got other bytes ({error.reason})") from None
    except (NotImplementedError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from None


def _is_folder(path: pathlib.Path) -> bool:
    """Whether a path is a folder, or can be made one."""
    paths = (path, *path.absolute().parents)
    return next((p for p in paths if p.exists()), path).is_dir()


def _model(root: Entry, context: Context) -> Model:
    members = root.members(required=("resources", "dispatchables", "commands"))
    for name, entry in members["resources"].entries().items():
        context.resources[name] = parse_resource(entry, context)
    dispatchables = {
        name: parse_dispatchable(entry, context)
        for name, entry in members["dispatchables"].entries().items()
    }
    entries = members["commands"].elements()
    commands = (_command(entry, dispatchables, context) for entry in entries)
    texts = (json.dumps(entry.value, separators=(",", ":")) for entry in entries)
    return Model(context.resources, dispatchables, tuple(commands), tuple(texts))


# Commands -----------------------------------------------------------------------------


def _command(
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
                rule = f"not share bytes between `{output}` and `{input}`"
                raise members["bindings"].error(rule)
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
            rule = f"have a product of at most {size}, the number of elements"
            raise members["dimensions"].error(rule)
    name, target = members["resource"].value, members["targetPath"].value
    return WriteFile(name, path, target, dimensions)


def _typed_resource(entry: Entry, context: Context) -> Resource:
    resource = context.resource(entry)
    if resource.data_type is DataType.UNKNOWN:
        raise entry.error("be a resource with an `initialValuesDataType`")
    return resource
