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


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_python(path, monkeypatch):
    """A guide is one session: later blocks go on from earlier ones."""
    monkeypatch.chdir(ROOT)
    source = "\n".join(blocks(path, "pycon"))
    example = doctest.DocTestParser().get_doctest(source, {}, path.name, str(path), 0)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize(
    "session",
    [block for path in GUIDES for block in blocks(path, "console")],
    ids=lambda block: block.partition("\n")[0],
)
def test_command(session, monkeypatch, capsys):
    """Names of devices and times are those of another machine."""
    monkeypatch.chdir(ROOT)
    command, _, expected = session.partition("\n")
    arguments = command.removeprefix("$ python -m dml_jax ").split()
    assert cli.main(arguments) == 0
    changing = re.compile(r"\d+\.\d{4} ms|(?<=Running on ')[^']*")
    actual = capsys.readouterr().out
    assert changing.sub("…", actual) == changing.sub("…", expected)


def test_links_lead_to_files():
    for path in [ROOT / "README.md", *GUIDES]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), (path.name, target)
