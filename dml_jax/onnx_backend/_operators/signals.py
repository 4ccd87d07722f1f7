"""Fourier transforms of signals, and the weights of mel spectrograms.

The last dimension of an array has one real element, or the real and imaginary parts.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    dtype_in,
    in_float32,
    integer,
    normalized,
    require_rank,
    require_shape,
    require_size,
)
from dml_jax.onnx_backend._values import Array


def _dft(node: Node, x: Array, length: Any = None, axis: Any = None) -> jax.Array:
    attributes, rank = node.attributes, np.ndim(x)
    if node.version < 20:
        axis = attributes["axis"]
    number = normalized("axis", -2 if axis is None else integer("axis", axis), rank)
    if number == rank - 1:
        raise ValueError(f"`axis` must not be the last one; got {number}")
    is_onesided, is_inverse = attributes["onesided"], attributes["inverse"]
    _require_parts("input", x, (2,) if is_onesided and is_inverse else (1, 2))
    size = np.shape(x)[number]
    count = 2 * (size - 1) if is_onesided and is_inverse else size
    count = count if length is None else integer("dft_length", length)
    require_size(node, "dft_length", (count,))
    if not is_inverse:
        return _transformed(x, count, number, bool(is_onesided))
    values = _as_complex(x)
    if is_onesided:
        return jnp.fft.irfft(values, count, number)[..., None]
    return _as_pairs(jnp.fft.ifft(values, count, number))


def _stft(
    node: Node, x: Array, step: Array, window: Any = None, length: Any = None
) -> jax.Array:
    x = x[..., None] if np.ndim(x) == 2 else x  # as torch's older exporter writes it
    require_rank("signal", x, 3)
    _require_parts("signal", x, (1, 2))
    size, stride = np.shape(x)[1], integer("frame_step", step)
    if window is not None:
        require_rank("window", window, 1)
    width = size if window is None else np.size(window)
    width = width if length is None else integer("frame_length", length)
    require_shape("window", window, (width,))
    if stride < 1 or not 1 <= width <= size:
        raise ValueError(
            "`frame_step` must be at least 1, and `frame_length` at most the length "
            f"{size} of the signal; got {stride} and {width}"
        )
    starts = jnp.arange((size - width) // stride + 1, dtype=jnp.int32) * stride
    frames = jnp.asarray(x)[:, starts[:, None] + np.arange(width, dtype=np.int32)]
    if window is not None:
        frames = frames * jnp.asarray(window)[:, None]
    return _transformed(frames, width, 2, bool(node.attributes["onesided"]))


def _require_parts(name: str, x: Array, counts: tuple[int, ...]) -> None:
    """Refuses a signal whose last axis has not the parts of its elements."""
    if np.shape(x)[-1] not in counts:
        raise ValueError(
            f"`{name}` must have {' or '.join(map(str, counts))} elements on its last "
            f"axis; got shape {np.shape(x)}"
        )


def _transformed(x: Array, count: int, axis: int, is_onesided: bool) -> jax.Array:
    if np.shape(x)[-1] != 1:
        if is_onesided:
            raise ValueError("`onesided` must be 0 for complex signals; got 1")
        return _as_pairs(jnp.fft.fft(_as_complex(x), count, axis))
    values = jnp.fft.rfft(x[..., 0], count, axis)
    if not is_onesided:
        middle = lax.slice_in_dim(values, 1, (count + 1) // 2, axis=axis)
        values = jnp.concatenate([values, jnp.conj(jnp.flip(middle, axis))], axis)
    return _as_pairs(values)


def _as_complex(x: Array) -> jax.Array:
    x = jnp.asarray(x)
    return x[..., 0] if x.shape[-1] == 1 else lax.complex(x[..., 0], x[..., 1])


def _as_pairs(x: jax.Array) -> jax.Array:
    return jnp.stack([jnp.real(x), jnp.imag(x)], -1)


def _mel_weights(node: Node, *inputs: Array) -> np.ndarray:
    count, length, rate = map(integer, ("num_mel_bins", "dft_length", "rate"), inputs)
    first, last = (2595 * math.log10(1 + np.ravel(x).item() / 700) for x in inputs[3:])
    require_size(node, "num_mel_bins", (length // 2 + 1, count))
    mels = first + np.arange(count + 2) * (last - first) / (count + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    bins = np.floor((length + 1) * hertz / rate).astype(np.int64)
    low, center, high = bins[:-2], bins[1:-1], bins[2:]
    place = np.arange(length // 2 + 1)[:, None]
    rising = (place - low) / np.maximum(center - low, 1)
    falling = (high - place) / np.maximum(high - center, 1)
    weights = np.where(place <= center, rising, falling)
    weights = np.where(place == center, 1, np.maximum(weights, 0))
    return weights.astype(dtype_in(node, "output_datatype"))


# Coefficients of cosines, in 32 bits as in ONNX's bodies.
_WINDOWS: dict[str, tuple[float, ...]] = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (0.54347825, -0.45652175),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


def _window(node: Node, size: Array) -> np.ndarray:
    count = integer("size", size)
    require_size(node, "size", (max(count, 0),))
    period = count if node.attributes["periodic"] else count - 1
    angles = 2 * np.pi * np.arange(count) / period
    terms = enumerate(map(np.float32, _WINDOWS[node.kind]))
    values = sum(factor * np.cos(i * angles) for i, factor in terms)
    return np.asarray(values).astype(dtype_in(node, "output_datatype"))


OPERATORS = {
    **dict.fromkeys(_WINDOWS, Operator(_window, 17, static=(0,))),
    "DFT": Operator(in_float32(_dft), 17, static=(1, 2)),
    "STFT": Operator(in_float32(_stft), 17, static=(1, 3)),
    "MelWeightMatrix": Operator(_mel_weights, 17, static=(0, 1, 2, 3, 4)),
}
