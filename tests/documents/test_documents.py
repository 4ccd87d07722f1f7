"""Every example in the documents runs, and its output is compared."""

import doctest
import importlib.util
import json
import os
import pathlib
import re
import tomllib
from typing import Any

import jax
import pytest
from pages import DOCS, FENCE, ROOT, blocks, name, session, session_of

from dml_jax import cli

MODELS = os.environ.get("DML_JAX_MODELS", "")  # wheels with models
GUIDES = sorted({*DOCS.rglob("*.md")} - {*DOCS.glob("_build/**/*")})

WITHOUT_EXAMPLES = {
    "api.md",
    "changelog.md",
    "contributing.md",
    "design.md",
    "directml-reference.md",
    "index.md",
    "onnx-operators.md",
    "tpu.md",
    "xla.md",
}
RUN = {"pycon", "python", "console"}
WITH_FLAX = {  # which brings optax
    "from-flax.md",
    "from-onnx.md",
    "from-pytorch.md",
    "from-tensorflow.md",
    "performance.md",
    "scaling.md",
    "tutorial.md",
}
SHOWN = {
    "cpp",  # what Python replaces
    "py",  # what needs torch
    "json",  # a model of docs/examples
    "sh",  # what installs or takes long
    "text",  # equations, and commands on other machines
    "{eval-rst}",
    "{include} ../README.md",
    "{toctree}",
}
CHANGING = re.compile(r"\d+\.\d{4} ms|(?<=Running on ')[^']*")  # times and devices

# The documents show JAX's defaults.
pytestmark = pytest.mark.usefixtures("x32", "with_jit", "nans_are_data")


def marks(path: pathlib.Path) -> list[Any]:
    if path.name == "reverse_padded.md":
        return []
    is_missing = path.name in WITH_FLAX and not importlib.util.find_spec("flax")
    if path.name == "silero-vad.md":
        is_missing = not MODELS
    skip = pytest.mark.skipif(is_missing, reason="needs what .ci/run has")
    return [pytest.mark.exhaustive, skip]


over_guides = pytest.mark.parametrize(
    "path", [pytest.param(path, id=name(path), marks=marks(path)) for path in GUIDES]
)


@pytest.fixture(autouse=True)
def in_a_checkout(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions may write files, and read those of the documents."""
    (tmp_path / "docs").symlink_to(DOCS)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    if MODELS:
        (tmp_path / "models").symlink_to(MODELS)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "part",
    [
        "bidirectional_scan",
        pytest.param("", id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_examples_of_the_readme(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    programs = [p for p in blocks(ROOT / "README.md", "python") if part in p]
    assert programs
    run(session_of("\n".join(programs), "README.md"), capsys)


def run(example: doctest.DocTest, capsys: pytest.CaptureFixture[str]) -> None:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        results = doctest.DocTestRunner().run(example)
    assert results.failed == 0, capsys.readouterr().out
    capsys.readouterr()


def test_length_of_the_readme() -> None:
    text = FENCE.sub("", (ROOT / "README.md").read_text())
    assert len(text.split()) <= 600


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_blocks_have_a_known_language(path: pathlib.Path) -> None:
    text = path.read_text()
    for language, block in FENCE.findall(text):
        assert language in RUN | SHOWN
        assert language == "pycon" or ">>> " not in block
    rest = FENCE.sub("", text)  # other fences, and prompts outside any
    assert not re.search(r"^ *(```|~~~|>>> |\$ )", rest, re.M)


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_models_are_those_of_the_examples(path: pathlib.Path) -> None:
    files = [file.read_text() for file in (DOCS / "examples/dxdispatch").glob("*.json")]
    models = [json.loads(re.sub(r"^//.*$", "", text, flags=re.M)) for text in files]
    for block in blocks(path, "json"):
        assert json.loads(block) in models


@over_guides
def test_examples(path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those in Python, and then the commands, which may read what they have written."""
    example = session(path)
    assert bool(example.examples) == (name(path) not in WITHOUT_EXAMPLES)
    run(example, capsys)
    for block in blocks(path, "console"):
        command, _, expected = block.partition("\n")
        assert cli.main(command.removeprefix("$ python -m dml_jax ").split()) == 0
        actual = capsys.readouterr().out
        assert CHANGING.sub("…", actual) == CHANGING.sub("…", expected)


PICTURED = [ROOT / "README.md", DOCS / "tutorial.md"]


@pytest.mark.parametrize("path", PICTURED, ids=lambda path: path.name)
def test_figures_of_the_example_are_those_it_printed(path: pathlib.Path) -> None:
    printed = (ROOT / "benchmarks/results/speaker_recognition.txt").read_text()
    figure = r"\d+\.\d ?%|\d+ of \d+"
    known = {text.replace("%", " %") for text in re.findall(figure, printed)}
    before, picture, after = path.read_text().rpartition("speaker_recognition.png")
    alternative_text = before.rpartition("![")[2]
    shown = set(re.findall(figure, alternative_text + after))
    assert picture
    assert shown <= known
    (changed,) = re.findall(r"^jnp.flip .* (\d+ of \d+) utterances$", printed, re.M)
    assert changed in shown


def test_figures_of_the_first_table_of_performance_are_in_the_others() -> None:
    first, _, rest = (DOCS / "performance.md").read_text().partition("\n## ")
    tables = re.findall("<!-- figures: .*?<!-- end of figures -->", rest, re.DOTALL)
    known, shown = (re.findall(r"\d+\.\d+", text) for text in ("".join(tables), first))
    assert shown
    assert {*map(float, shown)} <= {*map(float, known)}


def test_links_lead_to_files() -> None:
    for path in [ROOT / "README.md", *GUIDES]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), (path.name, target)


def test_oldest_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = ["Python" + project["requires-python"], *project["dependencies"]]
    oldest = dict(text.lower().split(">=") for text in texts)
    page = " ".join((DOCS / "install.md").read_text().split())
    sentence = (
        "Python {python}, jax {jax}, jaxlib {jaxlib}, ml_dtypes {ml_dtypes} "
        "and NumPy {numpy}, or newer"
    )
    assert sentence.format(**oldest) in page
    readme = (ROOT / "README.md").read_text()
    assert f"Python {oldest['python']} or newer" in readme
