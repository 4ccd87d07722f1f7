"""The pages of the documents, and the sessions that their examples are."""

import ast
import doctest
import pathlib
import re
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)


def name(path: pathlib.Path) -> str:
    return path.relative_to(DOCS).as_posix()


def blocks(path: pathlib.Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(path.read_text()) if kind == language]


def is_part_of_an_example(block: str) -> bool:
    """Such a block is shown, and the example may need what is not installed."""
    return any(block in file.read_text() for file in (DOCS / "examples").glob("*.py"))


def session(path: pathlib.Path) -> doctest.DocTest:
    """A page is one session: later blocks use the names of earlier ones."""
    parts = []
    for kind, text in FENCE.findall(path.read_text()):
        if kind == "pycon":
            parts.append(text)
        elif kind == "python" and not is_part_of_an_example(text):
            parts.extend(statements(text))
    return doctest_of("\n".join(parts), name(path))


def session_of(program: str, title: str) -> doctest.DocTest:
    return doctest_of("\n".join(statements(program)), title)


def doctest_of(source: str, title: str) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(source, {}, title, title, 0)


def statements(program: str) -> Iterator[str]:
    """A program as a session: comments in lines after a statement are its output."""
    lines = program.splitlines()
    nodes = ast.parse(program).body
    ends = [*(first_line(node) for node in nodes[1:]), len(lines) + 1]
    for node, end in zip(nodes, ends, strict=True):
        last = node.end_lineno or 0
        code = lines[first_line(node) - 1 : last]
        printed = [line[2:] for line in lines[last : end - 1] if line[:2] == "# "]
        yield "\n".join([">>> " + code[0], *(f"... {x}" for x in code[1:]), *printed])
        yield "\n"


def first_line(node: Any) -> int:
    decorators = getattr(node, "decorator_list", [])
    return (decorators or [node])[0].lineno


def names_of(path: pathlib.Path, until: str | None = None) -> dict[str, Any]:
    """What a page has defined, up to the example that contains some text."""
    found: dict[str, Any] = {}
    for example in session(path).examples:
        source = re.sub(r'"(docs|tests)/', rf'"{ROOT}/\1/', example.source)
        exec(source, found)
        if until and until in example.source:
            break
    return found
