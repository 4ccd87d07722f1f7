"""What ONNX models and the functions of the backend refuse, and traced inputs."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import onnx.defs
import pytest
from assertions import assert_same_bits
from onnx import helper
from onnx_models import (
    COPY,
    FILL,
    LENGTHS,
    REVERSAL,
    SLICE,
    X,
    parse,
    prepared,
    require_error,
    rows,
)

from dml_jax import onnx_backend

NEWEST = onnx.defs.onnx_opset_version()
ONE = np.array([0])
ROW = X[0, :3]
KINDS = {e.__name__: e for e in (TypeError, ValueError, NotImplementedError)}
# Inputs, and the error of `run`.
INPUTS = rows(
    r"""
[X.astype(int), LENGTHS] | TypeError | $has `x` must have dtype float32; got int
[X, X[0]] | TypeError | $has `l` must have dtype int64; got float32. Convert it by
  `.astype\('int64'\)`$$
[X.tolist(), LENGTHS] | TypeError | $has `x` must have dtype float32; got float64\.
  Convert it by `np.array\(x, 'float32'\)`$$
[X, ["a"]] | TypeError | $has `l` must have dtype int64; got <U1$$
[None, LENGTHS] | TypeError | $has `x` must have dtype float32; got object
[X[1:], LENGTHS] | ValueError | $has `x` must have shape \(3, \?\); got \(2, 4
[X, LENGTHS[1:]] | ValueError | $has `l` must have shape \(4\); got \(3,\)$$
[X[0], LENGTHS] | ValueError | $has `x` must have shape
[X] | TypeError | $both 1 of them, without l$list
[X, LENGTHS, X] | TypeError | $both 3 of them$list
X | TypeError | $both float32 array of shape \(3, 4\)$list
None | TypeError | $both NoneType None$list
{} | TypeError | $both none$list
{1: X, "l": LENGTHS} | TypeError | $both 1, l, without x$list
{"x": X} | TypeError | $both x, without l$list
{"x": X, "l": LENGTHS, "z": X} | TypeError | $both x, l, z$list
""".replace("$both", "$has `inputs` must be arrays for x, l; got")
    .replace("$list", r"\. Pass `\[x, l\]`$$")
    .replace("$has", "onnx:")
)


@pytest.mark.parametrize(("given", "error", "message"), INPUTS)
def test_inputs(given: str, error: str, message: str) -> None:
    model, inputs = prepared(REVERSAL), eval(given)
    require_error(KINDS[error], message, model.run, inputs)
    source = parse(REVERSAL)
    require_error(KINDS[error], message, onnx_backend.run_model, source, inputs)
    if isinstance(inputs, list):  # jax_fn takes them one by one
        message = message.replace(r"\[x, l\]", "x, l")
        require_error(KINDS[error], message, model.jax_fn, *inputs)


def test_run_refuses_traced_inputs() -> None:
    run = prepared(REVERSAL).run
    message = "run: `x` must not be traced; got traced float32 array of .*`jax_fn`"
    require_error(TypeError, message, jax.jit(lambda x: run([x, LENGTHS])), X)


def test_inputs_one_by_one() -> None:
    message = r"onnx: `inputs` must be arrays .*; got 2 arguments\. Pass `\[x, l\]`$"
    require_error(TypeError, message, prepared(REVERSAL).run, X, LENGTHS)


KEYWORDS = rows(r"""
[1] | {"a": 1} | 1 of them and a, without x, z
[1, 2] | {"a": 1} | 2 of them and a, without z
[1, 2] | {"q": 1} | 2 of them and q, without z
[] | {"a": 1, "x": 2} | 0 of them and a, x, without z
[1, 2, 3] | {"z": 1} | 3 of them and z
""")


@pytest.mark.parametrize(("args", "named", "got"), KEYWORDS)
def test_keywords(args: str, named: str, got: str) -> None:
    model = prepared("float a, float x, float z => float y {y = Sum(a, x, z)}")
    message = f"onnx: `inputs` must be arrays for a, x, z; got {got}. Pass `a, x, z`$"
    require_error(TypeError, message, model.jax_fn, *eval(args), **eval(named))


DEFAULTS = rows(
    r"""
{"a": ROW} | TypeError | $got a, without x\. Pass `\[x\]`$$
{"x": ROW, "c": ROW} | TypeError | $got x, c\. Pass `\[x\]`$$
[] | TypeError | $got 0 of them\. Pass `\[x\]`$$
[ROW] * 3 | TypeError | $got 3 of them\. Pass `\[x\]`$$
{"x": ROW, "a": ROW[:1]} | ValueError | `a` must have shape
[None, ROW] | TypeError | `a` must have dtype float32; got object
""".replace("$got", "`inputs` must be arrays for x, and may be for a; got")
)


@pytest.mark.parametrize(("given", "error", "message"), DEFAULTS)
def test_inputs_with_defaults(given: str, error: str, message: str) -> None:
    text = "float[3] a, float[3] x => float[3] y {y = Identity(x)}"
    run = prepared(text, a=ROW).run
    require_error(KINDS[error], f"onnx: {message}", run, eval(given))


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

OPTIONS = rows(r"""
training="no" | TypeError | prepare: `training` must be a bool; got str
lda_coeff="a" | TypeError | prepare: `lda_coeff` must be a real scalar
a=1, b=2 | TypeError | prepare: `kwargs` must be empty; got a, b$$
device=None | TypeError | onnx: `device` must be a string; got NoneType
device=1 | TypeError | onnx: `device` must be a string; got int 1$$
device="FOO" | ValueError | onnx: `device` must be .*; got FOO$$
device="CPU:99" | ValueError | onnx: `device` must be .*; got CPU:99$$
device="CPU:-1" | ValueError | onnx: `device` must be .*; got CPU:-1$$
device="CPU:x" | ValueError | onnx: `device` must be .*; got CPU:x$$
device="CPU:0:0" | ValueError | onnx: `device` must be .*; got CPU:0:0$$
device="" | ValueError | onnx: `device` must be .*; got $$
""")


@pytest.mark.parametrize(("given", "error", "message"), OPTIONS)
def test_options(given: str, error: str, message: str) -> None:
    options = eval(f"dict({given})")
    require_error(KINDS[error], message, onnx_backend.prepare, parse(COPY), **options)
    if "device" in options:
        assert not onnx_backend.supports_device(options["device"])


def test_run_takes_no_options() -> None:
    message = "run: `kwargs` must be empty; got a, b$"
    require_error(TypeError, message, prepared(COPY).run, [ROW], a=1, b=2)


# Operators, inputs, options, and the error of `run_node`.
NODES = rows(r"""
Bernoulli | [X] |  | NotImplementedError | onnx: .* got Bernoulli 'y'
ReverseSequence | [X, LENGTHS] | opset_version=9 | NotImplementedError |
  onnx: .*ReverseSequence 'y' of opset 9
ReverseSequence | [X[0], LENGTHS] |  | ValueError | onnx: .*rank >= 2
ReverseSequence | [X, LENGTHS / np.float32(1)] |  | ValueError | onnx: .*double
Cast | [X] |  | ValueError | onnx: .
Identity | [X] | device="X" | ValueError | onnx: `device` must be
Identity | [X] | a=1 | TypeError | prepare: `kwargs` must be empty; got a$$
Identity | [] |  | TypeError | onnx: `inputs` .* a; got list \[\]. Pass
Identity | [ROW.astype("M8[s]")] |  | TypeError | onnx: `a` must have a dtype of ONNX;
  got datetime64
Range | list(np.float32([1, 1, 0])) |  | ValueError | Range 'y': `delta` must be
Cast | [X] | opset_version=0 | ValueError | run_node: `opset_version`
Cast | [X] | opset_version=NEWEST + 1 | ValueError | run_node: `opset_version`
Cast | [X] | opset_version=2**64 | ValueError | run_node: `opset_version`
Cast | [X] | opset_version=None | TypeError | run_node: `opset_version`
Cast | [X] | opset_version="21" | TypeError | run_node: `opset_version`
Cast | [X] | opset_version=True | TypeError | run_node: `opset_version`
""")


@pytest.mark.parametrize(("kind", "given", "options", "error", "message"), NODES)
def test_nodes(kind: str, given: str, options: str, error: str, message: str) -> None:
    inputs, named = eval(given), eval(f"dict({options})")
    node = helper.make_node(kind, list("abc"[: max(len(inputs), 1)]), ["y"])
    run = onnx_backend.run_node
    require_error(KINDS[error], message, run, node, inputs, **named)


# Traced inputs ------------------------------------------------------------------------

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


@pytest.mark.usefixtures("with_caches")
def test_leaked_tracers() -> None:
    leaked: list[Any] = []
    jax.jit(lambda x: leaked.append(x) or x)(ROW)
    model = prepared("float[3] x => float16[3] y {y = Cast<to = 10>(x)}")
    with pytest.raises(jax.errors.UnexpectedTracerError):
        model.jax_fn(leaked[0])
