"""The folder of a model, and a watch over all files outside it."""

import contextlib
import os
import pathlib
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

SECRET = b"\xa5\x5a\xc3\x3c" * 8
FILES = {
    *["open", "os.chmod", "os.link", "os.listdir", "os.mkdir", "os.remove"],
    *["os.rename", "os.rmdir", "os.scandir", "os.symlink", "os.truncate", "os.utime"],
}
FORBIDDEN = {
    *["os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"],
    *["subprocess.Popen", "socket.connect", "socket.bind", "pickle.find_class"],
}
# Modules that are imported late, and what the system tells about itself.
LIBRARIES = [*filter(None, sys.path), sysconfig.get_path("stdlib"), "/proc", "/sys"]
LIBRARIES += [str(pathlib.Path(__file__).parents[2] / "dml_jax")]
_watches: list[list[tuple[str, tuple[Any, ...]]]] = []


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if _watches and (event in FILES or event in FORBIDDEN):
        _watches[-1].append((event, arguments))


sys.addaudithook(_record)


@contextlib.contextmanager
def only_below(folder: pathlib.Path) -> Iterator[None]:
    """No file is touched but those in the folder, and no process is started."""
    _watches.append([])
    try:
        yield
    finally:
        touched = _watches.pop()
    allowed = [os.path.realpath(path) for path in (folder, *LIBRARIES)]
    parents = [str(path) for path in pathlib.Path(allowed[0]).parents]
    for event, arguments in touched:
        assert event not in FORBIDDEN, (event, arguments)
        count = 2 if event in ("os.rename", "os.link", "os.symlink") else 1
        for path in arguments[:count]:
            if isinstance(path, (str, bytes, os.PathLike)):
                real = os.path.realpath(os.fsdecode(path))
                is_below = (os.path.commonpath([real, a]) == a for a in allowed)
                is_parent = event == "open" and real in parents  # on the way to it
                assert any(is_below) or is_parent, (event, path)


@contextlib.contextmanager
def model_folder() -> Iterator[pathlib.Path]:
    """The current folder: of a model, and in one with files that are not the model's.

    Links lead to the outside. What lies there is not touched.
    """
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
        with contextlib.chdir(inside), only_below(inside):
            yield inside
        assert {path: path.read_bytes() for path in before} == before
        assert sorted(os.listdir(outside)) == ["inside", "outside.bin", "outside.npy"]
