"""Reversals of lines in the vector registers of a TPU, in Pallas kernels.

A vector register of a TPU has 8 sublanes of 128 lanes of 32 bits. Let the T steps of a
line be stored in registers with room for N steps. In the order

    reversed[k] = x[N - 1 - k],

the reversal of the first n steps is a shift:

    y[k] = reversed[k + shift] if k < n else x[k]    with shift = N - n

Every sublane and every lane of a register may belong to a line with a shift of its own.
So this is a barrel shifter. For each bit b of the number of whole registers in the
shift, from high to low, it selects in each lane between register i and register
i + 2^b. The rest of the shift is smaller than a register: one gather within each
register, which also reverses its steps, and one select between neighbouring registers
complete it. If all lines have the same shift, an offset into VMEM shifts whole
registers, without selects.

A 32-bit word has two or four elements of 16 or 8 bits. If they belong to lines of
several lengths, a select has a mask with an entry for each element. If they are steps
of one line, a shift by less than a word is a shift of its bits.

Steps from T to N are undefined. No result depends on them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared.tpu import LANES, SUBLANES, WORD, gather, iota

REGISTER_BYTES = WORD * SUBLANES * LANES
GROUP = 64  # registers that are shifted together, a power of two


class Tpu(NamedTuple):
    """The properties of a TPU that the kernels depend on."""

    vmem_bytes: int  # that a kernel may use
    generation: int

    @property
    def gathers_sublanes(self) -> bool:
        """Whether a gather can move elements between sublanes."""
        return self.generation > 4

    @property
    def selects_parts_of_words(self) -> bool:
        """Whether the mask of a select can have an entry for 8 or 16 bits."""
        return self.generation > 4


class Line(NamedTuple):
    """The registers of the lines that are shifted together.

    A register has `steps` steps of each line, along `axis`. The axis is None if that is
    one step. A word has several steps of a line, or elements of several lines, with
    `lengths_per_word` different lengths.
    """

    tpu: Tpu
    registers: int
    steps: int
    axis: int | None
    lengths_per_word: int = 1
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
        return 32 // (self.lengths_per_word * self.steps_per_word)

    def bits_of_part(self, part: int) -> np.int32:
        """A word in which all bits of this part are set."""
        bits = (2**self.part_bits - 1) << self.part_bits * part
        return np.uint32(bits).astype(np.int32)

    def mask_of_parts(self, words: Array) -> Array:
        """A mask for `select`: of the parts whose bits are set, rather than cleared."""
        if not self.tpu.selects_parts_of_words:
            return words
        return _as_parts(words, self.part_bits) != 0

    def mask(self, conditions: list[Array]) -> Array:
        """A mask for `select`: of the parts whose line fulfils its condition."""
        if len(conditions) == 1:
            return jnp.broadcast_to(conditions[0], (SUBLANES, LANES))
        words = jnp.where(conditions[0], self.bits_of_part(0), 0)
        for part, condition in enumerate(conditions[1:], 1):
            words |= jnp.where(condition, self.bits_of_part(part), 0)
        return self.mask_of_parts(words)

    def is_shifted(self, shifts: list[Array], distance: int) -> Array:
        """A mask for `select`: of the lines that are shifted by this distance."""
        return self.mask([shift & distance * self.steps != 0 for shift in shifts])

    def is_reversed(self, register: Any, lengths: list[Array]) -> Array:
        """A mask for `select`: of the steps in a register that are reversed."""
        first = register * self.steps
        if self.axis is not None:
            first = first + self.steps_per_word * iota(self.axis)
        if self.steps_per_word == 1:
            return self.mask([first < length for length in lengths])
        bits = jnp.clip(lengths[0] - first, 0, self.steps_per_word) * self.part_bits
        return self.mask_of_parts(jnp.where(bits == 32, -1, (1 << bits) - 1))


def line_in_columns(time: int, dtype: np.dtype, tpu: Tpu) -> Line:
    packing = WORD // dtype.itemsize
    steps = SUBLANES * packing
    return Line(tpu, -(-time // steps), steps, axis=0, steps_per_word=packing)


# The barrel shifter -------------------------------------------------------------------


def reverse_lines(
    line: Line,
    x: Any,
    y: Any,
    index: Callable[[Any, int], Any],
    scratch: Sequence[Any],
    lengths: list[Array],
) -> None:
    """Reverses lines of the reference `x` into `y`.

    `index(first, count)` gives the index of successive registers. `lengths` has an
    array or a scalar for each part of a word.
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
            is_reversed = line.is_reversed(first + i, lengths)
            result = pltpu.bitcast(select(is_reversed, words, kept[i]), y.dtype)
            y[index(first + i, 1)] = result[None] if line.axis is None else result

    if line.by_offset:
        _reverse_with_offset(line, load, shifts[0], store)
    elif line.registers <= GROUP:
        registers = reversed(load(0, line.registers))
        registers = [reverse_steps_in_words(each, line) for each in registers]
        store(0, _shift(line, registers, line.registers, shifts, line.distances))
    else:
        _reverse_registers(line, load, scratch[0], shifts)
        _shift_within_groups(line, scratch[0], shifts, store)


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
    line: Line, load: Callable[..., list[Array]], scratch: Any, shifts: list[Array]
) -> None:
    """Stores the registers in reverse order, shifted by `GROUP` registers and more."""
    longest, *distances = (each for each in line.distances if each >= GROUP)

    def reverse(first: Any, count: int, distance: int = 0) -> None:
        source = line.registers - count - first
        registers = load(source, count)
        if distance:
            further = load(source - distance, count)
            mask = line.is_shifted(shifts, distance)
            registers = [
                select(mask, *pair) for pair in zip(further, registers, strict=True)
            ]
        for i, register in enumerate(reversed(registers)):
            scratch[first + i] = reverse_steps_in_words(register, line)

    def shift(first: Any, count: int, distance: int) -> None:
        mask = line.is_shifted(shifts, distance)
        for i in range(count):
            register = first + i
            scratch[register] = select(
                mask, scratch[register + distance], scratch[register]
            )

    stop = line.registers - longest
    for_each_group(0, stop, functools.partial(reverse, distance=longest))
    for_each_group(stop, line.registers, reverse)
    for distance in distances:
        stop = line.registers - distance
        for_each_group(0, stop, functools.partial(shift, distance=distance))


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
            registers = shift_within_registers(line, registers, [rest])
        store(first, registers[:count])

    for_each_group(0, line.registers, group)


def _shift_within_groups(
    line: Line,
    scratch: Any,
    shifts: list[Array],
    store: Callable[[Any, list[Array]], None],
) -> None:
    """Shifts by less than `GROUP` registers, and stores the result."""
    distances = [each for each in line.distances if each < GROUP]
    # A register of the result may begin in one register and end in the next.
    halo = sum(distances) + (line.axis is not None)

    def group(first: Any, count: int) -> None:
        registers = [scratch[first + i] for i in range(count + halo)]
        store(first, _shift(line, registers, count, shifts, distances))

    for_each_group(0, line.registers, group)


def _shift(
    line: Line,
    registers: list[Array],
    count: int,
    shifts: list[Array],
    distances: Sequence[int],
) -> list[Array]:
    """The first `count` registers, shifted by these distances and within registers.

    The result is undefined where the shift reaches beyond `registers`.
    """
    for distance in distances:
        mask = line.is_shifted(shifts, distance)
        pairs = zip(registers[distance:], registers, strict=False)
        shifted = [select(mask, *pair) for pair in pairs]
        registers = [*shifted, *registers[len(shifted) :]]
    if line.axis is not None:
        rests = [shift & line.steps - 1 for shift in shifts]
        # A register of the result may end in the next one.
        registers = shift_within_registers(line, registers[: count + 1], rests)
    return registers[:count]


def shift_within_registers(
    line: Line, registers: list[Array], shifts: list[Array]
) -> list[Array]:
    """Reverses the order of words in each register, and shifts by up to a register.

    The last register of the result is undefined where the shift reaches beyond
    `registers`.
    """
    by_words = [shift // line.steps_per_word for shift in shifts]
    shifted, *others = (shift_words(line, registers, shift) for shift in by_words)
    if line.steps_per_word == 1:
        for part, words in enumerate(others, 1):
            bits = jnp.full((SUBLANES, LANES), line.bits_of_part(part))
            mask = line.mask_of_parts(bits)
            pairs = zip(words, shifted, strict=True)
            shifted = [select(mask, *pair) for pair in pairs]
        return shifted
    following = _next_words(shifted, line.axis)
    bits = (shifts[0] & line.steps_per_word - 1) * line.part_bits
    # A shift by 32 bits is undefined, so `high` is shifted twice.
    return [
        lax.shift_right_logical(low, bits) | high << 1 << (31 - bits)
        for low, high in zip(shifted, following, strict=True)
    ]


def shift_words(line: Line, registers: list[Array], shift: Array) -> list[Array]:
    """Reverses the order of words in each register, and shifts by a number of words."""
    axis: Any = line.axis
    permuted = [_permute(register, shift, axis, line.tpu) for register in registers]
    is_in_register = iota(axis) + shift < registers[0].shape[axis]
    return _continued(is_in_register, permuted)


def _next_words(registers: list[Array], axis: Any) -> list[Array]:
    """The successor of each word."""
    from jax.experimental.pallas import tpu as pltpu

    size = registers[0].shape[axis]
    rolled = [pltpu.roll(register, size - 1, axis) for register in registers]
    return _continued(iota(axis) < size - 1, rolled)


def _continued(is_in_register: Array, registers: list[Array]) -> list[Array]:
    """Each register where the mask is true, and the next one elsewhere."""
    pairs = zip(registers, [*registers[1:], registers[-1]], strict=True)
    return [jnp.where(is_in_register, *pair) for pair in pairs]


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


def select(mask: Array, x: Array, y: Array) -> Array:
    """`x` where the mask is true, else `y`.

    A mask of booleans has an entry for each word, or for each part of a word. A mask of
    integers selects the bits that are set.
    """
    from jax.experimental.pallas import tpu as pltpu

    if mask.dtype != jnp.bool_:
        return y ^ ((x ^ y) & mask)
    if mask.shape == x.shape:
        return jnp.where(mask, x, y)
    bits = 32 * x.size // mask.size
    parts = jnp.where(mask, _as_parts(x, bits), _as_parts(y, bits))
    return pltpu.bitcast(parts, x.dtype)


def _as_parts(words: Array, bits: int) -> Array:
    """The words as integers of so many bits, two or four for each along sublanes."""
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.bitcast(words, {8: jnp.int8, 16: jnp.int16}[bits])
