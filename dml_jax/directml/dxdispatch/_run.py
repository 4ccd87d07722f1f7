"""Runs the commands of a model, and reports the lines that DxDispatch prints."""

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import jax
import numpy as np

from dml_jax import _array_files
from dml_jax.directml.dxdispatch._dispatchables import Dispatchable, View
from dml_jax.directml.dxdispatch._json import shortened
from dml_jax.directml.dxdispatch._model import Dispatch, Model, Print, WriteFile
from dml_jax.directml.dxdispatch._resources import Resource

Progress: TypeAlias = Callable[[Iterable[int], str], Iterable[int]]


@dataclasses.dataclass(frozen=True)
class Timing:
    """How often a dispatch runs, and what is reported about it.

    Attributes:
      iterations: the number of samples of each dispatch.
      repeat: the number of runs in a sample. The time of a sample is their mean.
      milliseconds: the time during which samples are taken, instead of `iterations`.
      interval: the minimum time in milliseconds between the starts of two samples.
      warmup_samples: the number of initial samples to leave out of the median at
        verbosity 0, and to report separately at verbosity 1 and 2. At least one sample
        is left.
      verbosity: 0 for the median, 1 for all statistics, 2 for each sample as well.

    Raises:
      ValueError: a number is negative, or `iterations` or `repeat` is 0.
    """

    iterations: int = 1
    repeat: int = 1
    milliseconds: float | None = None
    interval: float = 0
    warmup_samples: int = 1
    verbosity: int = 0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            least = int(name in ("iterations", "repeat"))
            if value is not None and not value >= least:
                rule = f"be at least {least}"
                raise ValueError(f"Timing: `{name}` must {rule}; got {value}")


def run_model(
    model: Model,
    timing: Timing = Timing(),
    report: Callable[[str], object] = print,
    progress: Progress | None = None,
    print_commands: bool = False,
) -> None:
    """Runs the commands of a model, which change its resources.

    64-bit data keeps its full width, NaNs raise no error and dispatches are compiled,
    regardless of `jax_enable_x64`, `jax_debug_nans` and `jax_disable_jit`. Times are
    measured on the host, from the call of the compiled program until its result is
    ready. They do not include binding.

    Args:
      model: the result of `load_model`.
      timing: how often dispatches run.
      report: called with one or more lines; the default prints them.
      progress: called with the iterations of a dispatch and its name; returns the
        iterations, as `tqdm.tqdm` does.
      print_commands: whether to report each command as JSON before it runs, and its
        end, as DxDispatch does.

    Raises:
      OSError: a file cannot be written.
      RuntimeError: the device has too little memory.

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
                report(f"Initialize '{shortened(name)}': {elapsed:.4f} ms")
        commands = zip(model.commands, model.command_texts, strict=True)
        for number, (command, text) in enumerate(commands):
            if print_commands:
                report(f"[StartCmd][{number:04}]\t: {text}")
            if isinstance(command, Dispatch):
                name = command.dispatchable
                samples = _dispatch(programs[name], command, timing, progress)
                lines = _statistics(name, samples, timing)
            elif isinstance(command, Print):
                lines = _shown(command, model.resources[command.resource])
            else:
                _write(command, model.resources[command.resource])
                name, target = map(shortened, (command.resource, command.target))
                lines = [f"Resource '{name}' written to '{target}'"]
            for line in lines:
                report(line)
            if print_commands:
                report(f"[EndCmd][{number:04}]\t: hr=0x00000000")


class _Program:
    """A compiled operator with the inputs that it owns."""

    def __init__(self, dispatchable: Dispatchable, resources: dict[str, Resource]):
        operator, self.resources = dispatchable.operator, resources
        self.inputs, self.outputs = dict(operator.inputs), dict(operator.outputs)
        owned = self._arrays(dispatchable.owned)
        # On CPU an array may share the memory of its resource, which changes later.
        self.owned = {name: array.copy() for name, array in owned.items()}
        inputs, outputs = (
            [jax.ShapeDtypeStruct((t.buffer_size,), t.data_type.dtype) for t in tensors]
            for tensors in (self.inputs.values(), self.outputs.values())
        )
        program = jax.jit(lambda inputs, outputs: operator(*inputs, outputs=outputs))
        self.call = program.lower(inputs, outputs).compile()

    def bind(self, views: dict[str, View]) -> tuple[list[jax.Array], list[jax.Array]]:
        """The inputs and the outputs in binding order, on the device."""
        arrays = self.owned | self._arrays(views)
        return [arrays[n] for n in self.inputs], [arrays[n] for n in self.outputs]

    def store(self, result: jax.Array, views: dict[str, View]) -> None:
        """Copies the result to the resource of the output."""
        (output,) = self.outputs
        self._elements(output, views[output])[:] = np.asarray(result)

    def _arrays(self, views: dict[str, View]) -> dict[str, jax.Array]:
        return {n: jax.device_put(self._elements(n, views[n])) for n in views}

    def _elements(self, name: str, view: View) -> np.ndarray:
        """The part of a resource that is bound to a tensor, without a copy."""
        tensor = (self.inputs | self.outputs)[name]
        dtype = tensor.data_type.dtype
        end = view.offset + tensor.buffer_size * dtype.itemsize
        return self.resources[view.resource].data[view.offset : end].view(dtype)


def _dispatch(
    program: _Program, command: Dispatch, timing: Timing, progress: Progress | None
) -> list[float]:
    """Runs an operator, stores its result, and returns the samples in milliseconds."""
    inputs, outputs = program.bind(command.views)
    result, samples = outputs[0], []
    iterations, limit = range(timing.iterations), math.inf
    if timing.milliseconds is not None:
        iterations, limit = itertools.count(), timing.milliseconds
    if progress:
        iterations = progress(iterations, shortened(command.dispatchable))
    begin = time.perf_counter()
    for _ in iterations:
        start = time.perf_counter()
        for _ in range(timing.repeat):
            result = program.call(inputs, outputs)
        jax.block_until_ready(result)
        end = time.perf_counter()
        samples.append((end - start) * 1e3 / timing.repeat)
        pause = max(0.0, timing.interval / 1e3 - (end - start))
        if (end - begin + pause) * 1e3 > limit:
            break
        time.sleep(pause)
    program.store(result, command.views)
    return samples


def _statistics(name: str, samples: list[float], timing: Timing) -> Iterator[str]:
    """The lines that DxDispatch prints for a device without timestamps."""
    cold_count = min(len(samples) - 1, timing.warmup_samples)
    cold, hot = samples[:cold_count], samples[cold_count:]
    line = f"Dispatch '{shortened(name)}': {len(samples)} iterations"
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


def _shown(command: Print, resource: Resource) -> Iterator[str]:
    """Lines with the elements in six significant digits, as C++ streams print them."""
    elements = resource.printed_elements()
    title = f"Resource '{shortened(command.resource)}':"
    texts = (f"{x:.6g}" if x.dtype.kind == "f" else str(x) for x in elements)
    if not command.is_verbose:
        yield f"{title} {', '.join(_in_parts(', ', texts))}"
        return
    yield title
    size, width = elements.itemsize, len(str(elements.size))
    words = elements.view(f"u{size}")
    lines = (
        f"[{i:{width}}] {text} (0x{words[i]:0{2 * size}X})"
        for i, text in enumerate(texts)
    )
    yield from _in_parts("\n", lines)


def _in_parts(separator: str, texts: Iterator[str]) -> Iterator[str]:
    """Joins 4096 texts at a time, because each of them takes 60 bytes and more."""
    return iter(lambda: separator.join(itertools.islice(texts, 4096)), "")


def _write(command: WriteFile, resource: Resource) -> None:
    path, array = command.path, resource.data
    if path.suffix.lower() == ".npy":
        array = resource.elements()[: math.prod(command.dimensions)]
        array = array.reshape(command.dimensions)
    path.parent.mkdir(parents=True, exist_ok=True)
    _array_files.write(path, array)
