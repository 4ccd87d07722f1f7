"""The elements that a slice reads and its transpose writes."""

from typing import NamedTuple, TypeAlias


class WindowDimension(NamedTuple):
    """What a slice reads along a dimension: start + stride * i for 0 <= i < size.

    Strides are positive. A negative stride is represented by a positive one, and the
    result is then reversed.
    """

    start: int
    size: int
    stride: int = 1
    is_reversed: bool = False

    @property
    def limit(self) -> int:
        """The index after the last element, as `lax.slice` takes it."""
        if self.size == 0:
            return self.start
        return self.start + self.stride * (self.size - 1) + 1


Window: TypeAlias = tuple[WindowDimension, ...]


def covers(window: Window, shape: tuple[int, ...]) -> bool:
    """Whether the slice reads all elements of an array of this shape."""
    pairs = zip(window, shape, strict=True)
    return all(part.size == size and part.start == 0 for part, size in pairs)


def unreversed(window: Window) -> Window:
    """The same elements in the order of their indices."""
    return tuple(part._replace(is_reversed=False) for part in window)
