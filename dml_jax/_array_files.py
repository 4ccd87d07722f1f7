"""Reads .npy files as untrusted input, and writes arrays to files atomically."""

from __future__ import annotations

import errno
import os
import pathlib
import secrets
import shutil
import warnings

import numpy as np


def read(path: pathlib.Path) -> np.ndarray:
    """The memory-mapped array of an .npy file; a ValueError names any other kind.

    Memory mapping compares the size in the header with that of the file before it
    allocates anything, and refuses pickled objects.
    """
    try:
        with warnings.catch_warnings(action="error"):
            return np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # NumPy parses the header as Python: any type may occur
        raise ValueError(_kind_of(path, str(error))) from None


def _kind_of(path: pathlib.Path, error: str) -> str:
    """What a file is that NumPy cannot map."""
    with path.open("rb") as file:
        start = file.read(6)
    if not start:
        return "an empty file"
    if start.startswith(b"PK"):
        return "an archive, such as .npz"
    if start != np.lib.format.MAGIC_PREFIX:
        return "a file of another kind"
    return "pickled objects" if "Python objects" in error else "a damaged file"


def write(path: pathlib.Path, array: np.ndarray) -> None:
    """Writes an array as .npy, or its raw bytes if the suffix is not .npy.

    The file is written completely or not at all, in a folder that exists. Links are
    followed, an existing file keeps its mode, and only regular files are replaced.
    """
    try:
        target = pathlib.Path(os.path.realpath(path))
        if target.is_symlink():  # a loop of links
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.exists() and not (target.is_file() or target.is_dir()):
            raise OSError(errno.EINVAL, "Not a regular file")
        _replace(target, array, is_npy=path.suffix.lower() == ".npy")
    except OSError as error:  # may lack the file name, or name the temporary file
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def _replace(path: pathlib.Path, array: np.ndarray, is_npy: bool) -> None:
    # `open` applies the umask to the mode, `tempfile` does not.
    temporary = path.with_name(f".dml_jax.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            if is_npy:
                np.save(file, array, allow_pickle=False)
            else:
                file.write(array.tobytes())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
