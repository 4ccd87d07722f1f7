"""The utterances of `japanese_vowels.npz`, normalised and divided over a mesh.

`japanese_vowels.txt` says what they are and where they come from.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import pad

DATA = Path(__file__).with_name("japanese_vowels.npz")
SPEAKERS = 9
LONGEST = 29  # frames


class Utterances(NamedTuple):
    frames: Array  # float32 [utterance, frame, coefficient], zero behind the last frame
    lengths: Array  # int32 [utterance]
    speakers: Array  # int32 [utterance]


def layout(mesh: Mesh, *parts: str | None) -> Utterances:
    """How utterances are divided, by the parts of the dimensions before the frames."""
    specs = P(*parts, "time"), P(*parts), P(*parts)
    return Utterances(*(NamedSharding(mesh, spec) for spec in specs))


def load_utterances(mesh: Mesh) -> tuple[Utterances, Utterances]:
    """Returns training and test utterances, normalised by the training frames.

    The test is one batch. Of the training utterances every device may need any.
    """
    with np.load(DATA) as arrays:
        data = dict(arrays)
    mean = data["train_frames"].mean(axis=0)
    deviation = data["train_frames"].std(axis=0)

    def padded(part: str, axis: str | None) -> Utterances:
        lengths = data[f"{part}_lengths"].astype(np.int32)
        speakers = data[f"{part}_speakers"].astype(np.int32)
        frames = np.zeros((len(lengths), LONGEST, len(mean)), np.float32)
        valid = np.arange(LONGEST) < lengths[:, None]
        frames[valid] = (data[f"{part}_frames"] - mean) / deviation
        multiples = mesh.shape[axis] if axis else 1, mesh.shape["time"]
        arrays = [pad(array, *multiples) for array in (frames, lengths, speakers)]
        return jax.device_put(Utterances(*arrays), layout(mesh, axis))

    return padded("train", None), padded("test", "data")
