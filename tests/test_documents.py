"""Every example in the documents runs, and prints what it says."""

import doctest
import pathlib
import re

import pytest

from dml_jax import cli

ROOT = pathlib.Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs").glob("*.md"))


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.M | re.S)


@pytest.fixture(autouse=True)
def in_a_checkout(tmp_path, monkeypatch):
    """Sessions may write files, and read those of the documents."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_python(path):
    """A guide is one session: later blocks go on from earlier ones."""
    source = "\n".join(blocks(path, "pycon"))
    example = doctest.DocTestParser().get_doctest(source, {}, path.name, str(path), 0)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_commands(path, capsys):
    """Names of devices and times are those of another machine."""
    source = "\n".join(blocks(path, "pycon"))
    session = doctest.DocTestParser().get_doctest(source, {}, path.name, str(path), 0)
    doctest.DocTestRunner().run(session)  # which may write what the commands read
    capsys.readouterr()
    changing = re.compile(r"\d+\.\d{4} ms|(?<=Running on ')[^']*")
    for block in blocks(path, "console"):
        command, _, expected = block.partition("\n")
        assert cli.main(command.removeprefix("$ python -m dml_jax ").split()) == 0
        actual = capsys.readouterr().out
        assert changing.sub("…", actual) == changing.sub("…", expected)


def test_links_lead_to_files():
    for path in [ROOT / "README.md", *GUIDES]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), (path.name, target)
