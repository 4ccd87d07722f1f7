"""The examples that train networks, each in a process of its own."""

import importlib.util
import os
import pathlib
import re
import shutil
import zipfile

import jax
import numpy as np
import onnx
import pytest
from examples import EXAMPLES, run_example

from dml_jax import onnx_backend

SPEAKERS = EXAMPLES / "speaker_recognition.py"
MODELS = os.environ.get("DML_JAX_MODELS", "")

pytestmark = pytest.mark.exhaustive


def test_fine_tuning(tmp_path: pathlib.Path) -> None:
    child = run_example(EXAMPLES / "fine_tuning.py", folder=tmp_path)
    assert child.stderr == "Training 4 networks, 40 epochs\n"
    rows = re.findall(r"(\d+\.\d\d) +(\d+\.\d\d) +(\d\.\de-\d\d)$", child.stdout, re.M)
    assert len(rows) == 5
    before, *after = [float(ours) for ours, _, _ in rows]
    assert before == 69.19  # what torch has learned is in the file
    assert min(after) > 90
    assert all(ours == theirs for ours, theirs, _ in rows)
    assert all(float(difference) < 1e-4 for *_, difference in rows)
    saved = onnx.load(tmp_path / "fine_tuned.onnx")
    assert saved.graph.node == onnx.load(EXAMPLES / "recogniser.onnx").graph.node
    assert onnx_backend.is_compatible(saved)


@pytest.mark.skipif(not MODELS, reason="needs DML_JAX_MODELS, as .ci/run sets it")
def test_fine_tuning_of_silero_vad(tmp_path: pathlib.Path) -> None:
    child = run_example(EXAMPLES / "voice_activity.py", MODELS, folder=tmp_path)
    before, after = re.findall(r"(\d+\.\d) %", child.stdout)
    page = (EXAMPLES.parent / "silero-vad.md").read_text()
    assert f"{before} % of the frames" in page
    assert float(after) > 95
    (difference,) = re.findall(r"differs by at most (.*)", child.stdout)
    assert float(difference) < 1e-4
    assert (tmp_path / "voice_activity.png").stat().st_size > 10_000
    tuned = onnx.load(tmp_path / "voice_activity.onnx")
    onnx.checker.check_model(tuned)
    with zipfile.ZipFile(f"{MODELS}/silero_vad-6.2.3-py3-none-any.whl") as wheel:
        published = wheel.read("silero_vad/data/silero_vad.onnx")
    before, after = (onnx_backend.prepare(m).params for m in (published, tuned))
    changed = {name for name in before if np.any(before[name] != after[name])}
    assert changed
    assert not any("stft" in name for name in changed)


def test_a_log_file_has_a_line_for_each_variant(tmp_path: pathlib.Path) -> None:
    shutil.copy(SPEAKERS, tmp_path)  # which needs no other file
    options = "--quick", "--seeds=1", "--epochs=1"
    child = run_example(tmp_path / SPEAKERS.name, *options, folder=tmp_path)
    assert child.stderr.splitlines() == [
        "Training variant 1 of 4: forward only",
        "Training variant 2 of 4: jnp.flip",
        "Training variant 3 of 4: flip_sequences",
        "Training variant 4 of 4: reverse_padded",
    ]
    assert child.stdout.endswith("Drawn in speaker_recognition.png\n")


@pytest.mark.skipif(
    not importlib.util.find_spec("flax"), reason="needs the extra flax, as .ci/run has"
)
def test_flip_sequences_is_that_of_flax() -> None:
    from flax.nnx.nn import recurrent

    spec = importlib.util.spec_from_file_location(SPEAKERS.stem, SPEAKERS)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    frames = np.arange(30, dtype=np.float32).reshape(3, 5, 2)
    lengths = np.array([3, 5, 1], np.int32)
    on_a_mesh = np.concatenate([frames, frames[:, :3]], axis=1)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = recurrent.flip_sequences(frames, lengths, 1, False)
        actual = example.flip_sequences(frames, lengths, 5)
        longer = np.asarray(example.flip_sequences(on_a_mesh, lengths, 5))
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(longer[:, :5], expected)
    np.testing.assert_array_equal(longer[:, 5:], frames[:, :3])
