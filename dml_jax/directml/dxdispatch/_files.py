"""The files that a model reads and writes: below its folder or the current one."""

from __future__ import annotations

import pathlib

import numpy as np

from dml_jax._shared import array_files
from dml_jax.directml._types import DataType
from dml_jax.directml.dxdispatch._json import Entry

IMAGES = (".jpg", ".jpeg", ".png")
RAW = (".dat", ".bin")


def source_path(entry: Entry, folder: pathlib.Path) -> pathlib.Path:
    """The file to read: as seen from the model's folder, or else the current one."""
    for base in (folder, pathlib.Path.cwd()):
        path = _below(entry, base, folder)
        if path.is_file():
            return path
        if path.exists():
            raise entry.refused("be a regular file")
    raise entry.refused("be a file that exists")


def target_path(entry: Entry, folder: pathlib.Path) -> pathlib.Path:
    """The file to write, as seen from the current folder."""
    path = _below(entry, pathlib.Path.cwd(), folder)
    if path.suffix.lower() not in (".npy", *RAW):
        raise entry.refused("end in .npy, .dat or .bin")
    if path.exists() and not path.is_file():
        raise entry.refused("be a regular file")
    if not next(parent for parent in path.parents if parent.exists()).is_dir():
        raise entry.refused("be below folders")
    return path


def _below(entry: Entry, base: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A path with all links resolved, if it is below one of the two folders."""
    text = entry.text()
    try:
        path = (base / text).resolve()
        allowed = [folder.resolve(), pathlib.Path.cwd().resolve()]
        path.is_file()  # a name that is too long, or a loop of links
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise entry.refused(f"be a path that can be read ({reason})") from None
    if not any(path.is_relative_to(root) for root in allowed):
        raise entry.refused("stay below the model's folder or the current one")
    return path


def read_array(entry: Entry, path: pathlib.Path) -> tuple[np.ndarray, DataType]:
    """The elements of an .npy file, little-endian, and their data type."""
    try:
        array = array_files.read(path)
    except (OSError, ValueError) as error:
        raise entry.refused(f"be an .npy file without pickles ({error})") from None
    if not array.size:
        raise entry.refused("be a file that is not empty")
    name = "uint8" if array.dtype == np.bool_ else array.dtype.name
    if name.upper() not in DataType.__members__:
        raise entry.refused(f"hold a data type of DirectML, not {array.dtype}")
    little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return little.reshape(-1), DataType[name.upper()]
