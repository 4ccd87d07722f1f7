"""Models that are exported for a batch of any size."""

import pathlib
import re
import warnings
from collections.abc import Iterable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import onnx
import onnx.backend.test.loader
import pytest
from assertions import assert_same_bits
from onnx_models import F, model_of, require_close, require_error, rows
from sampling import default_of

from dml_jax import onnx_backend
from dml_jax.onnx_backend._operators import OPERATORS

RANDOM = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(F)


def i(size: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(0, size, shape)


NAMES = {"f": f, "i": i, "np": np}
# Nodes, the inputs p, q, r, ..., and those whose first axis is the batch.
MODELS = rows(
    r"""
y = Attention<is_causal = 1>(p, q, r) |
  f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 6) | pqr
y = Attention<q_num_heads = 2, kv_num_heads = 2>(p, q, r, s) |
  f(2, 3, 8), f(2, 5, 8), f(2, 5, 8), f(3, 5) | pqr
float[a,b,c] y {y = GroupNormalization<num_groups = 2>(p, q, r)} |
  f(2, 4, 5), f(4), f(4) | p
y = RotaryEmbedding<num_heads = 2>(p, q, r) | f(2, 5, 8), f(2, 5, 2), f(2, 5, 2) | pqr
y = RotaryEmbedding(p, q, r, s) | f(2, 2, 5, 8), f(9, 4), f(9, 4), i(9, 2, 5) | ps
s = Constant<value_ints = [3, 7]>() y = CenterCropPad<axes = [1, 2]>(p, s) |
  f(2, 5, 4) | p
y = SoftmaxCrossEntropyLoss<reduction = "none">(p, q) | f(2, 5), i(5, 2) | pq
y = NegativeLogLikelihoodLoss<ignore_index = 1>(p, q) | f(2, 5, 3), i(5, 2, 3) | pq
@27 y, z = CausalConvWithState(p, q) | f(2, 3, 6), f(3, 1, 2) | p
@27 y, z = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = "linear">(
  p, q, r) | f(2, 3, 8), f(2, 3, 8), f(2, 3, 8) | pqr
s = Constant<value_ints = [3, 1, 4]>() y = Expand(p, s) | f(2, 4) | p
y = GatherElements<axis = 1>(p, q) | f(2, 5), i(5, 2, 3) | pq
float[a,b] y {y = GatherND<batch_dims = 1>(p, q)} | f(2, 5), i(5, 2, 1) | pq
y = ScatterElements<axis = 1>(p, q, r) | f(2, 5), i(5, 2, 1), f(2, 1) | pqr
y = ScatterND(p, q, r) | f(2, 5), np.zeros((1, 1), int), f(1, 5) | p
@24 y = TensorScatter<axis = 1>(p, q, r) | f(2, 4, 3), f(2, 2, 3), i(3, 2) | pqr
y, z = MaxPool<kernel_shape = [2]>(p) | f(2, 3, 6) | p
y, z = Dropout(p) | f(2, 3) | p
y = RoiAlign<output_height = 2>(p, q, r) | f(2, 3, 6, 5), f(4, 4), i(2, 4) | qr
y = RoiAlign<sampling_ratio = 2>(p, q, r) | f(2, 3, 6, 5), f(2, 4), i(2, 2) | pqr
y = Flatten<axis = 2>(p) | f(2, 3, 4) | p
@11 y = Softmax<axis = 1>(p) | f(2, 3, 4) | p
y = Size(p) | f(2, 3) | p
y = Shape(p) | f(2, 3) | p
y = EyeLike(p) | f(2, 3) | p
y = Einsum<equation = "bii->bi">(p) | f(2, 3, 3) | p
y, h = GRU<hidden_size = 4>(p, q, r) | f(2, 3, 5), f(1, 12, 5), f(1, 12, 4) | p
float[2] y, float[n,2] z {i = Constant<value_floats = [0.0, 0.0]>()
  y, z = Scan<num_scan_inputs = 1, body = g (float[2] s, float[2] u) =>
    (float[2] t, float[2] v) {t = Add(s, u) v = Neg(t)}>(i, p)} | f(5, 2) | p
y = Gather(p, q) | f(5, 2), np.array([1, -1]) | p
s = Cast<to = 7>(q) y = ReverseSequence(p, s) | f(5, 2), np.int32([3, 5]) | p
float[n,2] y {s = Shape(p) n = Constant<value_int = 0>() b = Gather(s, n)
  y = Loop(b, , p) <body = g (int64 k, bool c, float[m,2] s) => (bool c, float[m,2] t) {
    t = Add(s, s)}>} | f(5, 2) | p
s = Shape(p) n = Constant<value_ints = [2, 0, 1]>() c = Gather(s, n)
  y = Reshape(p, c) | f(2, 3, 4) | p
s = Shape<end = 1>(p) m = Constant<value_ints = [-1]>() c = Concat<axis = 0>(m, s)
  y = Reshape(p, c) | f(2, 3, 4) | p
s = Size(p) c = Cast<to = 1>(s) t = ReduceSum<keepdims = 0>(p) y = Div(t, c) |
  f(2, 3) | p
s = Shape<end = 1>(p) n = Constant<value_ints = [0]>() y = Slice(q, n, s) |
  f(2, 3), f(9, 3) | p
s = Shape(p) zero = Constant<value_int = 0>() b = Gather(s, zero)
  one = Constant<value_int = 1>() r = Range(zero, b, one) y = Mul(q, r) |
  f(2, 3), np.array(3) | p
s = Shape(p) y = Add(q, s) | f(2, 3), np.array([5, 7]) | p
s = Shape(p) z = ConstantOfShape<value: tensor = float[1] {2}>(s) y = Sub(p, z) |
  f(2, 3) | p
s = Shape(p) n = Constant<value_ints = [-1, 3]>() m = Constant<value_int = -1>()
  e = Equal(n, m) w = Where(e, s, n) y = Expand(q, w) | f(2, 3), f(1, 3) | p
s = Shape(p) zero = Constant<value_int = 0>() b = Gather(s, zero)
  three = Constant<value_int = 3>() c = Equal(b, three) y = If(c) <
    then_branch = g () => (float[k,l] u) {u = Neg(p)},
    else_branch = h () => (float[k,l] v) {v = Expand(p, s)}> | f(2, 3) | p
s = Shape(p) two = Constant<value_int = 2>() t = Mul(s, two) u = Div(t, two)
  v = Mod(u, two) w = Add(u, v) x = Sub(w, v) y = Reshape(p, x) | f(2, 3) | p
s = Shape<end = 2>(p) n = Constant<value_ints = [8, 6]>() t = Concat<axis = 0>(s, n)
  y = Resize(p, , , t) | f(2, 1, 4, 3) | p
s = Shape<end = 1>(p) n = Constant<value_ints = [1, 2, 3]>()
  t = Concat<axis = 0>(s, n) y = AffineGrid(p, t) | f(2, 2, 3) | p
"""
)


# 64-bit mode off, and on in exhaustive runs.
in_both_modes = pytest.mark.parametrize(
    "x64", default_of([False, True], False), ids=["x32", "x64"]
)


def exported(
    model: onnx_backend.Model, inputs: dict[str, np.ndarray], batched: Iterable[str]
) -> Any:
    """The function of the inputs that are not static, for a batch of any size.

    The batch is the first axis of some inputs.
    """
    (batch,) = jax.export.symbolic_shape("batch")
    static = {n: x for n, x in inputs.items() if n in model.static_names}
    types = {
        n: jax.ShapeDtypeStruct(
            (batch, *x.shape[1:]) if n in batched else x.shape, x.dtype
        )
        for n, x in inputs.items()
        if n not in static
    }
    function = jax.jit(lambda traced: model.jax_fn(**traced, **static))
    return jax.export.export(function)(types)


@pytest.mark.usefixtures("with_jit")
@in_both_modes
@pytest.mark.parametrize(
    ("text", "inputs", "batched"),
    default_of(
        MODELS, *(row for row in MODELS if row[0].startswith(("s = Sh", "s = Cast")))
    ),
)
def test_a_batch_of_any_size(text: str, inputs: str, batched: str, x64: bool) -> None:
    """Compared with the model for its own sizes, which other tests compare."""
    arrays = list(map(np.asarray, eval(f"[{inputs}]", NAMES)))
    model = onnx_backend.prepare(model_of(text, arrays))
    given = dict(zip("pqrs", arrays, strict=False))
    expected = model.run(given)
    with jax.enable_x64(x64):
        # In 32-bit mode, JAX makes arrays of 32 bits of all.
        given, expected = jax.tree.map(
            lambda x: np.asarray(jnp.asarray(x)), (given, expected)
        )
        found = exported(model, given, batched).call(given)
    require_close(found, expected, 1e-6)


LEAST, MOST = -(2**63), 2**63 - 1  # as exporters write limits that are omitted
LIMITS = [(0, MOST, 1), (1, MOST, 1), (0, -1, 1), (-1, LEAST, -1), (0, MOST, 2)]
LIMITS += [(MOST, LEAST, -1), (LEAST, MOST, 3), (0, 2**31 - 1, 1), (0, 4, 1)]
LIMITS += [(-3, MOST, 1), (1, -2, 1), (4, 1, -1)]


@pytest.mark.usefixtures("x32", "with_jit")
@pytest.mark.parametrize("constraints", [(), ("t >= 2", "t <= 1000")])
@pytest.mark.parametrize(("start", "end", "step"), LIMITS)
def test_slices_of_an_axis_of_any_size(
    start: int, end: int, step: int, constraints: Any
) -> None:
    limits = [np.array([n]) for n in (start, end, step)]
    model = onnx_backend.prepare(
        model_of(
            "a = Constant<value_ints = [1]>() y = Slice(p, q, r, a, s)",
            [f(3, 2), *limits],
        )
    )
    (types,) = jax.export.symbolic_args_specs(
        (f(3, 2),), ("3, t",), constraints=constraints
    )
    function = jax.jit(lambda x: model.jax_fn(x, *limits)[0])
    program = jax.export.export(function)(types)
    for size in (2, 5, 8):
        x = f(3, size)
        assert_same_bits(np.asarray(program.call(x)), x[:, start:end:step])


@pytest.mark.usefixtures("x32", "with_jit")
def test_starts_that_may_be_before_an_axis_of_any_size() -> None:
    """NumPy selects nothing from them backwards, ONNX the first element."""
    source = "a = Constant<value_ints = [-3]>() b = Constant<value_ints = [-9]>() "
    source += "s = Constant<value_ints = [-1]>() y = Slice(p, a, b, , s)"
    model = onnx_backend.prepare(model_of(source, [f(5)]))

    def program(*constraints: str) -> Any:
        (types,) = jax.export.symbolic_args_specs((f(5),), "t", constraints=constraints)
        return jax.export.export(jax.jit(model.jax_fn))(types)

    message = r"Slice 'y': .* the start \(t - 3\) must be resolved"
    require_error(ValueError, message, program)
    x = f(8)
    (y,) = program("t >= 3").call(x)
    assert_same_bits(np.asarray(y), x[-3::-1])


def test_recurrent_weights_of_any_size() -> None:
    arrays = f(2, 3, 5), f(1, 4, 5), f(1, 4, 4)
    model = onnx_backend.prepare(model_of("y, h = RNN(p, q, r)", arrays))
    shapes = "2,batch,5", "1,batch + 1,5", "1,batch + 1,batch + 1"
    scope = jax.export.SymbolicScope()
    types = [
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), np.float32)
        for shape in shapes
    ]
    program = jax.export.export(jax.jit(model.jax_fn))(*types)
    require_close(program.call(*arrays), model.run(arrays), 1e-6)


@pytest.mark.usefixtures("with_jit")
@in_both_modes
@pytest.mark.parametrize("lengths", [(), (np.int32([1, 3]),)], ids=["full", "lengths"])
@pytest.mark.parametrize(
    ("kind", "gates"), default_of([("RNN", 1), ("GRU", 3), ("LSTM", 4)], ("GRU", 3))
)
def test_recurrences_of_any_time(
    kind: str, gates: int, lengths: Any, x64: bool
) -> None:
    """And their gradients, in both directions."""
    arrays = f(5, 2, 3), f(2, 4 * gates, 3), f(2, 4 * gates, 4), *lengths
    names = "p, q, r, , s" if lengths else "p, q, r"
    text = f'y, h = {kind}<direction = "bidirectional", hidden_size = 4>({names})'
    model = onnx_backend.prepare(model_of(text, arrays))
    specs = "t, batch, 3", *["..."] * 2, *["batch"] * len(lengths)

    @jax.jit
    def run(x: Any, *others: Any) -> Any:
        y, pull_back = jax.vjp(lambda x: model.jax_fn(x, *others), x)
        return *y, *pull_back(y)

    with jax.enable_x64(x64):
        types = jax.export.symbolic_args_specs(arrays, specs)
        found = jax.export.export(run)(*types).call(*arrays)
        require_close(found, run(*arrays), 1e-6)


@pytest.mark.usefixtures("x32", "with_jit")
def test_a_network_of_torch_of_any_time() -> None:
    path = pathlib.Path(__file__).with_name("exports") / "torch_gru_script.onnx"
    model, x = onnx_backend.prepare(path), f(8, 2, 4)
    (types,) = jax.export.symbolic_args_specs((x,), "t, b, 4")
    program = jax.export.export(jax.jit(model.jax_fn))(types)
    require_close(program.call(x), model.run([x]), 1e-6)


# ONNX's own tests whose first axis is no batch, or cannot have any size: it is cut,
# named by its size, multiplied, or the number of elements depends on their values; and
# those that need a key.
NO_BATCH = """
and_bcast4v4d or_bcast4v4d xor_bcast4v4d affine_grid center_crop_pad det_2d
bernoulli training_dropout expand_dim_unchanged gemm_all_attributes matmul_1d_3d
nonmaxsuppression nonzero reshape_negative_extended_dims resize scan9 split squeeze
top_k_same_values unique
"""


@pytest.mark.exhaustive
@pytest.mark.usefixtures("with_jit")
def test_nodes_of_onnx_with_a_batch_of_any_size() -> None:
    failed, passed, prefixes = {}, 0, tuple(NO_BATCH.split())
    with warnings.catch_warnings(action="ignore"):  # values of the tests overflow
        cases = onnx.backend.test.loader.load_model_tests(kind="node")
    for case in cases:
        graph, name = case.model.graph, case.name.removeprefix("test_")
        arrays = case.data_sets[0][0]
        kinds = {node.op_type for node in graph.node}
        if "_expanded" in name or not kinds <= OPERATORS.keys():
            continue
        if not all(isinstance(x, np.ndarray | np.generic) for x in arrays):
            continue
        if not arrays or not arrays[0].shape or arrays[0].dtype == object:
            continue
        try:
            onnx_backend.prepare(case.model)
        except NotImplementedError:
            continue  # other tests list those that are refused
        given = dict(zip((info.name for info in graph.input), arrays, strict=True))
        message = error_of(case.model, given)
        if message:
            failed[name] = message
            assert name.startswith(prefixes), (name, message)
            assert re.match(rf"({'|'.join(kinds)}) '", message), (name, message)
        passed += not message
    assert passed > 900
    for prefix in prefixes:
        assert any(name.startswith(prefix) for name in failed), prefix


def error_of(source: onnx.ModelProto, given: dict[str, np.ndarray]) -> str:
    """Why a model is not exported with a batch, empty if it is.

    All inputs have the batch whose first axis has as many elements as that of the first
    input, or this one alone.
    """
    first, *_ = given
    sizes = {n: x.shape[:1] for n, x in given.items()}
    batched = {n for n in given if sizes[n] and sizes[n] == sizes[first]}
    error = ""
    for names in (batched, {first} & batched):
        model = onnx.ModelProto()
        model.CopyFrom(source)
        for info in (*model.graph.input, *model.graph.output):
            dims = info.type.tensor_type.shape.dim
            count = int(info.name in names) if info.name in given else len(dims)
            for dim in dims[:count]:
                dim.Clear()
        prepared = onnx_backend.prepare(model)
        try:
            with jax.enable_x64(True):
                exported(prepared, given, names.difference(prepared.static_names))
        except Exception as raised:
            error = str(raised)
        else:
            return ""
    return error
