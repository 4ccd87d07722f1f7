"""The elements that a slice reads and its transpose writes."""

from __future__ import annotations

from typing import NamedTuple


class StridedWindow(NamedTuple):
    """The parameters of a slice.

    Along each dimension it reads the indices `start + stride * i` for `0 <= i < size`.
    Strides are positive. A negative stride is represented by a positive one, and the
    result is then reversed along `reversed_dims`.
    """

    operator: str  # the public function
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    reversed_dims: tuple[int, ...]

    @property
    def limits(self) -> tuple[int, ...]:
        """The indices after the last elements, as `lax.slice` takes them."""
        return tuple(
            start if size == 0 else start + stride * (size - 1) + 1
            for start, size, stride in zip(
                self.starts, self.sizes, self.strides, strict=True
            )
        )

    def padding(self, shape: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
        """The `lax.pad` configuration that puts a slice back into this shape."""
        return tuple(
            (start, size - limit, stride - 1)
            for start, size, limit, stride in zip(
                self.starts, shape, self.limits, self.strides, strict=True
            )
        )

    def covers(self, shape: tuple[int, ...]) -> bool:
        """Whether the slice reads all elements of an array of this shape."""
        return self.sizes == shape and not any(self.starts)

    def batched(self, size: int) -> StridedWindow:
        """The window with one more leading dimension, which is read as a whole."""
        return self._replace(
            starts=(0, *self.starts),
            sizes=(size, *self.sizes),
            strides=(1, *self.strides),
            reversed_dims=tuple(d + 1 for d in self.reversed_dims),
        )

    def with_trailing(self, sizes: tuple[int, ...]) -> StridedWindow:
        """The window with more last dimensions, which are read as a whole."""
        return self._replace(
            starts=self.starts + (0,) * len(sizes),
            sizes=self.sizes + sizes,
            strides=self.strides + (1,) * len(sizes),
        )

    def with_dimension(
        self, d: int, start: int, size: int, stride: int
    ) -> StridedWindow:
        """The window with these numbers along dimension `d`."""

        def replaced(values: tuple[int, ...], value: int) -> tuple[int, ...]:
            return (*values[:d], value, *values[d + 1 :])

        return self._replace(
            starts=replaced(self.starts, start),
            sizes=replaced(self.sizes, size),
            strides=replaced(self.strides, stride),
        )
