"""Reads .npy files as untrusted input, and writes arrays to files atomically."""

import contextlib
import errno
import os
import pathlib
import secrets
import signal
import stat
import threading
import warnings
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

_SIGNALS = [getattr(signal, n) for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]


def read(path: pathlib.Path) -> np.ndarray:
    """The array of an .npy file in native byte order; a ValueError names other kinds.

    Memory mapping compares the size in the header with that of the file before it
    allocates anything, and refuses pickled objects.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a pipe may wait
        raise ValueError("a pipe or a device")
    try:
        # NumPy warns about files of Python 2.
        with _located(path), warnings.catch_warnings(action="ignore"):
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
        mode = None
        with contextlib.suppress(FileNotFoundError):
            mode = target.stat().st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "Not a regular file")
        # `open` applies the umask to the mode, `tempfile` does not.
        temporary = target.with_name(f".dml_jax.{secrets.token_hex(8)}")
        with _removed(temporary):
            with temporary.open("xb") as file:
                _write(file, array, path.suffix.lower() == ".npy")
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            os.replace(temporary, target)


@contextlib.contextmanager
def _removed(path: pathlib.Path) -> Iterator[None]:
    """Removes a file in the end, also if a signal ends the process."""

    def end(number: int, _: object) -> None:  # an exception could be lost in a callback
        with contextlib.suppress(OSError):
            path.unlink()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    is_main = threading.current_thread() is threading.main_thread()
    handled = [n for n in _SIGNALS if is_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in handled:  # nohup ignores SIGHUP
        signal.signal(number, end)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _located(path: pathlib.Path) -> Iterator[None]:
    """Names a file in errors, which may name the temporary file, or none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _write(file: BinaryIO, array: np.ndarray, is_npy: bool) -> None:
    """Writes an array; `numpy.save` would hide why a write fails."""
    array = np.asarray(array, order="C")
    if is_npy:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
    file.write(array.reshape(-1).view(np.uint8).data)
