"""Every example in the documents runs, and prints what it says."""

import doctest
import pathlib
import re

import pytest

from dml_jax import cli

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = sorted({*DOCS.rglob("*.md")} - {*DOCS.glob("_build/**/*")})

WITHOUT_EXAMPLES = {"api.md", "changelog.md", "contributing.md", "design.md", "xla.md"}
RUN = {"pycon", "console"}
SHOWN = {
    "cpp",  # what Python replaces
    "sh",  # what installs or takes long
    "text",  # equations, and commands on other machines
    "{eval-rst}",
    "{toctree}",
}
# The documents tell what JAX does by default.
pytestmark = pytest.mark.usefixtures("x32", "with_jit", "nans_are_data")
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)


def name(path):
    return path.relative_to(DOCS).as_posix()


def blocks(path, language):
    return [text for kind, text in FENCE.findall(path.read_text()) if kind == language]


def session(path):
    """A guide is one session: later blocks go on from earlier ones."""
    source = "\n".join(blocks(path, "pycon"))
    return doctest.DocTestParser().get_doctest(source, {}, name(path), str(path), 0)


@pytest.fixture(autouse=True)
def in_a_checkout(tmp_path, monkeypatch):
    """Sessions may write files, and read those of the documents."""
    (tmp_path / "docs").symlink_to(DOCS)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_blocks_run_or_are_of_a_language_that_does_not(path):
    text = path.read_text()
    for language, block in FENCE.findall(text):
        assert language in RUN | SHOWN
        assert language in RUN or ">>> " not in block
    rest = FENCE.sub("", text)  # other fences, and prompts outside of any
    assert not re.search(r"^ *(```|~~~|>>> |\$ )", rest, re.M)


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_python(path):
    example = session(path)
    assert bool(example.examples) == (name(path) not in WITHOUT_EXAMPLES)
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_commands(path, capsys):
    """Names of devices and times are those of another machine."""
    commands = blocks(path, "console")
    if commands:
        doctest.DocTestRunner().run(session(path))  # may write what the commands read
    capsys.readouterr()
    changing = re.compile(r"\d+\.\d{4} ms|(?<=Running on ')[^']*")
    for block in commands:
        command, _, expected = block.partition("\n")
        assert cli.main(command.removeprefix("$ python -m dml_jax ").split()) == 0
        actual = capsys.readouterr().out
        assert changing.sub("…", actual) == changing.sub("…", expected)


def test_links_lead_to_files():
    for path in [ROOT / "README.md", *GUIDES]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), (path.name, target)
