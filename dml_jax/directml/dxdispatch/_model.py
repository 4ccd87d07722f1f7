"""A DxDispatch model: buffers, operators, and commands to run in order."""

from __future__ import annotations

import dataclasses
import pathlib

from dml_jax.directml.dxdispatch import _files
from dml_jax.directml.dxdispatch._commands import (
    Dispatch,
    Print,
    WriteFile,
    parse_command,
)
from dml_jax.directml.dxdispatch._descs import PARSERS
from dml_jax.directml.dxdispatch._dispatchables import (
    PREFIX,
    Dispatchable,
    parse_dispatchable,
)
from dml_jax.directml.dxdispatch._json import Entry, parse
from dml_jax.directml.dxdispatch._resources import Budget, Resource, parse_resource

MOST_BYTES = 2**32  # 4 GiB
_MOST_MODEL_BYTES = 2**24


@dataclasses.dataclass(frozen=True)
class Model:
    """What a file describes, checked as a whole before anything runs.

    Attributes:
      resources: its buffers by name; `run_model` changes what they hold.
      dispatchables: its operators by name.
      commands: what is to be done, in order.
    """

    resources: dict[str, Resource]
    dispatchables: dict[str, Dispatchable]
    commands: tuple[Dispatch | Print | WriteFile, ...]


def load_model(path: str | pathlib.Path, max_bytes: int = MOST_BYTES) -> Model:
    """Reads a model and everything it refers to.

    Args:
      path: the model's file.
      max_bytes: the most bytes that its buffers may take together, and that a tensor
        may have when strides of 0 are expanded.

    Returns:
      The model.

    Raises:
      ValueError: the file is not a model; the message names the file, the place in it,
        the rule and the value.
      NotImplementedError: the model needs what this package does not have.
      OSError: the file cannot be read.
    """
    path = pathlib.Path(path)
    try:
        root = parse(_text(path))
        return _model(root, path.parent, Budget(max_bytes))
    except (NotImplementedError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from None


def _text(path):
    size = path.stat().st_size
    if not path.is_file() and not path.is_dir():
        raise ValueError("`the model` must be a regular file; got another kind")
    if size > _MOST_MODEL_BYTES:
        rule = f"must have at most {_MOST_MODEL_BYTES} bytes"
        raise ValueError(f"`the model` {rule}; got {size}")
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"`the model` must be UTF-8; got {error.reason}") from None


def _model(root, folder, budget):
    members = root.members(required=("resources", "dispatchables", "commands"))
    _require_supported(members)
    resources = {
        name: parse_resource(entry, folder, budget)
        for name, entry in members["resources"].named()
    }
    dispatchables = {
        name: parse_dispatchable(entry, resources, budget)
        for name, entry in members["dispatchables"].named()
    }
    commands = tuple(
        parse_command(entry, folder, resources, dispatchables)
        for entry in members["commands"].items()
    )
    return Model(resources, dispatchables, commands)


def _require_supported(members):
    """Names all that a model needs and this package does not have, at once."""
    needed = [
        what
        for kind, need in _NEEDS.items()
        for entry in _entries(members[kind])
        for what in [need(entry)]
        if what
    ]
    if needed:
        supported = ", ".join(PREFIX + name for name in PARSERS)
        raise NotImplementedError(
            f"`the model` must need no more than {supported} on buffers of numbers and "
            f"of .npy, .dat and .bin files; got {', '.join(needed)}"
        )


def _entries(entry: Entry) -> list[dict[str, Entry]]:
    """The members of all objects in an object or an array."""
    if isinstance(entry.value, list):
        return [dict(item.named()) for item in entry.items()]
    return [dict(member.named()) for _, member in entry.named()]


def _need_of_resource(members):
    initial = members.get("initialValues", Entry(None, ""))
    if initial.value == "deferred":
        return f"a deferred buffer (`{initial.place}`)"
    if isinstance(initial.value, dict) and _is_image(initial.value.get("sourcePath")):
        return f"an image (`{initial.place}`)"
    return None


def _need_of_dispatchable(members):
    kind = members.get("Type", members.get("type", Entry(None, "")))
    is_text = isinstance(kind.value, str)
    if is_text and kind.value.removeprefix(PREFIX) not in PARSERS:
        return f"{kind.text()[:60]} (`{kind.place}`)"
    return None


def _need_of_command(members):
    path = members.get("targetPath", Entry(None, ""))
    return f"an image (`{path.place}`)" if _is_image(path.value) else None


def _is_image(path):
    return isinstance(path, str) and path.lower().endswith(_files.IMAGES)


_NEEDS = {
    "resources": _need_of_resource,
    "dispatchables": _need_of_dispatchable,
    "commands": _need_of_command,
}
