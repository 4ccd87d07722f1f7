"""Reversals of lines in the vector registers of a TPU, in Pallas kernels.

A vector register of a TPU has 8 sublanes of 128 lanes of 32 bits. Let the T steps of a
line be stored in registers with room for N steps. In the order

    reversed[k] = x[N - 1 - k],

the reversal of the first n steps is a shift:

    y[k] = reversed[k + shift] if k < n else x[k]    with shift = N - n

Every sublane and every lane of a register may belong to a line with a shift of its own.
So this is a barrel shifter. For each bit b of the shift in registers, from high to low,
it selects in each lane between register i and register i + 2^b. The rest of the shift
is smaller than a register: one gather within each register, which also reverses its
steps, and one select between neighbouring registers complete it. If all lines have the
same shift, an offset into VMEM shifts whole registers, without selects.

A 32-bit word has two or four elements of 16 or 8 bits. If they belong to several lines,
a mask selects each of them. If they are steps of one line, a shift by less than a word
is a shift of its bits.

Steps from T to N are undefined. No result depends on them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared.tpu import LANES, SUBLANES, WORD

REGISTER_BYTES = WORD * SUBLANES * LANES
GROUP = 32  # registers that are shifted together, a power of two
_DISTANCES_OF_A_PASS = 2  # by which a pass over the registers shifts


class Tpu(NamedTuple):
    """What the kernels depend on."""

    vmem_bytes: int  # that it may use
    generation: int

    @property
    def gathers_sublanes(self) -> bool:
        return self.generation > 4

    @property
    def selects_parts_of_words(self) -> bool:
        """Whether a select can take elements of 8 or 16 bits from two registers."""
        return self.generation > 4


class Line(NamedTuple):
    """The registers of the lines that are shifted together.

    Each register has `steps` of every line, along `axis` unless it is one step. A word
    has the elements of several lines, or several steps of one line.
    """

    registers: int
    steps: int
    axis: int | None
    lines_per_word: int = 1
    steps_per_word: int = 1
    by_offset: bool = False  # shifts whole registers, for lines of the same length

    @property
    def size(self) -> int:
        return self.registers * self.steps

    @property
    def distances(self) -> list[int]:
        """Powers of two, the highest first, whose sums are the shifts in registers."""
        return [2**bit for bit in reversed(range((self.registers - 1).bit_length()))]

    @property
    def part_bits(self) -> int:
        return 32 // (self.lines_per_word * self.steps_per_word)

    def mask(self, conditions: list[Array], tpu: Tpu) -> Array:
        """For `select`: the parts of each word whose line fulfils its condition."""
        if len(conditions) == 1:
            return conditions[0]
        ones = jnp.where(conditions[0], self.ones(0), 0)
        for part, condition in enumerate(conditions[1:], 1):
            ones |= jnp.where(condition, self.ones(part), 0)
        return self.mask_of_ones(ones, tpu)

    def mask_of_ones(self, words: Array, tpu: Tpu) -> Array:
        """For `select`: the parts of words that have ones."""
        if not tpu.selects_parts_of_words:
            return words
        return _as_parts(words, self.part_bits) != 0

    def ones(self, part: int) -> np.int32:
        """A word with ones in one of its parts."""
        ones = (2**self.part_bits - 1) << self.part_bits * part
        return np.uint32(ones).astype(np.int32)

    def is_shifted(self, shifts: list[Array], distance: int, tpu: Tpu) -> Array:
        """For `select`: the lines whose shift has this distance as a summand."""
        return self.mask([shift & distance * self.steps != 0 for shift in shifts], tpu)

    def reversed_part(self, register: Any, lengths: list[Array], tpu: Tpu) -> Array:
        """For `select`: the parts of the words of a register that are reversed."""
        first = register * self.steps
        if self.axis is not None:
            first = first + self.steps_per_word * iota(self.axis)
        if self.steps_per_word == 1:
            return self.mask([first < length for length in lengths], tpu)
        bits = jnp.clip(lengths[0] - first, 0, self.steps_per_word) * self.part_bits
        ones = jnp.where(bits == 32, -1, (1 << bits) - 1)
        return self.mask_of_ones(ones, tpu)


def line_in_columns(time: int, dtype: np.dtype) -> Line:
    packing = WORD // dtype.itemsize
    steps = SUBLANES * packing
    return Line(-(-time // steps), steps, axis=0, steps_per_word=packing)


# The barrel shifter -------------------------------------------------------------------


def reverse_lines(
    line: Line,
    x: Any,
    y: Any,
    index: Callable[[Any, int], Any],
    scratch: Sequence[Any],
    lengths: list[Array],
    tpu: Tpu,
) -> None:
    """Reverses lines of the reference `x` into `y`.

    `index(first, count)` gives the index of successive registers. `lengths` has those
    of each part of a word.
    """
    from jax.experimental.pallas import tpu as pltpu

    shifts = [line.size - length for length in lengths]

    def load(first: Any, count: int) -> list[Array]:
        words = pltpu.bitcast(x[index(first, count)], jnp.int32)
        if line.axis is None:
            return [words[i] for i in range(count)]
        return jnp.split(words, count, line.axis)

    def store(first: Any, reversed_words: list[Array]) -> None:
        kept = load(first, len(reversed_words))
        for i, words in enumerate(reversed_words):
            is_reversed = line.reversed_part(first + i, lengths, tpu)
            result = pltpu.bitcast(select(is_reversed, words, kept[i]), y.dtype)
            y[index(first + i, 1)] = result[None] if line.axis is None else result

    if line.by_offset:
        _reverse_with_offset(line, load, shifts[0], store, tpu)
    elif line.registers <= GROUP:
        registers = reversed(load(0, line.registers))
        registers = [reverse_steps_in_words(each, line) for each in registers]
        store(0, _shift(line, registers, line.registers, shifts, line.distances, tpu))
    else:
        _reverse_registers(line, load, scratch[0], shifts, tpu)
        _shift_within_groups(line, scratch[0], shifts, store, tpu)


def scratch_shapes(line: Line) -> list[tuple[int, ...]]:
    if line.by_offset or line.registers <= GROUP:
        return []
    # Shifts read registers beyond the line.
    further = max(2 * GROUP, line.registers // 2 + GROUP)
    return [(line.registers + further, SUBLANES, LANES)]


def for_each_group(
    start: int, stop: int, body: Callable[[Any, int], None], size: int = GROUP
) -> None:
    """Calls `body(first, count)` for groups of this size, in ascending order."""
    from jax.experimental import pallas as pl

    groups, rest = divmod(stop - start, size)

    @pl.loop(0, groups)
    def _(group: Any) -> None:
        body(start + group * size, size)

    if rest:
        body(stop - rest, rest)


def _reverse_registers(
    line: Line,
    load: Callable[..., list[Array]],
    scratch: Any,
    shifts: list[Array],
    tpu: Tpu,
) -> None:
    """Stores the registers in reverse order, shifted by `GROUP` registers and more."""
    distances = [each for each in line.distances if each >= GROUP]

    def reverse(first: Any, count: int, distance: int = 0) -> None:
        source = line.registers - count - first
        registers = load(source, count)
        if distance:
            further = load(source - distance, count)
            mask = line.is_shifted(shifts, distance, tpu)
            registers = [
                select(mask, *pair) for pair in zip(further, registers, strict=True)
            ]
        for i, register in enumerate(reversed(registers)):
            scratch[first + i] = reverse_steps_in_words(register, line)

    def shifted(register: Any, distances: tuple[int, ...]) -> Array:
        if not distances:
            return scratch[register]
        distance, rest = distances[0], distances[1:]
        further = shifted(register + distance, rest)
        mask = line.is_shifted(shifts, distance, tpu)
        return select(mask, further, shifted(register, rest))

    def shift(first: Any, count: int, distances: tuple[int, ...]) -> None:
        for i in range(count):
            scratch[first + i] = shifted(first + i, distances)

    if distances:
        distance = distances.pop(0)
        stop = line.registers - distance
        for_each_group(0, stop, functools.partial(reverse, distance=distance))
        for_each_group(stop, line.registers, reverse)
    else:
        for_each_group(0, line.registers, reverse)
    for i in range(0, len(distances), _DISTANCES_OF_A_PASS):
        of_pass = tuple(distances[i : i + _DISTANCES_OF_A_PASS])
        stop = line.registers - of_pass[-1]
        for_each_group(0, stop, functools.partial(shift, distances=of_pass))


def reverse_steps_in_words(words: Array, line: Line) -> Array:
    if line.steps_per_word == 4:
        even = lax.shift_right_logical(words, 8) & 0x00FF00FF
        words = even | (words & 0x00FF00FF) << 8
    if line.steps_per_word > 1:
        words = lax.shift_right_logical(words, 16) | words << 16
    return words


def _reverse_with_offset(
    line: Line,
    load: Callable[..., list[Array]],
    shift: Array,
    store: Callable[[Any, list[Array]], None],
    tpu: Tpu,
) -> None:
    """Shifts all lines by the same scalar, whole registers by an offset."""
    last_source = line.registers - 1 - lax.div(shift, line.steps)
    rest = lax.rem(shift, line.steps)

    def group(first: Any, count: int) -> None:
        # A register of the result may begin in one register and end in the next.
        sources = [
            last_source - first - i for i in range(count + (line.axis is not None))
        ]
        registers = [
            reverse_steps_in_words(load(lax.max(source, 0), 1)[0], line)
            for source in sources
        ]
        if line.axis is not None:
            registers = shift_within_registers(line, registers, [rest], tpu)
        store(first, registers[:count])

    for_each_group(0, line.registers, group)


def _shift_within_groups(
    line: Line,
    scratch: Any,
    shifts: list[Array],
    store: Callable[[Any, list[Array]], None],
    tpu: Tpu,
) -> None:
    """Shifts by less than `GROUP` registers, and stores the result."""
    distances = [each for each in line.distances if each < GROUP]
    # A register of the result may begin in one register and end in the next.
    halo = sum(distances) + (line.axis is not None)

    def group(first: Any, count: int) -> None:
        registers = [scratch[first + i] for i in range(count + halo)]
        store(first, _shift(line, registers, count, shifts, distances, tpu))

    for_each_group(0, line.registers, group)


def _shift(
    line: Line,
    registers: list[Array],
    count: int,
    shifts: list[Array],
    distances: Sequence[int],
    tpu: Tpu,
) -> list[Array]:
    """The first `count` registers, shifted by these distances and within registers.

    Where the shift reaches beyond the last one of `registers`, they are undefined.
    """
    for distance in distances:
        mask = line.is_shifted(shifts, distance, tpu)
        pairs = zip(registers[distance:], registers, strict=False)
        shifted = [select(mask, *pair) for pair in pairs]
        registers = [*shifted, *registers[len(shifted) :]]
    if line.axis is not None:
        rests = [shift & line.steps - 1 for shift in shifts]
        # A register of the result may end in the next one.
        registers = shift_within_registers(line, registers[: count + 1], rests, tpu)
    return registers[:count]


def shift_within_registers(
    line: Line, registers: list[Array], shifts: list[Array], tpu: Tpu
) -> list[Array]:
    """Shifts by up to a register, and reverses the words of each register.

    The last register of the result is undefined where its steps are beyond the line.
    """
    of_words = [shift // line.steps_per_word for shift in shifts]
    parts = [shift_words(registers, shift, line.axis, tpu) for shift in of_words]
    if line.steps_per_word == 1:
        words = parts[0]
        for part, others in enumerate(parts[1:], 1):
            ones = jnp.full_like(words[0], line.ones(part))
            mask = line.mask_of_ones(ones, tpu)
            words = [select(mask, *pair) for pair in zip(others, words, strict=True)]
        return words
    following = _next_words(parts[0], line.axis)
    bits = (shifts[0] & line.steps_per_word - 1) * line.part_bits
    # A shift by 32 bits is undefined, so `high` is shifted twice.
    return [
        lax.shift_right_logical(low, bits) | high << 1 << (31 - bits)
        for low, high in zip(parts[0], following, strict=True)
    ]


def shift_words(
    registers: list[Array], shift: Array, axis: Any, tpu: Tpu
) -> list[Array]:
    permuted = [_permute(register, shift, axis, tpu) for register in registers]
    is_same = iota(axis) + shift < registers[0].shape[axis]
    return _continued(is_same, permuted)


def _next_words(registers: list[Array], axis: Any) -> list[Array]:
    """The successor of each word."""
    from jax.experimental.pallas import tpu as pltpu

    size = registers[0].shape[axis]
    rolled = [pltpu.roll(register, size - 1, axis) for register in registers]
    return _continued(iota(axis) < size - 1, rolled)


def _continued(is_same: Array, registers: list[Array]) -> list[Array]:
    """Each register where the mask is true, else the next one."""
    following = [*registers[1:], registers[-1]]
    return [
        jnp.where(is_same, *pair) for pair in zip(registers, following, strict=True)
    ]


def _permute(register: Array, shift: Array, axis: int, tpu: Tpu) -> Array:
    """Element i of the result is element -1 - (i + shift), modulo the size."""
    size = register.shape[axis]
    position = iota(axis)
    if axis == 1 or tpu.gathers_sublanes:
        index = size - 1 - (position + shift & size - 1)
        return gather(register, index, axis)
    from jax.experimental.pallas import tpu as pltpu

    for bit in (1, 2, 4):
        before = pltpu.roll(register, bit, axis)
        after = pltpu.roll(register, size - bit, axis)
        register = jnp.where(position & bit != 0, before, after)
    for bit in (1, 2, 4):
        after = pltpu.roll(register, size - bit, axis)
        register = jnp.where(shift & bit != 0, after, register)
    return register


# Words --------------------------------------------------------------------------------


def as_column(scalars: list[Array]) -> Array:
    """A register whose sublane i has scalar i in all lanes."""
    register = jnp.broadcast_to(scalars[0], (SUBLANES, LANES))
    for i, scalar in enumerate(scalars[1:], 1):
        register = jnp.where(iota(0) == i, scalar, register)
    return register


def lanes_of(i: Any) -> Any:
    """The lanes of register i."""
    from jax.experimental import pallas as pl

    return pl.ds(i * LANES, LANES)


def gather(register: Array, index: Array, axis: int) -> Array:
    return jnp.take_along_axis(register, index, axis, mode="promise_in_bounds")


def iota(axis: int) -> Array:
    return lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), axis)


def _as_parts(words: Array, bits: int) -> Array:
    """Elements of 8 or 16 bits, of which there are more in a register."""
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.bitcast(words, jnp.int16 if bits == 16 else jnp.int8)


def select(mask: Array, x: Array, y: Array) -> Array:
    """The words of `x` where the mask is true or has ones, else those of `y`.

    The mask has an element for each word, or for each of its parts.
    """
    from jax.experimental.pallas import tpu as pltpu

    if mask.dtype != jnp.bool_:
        return y ^ ((x ^ y) & mask)
    if mask.shape == x.shape:
        return jnp.where(mask, x, y)
    bits = 32 * x.size // mask.size
    parts = jnp.where(mask, _as_parts(x, bits), _as_parts(y, bits))
    return pltpu.bitcast(parts, x.dtype)
