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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import programs
from benchmarks.candidates import compiled
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


def _onnxruntime(workload: Workload, arrays: Arrays) -> Candidate | None:
    """With I/O binding, so that nothing is allocated."""
    if not importlib.util.find_spec("onnx") or workload.dtype.name == "bfloat16":
        return None
    onnxruntime: Any = importlib.import_module("onnxruntime")
    attributes: dict[str, Any] = {}
    if workload.operator == "reverse_sequence":
        kind, attributes = "ReverseSequence", dict(workload.options)
        constants = dict(lengths=np.asarray(arrays[1], np.int64))
    elif workload.operator in ("slice", "slice1"):
        kind, ranges = "Slice", programs.window(workload)
        constants = dict(
            starts=np.array([r.start for r in ranges], np.int64),
            ends=np.array([r.stop if r.stop >= 0 else -(2**62) for r in ranges]),
            axes=np.arange(len(ranges)),
            steps=np.array([r.step for r in ranges], np.int64),
        )
    else:
        return None
    feeds = {"x": np.asarray(arrays[0]), **constants}
    session = onnxruntime.InferenceSession(
        _model(kind, attributes, feeds), providers=["CPUExecutionProvider"]
    )
    sizes = [len(r) for r in programs.window(workload)] if kind == "Slice" else None
    target = np.zeros(sizes or workload.shape, workload.dtype)
    as_value = onnxruntime.OrtValue.ortvalue_from_numpy
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, as_value(value))
    binding.bind_ortvalue_output("y", as_value(target))

    def call(_: Any = feeds) -> np.ndarray:  # the binding does not own the arrays
        session.run_with_iobinding(binding)
        return target

    return Candidate("onnxruntime", call)


def _model(kind: str, attributes: Mapping[str, Any], feeds: Mapping[str, Any]) -> bytes:
    """A model of one node."""
    helper: Any = importlib.import_module("onnx.helper")

    def info(name: str, array: np.ndarray, shape: Any) -> Any:
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, dtype, shape)

    graph = helper.make_graph(
        [helper.make_node(kind, list(feeds), ["y"], **attributes)],
        kind,
        [info(name, array, array.shape) for name, array in feeds.items()],
        [info("y", feeds["x"], None)],
    )
    opset = [helper.make_opsetid("", 13)]
    return helper.make_model(
        graph, opset_imports=opset, ir_version=8
    ).SerializeToString()


# PyTorch ------------------------------------------------------------------------------


def _torch(workload: Workload, arrays: Arrays) -> Candidate | None:
    torch: Any = importlib.import_module("torch")
    on_gpu = next(iter(arrays[0].devices())).platform == "gpu"
    if on_gpu and not torch.cuda.is_available():
        return None
    if workload.operator.startswith("fill"):
        return _torch_fill(torch, workload, arrays, "cuda" if on_gpu else "cpu")
    x = torch.from_dlpack(arrays[0])
    if workload.is_reversal:
        n = programs.of_lines(workload, torch.from_dlpack(arrays[1])).long()
        steps = torch.arange(x.shape[workload.axis], device=x.device)
        t = steps.reshape([-1 if d == workload.axis else 1 for d in range(x.ndim)])
        source = torch.where(t < n, n - 1 - t, t).expand(x.shape)
        call = functools.partial(torch.gather, x, workload.axis, source)
    else:
        ranges = programs.window(workload)
        if workload.operator == "slice_grad" or any(r.step < 0 for r in ranges):
            call = _torch_window(torch, workload, x, ranges)
        else:
            indices = programs.indices(workload)
            call = lambda: x[indices].contiguous()  # noqa: E731
    return _torch_candidate(torch, call, x.device)


def _torch_window(
    torch: Any, workload: Workload, x: Any, ranges: Sequence[range]
) -> Callable[[], Any]:
    """Slices with negative strides, which torch lacks, and the adjoint."""
    backwards = [d for d, r in enumerate(ranges) if r.step < 0]
    forwards = [r[::-1] if r.step < 0 else r for r in ranges]
    indices = tuple(slice(r.start, r.stop, r.step) for r in forwards)
    if workload.operator != "slice_grad":
        return lambda: x[indices].flip(backwards)
    sizes = workload.options["output_gradient_sizes"]

    def put() -> Any:
        y = torch.zeros(sizes, dtype=x.dtype, device=x.device)
        y[indices] = x.flip(backwards) if backwards else x
        return y

    return put


def _torch_fill(
    torch: Any, workload: Workload, arrays: Arrays, device: str
) -> Candidate | None:
    """`full`, and `arange` for the dtypes that hold its end."""
    dtype = getattr(torch, workload.dtype.name)
    start, *delta = (value.item() for value in arrays)
    if not delta:
        fill = functools.partial(torch.full, workload.shape, start)
    elif workload.dtype.name in ("float32", "float64", "int32"):
        end = start + delta[0] * workload.shape[0]
        fill = functools.partial(torch.arange, start, end, delta[0])
    else:
        return None
    call = functools.partial(fill, dtype=dtype, device=device)
    return _torch_candidate(torch, call, torch.device(device))


def _torch_candidate(torch: Any, call: Callable[[], Any], device: Any) -> Candidate:
    def wait(_: Any) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def host(result: Any) -> np.ndarray:
        return np.asarray(jax.dlpack.from_dlpack(result.cpu().contiguous()))

    return Candidate("torch", call, wait=wait, host=host)


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
    return compiled("flax", flip, arrays)


FORWARD = ("reverse", "slice", "fill")
PEERS = {
    "onnxruntime": (_onnxruntime, FORWARD, ("cpu",)),
    "torch": (_torch, FORWARD, ("cpu", "gpu")),
    "flax": (_flax, ("reverse",), ("cpu", "gpu")),
}
