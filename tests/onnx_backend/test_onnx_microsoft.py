"""Operators of com.microsoft against ONNX Runtime."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import require_error, runtime_session

from dml_jax import onnx_backend

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def integers(dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max, shape, dtype, endpoint=True)


X, IMAGES, KERNEL = floats(2, 3, 8), floats(2, 4, 9, 8), floats(6, 2, 3, 3)
SCALE, BIAS, ROW = np.abs(floats(8)), floats(8), floats(5, 8)
NARROW, PADDED = {"group": 2}, {"group": 2, "pads": [1, 1, 1, 1]}
BLOCKS = {"K": 40, "N": 6, "block_size": 16}
PACKED = {bits: integers("uint8", 6, 3, 2 * bits) for bits in (2, 4, 8)}
WIDE, STEPS = floats(3, 40), floats(5, 2, 4)
S = np.array(0.01, np.float32)
WEIGHTS = [integers("int8", 2, 4, 12), integers("int8", 2, 3, 12)]
LSTM_SCALES = [np.full(2, 0.004, np.float32), np.zeros(2, np.int8)]
LSTM_COLUMNS = [np.full((2, 12), 0.004, np.float32), np.zeros((2, 12), np.int8)]
# An operator, its inputs, its attributes, and how many outputs are compared.
CASES: dict[str, tuple[Any, ...]] = {
    "convolution": ("FusedConv", [IMAGES, KERNEL], NARROW),
    "convolution, Relu": (
        "FusedConv",
        [IMAGES, KERNEL, floats(6)],
        {**PADDED, "activation": "Relu"},
    ),
    "convolution, sum, Clip": (
        "FusedConv",
        [IMAGES, KERNEL, floats(6), floats(2, 6, 9, 8)],
        {**PADDED, "activation": "Clip", "activation_params": [-1.0, 2.0]},
    ),
    **{
        f"convolution, {name}": (
            "FusedConv",
            [IMAGES, KERNEL],
            {**NARROW, "activation": name, **parameters},
        )
        for name, parameters in {
            "LeakyRelu": {"activation_params": [0.3]},
            "HardSigmoid": {"activation_params": [0.3, 0.4]},
            "Sigmoid": {},
            "Tanh": {},
        }.items()
    },
    "product": ("FusedMatMul", [X, floats(8, 5)], {"alpha": 0.5}),
    "product, transposed": (
        "FusedMatMul",
        [floats(2, 8, 3), floats(2, 5, 8)],
        {"transA": 1, "transB": 1},
    ),
    "product, inner batches": (
        "FusedMatMul",
        [floats(3, 2, 8), floats(8, 2, 5)],
        {"transBatchA": 1, "transBatchB": 1},
    ),
    "product, inner batches, transposed": (
        "FusedMatMul",
        [floats(8, 2, 3), floats(5, 2, 8)],
        {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1},
    ),
    "skip": ("SkipLayerNormalization", [X, X[::-1], SCALE], {"epsilon": 1e-5}),
    "skip, shift, bias": (
        "SkipLayerNormalization",
        [X, X[::-1], SCALE, BIAS, BIAS[::-1]],
        {},
    ),
    "skip, all outputs": (
        "SkipLayerNormalization",
        [X, X[::-1], SCALE, BIAS],
        {},
        ["y", "", "", "total"],
    ),
    "skip, simplified": (
        "SkipSimplifiedLayerNormalization",
        [X, X[::-1], SCALE, BIAS],
        {"epsilon": 1e-5},
    ),
    "Gelu": ("Gelu", [X], {}),
    "BiasGelu": ("BiasGelu", [X, BIAS], {}),
    "FastGelu": ("FastGelu", [X], {}),
    "FastGelu, bias": ("FastGelu", [X, BIAS], {}),
    "QuickGelu": ("QuickGelu", [X], {}),
    "QuickGelu, alpha": ("QuickGelu", [X], {"alpha": 0.5}),
    **{
        f"{bits} bits": (
            "MatMulNBits",
            [WIDE, PACKED[bits], np.abs(floats(18))],
            {**BLOCKS, "bits": bits},
        )
        for bits in (4, 8)
    },
    "4 bits, zero points": (
        "MatMulNBits",
        [WIDE, PACKED[4], np.abs(floats(18)), integers("uint8", 12)],
        {**BLOCKS, "bits": 4},
    ),
    "4 bits, bias": (
        "MatMulNBits",
        [WIDE, PACKED[4], np.abs(floats(18)), None, None, floats(6)],
        {**BLOCKS, "bits": 4},
    ),
    "dynamic": ("DynamicQuantizeMatMul", [X, integers("int8", 8, 5), S], {}),
    "dynamic, zero points": (
        "DynamicQuantizeMatMul",
        [X, integers("uint8", 8, 5), S.repeat(5), integers("uint8", 5), floats(5)],
        {},
    ),
    "dynamic, positive": (
        "DynamicQuantizeMatMul",
        [np.abs(X), integers("uint8", 8, 5), S, np.array(7, np.uint8)],
        {},
    ),
    "dynamic, zeros": (
        "DynamicQuantizeMatMul",
        [np.zeros_like(X), integers("uint8", 8, 5), S, np.array(7, np.uint8)],
        {},
    ),
    "integers to floats": (
        "MatMulIntegerToFloat",
        [
            *(integers("uint8", 3, 8), integers("int8", 8, 5), S, S.repeat(5)),
            *(np.array(9, np.uint8), np.arange(5, dtype=np.int8), floats(5)),
        ],
        {},
    ),
    "quantized": ("QuantizeLinear", [X, S, np.array(3, np.uint16)], {}),
    "dequantized": (
        "DequantizeLinear",
        [integers("uint16", 3, 8), S.repeat(3), integers("uint16", 3)],
        {"axis": 0},
    ),
}


def model_of(
    kind: str, inputs: list[Any], attributes: dict[str, Any], outputs: Any = ("y",)
) -> onnx.ModelProto:
    """A model of a node; all inputs but the first one are initializers."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(kind, names, outputs, domain="com.microsoft", **attributes)
    kinds = helper.np_dtype_to_tensor_dtype
    first = helper.make_tensor_value_info("x0", kinds(inputs[0].dtype), inputs[0].shape)
    constants = [
        onnx.numpy_helper.from_array(np.ascontiguousarray(x), name)
        for name, x in list(zip(names, inputs, strict=True))[1:]
        if name
    ]
    result = inputs[2].dtype if kind == "QuantizeLinear" else np.dtype(np.float32)
    # The outputs have as many axes as the first input, those of LSTM one more.
    ranks = {"y": inputs[0].ndim + (kind == "DynamicQuantizeLSTM")}
    infos = [
        helper.make_tensor_value_info(
            name, kinds(result), [None] * ranks.get(name, inputs[0].ndim)
        )
        for name in outputs
        if name
    ]
    graph = helper.make_graph([node], "g", [first], infos, constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("name", CASES)
def test_operators_as_in_onnx_runtime(name: str) -> None:
    source = model_of(*CASES[name])
    x = CASES[name][1][0]
    model = onnx_backend.prepare(source)
    wanted: Any = runtime_session(source).run(None, {"x0": x})
    for outputs in (model.run([x]), jax.jit(model.jax_fn)(x)):
        for found, array in zip(outputs, wanted, strict=True):
            assert found.dtype == array.dtype
            np.testing.assert_allclose(found, array, 1e-5, 1e-5)


# Cases with an input of another shape, which NumPy would broadcast.
REFUSED = [
    (
        "convolution, sum, Clip",
        3,
        floats(6, 9, 8),
        r"`Z` must have shape \(2, 6, 9, 8\)",
    ),
    (
        "skip",
        1,
        floats(2, 1, 8),
        r"`skip` must have shape \(2, 3, 8\); got \(2, 1, 8\)",
    ),
    (
        "product",
        1,
        floats(7, 5),
        r"the inputs must fit FusedMatMul; got `x0` \(2, 3, 8\), `x1` \(7, 5\): ",
    ),
    ("skip", 2, floats(1), r"`gamma` must have shape \(8,\); got \(1,\)"),
    ("skip, shift, bias", 3, floats(1, 8), r"`beta` must have shape \(8,\)"),
    ("skip, shift, bias", 4, floats(1), r"`bias` must have shape \(8,\)"),
    ("BiasGelu", 1, floats(1), r"`bias` must have shape \(8,\); got \(1,\)"),
    ("FastGelu, bias", 1, floats(1, 8), r"`bias` must have shape \(8,\); got \(1, 8\)"),
    ("dynamic, zero points", 4, floats(1), r"`bias` must have shape \(5,\)"),
    ("integers to floats", 6, floats(1), r"`bias` must have shape \(5,\)"),
    ("dequantized", 1, S.repeat(1), r"`zero_point` must be a scalar; got shape \(3,\)"),
]


@pytest.mark.parametrize(("name", "place", "array", "message"), REFUSED)
def test_shapes_that_onnx_runtime_refuses(
    name: str, place: int, array: np.ndarray, message: str
) -> None:
    kind, inputs, *rest = CASES[name]
    inputs = [array if i == place else x for i, x in enumerate(inputs)]
    source = model_of(kind, inputs, *rest)
    model = onnx_backend.prepare(source)
    message = rf"com\.microsoft\.{kind} 'y': {message}"
    require_error(ValueError, message, model.run, [inputs[0]])
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        runtime_session(source).run(None, {"x0": inputs[0]})


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("scales", [LSTM_SCALES, LSTM_COLUMNS])
def test_lstm_of_quantized_weights(scales: list[np.ndarray]) -> None:
    inputs = [STEPS, *WEIGHTS, 0.1 * floats(2, 24), *[None] * 4, *scales, *scales]
    attributes = {"hidden_size": 3, "direction": "bidirectional"}
    source = model_of("DynamicQuantizeLSTM", inputs, attributes, ["y", "h", "c"])
    model = onnx_backend.prepare(source)
    wanted: Any = runtime_session(source).run(None, {"x0": STEPS})
    for found, array in zip(model.run([STEPS]), wanted, strict=True):
        np.testing.assert_allclose(found, array, 1e-5, 1e-5)
    gradient = jax.grad(lambda x: jnp.sum(model.jax_fn(x)[0]))(STEPS)
    assert np.all(np.isfinite(gradient))
    assert np.any(gradient)


@pytest.mark.usefixtures("x32", "nans_are_data")
@pytest.mark.parametrize("padding", [np.nan, np.inf, -np.inf])
def test_padding_of_a_quantized_lstm_that_is_not_finite(padding: float) -> None:
    lengths = np.array([3, 5], np.int32)
    more = [0.1 * floats(2, 24), lengths, *[None] * 3, *LSTM_SCALES, *LSTM_SCALES]
    attributes = {"hidden_size": 3, "direction": "bidirectional"}
    source = model_of(
        "DynamicQuantizeLSTM", [STEPS, *WEIGHTS, *more], attributes, ["y", "h", "c"]
    )
    model = onnx_backend.prepare(source)
    is_read = (np.arange(5)[:, None] < lengths)[..., None]
    zeros, x = (np.where(is_read, STEPS, np.float32(n)) for n in (0, padding))
    for found, wanted in zip(model.run([x]), model.run([zeros]), strict=True):
        np.testing.assert_array_equal(found, wanted)
    gradient = jax.grad(lambda x: jnp.sum(model.jax_fn(x)[0]))
    np.testing.assert_array_equal(gradient(x), gradient(zeros))


def test_weights_of_two_bits() -> None:
    """ONNX Runtime's CPU kernel has other block sizes only."""
    inputs = [WIDE, PACKED[2], np.abs(floats(18))]
    source = model_of("MatMulNBits", inputs, {**BLOCKS, "bits": 2})
    numbers = PACKED[2][..., None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    weight = (numbers.reshape(18, -1) - 2.0) * inputs[2][:, None]
    wanted = WIDE @ weight.reshape(6, -1)[:, :40].T
    (found,) = onnx_backend.prepare(source).run([WIDE])
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)
