"""What ONNX models and the functions of the backend refuse, and 64-bit inputs."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from assertions import assert_same_bits
from onnx import helper
from onnx_models import (
    COPY,
    FILL,
    LENGTHS,
    REVERSAL,
    SLICE,
    F,
    X,
    parse,
    prepared,
    require_error,
    rows,
)

from dml_jax import onnx_backend

ONE = np.array([0])
ROW = X[0, :3]
COUNT = "onnx: `inputs` must be arrays for x, l; got "
LIST = r"\. Pass `\[x, l\]`$"
INPUTS = [
    ([X.astype(int), LENGTHS], TypeError, "onnx: `x` must have dtype float32; got int"),
    (
        [X, X[0]],
        TypeError,
        r"onnx: `l` must have dtype int64; got float32. Convert it by "
        r"`.astype\('int64'\)`$",
    ),
    ([X, ["a"]], TypeError, "onnx: `l` must have dtype int64; got <U1$"),
    ([None, LENGTHS], TypeError, "onnx: `x` must have dtype float32; got object"),
    ([X[1:], LENGTHS], ValueError, r"onnx: `x` must have shape \(3, \?\); got \(2, 4"),
    ([X, LENGTHS[1:]], ValueError, r"onnx: `l` must have shape \(4\); got \(3,\)$"),
    ([X[0], LENGTHS], ValueError, "onnx: `x` must have shape"),
    ([X], TypeError, COUNT + "1 of them, without l" + LIST),
    ([X, LENGTHS, X], TypeError, COUNT + "3 of them" + LIST),
    (X, TypeError, COUNT + r"float32 array of shape \(3, 4\)" + LIST),
    (None, TypeError, COUNT + "NoneType None" + LIST),
    ({}, TypeError, COUNT + "none" + LIST),
    ({1: X, "l": LENGTHS}, TypeError, COUNT + "1, l, without x" + LIST),
    ({"x": X}, TypeError, COUNT + "x, without l" + LIST),
    ({"x": X, "l": LENGTHS, "z": X}, TypeError, COUNT + "x, l, z" + LIST),
]


@pytest.mark.parametrize(("inputs", "error", "message"), INPUTS)
def test_inputs(inputs: Any, error: type[Exception], message: str) -> None:
    model = prepared(REVERSAL)
    require_error(error, message, model.run, inputs)
    source = parse(REVERSAL)
    require_error(error, message, onnx_backend.run_model, source, inputs)
    if isinstance(inputs, list):  # jax_fn takes them one by one
        message = message.replace(LIST, r"\. Pass `x, l`$")
        require_error(error, message, model.jax_fn, *inputs)


def test_inputs_one_by_one() -> None:
    run = prepared(REVERSAL).run
    require_error(TypeError, COUNT + "2 arguments" + LIST, run, X, LENGTHS)


DEFAULTS = "onnx: `inputs` must be arrays for x, and may be for a; got "


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"a": ROW}, TypeError, DEFAULTS + r"a, without x\. Pass `\[x\]`$"),
        ({"x": ROW, "c": ROW}, TypeError, DEFAULTS + r"x, c\. Pass `\[x\]`$"),
        ([], TypeError, DEFAULTS + r"0 of them\. Pass `\[x\]`$"),
        ([ROW] * 3, TypeError, DEFAULTS + r"3 of them\. Pass `\[x\]`$"),
        ({"x": ROW, "a": ROW[:1]}, ValueError, "onnx: `a` must have shape"),
        ([None, ROW], TypeError, "onnx: `a` must have dtype float32; got object"),
    ],
)
def test_inputs_with_defaults(
    inputs: Any, error: type[Exception], message: str
) -> None:
    text = "float[3] a, float[3] x => float[3] y {y = Identity(x)}"
    model = prepared(text, a=ROW)
    require_error(error, message, model.run, inputs)


def test_initializers_that_are_no_inputs() -> None:
    model = prepared("=> float[3] y {y = Identity(w)}", w=ROW)
    message = "onnx: `inputs` must be empty; got "
    require_error(TypeError, message + "1 of them", model.run, [ROW])
    require_error(TypeError, message + "w", model.run, {"w": ROW})


@pytest.mark.parametrize("given", ["bfloat16", "uint16", "float8_e5m2"])
@pytest.mark.parametrize("kind", ["float16", "float8e4m3fn"])
def test_bits_of_another_dtype_are_refused(given: str, kind: str) -> None:
    x = ROW.astype(getattr(ml_dtypes, given, given))
    model = prepared(f"{kind}[3] x => {kind}[3] y {{y = Identity(x)}}")
    message = f"onnx: `x` must have dtype float.*; got {given}. Convert"
    require_error(TypeError, message, model.run, [x])


def test_untyped_bfloat16() -> None:
    model = prepared("bfloat16[3] x => bfloat16[3] y {y = Identity(x)}")
    x = ROW.astype(ml_dtypes.bfloat16)
    assert_same_bits(model.run([x.view("V2")])[0], x)  # as .npy files have it


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ma.array(ROW, mask=True), "an array without a mask; got MaskedArray$"),
        ([[1], [1, 2]], r"an array; got list \[\[1\], \[1, 2\]\]$"),
    ],
)
def test_objects_that_are_no_arrays(x: Any, message: str) -> None:
    message = f"onnx: `x` must be {message}"
    require_error(TypeError, message, prepared(COPY).run, [x])


def test_strings() -> None:
    model = prepared("string[1] x => string[1] y {y = Identity(x)}")
    message = "onnx: `x` must have dtype string; got int64$"  # without a conversion
    require_error(TypeError, message, model.run, [ONE])
    text = np.array(["a"], object)
    message = "jax_fn: `y` must have a dtype that JAX knows; got object$"
    require_error(TypeError, message, model.jax_fn, text)


# Options and nodes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"training": "no"}, TypeError, "prepare: `training` must be a bool; got str"),
        ({"lda_coeff": "a"}, TypeError, "prepare: `lda_coeff` must be a real scalar"),
        ({"a": 1, "b": 2}, TypeError, "prepare: `kwargs` must be empty; got a, b$"),
        ({"device": None}, TypeError, "onnx: `device` must be a string; got NoneType"),
        ({"device": 1}, TypeError, "onnx: `device` must be a string; got int 1$"),
        *(
            ({"device": name}, ValueError, f"onnx: `device` must be .*; got {name}$")
            for name in ("FOO", "CPU:99", "CPU:-1", "CPU:x", "CPU:0:0", "")
        ),
    ],
)
def test_options(options: Any, error: type[Exception], message: str) -> None:
    require_error(error, message, onnx_backend.prepare, parse(COPY), **options)
    if "device" in options:
        assert not onnx_backend.supports_device(options["device"])


def test_run_takes_no_options() -> None:
    message = "run: `kwargs` must be empty; got a, b$"
    require_error(TypeError, message, prepared(COPY).run, [ROW], a=1, b=2)


@pytest.mark.parametrize(
    ("kind", "inputs", "options", "error", "message"),
    [
        ("Bernoulli", [X], {}, NotImplementedError, "onnx: .* got Bernoulli 'y'"),
        ("Frob", [X], {}, NotImplementedError, "onnx: .* got Frob 'y'"),
        (
            "ReverseSequence",
            [X, LENGTHS],
            {"opset_version": 9},
            NotImplementedError,
            "onnx: .*ReverseSequence 'y' of opset 9",
        ),
        ("ReverseSequence", [X[0], LENGTHS], {}, ValueError, "onnx: .*rank >= 2"),
        ("ReverseSequence", [X, LENGTHS * F(1)], {}, ValueError, "onnx: .*double"),
        ("Cast", [X], {}, ValueError, "onnx: "),
        ("Identity", [X], {"device": "X"}, ValueError, "onnx: `device` must be"),
        (
            "Identity",
            [X],
            {"a": 1},
            TypeError,
            "prepare: `kwargs` must be empty; got a$",
        ),
        ("Identity", [], {}, TypeError, r"onnx: `inputs` .* a; got list \[\]. Pass"),
        (
            "Identity",
            [ROW.astype("M8[s]")],
            {},
            TypeError,
            "onnx: `a` must have a dtype of ONNX; got datetime64",
        ),
        ("Range", [F(1), F(1), F(0)], {}, ValueError, "Range 'y': `delta` must be"),
        ("Cast", [X], {"opset_version": 0}, ValueError, "run_node: `opset_version`"),
        ("a\nb", [X], {}, ValueError, r"onnx: names must be printable; got 'a\\nb'$"),
    ],
)
def test_nodes(
    kind: str, inputs: Any, options: Any, error: type[Exception], message: str
) -> None:
    node = helper.make_node(kind, list("abc"[: max(len(inputs), 1)]), ["y"])
    require_error(error, message, onnx_backend.run_node, node, inputs, **options)


# Traced and 64-bit inputs -------------------------------------------------------------

TRACED = {
    SLICE + "(x, s, s)}": [X, ONE],
    "float[3] x, int32[1] s => float[u] y {t = Identity(s) r = Cast<to = 7>(t) "
    "y = Slice(x, r, r)}": [X[:, 0], ONE.astype(np.int32)],
    FILL + "(s)}": [ONE],
}


@pytest.mark.usefixtures("with_jit", "x64")
@pytest.mark.parametrize("text", TRACED)
def test_traced_inputs_that_shapes_depend_on(text: str) -> None:
    model, values = prepared(text), TRACED[text]
    message = (
        r"onnx: `s` must be a constant, since a shape depends on it; got traced int.. "
        r"array of shape \(1,\)\. Close over it instead of passing it to the function "
        "that is transformed$"
    )
    require_error(TypeError, message, jax.jit(model.jax_fn), *values)
    batch = [value[None] for value in values]
    require_error(TypeError, message, jax.vmap(model.jax_fn), *batch)


WIDE = rows(r"""
int64[3] x => int64[3] y {y = Identity(x)}
int64[3] x => int64[2] y {y = Constant<value_ints = [1, 2]>()}
int64[3] x => int64[n] y {l = Constant<value_int = 2>() y = Range(l, l, l)}
@9 int64[n] x => int64[m] y {y = Slice<starts = [0], ends = [1]>(x)}
int64[3] x => int64[3] y {y = Add(x, x)}
float[3] x => int64[3] y {y = Cast<to = 7>(x)}
float[3] x => double[3] y {y = Cast<to = 11>(x)}
""")


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("text", [text for (text,) in WIDE])
def test_64_bits_need_64_bit_mode(text: str) -> None:
    model = prepared(text)
    x = np.arange(3) + 2**33 if "int64[" in text.split("=>")[0] else ROW
    message = "jax_fn: `y` has dtype (int|float)64, which needs 64-bit mode"
    require_error(ValueError, message, model.jax_fn, x)
    wide = model.run([x])[0]
    with jax.enable_x64(True):
        assert_same_bits(np.asarray(model.jax_fn(x)[0]), wide)


ENDS = "a = Constant<value_ints = [-1]>() b = Constant<value_ints = [-9]>()"
MADE_WIDE: list[tuple[str, list[Any], list[Any]]] = [  # a model, input and output
    ("double[2] x => double[2] y {y = Identity(x)}", [0.1, 1e300], [0.1, 1e300]),
    ("int64[1] x => int64[1] y {y = Identity(x)}", [2**40 + 1], [2**40 + 1]),
    (f"double[2] x => double[n] y {{{ENDS} y = Slice(x, a, b, , a)}}", [0.1, 0.2],
     [0.2, 0.1]),
    ("double[2,1] x => double[2,1] y {n = Constant<value_ints = [2]>() "
     "y = ReverseSequence(x, n)}", [[0.1], [0.2]], [[0.2], [0.1]]),
    ("double[2] x => float[2] y {y = Cast<to = 1>(x)}", [0.1, 0.2], [0.1, 0.2]),
    ("int64[1] x => int32[1] y {y = Cast<to = 6>(x)}", [2**40 + 3], [3]),
    ("int64[1] x => double[1] y {y = Cast<to = 11>(x)}", [2**40 + 3], [2.0**40 + 3]),
]  # fmt: skip


@pytest.mark.usefixtures("x32", "with_jit")
@pytest.mark.parametrize(("text", "given", "expected"), MADE_WIDE)
def test_arrays_that_were_made_in_64_bit_mode(
    text: str, given: list[Any], expected: list[Any]
) -> None:
    model = prepared(text)
    with jax.enable_x64(True):
        x = jax.numpy.asarray(given)
        inside = [model.jax_fn(x)[0], jax.jit(model.jax_fn)(x)[0]]
    assert x.dtype.itemsize == 8
    for y in (model.run([x])[0], model.run([given])[0], *inside):
        assert_same_bits(np.asarray(y), np.array(expected, y.dtype))
    if model.run([x])[0].dtype.itemsize == 8:
        message = "jax_fn: `y` has dtype (int|float)64, which needs 64-bit mode"
        require_error(ValueError, message, model.jax_fn, x)
    else:
        assert_same_bits(np.asarray(model.jax_fn(x)[0]), model.run([x])[0])
    message = f"onnx: `x` has dtype {x.dtype}, which needs 64-bit mode"
    require_error(ValueError, message, jax.jit(model.jax_fn), x)
    require_error(ValueError, message, jax.vmap(model.jax_fn), x[None])


@pytest.mark.usefixtures("x32", "with_jit")
def test_lengths_that_were_made_in_64_bit_mode() -> None:
    text = "float[3,2] x, int64[2] n => float[3,2] y {y = ReverseSequence(x, n)}"
    model, x = prepared(text), np.arange(6, dtype=np.float32).reshape(3, 2)
    with jax.enable_x64(True):
        lengths, beyond = jax.numpy.array([3, 2]), jax.numpy.array([3, 2**32 + 1])
    assert model.jax_fn(x, lengths)[0].tolist() == [[4, 3], [2, 1], [0, 5]]
    message = "ReverseSequence 'y': Invalid sequence length: 4294967297"
    require_error(ValueError, message, model.jax_fn, x, beyond)
    require_error(ValueError, message, model.run, [x, beyond])
    for n, wanted in (
        (lengths, [[4, 3], [2, 1], [0, 5]]),
        (beyond, [[4, 5], [2, 3], [0, 1]]),
    ):
        assert jax.jit(model.jax_fn)(x, n)[0].tolist() == wanted


# Graphs in which x becomes only lengths or indices: of frames 0 to 5, the results.
INDEX_TEXTS = rows(r"""
y = ReverseSequence(f, x) | [[4, 3], [2, 1], [0, 5]]
a = Identity(x) b = Cast<to = 6>(a) c = Cast<to = 7>(b) y = ReverseSequence(f, c) |
  [[4, 3], [2, 1], [0, 5]]
k = Constant<value_ints = [2]>() v, i = TopK(x, k) y = ReverseSequence(f, v) |
  [[4, 3], [2, 1], [0, 5]]
i = Constant<value_ints = [0, 0]>() j = Shape(x) y = Gather<axis = 0>(f, i) |
  [[0, 1], [0, 1]]
one = Constant<value: tensor = int64[1] {0}>() u = Unsqueeze(x, one)
  v = Squeeze(u, one) y = ReverseSequence(f, v) | [[4, 3], [2, 1], [0, 5]]
""")
INDICES = "float[3,2] f, int64[2] x => float[u,v] y "


@pytest.mark.usefixtures("x32", "with_jit")
@pytest.mark.parametrize(("body", "wanted"), INDEX_TEXTS)
def test_lengths_need_no_64_bit_mode(body: str, wanted: str) -> None:
    model = prepared(f"{INDICES}{{{body}}}")
    f, lengths = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([3, 2])
    for fn in (model.jax_fn, jax.jit(model.jax_fn)):
        for given in (lengths, jax.numpy.asarray(lengths)):
            assert fn(f, given)[0].tolist() == eval(wanted)


NOT_ONLY_INDICES = rows(r"""
int64[2] x => int64[2] y {y = Identity(x)}
int64[2] x => float[2] y {y = Cast<to = 1>(x)}
int64[2] x => bool[2] y {z = Add(x, x) y = Less(z, x)}
bool c, int64[2] x => float[n] y {y = If(c) <
  then_branch = g () => (float[2] a) {a = Cast<to = 1>(x)},
  else_branch = h () => (float[2] b) {b = Cast<to = 1>(x)}>}
""")


@pytest.mark.usefixtures("x32", "with_jit")
@pytest.mark.parametrize("text", [text for (text,) in NOT_ONLY_INDICES])
def test_other_integers_that_jit_has_narrowed(text: str) -> None:
    message = (
        "onnx: `x` must have dtype int64; got int32, to which JAX narrows it outside "
        "of 64-bit mode$"
    )
    model = prepared(text)
    inputs = {"c": np.array(True), "x": np.array([3, 2])}
    values = [inputs[name] for name in model.input_names]
    require_error(TypeError, message, jax.jit(model.jax_fn), *values)


INSIDE = """int32[3] x => float[3] y {
  far = Constant<value_int = 8589934592>()
  wide = Cast<to = 7>(x)
  product = Mul(wide, far)
  near = Constant<value_int = 8589934593>()
  rest = Mod(product, near)
  y = Cast<to = 1>(rest)
}"""


@pytest.mark.usefixtures("x32", "with_jit")
def test_integers_inside_of_a_model_have_64_bits() -> None:
    x = np.array([1, 2, 3], np.int32)
    wanted = (x.astype(np.int64) * 2**33) % (2**33 + 1)
    for fn in (prepared(INSIDE).jax_fn, jax.jit(prepared(INSIDE).jax_fn)):
        assert_same_bits(np.asarray(fn(x)[0]), wanted.astype(np.float32))
    (batch,) = jax.vmap(prepared(INSIDE).jax_fn)(np.stack([x, x]))
    assert_same_bits(np.asarray(batch[1]), wanted.astype(np.float32))


@pytest.mark.usefixtures("x32", "with_jit")
def test_traced_floats_of_64_bits_are_refused() -> None:
    text = "float[3] x => float[3] y {d = Cast<to = 11>(x) y = Cast<to = 1>(d)}"
    message = "Cast 'd': Cast: `d` has dtype float64, which needs 64-bit mode"
    model = prepared(text)
    require_error(ValueError, message, jax.jit(model.jax_fn), ROW)
    assert_same_bits(model.run([ROW])[0], ROW)
    with jax.enable_x64(True):
        assert_same_bits(np.asarray(jax.jit(model.jax_fn)(ROW)[0]), ROW)


@pytest.mark.usefixtures("with_caches")
def test_leaked_tracers() -> None:
    leaked: list[Any] = []
    jax.jit(lambda x: leaked.append(x) or x)(ROW)
    model = prepared("float[3] x => float16[3] y {y = Cast<to = 10>(x)}")
    with pytest.raises(jax.errors.UnexpectedTracerError):
        model.jax_fn(leaked[0])
