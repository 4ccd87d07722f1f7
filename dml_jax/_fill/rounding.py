"""`start + k * delta`, correctly rounded, in the arithmetic that every platform has.

The exact value may have hundreds of bits. It is computed in these steps, the first two
on scalars:

1. In units of the last bit of delta, delta is an integer D and start is a float s. A
   delta that is too small to change start is replaced by 0. A start so small that it
   only decides ties is replaced by a larger one that decides them alike. So all numbers
   stay far from overflow, and from underflow: XLA on CPU flushes subnormal floats to
   zero.
2. Infinities, NaNs, the sign of zero and the element k = 0 follow IEEE arithmetic.
3. The integer k * D is computed exactly, as limbs of the float's precision. Wrapping
   multiplication gives the low bits. An estimate in floats, corrected by the low bits,
   gives the high bits. Each limb is converted to a float without rounding.
4. s and the limbs are summed into an expansion of nonoverlapping floats [1]. All but
   the leading one are added with rounding to odd [2], which keeps the sum on the right
   side of every tie. The leading one is then added with rounding to nearest.
5. The sum, still in units of delta's last bit, is encoded in the dtype. All values of a
   dtype are multiples of its smallest subnormal. So a sum in the subnormal range is
   exact, and its bits are only moved.

No product is rounded before it is added, so XLA may contract multiplication and
addition, as it does for some instruction sets. All is computed in float32 and uint32.
The scalars of float64 sequences, which `double_word` computes, are float64 and uint64.

[1] Shewchuk, Adaptive Precision Floating-Point Arithmetic and Fast Robust Geometric
    Predicates, 1997, theorem 10.
[2] Boldo and Melquiond, Emulation of a FMA and Correctly Rounded Sums: Proved
    Algorithms Using Rounding to Odd, 2008.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared import bitwise

EXPONENT_BITS = np.uint64(0x7FF << 52)  # of a float64


class _Format(NamedTuple):
    """The encoding of a float dtype, and the dtypes in which it is computed."""

    dtype: np.dtype
    code: np.dtype  # the unsigned integer of its width
    fraction_bits: int
    minimum_exponent: int  # of a normal value
    float: np.dtype
    word: np.dtype
    integer: np.dtype

    @property
    def precision(self) -> int:
        return self.fraction_bits + 1

    @property
    def sign_bit(self) -> int:
        return 1 << (jnp.finfo(self.dtype).bits - 1)

    @property
    def limb_bits(self) -> int:
        """The precision of `float`."""
        return int(jnp.finfo(self.float).nmant) + 1

    @property
    def bias(self) -> int:
        """The exponent bias of `float`."""
        return int(jnp.finfo(self.float).maxexp) - 1


def _format(dtype: np.dtype) -> _Format:
    info = jnp.finfo(dtype)
    if info.bits == 64:
        code, computing = "uint64", ("float64", "uint64", "int64")
    else:
        code = bitwise.UNSIGNED.get(info.bits, "uint32")
        computing = ("float32", "uint32", "int32")
    return _Format(
        dtype,
        jnp.dtype(code),
        int(info.nmant),
        int(info.minexp),
        *map(np.dtype, computing),
    )


def words_of_index(dtype: np.dtype, count: int) -> tuple[int, int]:
    """The number of words for an index below `count`, and the bits of each.

    The dtype has up to 32 bits.
    """
    form = _format(dtype)
    # With one word, k * D must fit two limbs.
    if count <= 2 ** min(32, 2 * form.limb_bits - form.precision):
        return 1, 32
    return 2, form.limb_bits


def multiply_add(
    index: list[Array], delta: Array, start: Array, index_bits: int
) -> Array:
    """The floats nearest to `start + index * delta`, ties to even.

    Args:
      index: integers in [0, 2^`index_bits`), as the words that `words_of_index`
        specifies, the lower one first.
      delta: scalar of a float dtype of up to 32 bits.
      start: scalar of the same dtype.
      index_bits: the bits of the index.

    Returns:
      An array of that dtype and of the shape of the words.
    """
    form = _format(start.dtype)
    parts = _decode(start, form), _decode(delta, form)
    scaled = _scale(*parts, form, index_bits)
    total = _round_sum(scaled.start, _limbs(index, scaled, form), form)
    if form.dtype == form.float:
        code = _code(encode(total, _encoding(scaled.unit, form)), form)
    else:
        code = _encode(total, scaled.unit, form)

    code = jnp.where(total == 0, _zero(*parts, form), code)
    wide_start, wide_delta = start.astype(form.float), delta.astype(form.float)
    finite = jnp.isfinite(wide_start) & jnp.isfinite(wide_delta)
    special = (wide_start + wide_delta).astype(form.dtype)
    code = jnp.where(finite, code, _code(special, form))
    is_first = functools.reduce(jnp.bitwise_or, index) == 0
    code = jnp.where(is_first, _code(first_element(start, delta), form), code)
    return lax.bitcast_convert_type(code, form.dtype)


def first_element(start: Array, delta: Array) -> Array:
    """`start + 0 * delta`."""
    form = _format(start.dtype)
    parts = _decode(start, form), _decode(delta, form)
    first = jnp.where(parts[0].is_zero, _zero(*parts, form), _code(start, form))
    wide_start, wide_delta = start.astype(form.float), delta.astype(form.float)
    finite = jnp.isfinite(wide_start) & jnp.isfinite(wide_delta)
    special = (wide_start + 0 * wide_delta).astype(form.dtype)
    first = jnp.where(finite, first, _code(special, form))
    return lax.bitcast_convert_type(first, form.dtype)


def _zero(start: _Parts, delta: _Parts, form: _Format) -> Array:
    """The code of a sum that is zero: negative if it is one of two negative zeros."""
    is_negative = start.is_zero & start.negative & delta.negative
    sign_bit = form.word.type(form.sign_bit)
    return jnp.where(is_negative, sign_bit, 0).astype(form.code)


def _code(x: Array, form: _Format) -> Array:
    return lax.bitcast_convert_type(x, form.code)


# Scalars ------------------------------------------------------------------------------


class _Parts(NamedTuple):
    """(-1)^negative * significand * 2^exponent, with the leading bit set."""

    negative: Array
    significand: Array
    exponent: Array

    @property
    def is_zero(self) -> Array:
        return self.significand == 0


def _decode(x: Array, form: _Format) -> _Parts:
    code = _code(x, form).astype(form.word)
    magnitude = code & form.word.type(form.sign_bit - 1)
    field = (magnitude >> form.fraction_bits).astype(jnp.int32)
    significand = magnitude & form.word.type(2**form.fraction_bits - 1)
    significand = jnp.where(
        field > 0, significand | form.word.type(2**form.fraction_bits), significand
    )
    exponent = jnp.maximum(field, 1) - 1 + form.minimum_exponent - form.fraction_bits
    missing = lax.clz(significand) - (8 * form.word.itemsize - form.precision)
    return _Parts(
        (code & form.word.type(form.sign_bit)) != 0,
        significand << missing,
        exponent - missing.astype(jnp.int32),
    )


class Scaled(NamedTuple):
    """Start and delta in units of 2^unit, delta as a factor and its sign."""

    start: Array
    factor: Array
    sign: Array
    unit: Array


class Constant(NamedTuple):
    """Whether all elements from 1 on are the same, and which one that is."""

    holds: Array
    value: Array


def scaled(start: Array, delta: Array, index_bits: int) -> tuple[Scaled, Constant]:
    """Start and delta in units of delta's last bit, for an index of so many bits.

    A delta that is zero, or too small to change start, becomes zero, and the unit is
    start's last bit. A start smaller than 1/4 only decides ties, so its exact size does
    not matter.

    Infinities, NaNs and zeros are constant from element 1 on. For these, start is 1,
    the factor is 0 and the unit is 1, and the elements are those of `Constant`.
    """
    form = _format(start.dtype)
    result = _scale(_decode(start, form), _decode(delta, form), form, index_bits)
    value = start.astype(form.float) + delta.astype(form.float)
    is_zero = (result.start == 0) & (result.factor == 0)
    is_constant = is_zero | ~jnp.isfinite(value)
    return (
        Scaled(
            jnp.where(is_constant, 1, result.start),
            jnp.where(is_constant, 0, result.factor),
            result.sign,
            jnp.where(is_constant, 1, result.unit),
        ),
        Constant(is_constant, value),
    )


def _scale(start: _Parts, delta: _Parts, form: _Format, index_bits: int) -> Scaled:
    gap = start.exponent - delta.exponent
    # Beyond this gap the product, below 2^(precision + index_bits), is less than a
    # quarter of the last bit of start, which is 2^gap.
    largest_gap = form.precision + index_bits + 1
    alone = delta.is_zero | ((gap > largest_gap) & ~start.is_zero)
    # In these units delta's last bit is 1, so all starts below 1/4 decide ties alike.
    gap = jnp.maximum(gap, -form.precision - 6)
    gap = jnp.where(alone | start.is_zero, 0, gap)
    value = start.significand.astype(form.float) * power_of_two(gap, form.float)
    return Scaled(
        jnp.where(start.negative, -value, value),
        jnp.where(alone, 0, delta.significand),
        jnp.where(delta.negative, -1, 1).astype(form.float),
        jnp.where(alone, start.exponent, delta.exponent),
    )


def leading_power(x: Any) -> Any:
    """The largest power of two up to |x|, for normal float64 numbers."""
    return (x.view(np.uint64) & EXPONENT_BITS).view(np.float64)


def largest_power_that_divides(x: Any) -> Any:
    """The largest power of two that divides x, for normal float64 numbers."""
    fraction = x.view(np.uint64) & np.uint64(2**52 - 1) | np.uint64(2**52)
    units = (fraction & (~fraction + np.uint64(1))).astype(np.float64)
    return leading_power(x) * 2.0**-52 * units


def power_of_two(exponent: Array, dtype: Any = jnp.float32) -> Array:
    """2^`exponent`, for an exponent of a normal number."""
    info = jnp.finfo(dtype)
    field = (exponent + int(info.maxexp) - 1).astype(f"uint{info.bits}")
    return lax.bitcast_convert_type(field << int(info.nmant), dtype)


def to_float64(k: Array, platform: str) -> Array:
    """Integers below 2^52 as float64; on a CPU, they may be floats already.

    On a GPU the bits of 2^52 + k are eight times as fast as a conversion. On a CPU with
    AVX-512 a conversion is one instruction.
    """
    if platform == "cpu":
        return k.astype(jnp.float64)
    bits = k.astype(jnp.uint64) | np.uint64(0x433 << 52)
    return lax.bitcast_convert_type(bits, jnp.float64) - 2.0**52


# The product and the sum --------------------------------------------------------------


def _limbs(index: list[Array], scaled: Scaled, form: _Format) -> list[Array]:
    """The product as signed nonoverlapping floats, smallest first."""
    limbs = _product(index[0], scaled.factor, form)
    if len(index) == 2:
        low, high = _product(index[1], scaled.factor, form)
        middle = limbs[1] + low
        mask = form.word.type(2**form.limb_bits - 1)
        limbs = [limbs[0], middle & mask, high + (middle >> form.limb_bits)]
    return [
        limb.astype(form.integer).astype(form.float)
        * (scaled.sign * 2.0 ** (form.limb_bits * i))
        for i, limb in enumerate(limbs)
    ]


def _product(index: Array, factor: Array, form: _Format) -> list[Array]:
    """The product as two integers of `limb_bits`, the lower one first."""
    low = index * factor
    estimate = index.astype(form.float) * (
        factor.astype(form.float) * 2.0**-form.limb_bits
    )
    # The estimate of `high` is off by at most one. It is corrected by the last bits of
    # the exact `high`, which are the first bits of `low`.
    high = estimate.astype(form.integer)
    overlap = (low >> form.limb_bits).astype(form.integer) - high
    high = high + ((overlap << form.limb_bits) >> form.limb_bits)
    mask = form.word.type(2**form.limb_bits - 1)
    return [low & mask, high.astype(form.word)]


def _round_sum(start: Array, limbs: list[Array], form: _Format) -> Array:
    """The sum, rounded to nearest, or to odd if `_encode` rounds it once more."""
    expansion = []
    total = start
    for limb in limbs:
        total, error = two_sum(total, limb)
        expansion.append(error)
    expansion.append(total)

    # Adding the components from the smallest up keeps the remainder below an ulp of the
    # leading float.
    leading, *rest = expansion
    tail = []
    for component in rest:
        leading, error = two_sum(component, leading)
        tail.append(error)
    remainder = functools.reduce(lambda small, large: add_to_odd(large, small), tail)
    if form.dtype == form.float:
        return leading + remainder
    return add_to_odd(leading, remainder)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """`a + b`, rounded to nearest, and its exact error."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def fast_two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """`two_sum`, if a is a multiple of the last bit of b."""
    total = a + b
    return total, b - (total - a)


def add_to_odd(a: Array, b: Array) -> Array:
    """`a + b` if that is a float, else the neighbouring float whose last bit is 1."""
    total, error = two_sum(a, b)
    # The error of an infinite total is NaN.
    return to_odd(total, jnp.where(jnp.isfinite(total), error, 0))


def to_odd(total: Array, error: Array) -> Array:
    """`total + error` rounded to odd, for a total that is rounded to nearest."""
    integer = np.dtype(f"int{8 * total.dtype.itemsize}")
    bits = lax.bitcast_convert_type(total, integer)
    error_bits = lax.bitcast_convert_type(error, integer)
    is_smaller = (bits ^ error_bits) >> (8 * integer.itemsize - 1)  # -1 or 0
    bits = jnp.where(error != 0, (bits + is_smaller) | 1, bits)
    return lax.bitcast_convert_type(bits, total.dtype)


# The result ---------------------------------------------------------------------------


class Encoding(NamedTuple):
    """How `encode` converts a sum in units of 2^unit to a float32 or a float64.

    If no sum is subnormal, the sum is scaled, and the threshold is 0. Otherwise it is
    not scaled. The threshold is then the smallest normal number in units of 2^unit, and
    the offset is the bit pattern of the threshold.
    """

    scale: Array
    threshold: Array
    offset: Array


def encoding(scaled: Scaled, constant: Constant) -> Encoding:
    """The encoding of what `scaled` returns, in its dtype of 32 or 64 bits."""
    form = _format(constant.value.dtype)
    scale, threshold, offset = _encoding(scaled.unit, form)
    # The sum is 1, and `encode` subtracts the offset from the bits of twice the sum.
    of_value = _integer(jnp.ones_like(scale) * 2) - _integer(constant.value)
    return Encoding(scale, threshold, jnp.where(constant.holds, of_value, offset))


def _encoding(unit: Array, form: _Format) -> Encoding:
    # Compared with the range of the dtype's exponents, all sums are close to 1.
    is_large = unit > form.minimum_exponent * 4 // 5
    lowest, highest = form.minimum_exponent, form.bias
    least = power_of_two(jnp.clip(lowest - unit, lowest, highest), form.float)
    scale = power_of_two(jnp.clip(unit - 1, lowest, highest), form.float)
    return Encoding(
        jnp.where(is_large, scale, 1),
        jnp.where(is_large, 0, least),
        jnp.where(is_large, 0, _integer(least)),
    )


def encode(total: Array, encoding: Encoding) -> Array:
    """The float32 or float64 that a sum in units of 2^unit represents.

    A sum below the threshold is a multiple of the threshold's last bit. So adding the
    threshold is exact, and the last bits of the result are those of the subnormal
    number. Any other sum is doubled, for which the scale or the offset makes up.
    """
    total = total * encoding.scale
    addend = jnp.maximum(jnp.abs(total), encoding.threshold)
    sign = _integer(total) & np.iinfo(encoding.offset.dtype).min
    addend = lax.bitcast_convert_type(_integer(addend) | sign, total.dtype)
    bits = _integer(total + addend) - encoding.offset
    return lax.bitcast_convert_type(bits, total.dtype)


def _integer(x: Array) -> Array:
    """The bits of floats as signed integers."""
    return lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}")


def from_single(x: Array, dtype: np.dtype) -> Array:
    """The nearest floats of a dtype of up to 16 bits to float32 `x`.

    All values of the dtype are normal numbers in float32.
    """
    form = _format(dtype)
    code = _encode(x, np.int32(0), form)
    sign_bit = jnp.where(jnp.signbit(x), form.word.type(form.sign_bit), 0)
    code = jnp.where(x == 0, sign_bit.astype(form.code), code)
    nan = np.full((), np.nan, dtype).view(f"u{dtype.itemsize}").astype(form.code)
    code = jnp.where(jnp.isnan(x), nan, code)
    return lax.bitcast_convert_type(code, form.dtype)


def _encode(x: Array, unit: Any, form: _Format) -> Array:
    """The bits of `x * 2^unit`, which is not zero, in the dtype."""
    bits = lax.bitcast_convert_type(x, form.word)
    sign = bits >> (8 * form.word.itemsize - 1)
    magnitude = bits & form.word.type(2 ** (8 * form.word.itemsize - 1) - 1)
    stored = form.limb_bits - 1
    shift = stored - form.fraction_bits

    rounded = magnitude
    if shift:
        half = form.word.type(2 ** (shift - 1) - 1)
        rounded = (magnitude + half + ((magnitude >> shift) & 1)) >> shift
    rebias = unit - form.minimum_exponent + 1 - form.bias
    normal = rounded + (rebias.astype(form.word) << form.fraction_bits)

    field = (magnitude >> stored).astype(jnp.int32) + rebias
    significand = (magnitude & form.word.type(2**stored - 1)) | form.word.type(
        2**stored
    )
    right = jnp.clip(shift + 1 - field, 0, stored + 1).astype(form.word)
    code = jnp.where(field < 1, significand >> right, normal)

    largest, overflow, negative_overflow = _limits(form)
    code = jnp.where(
        (field >= 1) & (normal > largest),
        jnp.where(sign != 0, negative_overflow, overflow),
        code | (sign * form.word.type(form.sign_bit)),
    )
    return code.astype(form.code)


def _limits(form: _Format) -> np.ndarray:
    """The codes of the largest value, and of overflows above and below."""
    beyond = np.array([np.inf, -np.inf]).astype(form.dtype)
    codes = np.append(jnp.finfo(form.dtype).max, beyond).astype(form.dtype)
    return codes.view(f"u{form.dtype.itemsize}").astype(form.word)
