"""Checks of a model's inputs, and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx

from dml_jax._shared import arguments


def is_untyped(given: np.dtype, wanted: np.dtype) -> bool:
    """Whether .npy files store `wanted`, such as bfloat16, as the dtype `given`."""
    is_raw = given.type is np.void and given.names is None
    return is_raw and wanted.kind == "V" and given.itemsize == wanted.itemsize


def as_numpy(name: str, value: Any) -> np.ndarray:
    """Converts an input to a NumPy array."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"onnx: `{name}` must be an array without a mask; got MaskedArray"
        )
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        got = arguments.describe(value)
        raise TypeError(f"onnx: `{name}` must be an array; got {got}") from None


def wrong_inputs(
    names: Sequence[str],
    got: str,
    defaults: Sequence[str] = (),
    given: Iterable[str] = (),
    is_list: bool = True,
) -> TypeError:
    """The error for missing or unknown inputs, passed as a list if `is_list`."""
    if not names and not defaults:
        return TypeError(f"onnx: `inputs` must be empty; got {got}")
    order = ", ".join(names)
    missing = ", ".join(name for name in names if name not in given)
    if given and missing:
        got += f", without {missing}"
    if names:
        got += f". Pass `[{order}]`" if is_list else f". Pass `{order}`"
    rule = order or "none"
    if defaults:
        rule = f"{rule}, and may be for {', '.join(defaults)}"
    return TypeError(f"onnx: `inputs` must be arrays for {rule}; got {got}")


def sizes_of(tensor: onnx.TypeProto.Tensor) -> tuple[int | None, ...]:
    """The sizes in the type of an input, each None where any size is valid."""
    # Old exporters write -1 for a size that is unknown.
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in tensor.shape.dim
    )


def require_shape(
    name: str, shape: tuple[Any, ...], sizes: tuple[int | None, ...]
) -> None:
    """Refuses a shape with another rank or size than the graph's."""
    pairs = list(zip(sizes, shape, strict=False))
    wrong = [i for i, (size, given) in enumerate(pairs) if size not in (given, None)]
    if len(shape) != len(sizes) or wrong:
        expected = ", ".join("?" if size is None else str(size) for size in sizes)
        is_batch = len(shape) == len(sizes) and wrong == [0] and sizes[0] == 1
        hint = ". For a batch, use `jax.vmap` of `jax_fn` or `apply`" * is_batch
        raise ValueError(
            f"onnx: `{name}` must have shape ({expected}); got {shape}{hint}"
        )


def wanted_outputs(names: Any, outputs: tuple[str, ...]) -> tuple[str, ...]:
    """The outputs that a call in ONNX Runtime's form asks for."""
    if names is None:
        return outputs
    if isinstance(names, (list, tuple)) and {*names} <= {*outputs}:
        return tuple(names)
    rule = f"be None or a list of {', '.join(outputs)}"
    got = arguments.describe(names)
    raise arguments.error(ValueError, "inputs", rule, got)
