"""Progress bars."""

from __future__ import annotations

from collections.abc import Iterable


def progress(iterations: Iterable[int], name: str) -> Iterable[int]:
    """The iterations with a progress bar, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return iterations
    total = len(iterations) if isinstance(iterations, range) else None
    return tqdm(iterations, desc=name, total=total, delay=1, disable=None, leave=False)
