"""Kernels for GPUs whose threads store chunks of 16 bytes.

`packed_copy_kernel` and `packed_fill_kernel` define what a thread computes, as a
function of a `machine` with words of 32 bits. In a program its words are MLIR values,
because Pallas cannot express the operations. In the tests they are NumPy integers.

XLA cannot fuse such a kernel with surrounding operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
from jax import Array

from dml_jax._shared import jax_versions

CHUNK = 16  # bytes
WORD = 4  # bytes
# Positions in bytes, also of threads beyond the end, must fit 32 bits with a sign.
MAX_BYTES = 2**31 - 2**16
_WARPGROUP = 128  # threads of a block

# The words of a chunk whose first loads have been issued.
Completion: TypeAlias = Callable[[], list[Any]]


def launch(
    chunk: Callable[[Any, Any], Completion],
    result: jax.ShapeDtypeStruct,
    *operands: Array,
    chunks: int,
    at_once: int,
) -> Array:
    """The result of a kernel.

    Args:
      chunk: what a thread computes, of a machine and of the position of a chunk.
      result: the shape and the dtype of the result.
      *operands: the arrays that the kernel reads, the lengths of rows last.
      chunks: the number of chunks that a thread stores.
      at_once: how many of them it begins to load before it completes the first.
    """
    from jax.experimental.pallas import mosaic_gpu as plgpu

    # JAX keeps `thread` in a cache, so it must not refer to tracers.
    source_bytes, itemsize = operands[0].nbytes, result.dtype.itemsize
    size = math.prod(result.shape)

    def body(*refs: Any):
        references = (plgpu.RefType(),) * len(refs)
        plgpu.inline_mgpu(arg_types=references)(thread)(*refs)

    def thread(_: Any, *references: Any):
        from dml_jax._shared.gpu_machines import ChunkMachine

        machine = ChunkMachine(itemsize, source_bytes, *references)
        positions = machine.positions(chunks)
        for i in range(0, chunks, at_once):
            group = positions[i : i + at_once]
            completions = [chunk(machine, position) for position in group]
            for position, complete in zip(group, completions, strict=True):
                machine.store(position, size, complete())

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((size,), result.dtype),
        grid=(-(-size * itemsize // (chunks * CHUNK * _WARPGROUP)),),
        grid_names=("block",),
        num_threads=1,
        thread_name="warpgroup",
    )
    flat = [operand.reshape(-1) for operand in operands]
    return jax_versions.launch(kernel, *flat).reshape(result.shape)
