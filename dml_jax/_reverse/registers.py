"""Reversals of lines in the vector registers of a TPU, in Pallas kernels.

A vector register of a TPU has 8 sublanes of 128 lanes of 32 bits. Let the T steps of a
line be stored in registers with room for N steps. In the order

    reversed[k] = x[N - 1 - k],

the reversal of the first n steps is a shift:

    y[k] = reversed[k + shift] if k < n else x[k]    with shift = N - n

Every sublane and every lane of a register may belong to a line with a shift of its own.
So this is a barrel shifter. For each bit b of the number of whole registers in the
shift, from high to low, it selects in each lane between register i and register
i + 2^b. The rest of the shift is smaller than a register. A permutation of the words in
each register, which also reverses their order, and a select between neighbouring
registers complete it. If all lines have the same shift, an offset into VMEM shifts
whole registers, without selects.

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
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dml_jax._reverse.tpu_layout import LANES, SUBLANES, Tpu

GROUP = 64  # registers that are shifted together, a power of two


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
        _reverse_in_scratch(line, load, shifts, scratch[0], store)


def scratch_shapes(line: Line) -> list[tuple[int, ...]]:
    if line.by_offset or line.registers <= GROUP:
        return []
    # The last group of registers is shifted with `GROUP` registers beyond the line.
    return [(line.registers + GROUP, SUBLANES, LANES)]


def for_each_group(
    start: int, stop: int, body: Callable[[Any, int], None], size: int | None = None
) -> None:
    """Calls `body(first, count)` for all groups, which have `size` registers."""
    size = size or GROUP
    groups, rest = divmod(stop - start, size)

    @pl.loop(0, groups)
    def _(group: Any) -> None:
        body(start + group * size, size)

    if rest:
        body(stop - rest, rest)


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


def _reverse_in_scratch(
    line: Line,
    load: Callable[..., list[Array]],
    shifts: list[Array],
    scratch: Any,
    store: Callable[[Any, list[Array]], None],
) -> None:
    """Shifts by `GROUP` registers and more in `scratch`, where the line is reversed."""

    def reverse(first: Any, count: int) -> None:
        registers = load(line.registers - count - first, count)
        for i, register in enumerate(reversed(registers)):
            scratch[first + i] = reverse_steps_in_words(register, line)

    def shift(first: Any, count: int, distance: int) -> None:
        mask = line.is_shifted(shifts, distance)
        for i in range(count):
            register = first + i
            scratch[register] = select(
                mask, scratch[register + distance], scratch[register]
            )

    within_group = [distance for distance in line.distances if distance < GROUP]
    # A register of the result may begin in one register and end in the next.
    halo = sum(within_group) + (line.axis is not None)

    def shift_within_group(first: Any, count: int) -> None:
        registers = [scratch[first + i] for i in range(count + halo)]
        store(first, _shift(line, registers, count, shifts, within_group))

    for_each_group(0, line.registers, reverse)
    for distance in line.distances[: -len(within_group)]:
        stop = line.registers - distance
        for_each_group(0, stop, functools.partial(shift, distance=distance))
    for_each_group(0, line.registers, shift_within_group)


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


# Within registers ---------------------------------------------------------------------


def shift_within_registers(
    line: Line, registers: list[Array], shifts: list[Array]
) -> list[Array]:
    """Reverses the order of words in each register, and shifts by up to a register.

    The last register of the result is undefined where the shift reaches beyond
    `registers`.
    """
    by_words = [shift // line.steps_per_word for shift in shifts]
    shifted, *others = (_shift_words(line, registers, shift) for shift in by_words)
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


def reverse_steps_in_words(words: Array, line: Line) -> Array:
    if line.steps_per_word == 4:
        even = lax.shift_right_logical(words, 8) & 0x00FF00FF
        words = even | (words & 0x00FF00FF) << 8
    if line.steps_per_word > 1:
        words = lax.shift_right_logical(words, 16) | words << 16
    return words


def _shift_words(line: Line, registers: list[Array], shift: Array) -> list[Array]:
    """Reverses the order of words in each register, and shifts by a number of words."""
    axis: Any = line.axis
    rotated = [_reverse_and_rotate(each, shift, axis, line.tpu) for each in registers]
    is_in_register = iota(axis) + shift < registers[0].shape[axis]
    return _continued(is_in_register, rotated)


def _next_words(registers: list[Array], axis: Any) -> list[Array]:
    """The successor of each word."""
    size = registers[0].shape[axis]
    rolled = [pltpu.roll(register, size - 1, axis) for register in registers]
    return _continued(iota(axis) < size - 1, rolled)


def _continued(is_in_register: Array, registers: list[Array]) -> list[Array]:
    """Each register where the mask is true, and the next one elsewhere."""
    pairs = zip(registers, [*registers[1:], registers[-1]], strict=True)
    return [jnp.where(is_in_register, *pair) for pair in pairs]


def _reverse_and_rotate(register: Array, shift: Array, axis: int, tpu: Tpu) -> Array:
    """Element i of the result is element -1 - (i + shift), modulo the size."""
    size = register.shape[axis]
    position = iota(axis)
    if axis == 1 or tpu.gathers_sublanes:
        index = size - 1 - (position + shift & size - 1)
        return permute_register(register, index, axis)
    for bit in (1, 2, 4):
        before = pltpu.roll(register, bit, axis)
        after = pltpu.roll(register, size - bit, axis)
        register = jnp.where(position & bit != 0, before, after)
    for bit in (1, 2, 4):
        after = pltpu.roll(register, size - bit, axis)
        register = jnp.where(shift & bit != 0, after, register)
    return register


def iota(axis: int) -> Array:
    """A register with the index of each sublane, or of each lane."""
    return lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), axis)


def permute_register(register: Array, source: Array, axis: int) -> Array:
    """Moves words of a register along an axis, each from its source's index."""
    return jnp.take_along_axis(register, source, axis, mode="promise_in_bounds")


def select(mask: Array, x: Array, y: Array) -> Array:
    """`x` where the mask is true, else `y`.

    A mask of booleans has an entry for each word, or for each part of a word. A mask of
    integers selects the bits that are set.
    """
    if mask.dtype != jnp.bool_:
        return y ^ ((x ^ y) & mask)
    if mask.shape == x.shape:
        return jnp.where(mask, x, y)
    bits = 32 * x.size // mask.size
    parts = jnp.where(mask, _as_parts(x, bits), _as_parts(y, bits))
    return pltpu.bitcast(parts, x.dtype)


def _as_parts(words: Array, bits: int) -> Array:
    """The words as integers of so many bits, two or four for each along sublanes."""
    return pltpu.bitcast(words, {8: jnp.int8, 16: jnp.int16}[bits])
