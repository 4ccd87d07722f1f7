import json
import pathlib
import re
from typing import Any

import pytest
from dispatches import Dispatch

from dml_jax import cli


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def dispatch(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> Dispatch:
    """Runs a model, as a path, a text or an object, and returns its lines.

    Times are T, and the first line, which names the device, is missing.
    """

    def run(model: Any, *options: str) -> list[str]:
        path = model
        if not isinstance(model, pathlib.Path):
            path = tmp_path / "model.json"
            path.write_text(model if isinstance(model, str) else json.dumps(model))
        status = cli.main(["dispatch", str(path), *options])
        output = capsys.readouterr()
        assert (status, output.err) == (0, "")
        first, *lines = output.out.splitlines()
        assert re.fullmatch("Running on '.*'", first)
        return [re.sub(r"\d+\.\d{4} ms", "T ms", line) for line in lines]

    return run
