"""A TPU kernel for reversals of lines in blocks, in Pallas.

It is for lines that do not fit in VMEM, and for separate lines, each of which is stored
as whole registers. A line is reversed in blocks, each of which is read from a window of
the line. The position of the window shifts whole registers, without selects. The rest
of the shift is smaller than a register (see `registers.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from dml_jax._reverse.barrel_shift_kernel import BLOCK_BYTES, launch
from dml_jax._reverse.registers import (
    REGISTER_BYTES,
    Line,
    Tpu,
    as_column,
    for_each_group,
    lanes_of,
    line_in_columns,
    reverse_steps_in_words,
    select,
    shift_within_registers,
    shift_words,
)
from dml_jax._shared.tpu import LANES, SUBLANES, gather, iota


def reverse_windows(x: Array, lengths: Array, tpu: Tpu, is_line: bool = False) -> Array:
    """`x` [A, T, C], reversed along T by int32 `lengths` [A], one for each array.

    If `is_line`, each array [T, 128] is one line of T * 128 steps.

    A grid step computes a block of the result from a window of `x`. The window begins
    at a whole register and has one register more than the block. What remains of the
    shift is less than a register.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    arrays, time, columns = x.shape
    line = line_in_columns(time, x.dtype, tpu)
    # Blocks of the two operands and of the result are double-buffered.
    block_bytes = min(BLOCK_BYTES, tpu.vmem_bytes // 8)
    registers = min(line.registers, block_bytes // REGISTER_BYTES)
    block = line._replace(registers=registers)
    window = line._replace(registers=min(line.registers, registers + 1))
    blocks = pl.cdiv(time, block.size)

    def end(i: Any, length: Any) -> Any:
        """The number of whole rows that are reversed in block i and after it."""
        rows = lax.div(length, LANES) if is_line else length
        return rows - i * block.size

    def start(i: Any, length: Any) -> Any:
        first = lax.div(lax.max(end(i, length) - block.size, 0), line.steps)
        return lax.min(first, line.registers - window.registers) * line.steps

    def block_to_keep(i: Any, length: Any) -> Any:
        # Nothing is kept of the blocks before this one. A block is copied only once.
        first = lax.div(end(0, length), block.size)
        return lax.clamp(i, first, blocks - 1)

    def kernel(lengths: Any, source: Any, kept: Any, y: Any) -> None:
        i, length = pl.program_id(2), lengths[pl.program_id(0)]
        ends = last_end = end(i, length)
        lanes = None
        if is_line:
            rest = lax.rem(length, LANES)  # lanes of the row that is partly reversed
            ends = ends + (iota(1) < rest).astype(jnp.int32)
            last_end = last_end + lax.min(rest, 1)
            lanes = (length - 1 - iota(1)) & (LANES - 1)
        first_step = start(i, length)
        skipped = lax.div(window.size - (last_end - first_step), line.steps)
        ends = jnp.broadcast_to(ends, (SUBLANES, LANES))
        shift = window.size - (ends - first_step) - skipped * line.steps

        def load(register: Any) -> Array:
            rows = pl.ds(register * line.steps, line.steps)
            words = pltpu.bitcast(source[0, rows], jnp.int32)
            if lanes is not None:
                words = gather(words, lanes, 1)
            return reverse_steps_in_words(words, line)

        def group(first: Any, count: int) -> None:
            last_source = window.registers - 1 - skipped - first
            words = [load(lax.max(last_source - i, 0)) for i in range(count + 1)]
            words = shift_within_registers(line, words, [shift])
            rows = pl.ds(first * line.steps, count * line.steps)
            kept_words = jnp.split(pltpu.bitcast(kept[0, rows], jnp.int32), count)
            for i in range(count):
                is_reversed = line.is_reversed(first + i, [ends])
                result = select(is_reversed, words[i], kept_words[i])
                rows = pl.ds((first + i) * line.steps, line.steps)
                y[0, rows] = pltpu.bitcast(result, y.dtype)

        for_each_group(0, block.registers, group)

    of_window = pl.BlockSpec(
        (
            pl.Element(1),
            pl.Element(window.size, (0, line.size - time)),
            pl.Element(LANES, (0, -columns % LANES)),
        ),
        lambda a, c, i, lengths: (a, start(i, lengths[a]), c * LANES),
    )
    shape = (1, block.size, LANES)
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(arrays, pl.cdiv(columns, LANES), blocks),
        in_specs=[
            of_window,
            pl.BlockSpec(
                shape, lambda a, c, i, lengths: (a, block_to_keep(i, lengths[a]), c)
            ),
        ],
        out_specs=pl.BlockSpec(shape, lambda a, c, i, _: (a, i, c)),
    )
    return launch(kernel, grid_spec, ("parallel",) * 3, tpu, lengths, x, x)


def reverse_windows_of_rows(x: Array, lengths: Array, tpu: Tpu) -> Array:
    """`x` [A, L, T] of 32 bits, reversed along T by the int32 `lengths` [A, L].

    A grid step computes a block of the result from windows of `x`, one for each row.
    A window ends at a whole register.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    arrays, rows, time = x.shape
    line = Line(tpu, pl.cdiv(time, LANES), LANES, axis=1)
    tiles = pl.cdiv(rows, SUBLANES)
    # The steps to keep, the windows and the result are double-buffered. The windows
    # have room for steps before the line.
    block_bytes = min(BLOCK_BYTES, tpu.vmem_bytes // 12)
    registers = min(line.registers - 1, block_bytes // REGISTER_BYTES)
    block = line._replace(registers=registers)
    window = line._replace(registers=registers + 1)

    def kernel(
        lengths: Any, source: Any, kept: Any, y: Any, windows: Any, semaphores: Any
    ) -> None:
        a, tile, i = (pl.program_id(d) for d in range(3))

        def end(i: Any, sublane: int) -> Any:
            """The number of steps that are reversed in block i and after it."""
            row = (a * tiles + tile) * SUBLANES + sublane
            return lengths[row] - i * block.size

        def copy(i: Any, sublane: int) -> Any:
            stop = lax.div(end(i, sublane) + LANES - 1, LANES)
            before = lax.max(window.registers - stop, 0)
            first = lax.max(stop - window.registers, 0)
            slot = lax.rem(i, 2)
            steps = pl.ds(first * LANES, window.size)
            target = pl.ds(before * LANES, window.size)
            return pltpu.make_async_copy(
                source.at[a, pl.ds(tile * SUBLANES + sublane, 1), steps],
                windows.at[slot, pl.ds(sublane, 1), target],
                semaphores.at[slot],
            )

        def for_each_copy(i: Any, act: Callable[[Any], None]) -> None:
            for sublane in range(SUBLANES):
                # Nothing of the other rows is reversed.
                pl.when(end(i, sublane) > 0)(lambda s=sublane: act(copy(i, s)))

        @pl.when(i == 0)
        def _() -> None:
            for_each_copy(i, lambda copy: copy.start())

        @pl.when(i + 1 < pl.num_programs(2))
        def _() -> None:
            for_each_copy(i + 1, lambda copy: copy.start())

        for_each_copy(i, lambda copy: copy.wait())
        ends = as_column([end(i, sublane) for sublane in range(SUBLANES)])

        def group(first: Any, count: int) -> None:
            last_source = window.registers - 1 - first
            words = [
                windows[lax.rem(i, 2), :, lanes_of(last_source - k)]
                for k in range(count + 1)
            ]
            words = shift_words(line, words, -ends & LANES - 1)
            for k in range(count):
                is_reversed = line.is_reversed(first + k, [ends])
                y[0, :, lanes_of(first + k)] = select(
                    is_reversed, words[k], kept[0, :, lanes_of(first + k)]
                )

        for_each_group(0, block.registers, group)

    lengths = jnp.pad(lengths, ((0, 0), (0, tiles * SUBLANES - rows))).reshape(-1)
    padded = jnp.pad(x, ((0, 0), (0, 0), (0, line.size - time)))
    spec = pl.BlockSpec((1, SUBLANES, block.size), lambda a, t, i, _: (a, t, i))
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(arrays, tiles, pl.cdiv(time, block.size)),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY), spec],
        out_specs=spec,
        scratch_shapes=[
            pltpu.VMEM((2, SUBLANES, 2 * window.size), x.dtype),
            pltpu.SemaphoreType.DMA((2,)),
        ],
    )
    semantics = ("parallel", "parallel", "arbitrary")
    return launch(kernel, grid_spec, semantics, tpu, lengths, padded, x)
