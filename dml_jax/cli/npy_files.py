"""The .npy files that the commands `onnx` and `run` read and write."""

import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from dml_jax import _array_files


def read(path: pathlib.Path) -> np.ndarray:
    """The array of an .npy file, which may then be replaced."""
    try:
        return np.array(_array_files.read(path))
    except ValueError as error:
        raise ValueError(
            f"{path}: must be an .npy file without pickles, as `numpy.save` writes it; "
            f"got {error}"
        ) from None


def require_writable(path: pathlib.Path) -> None:
    """Refuses an output that could not be written, before anything runs."""
    if not path.parent.is_dir():
        raise ValueError(
            f"`--output` must be in a folder that exists; got {path}. Write mkdir "
            f"-p {path.parent}"
        )
    if path.exists() and not path.is_file():
        raise ValueError(f"`--output` must be a regular file; got {path}")


def describe(dtype: np.dtype, shape: Iterable[Any]) -> str:
    """A dtype and a shape, such as float32[3,4]."""
    name = "string" if dtype.kind == "O" else dtype
    return f"{name}[{','.join(map(str, shape))}]"
