"""Operators of images, signals and quantized numbers against ONNX Runtime.

ONNX's own tests are in `test_onnx_nodes`; these have other versions and attributes, and
run under `jit` as well.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import parse, prepared, require_error, runtime_session
from sampling import default_of

from dml_jax import onnx_backend

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


LINE, IMAGE = floats(2, 3, 50), floats(2, 3, 9, 10)
BYTES = RANDOM.integers(0, 256, (2, 3, 9, 10), np.uint8)
ONE = "float[a,b,c,d] x => float[e,f,g,h] y {y ="
ROW = "float[a,b,c] x => float[d,e,f] y {y ="
KERNEL = "kernel_shape = [3, 2]"
SIZES = "s = Constant<value_ints = [2, 3, 7, 15]>()"
SCALES = "s = Constant<value_floats = [1.0, 1.0, 0.7, 2.5]>()"
ALIGNED = 'coordinate_transformation_mode = "align_corners"'
# Text and inputs.
MODELS: dict[str, tuple[Any, ...]] = {
    **{
        f"{kind}, {name}": (f"{ONE} {kind}<{KERNEL}, {attributes}>(x)}}", IMAGE)
        for kind in ("MaxPool", "AveragePool", "LpPool")
        for name, attributes in {
            "steps": "strides = [2, 3]",
            "padding": "strides = [2, 3], pads = [1, 0, 2, 1]",
            "dilations": "dilations = [2, 3]",
            "a last window": "strides = [2, 3], pads = [0, 1, 1, 0], ceil_mode = 1",
            "SAME_UPPER": 'strides = [2, 3], auto_pad = "SAME_UPPER"',
            "SAME_LOWER": 'auto_pad = "SAME_LOWER"',
        }.items()
    },
    "AveragePool, padding that counts": (
        f"{ONE} AveragePool<{KERNEL}, strides = [2, 2], pads = [1, 1, 2, 1], "
        "count_include_pad = 1, ceil_mode = 1>(x)}",
        IMAGE,
    ),
    **{
        f"{kind}, a wide window": (f"{ROW} {kind}<kernel_shape = [20]>(x)}}", LINE)
        for kind in ("MaxPool", "AveragePool")
    },
    "MaxPool of integers": (
        f"uint8[a,b,c,d] x => uint8[e,f,g,h] y {{y = MaxPool<{KERNEL}>(x)}}",
        BYTES,
    ),
    "MaxPool, the places": (
        "float[a,b,c,d] x => float[e,f,g,h] y, int32[e,f,g,h] i {y, j = "
        f"MaxPool<{KERNEL}, pads = [1, 1, 1, 1], strides = [2, 2]>(x) "
        "i = Cast<to = 6>(j)}",
        IMAGE,
    ),
    **{
        f"{kind} of opset {opset}": (f"@{opset} {ONE} {kind}(x)}}", IMAGE)
        for kind, opset in (
            *(("GlobalMaxPool", 9), ("GlobalMaxPool", 25), ("GlobalLpPool", 9)),
            *(("GlobalAveragePool", 9), ("GlobalAveragePool", 25)),
        )
    },
    **{
        f"Resize, {mode}, {name}": (
            f"@19 {ONE[:-3]} {given} y = Resize"
            f'<mode = "{mode}"{more}>(x, , {inputs})}}',
            IMAGE,
        )
        for mode, more in {
            "nearest": "",
            "linear": "",
            "cubic": ", exclude_outside = 1",
        }.items()
        for name, given, inputs in (("sizes", SIZES, ", s"), ("scales", SCALES, "s"))
    },
    "Resize, aligned corners": (
        f'@19 {ONE[:-3]} {SIZES} y = Resize<mode = "linear", {ALIGNED}>(x, , , s)}}',
        IMAGE,
    ),
    "Resize, smoothed": (
        f'@19 {ONE[:-3]} {SCALES} y = Resize<mode = "linear", antialias = 1>(x, , s)}}',
        IMAGE,
    ),
    **{
        f"Resize of opset 10, {mode}": (
            f"@10 {ONE[:-3]} s = Constant"
            "<value: tensor = float[4] {1, 1, 0.7, 2.5}>() "
            f'y = Resize<mode = "{mode}">(x, s)}}',
            IMAGE,
        )
        for mode in ("nearest", "linear")
    },
    "Upsample": (
        f"@9 {ONE[:-3]} s = Constant<value: tensor = float[4] {{1, 1, 2, 3}}>() "
        "y = Upsample(x, s)}",
        IMAGE,
    ),
    **{
        f"GridSample, {mode}, {padding}": (
            "float[a,b,c,d] x, float[a,u,v,2] p => float[a,b,u,v] y {y = GridSample"
            f'<mode = "{mode}", padding_mode = "{padding}">(x, p)}}',
            IMAGE,
            1.3 * floats(2, 4, 5, 2),
        )
        for mode in ("linear", "nearest", "cubic")
        for padding in ("zeros", "border", "reflection")
        # ONNX Runtime clamps all coordinates of a point if one is outside.
        if (mode, padding) != ("cubic", "border")
    },
    **{
        f"ConvTranspose, {name}": (
            "float[a,b,c,d] x, float[3,2,3,2] w => float[e,f,g,h] y "
            f"{{y = ConvTranspose<{attributes}>(x, w)}}",
            IMAGE,
            floats(3, 2, 3, 2),
        )
        for name, attributes in {
            "steps": "strides = [2, 3]",
            "groups": "group = 3, pads = [1, 0, 2, 1], strides = [2, 1]",
            "dilations": "dilations = [2, 3], strides = [3, 2]",
            "more": "strides = [2, 3], output_padding = [1, 2]",
            "a shape": "strides = [2, 3], output_shape = [18, 30]",
            "SAME_UPPER": 'strides = [2, 2], auto_pad = "SAME_UPPER"',
        }.items()
    },
    "InstanceNormalization": (
        "float[a,b,c,d] x, float[b] s => float[a,b,c,d] y "
        "{y = InstanceNormalization(x, s, s)}",
        IMAGE,
        floats(3),
    ),
    "GroupNormalization": (
        "@21 float[a,4,c] x, float[4] s => float[a,4,c] y "
        "{y = GroupNormalization<num_groups = 2>(x, s, s)}",
        floats(2, 4, 5),
        floats(4),
    ),
    "LpNormalization of zeros": (
        "@21 float[2,3] x => float[2,3] y {y = LpNormalization(x)}",
        np.array([[0, 0, 0], [3, 0, 4]], np.float32),
    ),
    "LRN": (f"{ONE} LRN<size = 3, alpha = 0.5>(x)}}", IMAGE),
    "MeanVarianceNormalization": (f"{ONE} MeanVarianceNormalization(x)}}", IMAGE),
    **{
        f"STFT, onesided = {onesided}": (
            "float[2,50,1] x, float[16] w => float[2,n,m,2] y "
            "{s = Constant<value_int = 5>() y ="
            f" STFT<onesided = {onesided}>(x, s, w)}}",
            floats(2, 50, 1),
            floats(16),
        )
        for onesided in (0, 1)
    },
    "DFT of a longer signal": (
        "@20 float[2,9,1] x => float[2,12,2] y {n = Constant<value_int = 12>() "
        "y = DFT(x, n)}",
        floats(2, 9, 1),
    ),
    "DFT of pairs along the first axis": (
        "@17 float[2,9,2] x => float[2,9,2] y {y = DFT<axis = 0, inverse = 1>(x)}",
        floats(2, 9, 2),
    ),
    "DynamicQuantizeLinear": (
        "float[2,50] x => uint8[2,50] y, float s, uint8 z "
        "{y, s, z = DynamicQuantizeLinear(x)}",
        floats(2, 50),
    ),
    "ConvInteger": (
        "uint8[a,b,c,d] x, uint8[4,3,3,2] w, uint8 p, uint8 q => int32[e,f,g,h] y "
        "{y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, p, q)}",
        *(BYTES, BYTES.ravel()[:72].reshape(4, 3, 3, 2)),
        *(np.array(120, np.uint8), np.array(7, np.uint8)),
    ),
    "ConvInteger, sums of more than 24 bits": (
        "uint8[a,b,c,d] x, uint8[4,3,9,10] w, uint8 p, uint8 q => int32[e,f,g,h] y "
        "{y = ConvInteger(x, w, p, q)}",
        *(BYTES | 127, RANDOM.integers(200, 256, (4, 3, 9, 10), np.uint8)),
        *(np.array(0, np.uint8), np.array(0, np.uint8)),
    ),
    "RotaryEmbedding": (
        "@23 float[2,5,12] x, float[2,5,2] c => float[2,5,12] y "
        "{y = RotaryEmbedding<num_heads = 3>(x, c, c)}",
        floats(2, 5, 12),
        floats(2, 5, 2),
    ),
    "Attention": (
        "@23 float[2,5,12] x => float[2,5,12] y "
        "{y = Attention<q_num_heads = 3, kv_num_heads = 3, is_causal = 1>(x, x, x)}",
        floats(2, 5, 12),
    ),
}


# One of each kind always runs.
CHOSEN = {name.partition(",")[0]: name for name in MODELS}.values()


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("name", default_of(MODELS, *CHOSEN))
def test_models_as_in_onnx_runtime(name: str) -> None:
    text, *inputs = MODELS[name]
    model = prepared(text)
    feeds = dict(zip(model.input_names, inputs, strict=True))
    wanted: Any = runtime_session(parse(text)).run(None, feeds)
    for outputs in (model.run(inputs), jax.jit(model.jax_fn)(*inputs)):
        for found, array in zip(outputs, wanted, strict=True):
            assert found.dtype == array.dtype
            tolerance = 2e-5 if np.issubdtype(array.dtype, np.floating) else 0
            np.testing.assert_allclose(found, array, tolerance, tolerance)


DIFFERENTIABLE = [
    name for name, (text, *_) in MODELS.items() if "int" not in text.partition("{")[0]
]
WITH_DERIVATIVES = [
    "MaxPool, a wide window",
    "Resize, cubic, scales",
    "STFT, onesided = 1",
]


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("name", default_of(DIFFERENTIABLE, *WITH_DERIVATIVES))
def test_derivatives(name: str) -> None:
    """Those of both modes agree, and are not zero."""
    text, x, *others = MODELS[name]
    model = prepared(text)

    def value(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(model.jax_fn(x, *others)[0] + 1))

    gradient = jax.grad(value)(x)
    _, slope = jax.jvp(value, (x,), (np.ones_like(x),))
    assert np.all(np.isfinite(gradient))
    assert np.any(gradient)
    np.testing.assert_allclose(np.sum(gradient), slope, rtol=1e-3, atol=1e-3)


def test_sequences_and_optional_values_inside_of_a_graph() -> None:
    text = """float[3] x => float[n] y, int64 k, bool b {
      empty = SequenceEmpty()
      one = Constant<value_int = 1>()
      zero = Constant<value_int = 0>()
      a = SequenceInsert(empty, x)
      b2 = Neg(x)
      c = SequenceInsert(a, b2, zero)
      d = SequenceInsert(c, x)
      e = SequenceErase(d, one)
      f = Optional(e)
      g = OptionalGetElement(f)
      h = SequenceMap(g) <body = each (float[3] p) => (float[3] q) {q = Add(p, p)}>
      k = SequenceLength(h)
      y = ConcatFromSequence<axis = 0>(h)
      b = OptionalHasElement(f)
    }"""
    x = np.array([1, 2, 3], np.float32)
    y, k, has_element = prepared(text).run([x])
    assert y.tolist() == [-2, -4, -6, 2, 4, 6]
    assert (k, has_element) == (2, True)


@pytest.mark.parametrize(("place", "left"), [(-2, [2]), (1, [1]), (-1, [1])])
def test_positions_in_sequences(place: int, left: list[int]) -> None:
    text = "int64[1] a, int64[1] b => int64[n] y {s = SequenceConstruct(a, b) "
    text += "e = SequenceErase(s, place) y = ConcatFromSequence<axis = 0>(e)}"
    model = prepared(text, place=np.array(place))
    assert model.run([[1], [2]])[0].tolist() == left
    message = r"SequenceErase 'e': `position` must be in \[-2, 2\); got -3$"
    model = prepared(text, place=np.array(-3))
    require_error(ValueError, message, model.run, [[1], [2]])


def test_an_optional_value_without_an_element() -> None:
    text = "=> bool b {b = OptionalHasElement()}"
    assert not prepared(text).run([]).b


REFUSALS = {
    "RandomNormal": "=> float[2] y {y = RandomNormal<shape = [2]>()}",
    "StringConcat": "string[2] x => string[2] y {y = StringConcat(x, x)}",
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refused_operators_have_a_reason(kind: str) -> None:
    model = parse(REFUSALS[kind])
    reason = f".*{kind} 'y', because .*"
    require_error(NotImplementedError, reason, onnx_backend.prepare, model)


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("magnitude", [1, 17, 127])
def test_sums_of_quantized_products_are_exact(
    magnitude: int, is_constant: bool
) -> None:
    """Also beyond 24 bits, and where constant weights say that floats have them all."""
    random = np.random.default_rng(0)
    a = random.integers(0, 256, (3, 3001), np.uint8)
    b = random.integers(-magnitude, magnitude + 1, (3001, 2), np.int8)
    text = "uint8[3,3001] a, int8[3001,2] b => int32[3,2] y { y = MatMulInteger(a, b) }"
    if is_constant:
        model = prepared(text.replace(", int8[3001,2] b", ""), b=b)
    else:
        model = prepared(text)
    feeds = {"a": a} if is_constant else {"a": a, "b": b}
    wanted = a.astype(np.int64) @ b.astype(np.int64)
    assert_same_bits(model.run(feeds)[0], wanted.astype(np.int32))


@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize(
    ("a", "b", "a_zero", "b_zero"),
    [
        ((3, 70), (70, 2), (), ()),
        ((3, 70), (70, 2), (3,), (2,)),
        ((2, 3, 70), (70, 2), (3,), (2,)),
        ((2, 3, 70), (2, 70, 2), (2, 3, 1), (2, 1, 2)),
        ((70,), (2, 70, 2), (), (2, 1, 2)),
        ((2, 3, 70), (70,), (2, 3, 1), ()),
    ],
)
def test_zero_points_of_products(
    a: tuple[int, ...],
    b: tuple[int, ...],
    a_zero: tuple[int, ...],
    b_zero: tuple[int, ...],
    kinds: tuple[str, str],
) -> None:
    """Also of the least and the largest elements."""
    random = np.random.default_rng(0)
    feeds, shapes = {}, (a, b, a_zero, b_zero)
    for name, shape, kind in zip("abpq", shapes, kinds * 2, strict=True):
        info = np.iinfo(kind)
        values = [info.min, info.max, random.integers(info.min, info.max)]
        feeds[name] = random.choice(values, shape).astype(kind)
    given = ", ".join(f"{x.dtype}{[*x.shape] or ''} {n}" for n, x in feeds.items())
    wide = {name: x.astype(np.int64) for name, x in feeds.items()}
    p = wide["p"][:, None] if len(a_zero) == 1 else wide["p"]
    wanted = np.matmul(wide["a"] - p, wide["b"] - wide["q"]).astype(np.int32)
    y = ",".join("xyz"[: wanted.ndim])
    model = prepared(f"{given} => int32[{y}] y {{ y = MatMulInteger(a, b, p, q) }}")
    assert_same_bits(model.run(feeds)[0], wanted)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "strides = [2, 3], pads = [1, 0, 2, 1]",
        'strides = [2, 2], auto_pad = "SAME_UPPER"',
        "dilations = [2, 3], pads = [0, 2, 0, 1]",
    ],
)
def test_depthwise_convolutions(options: str) -> None:
    random = np.random.default_rng(0)
    feeds = {
        "x": random.standard_normal((2, 4, 9, 8), np.float32),
        "w": random.standard_normal((4, 1, 3, 2), np.float32),
        "b": random.standard_normal(4, np.float32),
    }
    options = "group = 4" + (options and f", {options}")
    text = (
        "float[n,4,9,8] x, float[4,1,3,2] w, float[4] b => float[n,4,p,q] y "
        f"{{ y = Conv<{options}>(x, w, b) }}"
    )
    (wanted,) = runtime_session(parse(text)).run(None, feeds)
    np.testing.assert_allclose(prepared(text).run(feeds)[0], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "kernel", "options"),
    [
        ((9, 1), (3, 1), ""),
        ((1, 9), (1, 3), "strides = [2, 3]"),
        ((1, 1), (1, 1), ""),
        ((9, 1), (3, 1), "pads = [1, 1, 0, 0]"),
        ((1, 9, 1), (1, 2, 1), "dilations = [1, 2, 1]"),
    ],
)
def test_convolutions_over_single_elements(
    sizes: tuple[int, ...], kernel: tuple[int, ...], options: str
) -> None:
    random = np.random.default_rng(0)
    feeds = {
        "x": random.standard_normal((2, 4, *sizes), np.float32),
        "w": random.standard_normal((6, 4, *kernel), np.float32),
        "b": random.standard_normal(6, np.float32),
    }
    x, w = (",".join(map(str, feeds[name].shape)) for name in "xw")
    y = ",".join(["n", "c", *"pqr"[: len(sizes)]])
    text = (
        f"float[{x}] x, float[{w}] w, float[6] b => float[{y}] y "
        f"{{ y = Conv{options and f'<{options}>'}(x, w, b) }}"
    )
    (wanted,) = runtime_session(parse(text)).run(None, feeds)
    found = prepared(text).run(feeds)[0]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-5)
