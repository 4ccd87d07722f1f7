"""Reads .npy files as untrusted input, and writes arrays to files atomically."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pathlib
import secrets
import stat
import warnings
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np


def read(path: pathlib.Path) -> np.ndarray:
    """The array of an .npy file in native byte order; a ValueError names other kinds.

    Memory mapping compares the size in the header with that of the file before it
    allocates anything, and refuses pickled objects.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a pipe may wait
        raise ValueError("a pipe or a device")
    try:
        with _located(path), warnings.catch_warnings(action="error"):
            array = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # NumPy parses the header as Python: any type may occur
        raise ValueError(_kind_of(path, str(error))) from None
    return np.asarray(array, array.dtype.newbyteorder("="))


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
    with _located(path):
        target = pathlib.Path(os.path.realpath(path))
        if target.is_symlink():  # a loop of links
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        with _opened(target.parent) as parent:
            _replace(target, parent, array, _is_npy(path))


def write_resolved(path: pathlib.Path, array: np.ndarray) -> None:
    """The same for a path without links, whose folders are made if they are missing.

    A link that has been put in place of a folder since the path was resolved is an
    error, and one in place of the file is replaced.
    """
    with _located(path), _opened(path.parent, is_made=True) as parent:
        _replace(path, parent, array, _is_npy(path))


def _is_npy(path: pathlib.Path) -> bool:
    return path.suffix.lower() == ".npy"


@contextlib.contextmanager
def _located(path: pathlib.Path) -> Iterator[None]:
    """Names a file in errors, which may name the temporary file, or none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextlib.contextmanager
def _opened(folder: pathlib.Path, is_made: bool = False) -> Iterator[int | None]:
    """The descriptor of a folder without links in its path; None on Windows.

    It stays that of the folder, even if a link takes the folder's place.
    """
    if os.open not in os.supports_dir_fd:
        if is_made:
            folder.mkdir(parents=True, exist_ok=True)
        yield None
        return
    flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
    descriptor = os.open(folder.anchor, flags)
    try:
        for name in folder.parts[1:]:
            if is_made:
                _make_if_missing(name, descriptor)
            child = os.open(name, flags, dir_fd=descriptor)
            descriptor, parent = child, descriptor
            os.close(parent)
        yield descriptor
    finally:
        os.close(descriptor)


def _make_if_missing(name: str, parent: int) -> None:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # another process has made it
            os.mkdir(name, dir_fd=parent)


def _replace(
    path: pathlib.Path, parent: int | None, array: np.ndarray, is_npy: bool
) -> None:
    """Writes a file beside the path, and moves it there."""
    folder = path.parent if parent is None else ""
    name = os.path.join(folder, path.name)
    mode = _mode_of(name, parent)
    # `open` applies the umask to the mode, `tempfile` does not.
    temporary = os.path.join(folder, f".dml_jax.{secrets.token_hex(8)}")
    try:
        opener = functools.partial(os.open, mode=0o666, dir_fd=parent)
        with open(temporary, "xb", opener=opener) as file:
            _write(file, array, is_npy)
        if mode is not None:
            os.chmod(temporary, mode, dir_fd=parent)
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        raise


def _mode_of(name: str, parent: int | None) -> int | None:
    """The mode of a regular file; None if there is no file, or a link."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(mode):
        return None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file")
    return stat.S_IMODE(mode)


def _write(file: BinaryIO, array: np.ndarray, is_npy: bool) -> None:
    """Writes an array; `numpy.save` would hide why a write fails."""
    array = np.asarray(array, order="C")
    if is_npy:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
    file.write(array.reshape(-1).view(np.uint8).data)
