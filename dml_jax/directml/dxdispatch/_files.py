"""The files that a model reads and writes, in its folder or the current folder."""

from __future__ import annotations

import pathlib

import numpy as np

from dml_jax._shared import array_files
from dml_jax.directml import DataType
from dml_jax.directml.dxdispatch._json import Entry


def source_path(entry: Entry, folder: pathlib.Path) -> pathlib.Path:
    """The file to read, relative to the model's folder, or else the current folder."""
    for base in (folder, pathlib.Path.cwd()):
        path = _resolve(entry, base, folder)
        if path.is_file():
            return path
        if path.exists():
            raise entry.error("be a regular file")
    raise entry.error("be a file that exists")


def target_path(entry: Entry, folder: pathlib.Path) -> pathlib.Path:
    """The file to write, relative to the current folder."""
    path = _resolve(entry, pathlib.Path.cwd(), folder)
    if path.suffix.lower() not in (".npy", ".dat", ".bin"):
        raise entry.error("end in .npy, .dat or .bin")
    if path.exists() and not path.is_file():
        raise entry.error("be a regular file")
    if not next(parent for parent in path.parents if parent.exists()).is_dir():
        raise entry.error("be in a folder")
    return path


def _resolve(entry: Entry, base: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A path with all links resolved, which must be inside one of the two folders."""
    text = entry.text()
    try:
        path = (base / text).resolve()
        allowed = [folder.resolve(), pathlib.Path.cwd().resolve()]
        path.is_file()  # raises if a name is too long or links form a loop
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise entry.error(f"be a path that can be read ({reason})") from None
    if not any(path.is_relative_to(root) for root in allowed):
        raise entry.error("be inside the model's folder or the current one")
    return path


def read_array(entry: Entry, path: pathlib.Path) -> tuple[np.ndarray, DataType]:
    """The elements of an .npy file, little-endian, and their data type."""
    try:
        array = array_files.read(path)
    except (OSError, ValueError) as error:
        raise entry.error(f"be an .npy file without pickles ({error})") from None
    if not array.size:
        raise entry.error("be a file that is not empty")
    name = "UINT8" if array.dtype == np.bool_ else array.dtype.name.upper()
    if name not in DataType.__members__:
        raise entry.error(f"hold a data type of DirectML, not {array.dtype}")
    little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return little.reshape(-1), DataType[name]
