"""The paths of the files of a model, and the folders that they must be in."""

import contextlib
import glob
import pathlib
import re
import stat
from typing import NamedTuple

from dml_jax.directml.dxdispatch._json import Entry

IMAGES = (".jpg", ".jpeg", ".png")  # which DxDispatch reads and writes


class Folders(NamedTuple):
    """The folders of a model, in which all of its files are."""

    of_model: pathlib.Path
    of_inputs: pathlib.Path
    of_outputs: pathlib.Path
    current: pathlib.Path

    def source_path(self, entry: Entry) -> pathlib.Path:
        """The file to read, relative to the folder of inputs, or the current one."""
        for base in (self.of_inputs, self.current):
            path = self._resolve(entry, base)
            if path.is_file():
                return path
            if path.exists():
                raise entry.error("be a regular file")
        folder = (
            "the model's folder" if self.of_inputs == self.of_model else self.of_inputs
        )
        error = entry.error(f"be a file that exists, in {folder} or the current one")
        text = glob.escape(entry.text().replace("\\", "/"))  # as on Windows
        pattern = re.sub(r"[^\W\d_]", lambda c: f"[{c[0].lower()}{c[0].upper()}]", text)
        for base in (self.of_inputs, self.current):
            for name in glob.iglob(pattern, root_dir=base):
                hint = f"Write {name}: / separates folders, and capitals count"
                raise ValueError(f"{error}. {hint}")
        raise error

    def target_path(self, entry: Entry) -> pathlib.Path:
        """The file to write, relative to the folder of outputs."""
        path = self._resolve(entry, self.of_outputs)
        if path.suffix.lower() in IMAGES:
            raise entry.error("be a file of numbers, not an image", NotImplementedError)
        if path.suffix.lower() not in (".npy", ".dat", ".bin"):
            raise entry.error("end in .npy, .dat or .bin")
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise entry.error("be a regular file")
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            raise entry.error("be in a folder") from None
        return path

    def _resolve(self, entry: Entry, base: pathlib.Path) -> pathlib.Path:
        """A path with all links resolved, which must be inside one of the folders."""
        outside = entry.error(
            "be inside the model's folder, the current one, `input_path` or "
            "`output_path`"
        )
        path, folders = base / entry.text(), [folder.resolve() for folder in self]
        # Before any access, since a path of Windows may name another computer.
        if path.drive not in (base.drive, *(folder.drive for folder in folders)):
            raise outside
        try:
            path = path.resolve()
            # Raises if a name is too long, or if there is a loop of links.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.stat()
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise entry.error(f"be a path that can be read ({reason})") from None
        if not any(map(path.is_relative_to, folders)):
            raise outside
        return path
