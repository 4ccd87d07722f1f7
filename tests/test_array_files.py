"""Files of arrays: what is written where a link, a device or a folder is."""

import os
import pathlib

import numpy as np
import pytest
from assertions import assert_same_bits

from dml_jax import _array_files

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("target", ["old.npy", "new.npy", "old.bin"])
def test_links_are_followed(tmp_path, monkeypatch, target):
    """What is written depends on the name that was given, not on the link's target."""
    monkeypatch.chdir(tmp_path)
    for name in ("old.npy", "old.bin"):
        pathlib.Path(name).write_bytes(b"old")
    os.symlink(target, "link.npy")
    _array_files.write(pathlib.Path("link.npy"), ARRAY)
    assert os.readlink("link.npy") == target
    assert_same_bits(np.load(target), ARRAY)


def test_bytes(tmp_path):
    _array_files.write(tmp_path / "new" / "y.bin", ARRAY)
    assert (tmp_path / "new" / "y.bin").read_bytes() == ARRAY.tobytes()


def test_what_is_no_file_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo.npy")
    os.symlink("fifo.npy", "link.npy")
    for name in ("fifo.npy", "link.npy"):
        with pytest.raises(OSError, match=f"Not a regular file: '{name}'"):
            _array_files.write(pathlib.Path(name), ARRAY)
    assert pathlib.Path("fifo.npy").is_fifo()
    assert sorted(os.listdir()) == ["fifo.npy", "link.npy"]
