import pathlib

import pytest


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
