"""Options that several commands have, and the types of their values."""

import argparse
import functools
from typing import Any


def add_device(
    parser: argparse.ArgumentParser,
    *names: str,
    default: str = "JAX's default device",
) -> None:
    """Adds the option `--device`, also under other names."""
    text = "where to run: cpu, gpu, cuda:1, or part of a device's name"
    text += f" (default: {default})"
    parser.add_argument(*names, "--device", dest="device", help=text)


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
