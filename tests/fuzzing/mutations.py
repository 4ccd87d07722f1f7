"""Random changes of bytes, and of trees such as JSON has."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

LEAVES = [
    *[0, -1, 1, 2, 3, 8, 2**31, 2**32, 2**63, 2**64, 0.5, 1e308, 2.0],
    *[
        "",
        "nan",
        "INT8",
        "FLOAT64",
        "UNKNOWN",
        "deferred",
        "..",
        "/etc/passwd",
        "é",
        "x.jpg",
    ],
    *["../outside.bin", "../outside.npy", "in.bin", "in.npy", "link.bin"],
    *[None, True, False, [], {}, [[]], [1, [2]], {"a": {}}],
]


def paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a tree but its root."""
    if isinstance(tree, (dict, list)):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in pairs:
            yield (*path, key)
            yield from paths(value, (*path, key))


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


@st.composite
def changed_trees(draw: Any, tree: Any, most: int = 2) -> Any:
    """A tree in which up to `most` parts are replaced, renamed or dropped."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(0, most))):
        every = list(paths(tree))
        *above, key = draw(st.sampled_from(every))
        parent = at(tree, tuple(above))
        part = copy.deepcopy(at(tree, draw(st.sampled_from(every))))
        kind = draw(st.sampled_from(["leaf", "leaf", "near", "part", "name", "drop"]))
        if kind == "near" and type(parent[key]) is int:
            parent[key] += draw(st.sampled_from([1, -1, parent[key]]))
        elif kind in ("leaf", "near"):
            parent[key] = draw(st.sampled_from(LEAVES))
        elif kind == "part":
            parent[key] = part
        elif kind == "name" and isinstance(parent, dict):
            parent[draw(st.sampled_from(["a", *map(str, every[0])]))] = part
        else:
            del parent[key]
    return tree


@st.composite
def changed_bytes(draw: Any, data: bytes, pieces: list[bytes], most: int = 3) -> bytes:
    """Bytes after up to `most` changes: pieces put in, taken out, or copied."""
    for _ in range(draw(st.integers(1, most))):
        start, source = (draw(st.integers(0, len(data))) for _ in range(2))
        copied = st.just(data[source : source + draw(st.integers(0, 40))])
        piece = draw(st.binary(max_size=3) | st.sampled_from(pieces) | copied)
        end = start + draw(st.just(0) | st.integers(0, 20))
        data = data[:start] + piece + data[end:]
    return data
