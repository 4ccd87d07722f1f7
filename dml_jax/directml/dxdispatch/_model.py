"""DxDispatch models, which have buffers, operators and commands."""

from __future__ import annotations

import dataclasses
import json
import pathlib

from dml_jax.directml import FeatureLevel
from dml_jax.directml._types import LATEST
from dml_jax.directml.dxdispatch._commands import Command, parse_command
from dml_jax.directml.dxdispatch._dispatchables import Dispatchable, parse_dispatchable
from dml_jax.directml.dxdispatch._files import Folders
from dml_jax.directml.dxdispatch._json import Entry, parse
from dml_jax.directml.dxdispatch._resources import Context, Resource, parse_resource

MOST_BYTES = 2**32  # 4 GiB


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
        return _model(parse(_text(path)), Context(folders, feature_level, max_bytes))
    except (NotImplementedError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from None


def _is_folder(path: pathlib.Path) -> bool:
    """Whether a path is a folder, or can be made one."""
    paths = (path, *path.absolute().parents)
    return next((p for p in paths if p.exists()), path).is_dir()


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"`the model` must be JSON in UTF-8; got other bytes ({error.reason})"
        ) from None


def _model(root: Entry, context: Context) -> Model:
    members = root.members(required=("resources", "dispatchables", "commands"))
    for name, entry in members["resources"].entries().items():
        context.resources[name] = parse_resource(entry, context)
    dispatchables = {
        name: parse_dispatchable(entry, context)
        for name, entry in members["dispatchables"].entries().items()
    }
    entries = members["commands"].elements()
    commands = (parse_command(entry, dispatchables, context) for entry in entries)
    texts = (json.dumps(entry.value, separators=(",", ":")) for entry in entries)
    return Model(context.resources, dispatchables, tuple(commands), tuple(texts))
