"""DxDispatch models of any bytes, values and names: status 0, or one line."""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from dispatches import MODEL, REMOVED, TEXT, changed, run_model
from hypothesis import strategies as st

pytestmark = pytest.mark.exhaustive

PIECES = b'" , {} ] 1e9 null // /* \\ \xff 999'.split()
EDIT = st.tuples(
    st.integers(0, len(TEXT)),
    st.integers(0, 3),
    st.binary(max_size=3) | st.sampled_from(PIECES),
)
SCALARS = st.sampled_from(
    [2**31, 2**32 - 1, 2**63, 2**64 - 1, "", "A", "nan", "INT8", "../x.bin", "in.bin"]
)
SCALARS |= st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=5
)


def places(value: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*prefix, str(key))
        if isinstance(item, (dict, list)):
            yield from places(item, (*prefix, str(key)))


PLACES = st.sampled_from(list(places(MODEL)))


def require_line(model: Any) -> None:
    """Status 0, or one line and nothing written; and no file outside the folder."""
    with tempfile.TemporaryDirectory() as parent:
        os.mkdir(f"{parent}/inside")
        with contextlib.chdir(f"{parent}/inside"):
            pathlib.Path("in.bin").write_bytes(b"abc")
            status, _, err = run_model(model)
            assert os.listdir("..") == ["inside"]
    if status:
        assert (status, len(err.splitlines()), err[-1:]) == (2, 1, "\n")
        assert err.startswith("dml_jax: model.json: ")
    else:
        assert err == ""


@hypothesis.given(st.lists(EDIT, min_size=1))
def test_any_bytes(edits: list[tuple[int, int, bytes]]):
    text = TEXT.encode()
    for start, length, piece in edits:
        text = text[:start] + piece + text[start + length :]
    require_line(text)


@hypothesis.given(PLACES, st.just(REMOVED) | VALUES)
def test_any_values(place: tuple[str, ...], value: Any):
    require_line(changed(".".join(place), value))


@hypothesis.given(PLACES, st.text())
def test_any_names(place: tuple[str, ...], name: str):
    text = json.dumps(MODEL).replace(f'"{place[-1]}"', json.dumps(name))
    require_line(text.encode())
