"""Other libraries on the same arrays.

A peer is a function of a workload and its arrays that returns a candidate, or None if
the library lacks the operation. Indices, models and output buffers are prepared outside
the timed call. Libraries are imported by name, since none of them has to be installed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import programs
from benchmarks.candidates import compiled
from benchmarks.measure import Candidate
from benchmarks.programs import Arrays
from benchmarks.workloads import Device, Workload


def peers(
    workload: Workload, arrays: Arrays, device: Device
) -> Mapping[str, Callable[[], Candidate | None]]:
    """The makers of the installed peers that take part in the workload's group."""
    return {
        name: functools.partial(peer, workload, arrays)
        for name, (peer, groups, devices) in PEERS.items()
        if workload.group in groups
        and device in devices
        and importlib.util.find_spec(name)
    }


# NumPy --------------------------------------------------------------------------------


def _numpy(workload: Workload, arrays: Arrays) -> Candidate | None:
    if workload.operator.startswith("fill"):
        return None
    x = np.asarray(arrays[0])
    if workload.dtype.name == "bfloat16":  # NumPy copies its own dtypes faster
        x = x.view(np.uint16)
    if workload.is_reversal:
        target = np.zeros_like(x)
        call = _lines_in_turn(workload, x, np.asarray(arrays[1]), target)
    elif workload.operator == "slice_grad":
        target = np.ones(workload.options["output_gradient_sizes"], x.dtype)
        call = functools.partial(
            _put_among_zeros, x, target, programs.indices(workload)
        )
    else:
        view = x[programs.indices(workload)]
        target = np.zeros(view.shape, view.dtype)
        call = functools.partial(np.copyto, target, view)
    return Candidate("numpy", call, host=lambda _: target.view(workload.dtype))


def _lines_in_turn(
    workload: Workload, x: np.ndarray, lengths: np.ndarray, target: np.ndarray
) -> Callable[[], None]:
    """A loop over the lines, whose views are prepared."""
    lengths = programs.of_lines(workload, lengths)
    moves = []
    for place, n in np.ndenumerate(lengths):
        line: list[Any] = [
            p if lengths.shape[d] > 1 else slice(None) for d, p in enumerate(place)
        ]
        line[workload.axis] = slice(0, n)
        head = tuple(line)
        line[workload.axis] = slice(n - 1, None, -1) if n else slice(0, 0)
        flipped = tuple(line)
        line[workload.axis] = slice(n, None)
        tail = tuple(line)
        moves += [(target[head], x[flipped]), (target[tail], x[tail])]

    def call() -> None:
        for to, source in moves:
            np.copyto(to, source)

    return call


def _put_among_zeros(gradient: np.ndarray, target: np.ndarray, indices: Any) -> None:
    target.fill(0)
    target[indices] = gradient


# ONNX Runtime -------------------------------------------------------------------------


def _onnxruntime(workload: Workload, arrays: Arrays) -> Candidate | None:
    """I/O binding, so that nothing is allocated; a plain `run` for small calls."""
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
    if workload.group == "latency":
        run = functools.partial(session.run, None, feeds)
        return Candidate("onnxruntime", run, host=lambda results: results[0])
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


# TensorFlow and Flax ------------------------------------------------------------------


def _tensorflow(workload: Workload, arrays: Arrays) -> Candidate | None:
    if workload.operator != "reverse_sequence":
        return None
    tf: Any = importlib.import_module("tensorflow")
    with tf.device("CPU"):
        x, lengths = (tf.constant(np.asarray(array)) for array in arrays)
    options = workload.options
    call = functools.partial(
        tf.reverse_sequence,
        x,
        lengths,
        seq_axis=options["time_axis"],
        batch_axis=options["batch_axis"],
    )
    return Candidate("tensorflow", call, host=lambda result: result.numpy())


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
    "numpy": (_numpy, FORWARD, ("cpu",)),
    "onnxruntime": (_onnxruntime, (*FORWARD, "latency"), ("cpu",)),
    "torch": (_torch, FORWARD, ("cpu", "gpu")),
    "tensorflow": (_tensorflow, ("reverse",), ("cpu",)),
    "flax": (_flax, ("reverse",), ("cpu", "gpu")),
}
