"""Arrays in .npy files: read without trust, written whole or not at all."""

from __future__ import annotations

import errno
import os
import pathlib
import secrets
import shutil
import warnings

import numpy as np


def read(path: pathlib.Path) -> np.ndarray:
    """The array of an .npy file, mapped; ValueError if it is not one, or has pickles.

    Mapping compares the size that the header promises with the file's, before anything
    is allocated, and refuses objects.
    """
    try:
        with warnings.catch_warnings(action="error"):
            return np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # NumPy parses the header as Python: it may be any
        reason = " ".join(str(error).split())[:60] or type(error).__name__
        raise ValueError(reason) from None


def write(path: pathlib.Path, array: np.ndarray) -> None:
    """Writes an array as .npy, or its bytes; the file is whole or not there.

    Links are followed, a file keeps its mode, and what is no file is not replaced.
    """
    try:
        target = pathlib.Path(os.path.realpath(path))
        if target.is_symlink():  # links that lead to each other
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.exists() and not (target.is_file() or target.is_dir()):
            raise OSError(errno.EINVAL, "Not a regular file")
        _replace(target, array, is_npy=path.suffix.lower() == ".npy")
    except OSError as error:  # which may name the temporary file, or none
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def _replace(path, array, is_npy):
    path.parent.mkdir(parents=True, exist_ok=True)
    # `open` gives it the mode that files have here, which `tempfile` does not.
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
