"""The folder of a model, in one with files that are not the model's."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

import numpy as np

SECRET = b"\xa5\x5a\xc3\x3c" * 8


@contextlib.contextmanager
def model_folder() -> Iterator[pathlib.Path]:
    """The current folder, whose links lead to the outside. That is not changed."""
    with tempfile.TemporaryDirectory() as parent:
        outside, inside = pathlib.Path(parent), pathlib.Path(parent, "inside")
        (inside / "sub").mkdir(parents=True)
        (outside / "outside.bin").write_bytes(SECRET)
        np.save(outside / "outside.npy", np.frombuffer(SECRET, np.uint8))
        (inside / "in.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
        np.save(inside / "in.npy", np.arange(6, dtype=np.int32).reshape(2, 3))
        (inside / "link.bin").symlink_to("../outside.bin")
        (inside / "loop.bin").symlink_to("loop.bin")
        (inside / "up").symlink_to("..")
        before = {path: path.read_bytes() for path in outside.glob("outside.*")}
        with contextlib.chdir(inside):
            yield inside
        assert {path: path.read_bytes() for path in before} == before
        assert sorted(os.listdir(outside)) == ["inside", "outside.bin", "outside.npy"]
