"""The elements of tensors in flat buffers: strided reads and writes.

Two linear primitives index buffers at the positions of a layout:

    gather_strided(buffer, layout)           the elements at the positions
    scatter_strided(elements, layout, n)     a buffer of n zeros with the elements added

Each is the other's transpose. JAX's own transposes of indexing would sum cotangents in
the dtype of the elements, and would depend on whether 64-bit mode is on when they are
called. Leading dimensions, which vmap adds, are batch dimensions.

Elements are moved as integers. XLA partitions a gather as a sum to which other shards
contribute zeros, which keeps the bits of integers, but not of floats. A packed layout
is a slice of its buffer. In partitioned programs it is indexed like other layouts,
since XLA lowers slices of sharded rows to pads, which it partitions incorrectly.
"""

import functools
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax._shared import bitwise, jax_versions, lowering
from dml_jax.directml._tensor import BufferTensorDesc, Layout


def read(layout: Layout, buffer: jax.Array) -> jax.Array:
    """The elements in a buffer."""
    return gather_p.bind(buffer, layout=layout)


def write(
    tensor: BufferTensorDesc, elements: jax.Array, previous: jax.Array | None
) -> jax.Array:
    """The buffer of a tensor with its elements written; the rest is kept.

    If there is no previous buffer, the rest is 0, and a packed tensor is returned as an
    array of its sizes.
    """
    if previous is None:
        return elements if tensor.is_packed else flatten(tensor, elements)
    if is_logical(tensor, previous):
        return elements
    size = previous.shape[-1]
    written = _scatter_distinct(elements, tensor.layout, size)
    axes = jax_versions.varying_axes(written) | jax_versions.varying_axes(previous)
    written, kept = (jax_versions.vary_over(x, axes) for x in (written, previous))
    sharding = jax.typeof(written).sharding
    if getattr(sharding.mesh, "explicit_axes", ()):
        kept = jax.sharding.reshard(kept, sharding)
    is_element = _scatter_distinct(jnp.ones(tensor.sizes, bool), tensor.layout, size)
    return lax.select(is_element, written, kept)


def flatten(tensor: BufferTensorDesc, elements: jax.Array) -> jax.Array:
    """The whole buffer of a tensor, with zeros between its elements."""
    return _scatter_distinct(elements, tensor.layout, tensor.buffer_size)


def is_logical(tensor: BufferTensorDesc, bound: jax.Array | np.ndarray) -> bool:
    """Whether a tensor is bound as an array with its sizes, not as a flat buffer."""
    return tensor.is_packed and bound.shape == tensor.sizes


def _scatter_distinct(elements: jax.Array, layout: Layout, size: int) -> jax.Array:
    return scatter_p.bind(elements, layout=layout, size=size, is_distinct=True)


# Formulations -------------------------------------------------------------------------


def _gather(buffer: jax.Array, *, layout: Layout, is_partitioned: bool) -> jax.Array:
    compact = layout.compact

    def elements(bits: jax.Array) -> jax.Array:
        if compact.is_packed and (
            compact.element_count == bits.size or not is_partitioned
        ):
            return _resize(bits, compact.element_count).reshape(compact.sizes)
        return bits.at[_positions(compact)].get(mode="promise_in_bounds")

    return jnp.broadcast_to(bitwise.by_integers(elements, buffer), layout.sizes)


def _scatter(
    elements: jax.Array,
    *,
    layout: Layout,
    size: int,
    is_distinct: bool,
    is_partitioned: bool,
) -> jax.Array:
    """Sums are computed in at least float32 and rounded once."""
    dtype, compact = elements.dtype, layout.compact
    repeated = [d for d, n in enumerate(compact.sizes) if n != layout.sizes[d]]
    is_distinct |= compact.is_nested
    if bitwise.is_narrow_float(dtype) and (repeated or not is_distinct):
        elements = elements.astype(jnp.float32)
    if repeated:
        elements = elements.sum(repeated, dtype=elements.dtype, keepdims=True)
    if is_distinct:
        bits_of = functools.partial(_write, compact, size, is_partitioned)
        return bitwise.by_integers(bits_of, elements.astype(dtype))
    sums = jnp.zeros(size, elements.dtype).at[_positions(compact)]
    return sums.add(elements, mode="promise_in_bounds").astype(dtype)


def _write(
    layout: Layout, size: int, is_partitioned: bool, bits: jax.Array
) -> jax.Array:
    """A buffer of zeros with the elements at distinct positions."""
    if layout.is_packed and (layout.element_count == size or not is_partitioned):
        return _resize(bits.reshape(-1), size)
    if not layout.is_nested:
        buffer = jnp.zeros(size, bits.dtype).at[_positions(layout)]
        return buffer.set(bits, mode="promise_in_bounds", unique_indices=True)
    # A gather fuses with its neighbours, unlike a scatter.
    is_element, index = _element_at(layout, size)
    found = bits.reshape(-1).at[index].get(mode="promise_in_bounds")
    return jnp.where(is_element, found, jnp.zeros((), bits.dtype))


def _positions(layout: Layout) -> jax.Array:
    """The position of every element in the buffer."""
    dtype = bitwise.index_dtype(layout.extent)
    positions = jnp.zeros(layout.sizes, dtype)
    for d in layout.order:
        iota = lax.broadcasted_iota(dtype, layout.sizes, d)
        positions = positions + iota * dtype.type(layout.strides[d])
    return positions


def _element_at(layout: Layout, size: int) -> tuple[jax.Array, jax.Array]:
    """For each position, whether it holds an element, and the index of the element."""
    # DirectML limits positions to 32 bits, and 64 bits would take twice the memory.
    rest = lax.iota(jnp.uint32, size)
    is_element, index = jnp.ones(size, bool), jnp.zeros(size, jnp.uint32)
    packed = Layout.packed(layout.sizes).strides
    for d in layout.order:
        stride = np.uint32(layout.strides[d])
        at = rest // stride
        rest, is_element = rest - at * stride, is_element & (at < layout.sizes[d])
        index = index + at * np.uint32(packed[d])
    is_element = is_element & (rest == 0)
    index = jnp.where(is_element, index, np.uint32(0))
    return is_element, index.astype(bitwise.index_dtype(layout.element_count))


# Primitives ---------------------------------------------------------------------------

gather_p = jax.extend.core.Primitive("gather_strided")
scatter_p = jax.extend.core.Primitive("scatter_strided")


def _with_shape(x: Any, batch: int, shape: tuple[int, ...]) -> Any:
    """The type of an array with `batch` leading dimensions of `x` and then `shape`."""
    spec = [*x.sharding.spec[:batch], *[None] * len(shape)]
    return x.update(
        shape=(*x.shape[:batch], *shape),
        sharding=NamedSharding(x.sharding.mesh, PartitionSpec(*spec)),
        weak_type=False,
    )


def _gather_abstract_eval(buffer: Any, *, layout: Layout):
    return _with_shape(buffer, buffer.ndim - 1, layout.sizes)


def _scatter_abstract_eval(elements: Any, *, layout: Layout, size: int, **_: Any):
    return _with_shape(elements, elements.ndim - len(layout.sizes), (size,))


def _gather_transpose(cotangent: Any, buffer: Any, *, layout: Layout):
    size = buffer.aval.shape[-1]
    summed = scatter_p.bind(cotangent, layout=layout, size=size, is_distinct=False)
    return [lowering.reshard_like(buffer, summed)]


def _scatter_transpose(cotangent: Any, elements: Any, *, layout: Layout, **_: Any):
    return [lowering.reshard_like(elements, gather_p.bind(cotangent, layout=layout))]


def _batch(primitive: Any, operands: Any, dimensions: Any, **params: Any):
    with bitwise.full_width(*operands):
        x = jnp.moveaxis(operands[0], dimensions[0], 0)
    return primitive.bind(x, **params), 0


def _lower(formulation: Any, ctx: Any, x: Any, **params: Any) -> Any:
    rank = 1 if formulation is _gather else len(params["layout"].sizes)
    is_partitioned = not lowering.partitioning(ctx).is_whole
    lowered = functools.partial(formulation, is_partitioned=is_partitioned, **params)
    for _ in range(ctx.avals_in[0].ndim - rank):
        lowered = jax.vmap(lowered)

    def compute(x: jax.Array) -> jax.Array:
        with jax.enable_x64(True):  # for positions beyond 2^31
            return lowered(x)

    return lowering.lower(ctx, compute, x)


gather_p.def_impl(lowering.compiled(gather_p, "layout"))
gather_p.def_abstract_eval(_gather_abstract_eval)
ad.deflinear2(gather_p, _gather_transpose)
batching.primitive_batchers[gather_p] = functools.partial(_batch, gather_p)
mlir.register_lowering(gather_p, functools.partial(_lower, _gather))

scatter_p.def_impl(lowering.compiled(scatter_p, "layout", "size", "is_distinct"))
scatter_p.def_abstract_eval(_scatter_abstract_eval)
ad.deflinear2(scatter_p, _scatter_transpose)
batching.primitive_batchers[scatter_p] = functools.partial(_batch, scatter_p)
mlir.register_lowering(scatter_p, functools.partial(_lower, _scatter))

# Bytes as another data type -----------------------------------------------------------


def reinterpret(buffer: jax.Array, tensor: BufferTensorDesc) -> jax.Array:
    """The bytes of a buffer as the buffer of a tensor of any data type."""
    dtype = tensor.data_type.dtype
    if buffer.dtype == dtype:
        return _resize(buffer, tensor.buffer_size)
    count = dtype.itemsize // buffer.dtype.itemsize
    if count > 1:
        buffer = _resize(buffer, tensor.buffer_size * count).reshape(-1, count)
    elements = lax.bitcast_convert_type(buffer, dtype).reshape(-1)
    # XLA merges two consecutive bitcasts that change the width into one of the wrong
    # shape.
    return _resize(lax.optimization_barrier(elements), tensor.buffer_size)


def _resize(buffer: jax.Array, length: int) -> jax.Array:
    """A buffer sliced to `length`, or extended to it with zeros; not by a pad."""
    missing = length - buffer.size
    if missing <= 0:
        return lax.slice_in_dim(buffer, 0, length)
    return lax.concatenate([buffer, jnp.zeros(missing, buffer.dtype)], 0)
