"""Breaks the package in one place after another, and says which test finds it.

    python tests/mutants.py --seed 1 --table mutants.txt

Each mutant is a copy of the package with one expression changed. The default tests run
until one fails. They have to pass without the change.
"""

import argparse
import ast
import itertools
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
# How many mutants of each folder.
FOLDERS = {"_reverse": 12, "_slice": 10, "_fill": 12, "_shared": 12}
FOLDERS |= {"directml": 6, "onnx_backend": 5, "cli": 4}
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!="}
COMPARISONS |= {ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in"}
COMPARISONS |= {ast.Is: "is not", ast.IsNot: "is"}
OTHERS = {"uint32": "int32", "int32": "int16", "float32": "float16", "int64": "int32"}
AXES = {"batch_axis": "time_axis", "time_axis": "batch_axis", "axis": "axis - 1"}

Mutation = tuple[str, ast.expr, str]  # the kind, what is replaced, by what


def mutations(tree: ast.Module) -> Iterator[Mutation]:
    """The ways to break a module, each with the text of the new expression."""
    for node in ast.walk(tree):
        text = ast.unparse
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                changed = f"({text(left)} {COMPARISONS[type(op)]} {text(right)})"
                yield "comparison", node, changed
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                sign = "-" if isinstance(op, ast.Add) else "+"
                yield "sign", node, f"({text(left)} {sign} {text(right)})"
                if isinstance(right, ast.Constant) and isinstance(right.value, int):
                    yield "bound", right, str(right.value + 1)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                yield "sign", node, text(operand)
            case ast.Attribute(value=ast.Name() as module, attr=name) if name in OTHERS:
                yield "dtype", node, f"{text(module)}.{OTHERS[name]}"
            case ast.keyword(arg=name, value=value) if name in AXES:
                yield "axis", value, f"({text(value)} - 1)"
            case ast.Subscript(slice=ast.Name(id=name) as index) if name in AXES:
                yield "axis", index, AXES[name]
            case ast.If(test=test) | ast.IfExp(test=test):
                yield "condition", test, f"(not ({text(test)}))"
            case ast.Call(func=function, args=[first, *others]):
                name = text(function).rpartition(".")[2]
                if name in ("clip", "clamp"):
                    value = others[0] if name == "clamp" else first
                    yield "clamp", node, text(value)
                elif name in ("minimum", "maximum", "min", "max") and others:
                    yield "clamp", node, text(first)
                elif name == "optimization_barrier":
                    yield "barrier", node, text(first)
            case ast.Raise(exc=ast.Call(args=[message, *_])):
                yield from changed_text(message)


def changed_text(message: ast.expr) -> Iterator[Mutation]:
    """The message of an error without its words, but with its values."""
    if isinstance(message, ast.JoinedStr):
        values = [v for v in message.values if isinstance(v, ast.FormattedValue)]
        yield "message", message, ast.unparse(ast.JoinedStr(values))
    elif isinstance(message, ast.Constant) and isinstance(message.value, str):
        yield "message", message, "'it is wrong'"


def choose(folder: str, count: int, seed: int) -> list[tuple[pathlib.Path, Mutation]]:
    """As many places of each kind as there are, in turn."""
    kinds = defaultdict(list)
    for path in sorted((ROOT / "dml_jax" / folder).rglob("*.py")):
        for mutation in mutations(ast.parse(path.read_text())):
            kinds[mutation[0]].append((path.relative_to(ROOT), mutation))
    for kind, places in kinds.items():
        random.Random(f"{seed} {folder} {kind}").shuffle(places)
    chosen = []
    while len(chosen) < count and any(kinds.values()):
        chosen += [places.pop() for places in kinds.values() if places]
    return chosen[:count]


def replaced(source: str, node: ast.expr, changed: str) -> str:
    """The source with another expression at the place of `node`."""
    text = source.encode()
    lines = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    start = lines[node.lineno - 1] + node.col_offset
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    end = lines[node.end_lineno - 1] + node.end_col_offset
    return (text[:start] + changed.encode() + text[end:]).decode()


def first_failure(copy: pathlib.Path, limit: int) -> str:
    """The first test that fails in this copy; "survived" if none does."""
    options = "-x", "-q", "-n2", "-p", "no:cacheprovider"
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        # Most mutants share most of their compiled programs.
        "JAX_COMPILATION_CACHE_DIR": f"{copy}/cache",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        # Tests read the names in compiled programs.
        "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "1",
    }
    try:
        child = subprocess.run(
            [sys.executable, "-m", "pytest", *options],
            **dict(cwd=copy, env=environment, timeout=limit),
            **dict(capture_output=True, text=True),
        )
    except subprocess.TimeoutExpired:
        return f"undecided after {limit} s"
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", child.stdout, re.MULTILINE)
    names = failed or [f"exit status {child.returncode}"]
    return names[0] if child.returncode else "survived"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=900, help="seconds for a mutant")
    parser.add_argument("--table", type=pathlib.Path, required=True)
    parser.add_argument("--before", type=pathlib.Path, help="try what this table found")
    arguments = parser.parse_args()
    before = arguments.before.read_text() if arguments.before else ""
    with tempfile.TemporaryDirectory() as folder, arguments.table.open("w") as table:
        copy = pathlib.Path(folder, "copy")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git"))
        found = first_failure(copy, arguments.limit)
        print("no change", found, sep=" | ", file=table, flush=True)
        for name, count in FOLDERS.items():
            for path, (kind, node, changed) in choose(name, count, arguments.seed):
                row = (
                    f"{path}:{node.lineno} | {kind} | {ast.unparse(node)} -> {changed}"
                )
                if f"{row} | survived" in before:
                    continue
                source = (ROOT / path).read_text()
                (copy / path).write_text(replaced(source, node, changed))
                found = first_failure(copy, arguments.limit)
                (copy / path).write_text(source)
                print(row, found, sep=" | ", file=table, flush=True)


if __name__ == "__main__":
    main()
