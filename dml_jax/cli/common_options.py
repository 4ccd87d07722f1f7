"""Options that several commands have, and the types of their values."""

from __future__ import annotations

import argparse
import functools
import pathlib
from typing import Any


def add_device(
    parser: argparse.ArgumentParser,
    default: str,
    *names: str,
    metavar: str | None = None,
) -> None:
    """Adds `--device` and other names of it."""
    text = "where to run: cpu, gpu, cuda:1, or part of a device's name"
    text += f" (default: {default})"
    names = (*names, "--device")
    parser.add_argument(*names, dest="device", metavar=metavar, help=text)


def assignment(text: str) -> tuple[str, pathlib.Path]:
    """NAME=FILE.npy as a name and a path."""
    name, equals, path = text.rpartition("=")
    if not (equals and name) or pathlib.Path(path).suffix.lower() != ".npy":
        raise argparse.ArgumentTypeError(f"must be NAME=FILE.npy; got {text}")
    return name, pathlib.Path(path)


def _number(text: str, kind: type, minimum: int, exponent: int) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = -1
    if not minimum <= number <= 10**exponent:
        word = "an integer in digits," if kind is int else "a number from"
        rule = f"must be {word} {minimum} to 10^{exponent}"
        raise argparse.ArgumentTypeError(f"{rule}; got {text}")
    return number


natural = functools.partial(_number, kind=int, minimum=0, exponent=18)
positive = functools.partial(_number, kind=int, minimum=1, exponent=18)
milliseconds = functools.partial(_number, kind=float, minimum=0, exponent=12)
