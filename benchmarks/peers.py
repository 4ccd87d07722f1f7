"""Other libraries on the same arrays.

A peer is a function of a workload and its arrays that returns a candidate, or None if
the library lacks the operation. Indices, models and output buffers are prepared outside
the timed call. Libraries are imported by name, since none of them has to be installed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import measure, programs
from benchmarks.measure import Candidate
from benchmarks.programs import Arrays
from benchmarks.workloads import Device, Workload


def peers(workload: Workload, arrays: Arrays, device: Device) -> Iterator[Candidate]:
    """The installed peers that have the workload, after a first call of each.

    One that fails is named on the standard error, and costs its column alone.
    """
    for name, (peer, groups, devices) in PEERS.items():
        if workload.group not in groups or device not in devices:
            continue
        if importlib.util.find_spec(name):
            try:
                if candidate := peer(workload, arrays):
                    candidate.wait(candidate.call())
                    yield candidate
            except Exception as error:
                reason = str(error).partition("\n")[0]
                print(f"{workload.name}: without {name}: {reason}", file=sys.stderr)


# ONNX Runtime -------------------------------------------------------------------------

_ONNX_TYPES = dict(float32="float", uint8="uint8", int64="int64")


def _onnxruntime(workload: Workload, arrays: Arrays) -> Candidate | None:
    """With I/O binding, so that nothing is allocated."""
    if workload.dtype.name not in _ONNX_TYPES:
        return None
    attributes, shape = "", workload.shape
    feeds = dict(x=np.asarray(arrays[0]))
    if workload.operator == "reverse_sequence":
        axes = [f"{name} = {axis}" for name, axis in workload.options.items()]
        kind, attributes = "ReverseSequence", f"<{', '.join(axes)}>"
        feeds["lengths"] = np.asarray(arrays[1], np.int64)
    elif workload.operator == "slice1":
        kind, ranges = "Slice", programs.window(workload)
        shape = tuple(map(len, ranges))
        feeds["starts"] = np.array([r.start for r in ranges])
        feeds["ends"] = np.array([r.stop if r.stop >= 0 else -(2**62) for r in ranges])
        feeds["axes"] = np.arange(len(ranges))
        feeds["steps"] = np.array([r.step for r in ranges])
    else:
        return None
    target = np.zeros(shape, workload.dtype)
    *inputs, output = (
        f"{_ONNX_TYPES[array.dtype.name]}[{', '.join(map(str, array.shape))}] {name}"
        for name, array in (*feeds.items(), ("y", target))
    )
    parser: Any = importlib.import_module("onnx.parser")
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 13]>
        g ({", ".join(inputs)}) => ({output}) {{
          y = {kind} {attributes} ({", ".join(feeds)})
        }}
    """)
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    as_value = onnxruntime.OrtValue.ortvalue_from_numpy
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, as_value(value))
    binding.bind_ortvalue_output("y", as_value(target))

    def call(_: Any = feeds) -> np.ndarray:  # the binding does not own the arrays
        session.run_with_iobinding(binding)
        return target

    return Candidate("onnxruntime", call)


# PyTorch ------------------------------------------------------------------------------


def _torch(workload: Workload, arrays: Arrays) -> Candidate | None:
    torch: Any = importlib.import_module("torch")
    on_gpu = next(iter(arrays[0].devices())).platform == "gpu"
    if on_gpu and not torch.cuda.is_available():
        return None
    x = torch.from_dlpack(arrays[0])
    if workload.is_reversal:
        n = programs.of_lines(workload, torch.from_dlpack(arrays[1])).long()
        steps = torch.arange(x.shape[workload.axis], device=x.device)
        t = steps.reshape([-1 if d == workload.axis else 1 for d in range(x.ndim)])
        source = torch.where(t < n, n - 1 - t, t).expand(x.shape)
        call = functools.partial(torch.gather, x, workload.axis, source)
    elif workload.operator == "slice1":
        ranges = programs.window(workload)
        if any(r.step < 0 for r in ranges):
            return None
        indices = tuple(slice(r.start, r.stop, r.step) for r in ranges)
        call = lambda: x[indices].contiguous()  # noqa: E731
    elif workload.operator == "fill_value_constant":
        options = dict(dtype=x.dtype, device=x.device)
        call = functools.partial(torch.full, workload.shape, x.item(), **options)
    else:
        return None

    def wait(_: Any) -> None:
        if on_gpu:
            torch.cuda.synchronize()

    return Candidate("torch", call, wait)


# Flax ---------------------------------------------------------------------------------


def _flax(workload: Workload, arrays: Arrays) -> Candidate | None:
    """Flax' `flip_sequences`, which treats the padding differently.

    With T steps, y[t] = x[(T - 1 - t + n) % T]: the padding stays at the end and is
    reversed too, where ONNX and DirectML copy it.
    """
    shape, dtype = workload.shape, workload.dtype.name
    if workload.operator != "reverse_sequence" or (len(shape), dtype) != (3, "float32"):
        return None
    recurrent: Any = importlib.import_module("flax.nnx.nn.recurrent")
    flip = functools.partial(
        recurrent.flip_sequences, num_batch_dims=1, time_major=workload.axis == 0
    )
    return measure.compiled(dict(flax=flip), arrays)[0]


FORWARD = ("reverse", "slice", "fill")
PEERS = {
    "onnxruntime": (_onnxruntime, FORWARD, ("cpu",)),
    "torch": (_torch, FORWARD, ("cpu", "gpu")),
    "flax": (_flax, ("reverse",), ("cpu", "gpu")),
}
