"""Recurrent ONNX models, against ONNX Runtime on the same machine's CPU.

The models have the operators of torch's exports: two bidirectional layers over frames,
with lengths or without, and an acoustic model. ONNX Runtime is the baseline. It
uses the CPU, also where JAX uses a GPU.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks import measure
from benchmarks.candidates import compiled
from benchmarks.measure import Candidate, Settings
from benchmarks.workloads import Device

Record = dict[str, Any]

TIME, BATCH, FEATURES, STATE = 200, 16, 64, 128
QUICK_TIME, QUICK_STATE = 20, 16
OPSET, IR_VERSION = 20, 9
GATES = {"GRU": 3, "LSTM": 4}
TOLERANCE = 1e-4  # of results, whose sums are in another order

_CONCATENATED = """
  t{i} = Transpose<perm = [0, 2, 1, 3]>(y{i})
  x{j} = Reshape(t{i}, flat)
"""
_ACOUSTIC = """
  c = Conv<kernel_shape = [3], pads = [1, 1], strides = [2]>(frames, kernel, shift)
  r = Relu(c)
  x0 = Transpose<perm = [2, 0, 1]>(r)
"""
_SYMBOLS = """
  m = MatMul(x1, letters)
  result = LogSoftmax<axis = -1>(m)
"""


def records(device: Device, quick: bool) -> Iterator[Record]:
    """Measures every model, after a comparison of the results."""
    settings = measure.QUICK if quick else measure.SETTINGS[device]
    jax.config.update("jax_enable_compilation_cache", False)
    device_of_run = jax.default_device(jax.devices(device)[0])
    # By default a GPU multiplies float32 matrices in TF32, ONNX Runtime in float32.
    with device_of_run, jax.default_matmul_precision("float32"):
        for kind in GATES:
            for has_lengths in (False, True):
                yield _record(kind, "lengths" if has_lengths else "", quick, settings)
        yield _record("LSTM", "acoustic", quick, settings)


def _record(kind: str, variant: str, quick: bool, settings: Settings) -> Record:
    name = f"onnx/{kind.lower()}{variant and f'-{variant}'}"
    print(name, file=sys.stderr)
    model, feeds = _model(kind, variant, quick)
    ours, theirs = _dml_jax(model, feeds), _onnxruntime(model, feeds)
    results = [candidate.host(candidate.call()) for candidate in (ours, theirs)]
    if not np.allclose(*results, rtol=TOLERANCE, atol=TOLERANCE):
        raise ValueError(f"{name}: dml_jax differs from ONNX Runtime")
    samples = measure.samples([theirs, ours], settings)
    return dict(
        name=name,
        group="onnx",
        baseline="onnxruntime",
        dtype="float32",
        shape=list(feeds["frames"].shape),
        bytes_read=sum(array.nbytes for array in feeds.values()),
        bytes_written=results[0].nbytes,
        largest_difference=float(np.max(np.abs(results[0] - results[1]))),
        candidates=measure.summaries(samples, "onnxruntime"),
    )


def _dml_jax(model: Any, feeds: dict[str, np.ndarray]) -> Candidate:
    from dml_jax import onnx_backend  # which needs onnx, and nothing else does

    function = onnx_backend.prepare(model).jax_fn
    arrays = tuple(map(jax.numpy.asarray, feeds.values()))
    return compiled("dml_jax", lambda *inputs: function(*inputs)[0], arrays)


def _onnxruntime(model: Any, feeds: dict[str, np.ndarray]) -> Candidate:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    runtime = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    run = functools.partial(runtime.run, None, feeds)
    return Candidate("onnxruntime", run, host=lambda results: results[0])


# Models -------------------------------------------------------------------------------


def _model(kind: str, variant: str, quick: bool) -> tuple[Any, dict[str, np.ndarray]]:
    """A model with random weights, and its inputs."""
    onnx: Any = importlib.import_module("onnx")
    parser: Any = importlib.import_module("onnx.parser")
    random = np.random.default_rng(0)
    steps, state = (QUICK_TIME, QUICK_STATE) if quick else (TIME, STATE)

    def uniform(*shape: int) -> np.ndarray:
        return random.uniform(-1, 1, shape).astype(np.float32) / np.sqrt(
            state, dtype="f"
        )

    is_acoustic = variant == "acoustic"
    shape = (BATCH, FEATURES, steps) if is_acoustic else (steps, BATCH, FEATURES)
    feeds = {"frames": random.standard_normal(shape, np.float32)}
    signature = f"float[{', '.join(map(str, shape))}] frames"
    if variant == "lengths":
        feeds["lengths"] = random.integers(1, steps + 1, BATCH, np.int32)
        signature += f", int32[{BATCH}] lengths"
    weights = {"flat": np.array([0, 0, -1])}
    body, layers = ("", 2) if not is_acoustic else (_ACOUSTIC, 1)
    width = FEATURES
    for i in range(layers):
        gates = GATES[kind] * state
        weights |= {
            f"w{i}": uniform(2, gates, width),
            f"r{i}": uniform(2, gates, state),
            f"b{i}": uniform(2, 2 * gates),
        }
        source = f"x{i}" if i or is_acoustic else "frames"
        options = f'direction = "bidirectional", hidden_size = {state}'
        options += ", linear_before_reset = 1" * (kind == "GRU")
        lengths = ", lengths" * (variant == "lengths")
        body += f"  y{i} = {kind}<{options}>({source}, w{i}, r{i}, b{i}{lengths})"
        body += _CONCATENATED.format(i=i, j=i + 1)
        width = 2 * state
    if is_acoustic:
        weights |= {
            "kernel": uniform(FEATURES, FEATURES, 3),
            "shift": uniform(FEATURES),
            "letters": uniform(width, 32),
        }
    body += _SYMBOLS if is_acoustic else f"  result = Identity(x{layers})\n"
    head = f'<ir_version: {IR_VERSION}, opset_import: ["": {OPSET}]>'
    text = f"{head} g ({signature}) => (float[p, q, r] result) {{\n{body}}}"
    model = parser.parse_model(text)
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model, feeds
