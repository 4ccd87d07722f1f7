"""The files that a model reads and writes: below its folder or the current one."""

from __future__ import annotations

import os
import pathlib
import tempfile
import warnings

import numpy as np

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
        # Mapping compares the size that the header promises with the file's, before
        # anything is allocated, and refuses objects.
        with warnings.catch_warnings(action="error"):
            array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy parses the header as Python: it may be any
        reason = " ".join(str(error).split())[:60] or type(error).__name__
        raise entry.refused(f"be an .npy file without pickles ({reason})") from None
    if not array.size:
        raise entry.refused("be a file that is not empty")
    name = "uint8" if array.dtype == np.bool_ else array.dtype.name
    if name.upper() not in DataType.__members__:
        raise entry.refused(f"hold a data type of DirectML, not {array.dtype}")
    little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return little.reshape(-1), DataType[name.upper()]


def write_file(path: pathlib.Path, array: np.ndarray) -> None:
    """Writes an array as .npy, or its bytes; the file is whole or not there."""
    try:
        _replace(path, array)
    except OSError as error:  # which may name the temporary file, or none
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def _replace(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".dml_jax.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if path.suffix.lower() == ".npy":
                np.save(file, array, allow_pickle=False)
            else:
                file.write(array.tobytes())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The process's mask for new files, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
