"""Random changes of bytes, and of trees such as JSON has."""

import copy
import json

from arguments import choice, pick
from hypothesis import strategies as st

NUMBERS = [0, -1, 1, 2, 3, 8, 2**31, 2**32, 2**63, 2**64, 10**400, 0.5, 1e308, 2.0]
TEXTS = ["", "nan", "INT8", "FLOAT64", "UNKNOWN", "deferred", "..", "/etc/passwd", "é"]
TEXTS += [
    "../outside.bin",
    "../outside.npy",
    "in.bin",
    "in.npy",
    "link.bin",
    "\0",
    "x.jpg",
]
LEAVES = [*NUMBERS, *TEXTS, None, True, False, [], {}, [[]], [1, [2]], {"a": {}}]


def places(tree, path=()):
    """All places in a tree but its root."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in pairs:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


@st.composite
def changed_trees(draw, tree, most):
    """A tree after up to `most` changes."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(0, most))):
        every = list(places(tree))
        if not every:
            break
        path = pick(draw, every)
        parent, key = at(tree, path[:-1]), path[-1]
        kind = pick(draw, ["near", "leaf", "copy", "swap", "drop", "name", "more"])
        value, other = parent[key], pick(draw, every)
        if kind == "near" and type(value) is int:
            parent[key] = pick(draw, [value + 1, value - 1, value * 2, -value])
        elif kind in ("near", "leaf"):
            parent[key] = copy.deepcopy(pick(draw, LEAVES))
        elif kind == "copy":
            parent[key] = copy.deepcopy(at(tree, other))
        elif kind == "swap" and other[: len(path)] != path != path[: len(other)]:
            if path[: len(other)] != other:
                there = at(tree, other[:-1])
                parent[key], there[other[-1]] = there[other[-1]], value
        elif kind == "drop" or isinstance(parent, list):
            del parent[key]
            if kind == "more":
                parent += [copy.deepcopy(value)] * 2
        else:
            parent[str(pick(draw, [*map(str, other), *TEXTS]))] = copy.deepcopy(value)
    return tree


PIECES = [
    b'"',
    b",",
    b"{}",
    b"]",
    b"[" * 3000,
    b"1e9",
    b"null",
    b"//",
    b"/*",
    b"\\u0000",
]
PIECES += [
    b"\xff",
    b"9" * 500,
    b"\0",
    b"-",
    b"NaN",
    b"\xef\xbb\xbf",
    b"1e999",
    b'{"a":',
]


@st.composite
def changed_bytes(draw, data, pieces=PIECES, most=3):
    """Bytes after up to `most` changes: pieces put in, taken out, or moved."""
    for _ in range(draw(st.integers(1, most))):
        start, source = (draw(st.integers(0, len(data))) for _ in range(2))
        length = draw(st.integers(0, 20))
        piece = draw(st.binary(max_size=3) | choice(pieces) | st.none())
        if piece is None:
            piece = data[source : source + draw(st.integers(0, 40))]
        data = data[:start] + piece + data[start + length * draw(st.integers(0, 1)) :]
    return data


def as_json(tree):
    return json.dumps(tree).encode()
