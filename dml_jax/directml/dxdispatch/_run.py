"""Running a model: its commands in order, with the lines that DxDispatch prints."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from dml_jax._shared import array_files
from dml_jax.directml._compile import Binding
from dml_jax.directml.dxdispatch._commands import Dispatch, Print, WriteFile
from dml_jax.directml.dxdispatch._dispatchables import Dispatchable, View
from dml_jax.directml.dxdispatch._model import Model
from dml_jax.directml.dxdispatch._resources import Resource


@dataclasses.dataclass(frozen=True)
class Timing:
    """How often a dispatch runs, and what is printed about it.

    Attributes:
      iterations: samples of each dispatch.
      repeat: runs of the operator in each sample, which is their mean.
      milliseconds: the time to take samples for, instead of `iterations`.
      interval: milliseconds between the starts of two samples, at least.
      warmup_samples: samples that do not count, if there are others.
      verbosity: 0 for the median, 1 for all statistics, 2 for each sample, too.
    """

    iterations: int = 1
    repeat: int = 1
    milliseconds: float | None = None
    interval: float = 0
    warmup_samples: int = 1
    verbosity: int = 0


def run_model(
    model: Model,
    timing: Timing = Timing(),
    report: Callable[[str], Any] = print,
    progress: Callable[[Iterable[int], str], Iterable[int]] | None = None,
) -> None:
    """Runs the commands of a model, which change its resources for good.

    64-bit data is computed at full width, NaNs are data like any other, and dispatches
    are compiled, whatever `jax_enable_x64`, `jax_debug_nans` and `jax_disable_jit` say.
    Times are those from the host, from the call of the compiled program until its
    result is there; binding is not part of them.

    Args:
      model: what `load_model` gave.
      timing: how often dispatches run.
      report: what to do with each line; it is printed by default.
      progress: given the iterations of a dispatch and its name, gives them back one by
        one, as `tqdm.tqdm` does.

    Raises:
      OSError: a file cannot be written.
      RuntimeError: the device has not enough memory.

    Example:
      >>> from dml_jax.directml.dxdispatch import load_model, run_model
      >>> model = load_model("docs/examples/dxdispatch/slice1.json")
      >>> run_model(model, report=lambda line: None)
      >>> model.resources["part"].elements()
      array([14., 16.,  6.,  8.], dtype=float32)
    """
    with jax.enable_x64(True), jax.debug_nans(False), jax.disable_jit(False):
        programs = {}
        for name, dispatchable in model.dispatchables.items():
            start = time.perf_counter()
            programs[name] = _Program(dispatchable, model.resources)
            elapsed = (time.perf_counter() - start) * 1e3
            if timing.verbosity:
                report(f"Initialize '{name}': {elapsed:.4f} ms")
        for command in model.commands:
            if isinstance(command, Dispatch):
                program = programs[command.dispatchable]
                _dispatch(program, command, model, timing, report, progress)
            elif isinstance(command, Print):
                resource = model.resources[command.resource]
                report(f"Resource '{command.resource}':{_shown(resource, command)}")
            else:
                _write(command, model.resources[command.resource])
                report(f"Resource '{command.resource}' written to '{command.target}'")


class _Program:
    """An operator, compiled, with the inputs that it owns."""

    def __init__(self, dispatchable: Dispatchable, resources):
        self.operator = dispatchable.operator
        owned = _bound(dispatchable.operator.inputs, dispatchable.owned, resources)
        # On CPU an array may share its memory with the resource, which will change.
        self.owned = {name: array.copy() for name, array in owned.items()}
        self.call = (
            jax.jit(lambda inputs, outputs: self.operator(*inputs, outputs=outputs))
            .lower(*map(_shapes, (self.operator.inputs, self.operator.outputs)))
            .compile()
        )

    def bind(self, views: dict[str, View], resources) -> tuple[list, list]:
        """What the resources hold, on the device, in binding order."""
        bound = self.owned | _bound(self.operator.inputs, views, resources)
        inputs = [bound[name] for name, _ in self.operator.inputs]
        outputs = _bound(self.operator.outputs, views, resources)
        return inputs, list(outputs.values())


def _shapes(bindings: tuple[Binding, ...]) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct((tensor.buffer_size,), tensor.data_type.dtype)
        for _, tensor in bindings
    ]


def _bound(bindings, views, resources) -> dict[str, jax.Array]:
    return {
        name: jax.device_put(
            _range(resources[views[name].resource], views[name], tensor)
        )
        for name, tensor in bindings
        if name in views
    }


def _range(resource: Resource, view: View, tensor) -> np.ndarray:
    """The part of a resource that is bound to a tensor, which writes go through."""
    dtype = tensor.data_type.dtype
    end = view.offset + tensor.buffer_size * dtype.itemsize
    return resource.data[view.offset : end].view(dtype)


def _dispatch(program, command, model, timing, report, progress):
    """Takes samples, and writes the result back to the resources."""
    inputs, outputs = program.bind(command.views, model.resources)
    result, samples = outputs[0], []
    iterations = range(timing.iterations)
    if timing.milliseconds is not None:
        iterations = iter(int, 1)  # until the time is over
    wrapped = progress(iterations, command.dispatchable) if progress else iterations
    begin = time.perf_counter()
    for _ in wrapped:
        start = time.perf_counter()
        for _ in range(timing.repeat):
            result = program.call(inputs, outputs)
        jax.block_until_ready(result)
        end = time.perf_counter()
        samples.append((end - start) * 1e3 / timing.repeat)
        pause = max(0.0, timing.interval / 1e3 - (end - start))
        if timing.milliseconds is not None:
            if (end - begin + pause) * 1e3 > timing.milliseconds:
                break
        time.sleep(pause)
    (output,) = program.operator.outputs
    view = command.views[output.name]
    _range(model.resources[view.resource], view, output.tensor)[:] = np.asarray(result)
    for line in _statistics(command.dispatchable, samples, timing):
        report(line)


def _statistics(name, samples, timing):
    """What DxDispatch prints of samples where a device has no timestamps."""
    cold_count = min(len(samples) - 1, timing.warmup_samples)
    cold, hot = samples[:cold_count], samples[cold_count:]
    line = f"Dispatch '{name}': {len(samples)} iterations"
    if not timing.verbosity:
        yield f"{line}, {statistics.median_high(hot):.4f} ms median (CPU)"
        return
    yield line
    for label, part in (("(Cold)", cold), ("(Hot) ", hot)):
        if part:
            yield (
                f"CPU Timings {label} : {len(part)} samples, "
                f"{statistics.fmean(part):.4f} ms average, {min(part):.4f} ms min, "
                f"{statistics.median_high(part):.4f} ms median, {max(part):.4f} ms max"
            )
    if timing.verbosity > 1:
        yield "The timings of each iteration:"
        for i, sample in enumerate(samples):
            yield f"iteration {i}: {sample:.4f} ms (CPU)"


def _shown(resource: Resource, command: Print) -> str:
    """The elements in six significant digits, as C++ streams print them."""
    elements = resource.printed_elements()
    texts = [f"{x:.6g}" if x.dtype.kind == "f" else str(x) for x in elements]
    if not command.is_verbose:
        return " " + ", ".join(texts)
    size = elements.itemsize
    bits = elements.view(f"u{size}")
    width = len(str(len(texts)))
    return "".join(
        f"\n[{i:{width}}] {text} (0x{word:0{2 * size}X})"
        for i, (text, word) in enumerate(zip(texts, bits.tolist(), strict=True))
    )


def _write(command: WriteFile, resource: Resource) -> None:
    if command.path.suffix.lower() != ".npy":
        array_files.write(command.path, resource.data)
        return
    elements = resource.elements()[: int(np.prod(command.dimensions))]
    array_files.write(command.path, elements.reshape(command.dimensions))
