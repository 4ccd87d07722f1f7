"""What the pages about ONNX say of operators is that of the code."""

import pathlib

from dml_jax.onnx_backend._operators import MICROSOFT, OPERATORS, REFUSED

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/onnx-operators.md"


def test_table_of_operators() -> None:
    """Each operator is in the row of the opset from which on it is supported."""
    rows: dict[int, list[str]] = {}
    for name, operator in sorted(OPERATORS.items()):
        rows.setdefault(operator.since, []).append(name)
    lines = [f"| {first} | {', '.join(rows[first])} |\n" for first in sorted(rows)]
    table = "".join(["| from opset | operators |\n", "| --- | --- |\n", *lines])
    assert table in PAGE.read_text(), f"{PAGE.name} must have\n{table}"


def test_operators_of_microsoft_are_named() -> None:
    line = f"The domain com.microsoft has {', '.join(sorted(MICROSOFT))}."
    assert line in " ".join(PAGE.read_text().split()), line


def test_operators_that_are_not_supported_are_named() -> None:
    _, _, text = PAGE.read_text().partition("## What is not supported\n")
    text = " ".join(text.split())
    for reason in {*REFUSED.values()}:
        names = ", ".join(name for name in sorted(REFUSED) if REFUSED[name] == reason)
        assert f"{names}: {reason}." in text, f"{names}: {reason}."
