"""Which files a call touches, as Python's audit hooks tell."""

import contextlib
import os
import pathlib
import sys
import sysconfig

EVENTS = {
    *["open", "os.chmod", "os.link", "os.listdir", "os.mkdir", "os.remove"],
    *["os.rename", "os.rmdir", "os.scandir", "os.symlink", "os.truncate", "os.utime"],
}
FORBIDDEN = {"os.system", "subprocess.Popen", "socket.connect", "pickle.find_class"}
FORBIDDEN |= {"os.exec", "os.posix_spawn", "os.spawn", "os.fork", "socket.bind"}
# Modules that are imported late, and what the system tells about itself.
LIBRARIES = [*filter(None, sys.path), sysconfig.get_path("stdlib")]
LIBRARIES += [str(pathlib.Path(__file__).parents[2] / "dml_jax"), "/proc", "/sys"]
_watched = []


def _hook(event, arguments):
    if _watched and (event in EVENTS or event in FORBIDDEN):
        _watched[-1].append((event, arguments))


sys.addaudithook(_hook)


@contextlib.contextmanager
def only_below(*folders):
    """No file is touched but those below the folders, and nothing is started."""
    touched = []
    _watched.append(touched)
    try:
        yield
    finally:
        _watched.pop()
    allowed = [os.path.realpath(folder) for folder in (*folders, *LIBRARIES)]
    for event, arguments in touched:
        assert event not in FORBIDDEN, (event, arguments)
        count = 2 if event in ("os.rename", "os.link", "os.symlink") else 1
        for path in arguments[:count]:
            if isinstance(path, (str, bytes, os.PathLike)):
                real = os.path.realpath(os.fsdecode(path))
                is_below = (os.path.commonpath([real, a]) == a for a in allowed)
                assert any(is_below), (event, path)
