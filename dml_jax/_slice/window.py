"""The elements that a slice reads and its adjoint writes."""

from __future__ import annotations

from typing import NamedTuple


class StridedWindow(NamedTuple):
    """The positions an operator touches, and the dimensions it walks downwards.

    Along each dimension they are lowest + step * i for 0 <= i < size.
    """

    operator: str
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    reversed_dims: tuple[int, ...]

    @property
    def limits(self):
        """The ends of a slice, which reads nothing beyond its last element."""
        return limits_of(self.starts, self.sizes, self.strides)

    @property
    def extents(self):
        """The distance from the first element to the end of the last one."""
        return limits_of((0,) * len(self.sizes), self.sizes, self.strides)

    def padding(self, shape):
        """What `lax.pad` needs to put a slice back into an array of this shape."""
        return tuple(
            (low, extent - limit, step - 1)
            for low, extent, limit, step in zip(
                self.starts, shape, self.limits, self.strides, strict=True
            )
        )

    def fills(self, shape):
        """Whether there is an element for every position of an array of this shape."""
        return self.sizes == shape and not any(self.starts)

    def batched(self, size):
        """The window with one more leading dimension, which is taken whole."""
        return self._replace(
            starts=(0, *self.starts),
            sizes=(size, *self.sizes),
            strides=(1, *self.strides),
            reversed_dims=tuple(d + 1 for d in self.reversed_dims),
        )


def limits_of(lowest, sizes, steps):
    """The ends of slices that begin at `lowest`."""
    return tuple(
        low if size == 0 else low + step * (size - 1) + 1
        for low, size, step in zip(lowest, sizes, steps, strict=True)
    )
