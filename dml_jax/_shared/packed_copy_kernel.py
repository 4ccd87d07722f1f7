"""A GPU kernel for runs of elements that begin anywhere, in Mosaic.

XLA has a thread load elements one by one, and store four of them if four divides their
number, else one: of 8 and 16 bits, or odd sizes of 32, their number is the limit and
not their bytes. Here a thread stores 16 bytes at once. It loads the aligned words its
elements lie in, shifts them to where they begin, and permutes the bytes:

    reverse_rows   y[r, k, c] = x[r, n - 1 - k if k < n else k, c]
                   with n = lengths[r]
    take_runs      y[c] = x[lowest + step * c]
    put_runs       y[lowest + step * c] = g[c], 0 everywhere else

Elements of two rows, or of both sides of a length, are blended. Nothing fuses with it.

What a thread does is written for a machine that has words of 32 bits: in a program that
is MLIR, which Pallas cannot say, and in the tests it is NumPy.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import jax

from dml_jax._shared import jax_versions

_BYTES = 16  # that a thread stores at once
_WORD = 4  # bytes
_NARROW = 2  # bytes of an element, up to which slices take longer by XLA
_CHUNKS = 2  # of as many bytes, that a thread stores
_CHUNKS_OF_ROWS = 4  # the same, of what is reversed
_WARPGROUP = 128  # threads, which make a block
_MOST_BYTES = 2**31 - 2**16  # of an array; positions are of 32 bits, beyond it too
_MOST_PITCH_BYTES = 8  # from element to element: of more, too much is read in vain
_MOST_BYTES_OF_STEP = 15  # that is reversed: of more, XLA moves vectors


class _Run(NamedTuple):
    """A dimension, and the positions lowest + step * i in it, for 0 <= i < size."""

    extent: int
    lowest: int
    size: int
    step: int
    sign: int  # -1 where the last of them comes first


def reverse_rows(x, lengths):
    """`x` [R, T, C], reversed along T by `lengths` [R], of 8 to 32 bits; or None."""
    rows, step = x.shape[0], x.shape[2]
    run = math.prod(x.shape[1:])
    is_near = 0 < step * x.dtype.itemsize <= _MOST_BYTES_OF_STEP
    if not is_near or not _is_made_for(x.dtype, _WORD, run, x.size):
        return None
    line = functools.partial(_reversed, rows=rows, run=run, step=step)
    return _launch(line, run, x.shape, _CHUNKS_OF_ROWS, x, lengths)


def take_runs(x, lattice):
    """The elements of a lattice, of 8 or 16 bits; or None."""
    runs = _runs(x.shape, lattice)
    size = max(x.size, math.prod(lattice.sizes))
    if not _is_near(x.dtype, runs) or not _is_made_for(
        x.dtype, _NARROW, runs[-1].size, size
    ):
        return None
    line = functools.partial(_taken, runs=runs)
    return _launch(line, runs[-1].size, lattice.sizes, _CHUNKS, x)


def put_runs(gradient, shape, lattice):
    """The elements at those of a lattice, among zeros; or None."""
    dtype, runs = gradient.dtype, _runs(shape, lattice)
    size = math.prod(shape) * min(gradient.size, 1)
    if not _is_near(dtype, runs) or not _is_made_for(
        dtype, _NARROW, runs[-1].extent, size
    ):
        return None
    line = functools.partial(_put, runs=runs)
    return _launch(line, runs[-1].extent, shape, _CHUNKS, gradient)


def _is_near(dtype, runs):
    """Whether neighbours among the elements are."""
    return bool(runs) and runs[-1].step * dtype.itemsize <= _MOST_PITCH_BYTES


def _is_made_for(dtype, itemsize, run, size):
    """Whether elements are numbers no wider than `itemsize`, a chunk is of two runs at
    most, and 32 bits count the bytes that are read or stored.
    """
    if dtype.kind not in "iuf" or dtype.itemsize > itemsize:
        return False
    is_long = run * dtype.itemsize >= _BYTES
    return is_long and 0 < size * dtype.itemsize <= _MOST_BYTES


def _runs(shape, lattice):
    """A run for each dimension, but one for those that lie together in memory."""
    runs = []
    for d, dimension in enumerate(
        zip(shape, lattice.starts, lattice.sizes, lattice.strides, strict=True)
    ):
        run = _Run(*dimension, -1 if d in lattice.reversed_dims else 1)
        is_whole = run == (run.extent, 0, run.extent, 1, 1)
        if is_whole and runs and runs[-1][3:] == (1, 1):
            extent, lowest, size = (n * run.extent for n in runs.pop()[:3])
            run = _Run(extent, lowest, size, 1, 1)
        runs.append(run)
    return runs


# What a thread does -------------------------------------------------------------------


def _chunk(machine, line, run, position):
    """The elements from `position` on, of two runs at most."""
    row, column = position // run, position % run
    words, left = line(machine, row, column), run - column
    return machine.where(
        left < machine.elements,
        lambda: _blend(machine, words, line(machine, row + 1, 0 - left), left),
        words,
    )


def _reversed(machine, row, column, *, rows, run, step):
    row = machine.least(row, rows - 1)
    begin, end = row * run, machine.length(row) * step
    steps, phase = _steps(machine, column, step)
    count = steps * step
    is_reversed = column < end
    mirrored = end - (column - phase) - count
    words = _window(
        machine, begin + machine.select(is_reversed, mirrored, column), count
    )
    turned = [step * k + c for k in reversed(range(steps)) for c in range(step)]
    turned = _pick(machine, words, turned)
    if step > 1:
        turned = _shifted(machine, turned, phase * machine.itemsize)
    both = zip(turned, words, strict=False)
    words = [machine.select(is_reversed, *word) for word in both][: _BYTES // _WORD]
    left = end - column

    def blended():
        straight = _window(machine, begin + column, machine.elements)
        return _blend(machine, words, straight, left)

    return machine.where(is_reversed & (left < machine.elements), blended, words)


def _steps(machine, column, step):
    """How many steps a chunk may lie in, and how far in the first of them it begins."""
    if step == 1:
        return machine.elements, 0
    # So far ahead that the division is of what is not negative.
    ahead = -(-machine.elements // step) * step
    return -(-(machine.elements + step - 1) // step), (column + ahead) % step


def _taken(machine, row, column, *, runs):
    *outer, run = runs
    begin, pitch, count = run.lowest, run.extent, machine.elements
    for of_outer in reversed(outer):
        index, row = row % of_outer.size, row // of_outer.size
        if of_outer.sign < 0:
            index = of_outer.size - 1 - index
        begin = (index * of_outer.step + of_outer.lowest) * pitch + begin
        pitch *= of_outer.extent
    first = column if run.sign > 0 else run.size - count - column
    words = _window(machine, first * run.step + begin, (count - 1) * run.step + 1)
    return _pick(machine, words, [run.step * k for k in range(count)][:: run.sign])


def _put(machine, row, column, *, runs):
    *outer, run = runs
    begin, pitch, conditions = 0, run.size, []
    for of_outer in reversed(outer):
        index, row = row % of_outer.extent, row // of_outer.extent
        index, is_inside = _index(machine, index, of_outer)
        begin = index * pitch + begin
        pitch *= of_outer.size
        conditions.append(is_inside)
    words = _put_in_run(machine, begin, column, run)
    for is_inside in conditions:
        words = [machine.select(is_inside, word, machine.zero) for word in words]
    return words


def _put_in_run(machine, begin, column, run):
    step, count = run.step, machine.elements
    # So far ahead that the division is of what is not negative.
    ahead = -(-(run.lowest + count) // step)
    offset = column + (ahead * step - run.lowest)
    index, phase = offset // step - ahead, offset % step
    read = (count + step - 2) // step + 1
    first = index if run.sign > 0 else run.size - read - index
    words = _window(machine, first + begin, read)
    words = _pick(machine, words, range(read)[:: run.sign], step)
    words = _shifted(machine, words, phase * machine.itemsize)[: _BYTES // _WORD]
    zeros = [machine.zero] * len(words)
    words = _blend(machine, zeros, words, run.lowest - column)
    end = run.lowest + step * (run.size - 1) + 1
    return _blend(machine, words, zeros, end - column)


def _index(machine, position, run):
    """Which element of the lattice is at a position, and whether one is."""
    offset = position - run.lowest
    index = machine.most(offset, 0) // run.step
    is_inside = (offset > -1) & (offset < index * run.step + 1) & (index < run.size)
    return (index if run.sign > 0 else run.size - 1 - index), is_inside


def _window(machine, first, count):
    """The words of `count` elements from `first` on; any, where there are none."""
    first, span = first * machine.itemsize, count * machine.itemsize
    vector, shift = first >> 4, first & 15
    words = []
    for i in range(-(-(span + _BYTES - 1) // _BYTES)):
        words += machine.load(machine.most(machine.least(vector + i, machine.last), 0))
    return _shifted(machine, words, shift)[: -(-span // _WORD)]


def _shifted(machine, words, shift):
    """Words that begin `shift` bytes later, of 15 at most."""
    words = [*words, *[machine.zero] * 4]
    for bytes_of_words in (8, 4):
        is_later = (shift & bytes_of_words) > 0
        later = words[bytes_of_words // _WORD :]
        words = [
            machine.select(is_later, *both) for both in zip(later, words, strict=False)
        ]
    bits = (shift & 3) * 8
    return [machine.funnel(*both, bits) for both in itertools.pairwise(words)]


def _pick(machine, words, elements, step=1):
    """The elements of these numbers, `step` elements apart, among zeros."""
    itemsize = machine.itemsize
    sources = [None] * -(-step * itemsize * len(elements) // _WORD * _WORD)
    for k, element in enumerate(elements):
        for b in range(itemsize):
            sources[step * itemsize * k + b] = divmod(itemsize * element + b, _WORD)
    return [
        _gathered(machine, words, sources[i : i + _WORD])
        for i in range(0, len(sources), _WORD)
    ]


def _gathered(machine, words, sources):
    """A word of four bytes, each of a word and a place in it, or zero."""
    gathered = machine.zero
    for number in sorted({source[0] for source in sources if source is not None}):
        digits = [
            _WORD + source[1] if source is not None and source[0] == number else i
            for i, source in enumerate(sources)
        ]
        gathered = machine.permute(gathered, words[number], digits)
    return gathered


def _blend(machine, before, after, count):
    """The first `count` elements of the one, then those of the other."""
    blended = []
    for i, both in enumerate(zip(before, after, strict=True)):
        kept = machine.most(machine.least(count * machine.itemsize - _WORD * i, 4), 0)
        blended.append(machine.blend(*both, kept))
    return blended


# On a GPU -----------------------------------------------------------------------------


def _launch(line, run, shape, chunks, *operands):
    from jax.experimental.pallas import mosaic_gpu as plgpu

    # Numbers alone: JAX keeps `thread`, which must keep no tracer.
    elements, dtype = operands[0].size, operands[0].dtype
    size = math.prod(shape)
    block_bytes = chunks * _BYTES * _WARPGROUP

    def body(*refs):
        references = (plgpu.RefType(),) * len(refs)
        plgpu.inline_mgpu(arg_types=references)(thread)(*refs)

    def thread(_, *references):
        from dml_jax._shared.packed_words import Machine

        machine = Machine(dtype.itemsize, elements, *references)
        for position in machine.positions(chunks):
            machine.store(position, size, _chunk(machine, line, run, position))

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((size,), dtype),
        grid=(-(-size * dtype.itemsize // block_bytes),),
        grid_names=("block",),
        num_threads=1,
        thread_name="warpgroup",
    )
    flat = [operand.reshape(-1) for operand in operands]
    return jax_versions.launch(kernel, *flat).reshape(shape)
