"""Calls that the functions of the backend and prepared models refuse."""

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
    runtime_outputs,
)

from dml_jax import onnx_backend

NEWEST = onnx.defs.onnx_opset_version()
ONE = np.array([0])
ROW = X[0, :3]
KINDS = {e.__name__: e for e in (TypeError, ValueError, NotImplementedError)}
# Models whose calls are refused below.
REVERSING, COPYING = prepared(REVERSAL), prepared(COPY)
SUMMING = prepared("float a, float x, float z => float y {y = Sum(a, x, z)}")
DEFAULTED = prepared("float[3] a, float[3] x => float[3] y {y = Identity(x)}", a=ROW)
CONSTANT = prepared("=> float[3] y {y = Identity(w)}", w=ROW)
PAIR = prepared("float[3] x => float[3] y, float[3] z {y = Neg(x) z = Neg(y)}")
STRINGS = prepared("string[1] x => string[1] y {y = Identity(x)}")
MODEL, BY_SCALAR = parse(COPY), "float s => float[n] y {[first] y = Range(s, s, s)}"
ERASING = """int64[1] a, int64 place => int64[n] y {s = SequenceConstruct(a, a)
  e = SequenceErase(s, place) y = ConcatFromSequence<axis = 0>(e)}"""
NEGATING = parse("float[3] x => float[3] y {y = Neg(x)}")
DROPOUT = "float[3] x => float[3] y {y = Dropout(x, r, t)}"
HALF, TRUE = np.array(0.5, np.float32), np.array(True)
DROPPING = prepared(DROPOUT, r=HALF, t=TRUE)
SUPPRESSING = prepared(
    "float[a,b,4] p, float[a,c,b] q => int64[n,3] y {y = NonMaxSuppression(p, q)}"
)
SELF = "float[a,b,c] x => float[d,e,f] y {y = com.microsoft."
PACKED = prepared(f"{SELF}MultiHeadAttention<num_heads = 2>(x)}}")
ROTARY = prepared(f"{SELF}Attention<num_heads = 2, do_rotary = 1>(x, x)}}")
MODULE = type("Linear", (), {"__module__": "torch.nn.modules.linear"})()


def node(kind: str, inputs: str = "a") -> onnx.NodeProto:
    return helper.make_node(kind, [*inputs], ["y"])


# What expressions in the tables below may name.
NAMES = {**vars(onnx_backend), **globals(), "LENGTHS": LENGTHS}
# Inputs, and the error of `run`.
INPUTS = rows(
    r"""
[X.astype(int), LENGTHS] | TypeError | onnx: `x` must have dtype float32; got int
[X, X[0]] | TypeError | onnx: `l` must have dtype int64; got float32. Convert it by
  `.astype\('int64'\)`$$
[X.tolist(), LENGTHS] | TypeError | onnx: `x` must have dtype float32; got float64\.
  Convert it by `np.array\(x, 'float32'\)`$$
[X, ["a"]] | TypeError | onnx: `l` must have dtype int64; got <U1$$
[None, LENGTHS] | TypeError | onnx: `x` must have dtype float32; got object
[X[1:], LENGTHS] | ValueError | onnx: `x` must have shape \(3, \?\); got \(2, 4
[X, LENGTHS[1:]] | ValueError | onnx: `l` must have shape \(4\); got \(3,\)$$
[X[0], LENGTHS] | ValueError | onnx: `x` must have shape
[X] | TypeError | $both 1 of them, without l$list
[X, LENGTHS, X] | TypeError | $both 3 of them$list
X | TypeError | $both float32 array of shape \(3, 4\)$list
None | TypeError | $both NoneType None$list
{} | TypeError | $both none$list
{1: X, "l": LENGTHS} | TypeError | $both 1, l, without x$list
{"x": X} | TypeError | $both x, without l$list
{"x": X, "l": LENGTHS, "z": X} | TypeError | $both x, l, z$list
""",
    both="onnx: `inputs` must be arrays for x, l; got",
    list=r"\. Pass `\[x, l\]`$",
)


@pytest.mark.parametrize(("given", "error", "message"), INPUTS)
def test_inputs(given: str, error: str, message: str) -> None:
    model, inputs = prepared(REVERSAL), eval(given, NAMES)
    require_error(KINDS[error], message, model.run, inputs)
    source = parse(REVERSAL)
    require_error(KINDS[error], message, onnx_backend.run_model, source, inputs)
    if isinstance(inputs, list):  # jax_fn takes them one by one
        message = message.replace(r"\[x, l\]", "x, l")
        require_error(KINDS[error], message, model.jax_fn, *inputs)


CALLS = rows(
    r"""
REVERSING.run(X, LENGTHS) | TypeError | onnx: `inputs` must be arrays .*; got 2
  arguments\. Pass `\[x, l\]`$$
jax.jit(lambda x: REVERSING.run([x, LENGTHS]))(X) | TypeError | run: `x` must not be
  traced; got traced float32 array of .*`jax_fn`
SUMMING.jax_fn(1, a=1) | TypeError | $three 1 of them and a, without x, z$by_name
SUMMING.jax_fn(1, 2, a=1) | TypeError | $three 2 of them and a, without z$by_name
SUMMING.jax_fn(1, 2, q=1) | TypeError | $three 2 of them and q, without z$by_name
SUMMING.jax_fn(a=1, x=2) | TypeError | $three 0 of them and a, x, without z$by_name
SUMMING.jax_fn(1, 2, 3, z=1) | TypeError | $three 3 of them and z$by_name
DEFAULTED.run({"a": ROW}) | TypeError | $default a, without x\. Pass `\[x\]`$$
DEFAULTED.run({"x": ROW, "c": ROW}) | TypeError | $default x, c\. Pass `\[x\]`$$
DEFAULTED.run([]) | TypeError | $default 0 of them\. Pass `\[x\]`$$
DEFAULTED.run([ROW] * 3) | TypeError | $default 3 of them\. Pass `\[x\]`$$
DEFAULTED.run({"x": ROW, "a": ROW[:1]}) | ValueError | onnx: `a` must have shape
DEFAULTED.run([None, ROW]) | TypeError | onnx: `a` must have dtype float32; got object
CONSTANT.run([ROW]) | TypeError | onnx: `inputs` must be empty; got 1 of them
CONSTANT.run({"w": ROW}) | TypeError | onnx: `inputs` must be empty; got w
COPYING.run([np.ma.array(ROW, mask=True)]) | TypeError | onnx: `x` must be an array
  without a mask; got MaskedArray$$
COPYING.run([[[1], [1, 2]]]) | TypeError | onnx: `x` must be an array; got list
  \[\[1\], \[1, 2\]\]$$
COPYING.run([ROW], a=1, b=2) | TypeError | onnx: `inputs` must be arrays for x; got 1 of
  them and a, b. Pass `x`$$
SUMMING.run(a=1, x=2) | TypeError | $three 0 of them and a, x, without z$by_name
DEFAULTED.run({"a": ROW}, c=ROW) | TypeError | $default a, c, without x\. Pass `\[x\]`$$
COPYING.apply({"w": ROW}, ROW) | ValueError | apply: `params` must have names of .*; got
  str 'w'\. There are none$$
DROPPING.jax_fn(ROW) | TypeError | Dropout 'y': `key` must be a PRNG key, since the
  node draws random numbers; got None. Pass `key=` to `apply` or `jax_fn`$$
DROPPING.jax_fn(ROW, key=0) | TypeError | jax_fn: $key got int 0$$
DROPPING.apply({}, ROW, key=ROW) | TypeError | apply: $key got float32 array
DROPPING.apply({}, ROW, key=jax.random.split(jax.random.key(0))) | TypeError |
  apply: $key got key<fry> array of shape \(2,\)$$
prepared(DROPOUT, r=2 * HALF, t=TRUE).run([ROW]) | ValueError | Dropout 'y': `ratio`
  must be in \[0, 1\); got 1
jax.jit(prepared(f"bool t, {DROPOUT}", r=HALF).jax_fn)(True, ROW) | TypeError | onnx:
  `t` must be a constant, since a shape or an option depends on it; got traced bool
PACKED.run([X[None]]) | NotImplementedError | com.microsoft.MultiHeadAttention 'y':
  `query` must not be packed with keys or values$$
ROTARY.run([X[None]]) | NotImplementedError | com.microsoft.Attention 'y': `do_rotary`
  must be 0; got 1$$
jax.jit(SUPPRESSING.jax_fn)(X[None], X[None, :, :3]) | TypeError | NonMaxSuppression
  'y': `boxes` must be a constant, .*, or end the model before it by `outputs=`$$
PAIR.run(["w"], {"x": ROW}) | ValueError | .*`inputs` must be None or a list of y, z
STRINGS.run([ONE]) | TypeError | onnx: `x` must have dtype string; got int64$$
prepared(BY_SCALAR).run([np.float32(0)]) | ValueError | Range 'first': `delta`
prepared(ERASING).run([[1], -3]) | ValueError | SequenceErase 'e': `position` must be in
  \[-2, 2\); got -3$$
prepared("@28 float[3] x => string[3] y {y = Cast<to = 8>(x)}").run([ROW]) |
  NotImplementedError | $cast float32 to object$$
prepared("string[3] x => float[3] y {y = Cast<to = 1>(x)}").run([ROW.astype(object)]) |
  NotImplementedError | $cast object to float32$$
prepared("@28 float[3] x => float8e8m0[3] y {y = Cast<to = 24>(x)}").run([ROW]) |
  NotImplementedError | $cast float32 to float8_e8m0fnu$$
prepared("@28 float[3] x => float6e2m3[3] y {y = Cast<to = 27>(x)}").run([ROW]) |
  TypeError | Cast 'y': `to` and the input must be dtypes of JAX; got float6_e2m3fn$$
prepared("@28 float6e2m3[3] x => float[3] y {y = Cast<to = 1>(x)}").run(
  [ROW.astype("float6_e2m3fn")]) | TypeError | Cast 'y': `to` and the input must be
  dtypes of JAX; got float6_e2m3fn$$
prepare(None) | TypeError | $model
prepare(1) | TypeError | $model
prepare([MODEL]) | TypeError | $model
prepare(MODULE) | TypeError | $model Linear .*\. `torch.onnx.export\(module, inputs,
  path\)` writes one$$
prepare(b"") | ValueError | prepare:
prepare(b"{]") | ValueError | prepare:
prepare(MODEL, training="no") | TypeError | prepare: `training` must be a bool; got str
prepare(MODEL, lda_coeff="a") | TypeError | prepare: `lda_coeff` must be a real scalar
prepare(MODEL, a=1, b=2) | TypeError | prepare: `kwargs` must be empty; got a, b$$
prepare(MODEL, device=1) | TypeError | onnx: `device` must be a string; got int 1$$
prepare(MODEL, operators=3) | TypeError | $operators
prepare(MODEL, operators={"Neg": 3}) | TypeError | $operators
prepare(MODEL, operators={3: abs}) | TypeError | $operators
prepare(MODEL, operators={("a", "b", "c"): abs}) | TypeError | $operators
prepare(NEGATING, operators={"Neg": lambda _, x: (x, x)}).run([ROW]) | ValueError |
  Neg 'y': the function in `operators` must return 1 outputs; got 2$$
prepare(NEGATING, operators={"Neg": lambda *_: int("four")}).run([ROW]) | ValueError |
  Neg 'y': invalid literal for int
run_node(node("ImageDecoder"), [X]) | NotImplementedError | onnx: .* got ImageDecoder
run_node(node("ReverseSequence", "ab"), [X, LENGTHS], opset_version=9) |
  NotImplementedError | onnx: .*ReverseSequence 'y' of opset 9
run_node(node("ReverseSequence", "ab"), [X[0], LENGTHS]) | ValueError | onnx: .*rank
  >= 2
run_node(node("ReverseSequence", "ab"), [X, LENGTHS / np.float32(1)]) | ValueError |
  onnx: .*double
run_node(node("Cast"), [X]) | ValueError | onnx: .
run_node(node("Identity"), [X], device="X") | ValueError | onnx: `device` must be
run_node(node("Identity"), [X], a=1) | TypeError | prepare: `kwargs` must be empty;
  got a$$
run_node(node("Identity"), []) | TypeError | onnx: `inputs` .* a; got list \[\]. Pass
run_node(node("Identity"), [ROW.astype("M8[s]")]) | TypeError | onnx: `a` must have a
  dtype of ONNX; got datetime64
run_node(node("Range", "abc"), [*np.float32([1, 1, 0])]) | ValueError | Range 'y':
  `delta` must be
run_node(node("Cast"), [X], opset_version=0) | ValueError | $opset
run_node(node("Cast"), [X], opset_version=NEWEST + 1) | ValueError | $opset
run_node(node("Cast"), [X], opset_version=2**64) | ValueError | $opset
run_node(node("Cast"), [X], opset_version=None) | TypeError | $opset
run_node(node("Cast"), [X], opset_version="21") | TypeError | $opset
run_node(node("Cast"), [X], opset_version=True) | TypeError | $opset
""",
    three="onnx: `inputs` must be arrays for a, x, z; got",
    by_name=". Pass `a, x, z`$",
    default="onnx: `inputs` must be arrays for x, and may be for a; got",
    cast="Cast 'y': Cast must not be from or to strings or .*; got",
    model="prepare: `model` must be an onnx.ModelProto, a path or bytes; got",
    operators="prepare: `operators` must be a mapping of names, or pairs .*; got",
    opset="run_node: `opset_version`",
    key="`key` must be a PRNG key, as of `jax.random.key`;",
)


@pytest.mark.parametrize(("call", "error", "message"), CALLS)
def test_calls(call: str, error: str, message: str) -> None:
    require_error(KINDS[error], message, eval, call, NAMES)


def test_a_batch_of_one_in_the_file() -> None:
    source = parse("float[1,3] x => float[1,3] y {y = Softmax(x)}")
    model, batch = onnx_backend.prepare(source), ROW * np.float32([[1], [2]])
    message = r"onnx: `x` must have shape \(1, 3\); got \(2, 3\)\. For a batch, use "
    for call in (model.jax_fn, lambda x: model.apply({}, x), lambda x: model.run([x])):
        require_error(ValueError, f"{message}`jax.vmap`", call, batch)
    wanted = np.concatenate(
        [runtime_outputs(source, [row])[0] for row in batch[:, None]]
    )
    (y,) = jax.vmap(model.jax_fn)(batch[:, None])
    np.testing.assert_allclose(y[:, 0], wanted, rtol=1e-6)


@pytest.mark.parametrize("name", ["FOO", "CPU:99", "CPU:-1", "CPU:x", "CPU:0:0", ""])
def test_devices(name: str) -> None:
    message = f"onnx: `device` must be .*; got {name}$"
    require_error(ValueError, message, onnx_backend.prepare, MODEL, device=name)
    assert not onnx_backend.supports_device(name)


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
        r"onnx: `s` must be a constant, since a shape or an option depends on it; got "
        r"traced int.. array of shape \(1,\)\. Close over it instead of passing it to "
        "the function that is transformed$"
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
