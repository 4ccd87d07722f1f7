"""The example of speaker recognition: its progress, and what it compares."""

import importlib.util
import pathlib
import shutil

import jax
import numpy as np
import pytest
from examples import EXAMPLES, run_example

EXAMPLE = EXAMPLES / "speaker_recognition.py"

pytestmark = pytest.mark.exhaustive


def test_a_log_file_has_a_line_for_each_variant(tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLE, tmp_path)  # which needs no other file
    options = "--quick", "--seeds=1", "--epochs=1"
    child = run_example(tmp_path / EXAMPLE.name, *options, folder=tmp_path)
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

    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
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
