"""Array files: what is written where a file, a link, a pipe or a folder is."""

import contextlib
import os
import pathlib
import resource
from collections.abc import Iterator

import numpy as np
import pytest
from assertions import assert_same_bits

from dml_jax import _array_files as array_files

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("target", ["old.npy", "new.npy", "old.bin"])
def test_links_are_followed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, target: str
):
    """The format depends on the name that was given, not on the link's target."""
    monkeypatch.chdir(tmp_path)
    for name in ("old.npy", "old.bin"):
        pathlib.Path(name).write_bytes(b"old")
    os.symlink(target, "link.npy")
    array_files.write(pathlib.Path("link.npy"), ARRAY)
    assert os.readlink("link.npy") == target
    assert_same_bits(np.load(target), ARRAY)


def test_a_file_keeps_its_mode(tmp_path: pathlib.Path):
    path = tmp_path / "y.npy"
    path.touch(0o600)
    array_files.write(path, ARRAY)
    assert path.stat().st_mode & 0o777 == 0o600


def test_bytes(tmp_path: pathlib.Path):
    array_files.write(tmp_path / "y.bin", ARRAY)
    assert (tmp_path / "y.bin").read_bytes() == ARRAY.tobytes()


def test_no_folder_is_made(tmp_path: pathlib.Path):
    with pytest.raises(FileNotFoundError, match="new"):
        array_files.write(tmp_path / "new" / "y.npy", ARRAY)
    assert not (tmp_path / "new").exists()


REASONS = {
    "folder.npy": "Not a regular file",
    "pipe.npy": "Not a regular file",
    "link.npy": "Not a regular file",
    "loop.npy": "Too many levels of symbolic links",
}


@pytest.mark.parametrize("name", REASONS)
def test_only_regular_files_are_replaced(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder.npy")
    os.mkfifo("pipe.npy")
    os.symlink("pipe.npy", "link.npy")
    os.symlink("loop.npy", "loop.npy")
    kinds = {path: path.lstat().st_mode for path in tmp_path.iterdir()}
    with pytest.raises(OSError, match=f"{REASONS[name]}: '{name}'"):
        array_files.write(pathlib.Path(name), ARRAY)
    assert {path: path.lstat().st_mode for path in tmp_path.iterdir()} == kinds


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Files may have 4,096 bytes, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("name", ["y.npy", "y.bin"])
def test_an_error_tells_why_a_file_is_not_written(tmp_path: pathlib.Path, name: str):
    too_large = pytest.raises(OSError, match=f"File too large: '.*{name}'")
    with small_files(), too_large:
        array_files.write(tmp_path / name, np.zeros(10**5))
    assert not any(tmp_path.iterdir())


def test_files_of_python_2(tmp_path: pathlib.Path):
    """Their sizes are long integers, of which NumPy warns."""
    np.save(tmp_path / "x.npy", ARRAY)
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data.replace(b"(2, 3), }  ", b"(2L, 3L), }"))
    assert b"3L" in (tmp_path / "x.npy").read_bytes()
    assert_same_bits(array_files.read(tmp_path / "x.npy"), ARRAY)


LAYOUTS = [
    np.zeros((), np.int8),
    np.zeros((0, 3), np.float64),
    np.asfortranarray(ARRAY),
    ARRAY[:, ::-2],
    ARRAY.astype(">f4"),
    np.array([["a", "bc"]]),
]


@pytest.mark.parametrize("array", LAYOUTS)
def test_arrays_of_any_layout_are_read_back(tmp_path: pathlib.Path, array: np.ndarray):
    array_files.write(tmp_path / "y.npy", array)
    native = array.astype(array.dtype.newbyteorder("="))
    assert_same_bits(np.load(tmp_path / "y.npy"), array)
    assert_same_bits(array_files.read(tmp_path / "y.npy"), native)
