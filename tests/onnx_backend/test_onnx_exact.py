"""Single operators of ONNX: exact numbers, every data type, and sequences."""

from fractions import Fraction
from typing import Any

import jax
import ml_dtypes
import numpy as np
import onnx
import pytest
from assertions import assert_same_bits, assert_same_sequence
from onnx import helper
from onnx_models import model_of, prepared, rows, type_of

from dml_jax import onnx_backend, reference

pytestmark = pytest.mark.usefixtures("optimized")

RANGES = [
    (np.float32, 0, 1, 0.1),  # rounded once
    (np.float64, 0.1, 0.7, 0.2),  # cancelling
    (np.int64, -(2**63), 5 - 2**63, 2),  # beyond doubles
    (np.int64, 2**60, 2**60 + 3, 1),
    (np.int64, 0, 2**62 + 1, 2**62),  # a count beyond doubles
    (np.float64, -1e308, 1e308, 1.2e308),  # a difference that overflows
    (np.float16, 0, 3000, 1),
]


def exact_range(dtype: Any, *ends: Any) -> tuple[list[Any], np.ndarray]:
    """Inputs of Range, and its result."""
    numbers = [np.array(number, dtype) for number in ends]
    first, end, step = (Fraction(number.item()) for number in numbers)
    start, _, delta = (number[()] for number in numbers)
    size = -((first - end) // step)
    return numbers, reference.fill_value_sequence((size,), dtype, start, delta)


# Models, inputs, and lists of the results.
LISTS = rows(
    r"""
=> string[1] y {y = Constant<value_strings = ["a"]>()} |  | ["a"]
=> string[1] y {y = Constant<value: tensor = string[1] {"a"}>()} |  | ["a"]
=> string y {y = Constant<value_string = "ü">()} |  | "ü"
=> float y {y = Constant<value_float = 1.5>()} |  | 1.5
=> float[1] y {y = Constant<value_floats = [1.5]>()} |  | [1.5]
=> int64 y {y = Constant<value_int = 7>()} |  | 7
=> int64[1] y {y = Constant<value_ints = [7]>()} |  | [7]
string[3,2] x => string[2,2] y {n = Constant<value_ints = [3, 2]>()
  r = ReverseSequence(x, n) i = Identity(r) s = Constant<value_ints = [1]>()
  e = Constant<value_ints = [3]>() y = Slice(i, s, e)} |
  np.array([["a", "b"], ["c", ""], ["longer", "ü"]]) | [["c", "b"], ["a", "ü"]]
=> bool y {y = OptionalHasElement()} |  | False
@11 double[n] x => int64[1] y {y = ArgMax(x)} | np.array([2.0, 3.0, 3.0]) | [1]
double[1] x => double[1] y {y = LeakyRelu(x)} | np.array([-3.0]) |
  [-3 * np.float32(0.01).item()]
$erase | [1], [2], -2 | [2]
$erase | [1], [2], 1 | [1]
$erase | [1], [2], -1 | [1]
float[3] x => float[n] y {empty = SequenceEmpty() one = Constant<value_int = 1>()
  a = SequenceInsert(empty, x) m = Neg(x) zero = Constant<value_int = 0>()
  c = SequenceInsert(a, m, zero) d = SequenceInsert(c, x) e = SequenceErase(d, one)
  f = Optional(e) g = OptionalGetElement(f) h = SequenceMap(g) <body =
    each (float[3] p) => (float[3] q) {q = Add(p, p)}>
  y = ConcatFromSequence<axis = 0>(h)} | np.float32([1, 2, 3]) | [-2, -4, -6, 2, 4, 6]
float[3] x => int64 y {s = SequenceConstruct(x, x) o = Optional(s)
  g = OptionalGetElement(o) y = SequenceLength(g)} | np.ones(3, "f") | 2
float[3] x => bool y {s = SequenceConstruct(x, x) o = Optional(s)
  y = OptionalHasElement(o)} | np.ones(3, "f") | True
float16[1,1,2] x, float16[1] s, float16[1] b => float16[1,1,2] y {
  y, m, v = BatchNormalization<training_mode = 1>(x, s, b, b, s)} |
  np.float16([[[-300, 300]]]), np.float16([1]), np.float16([0]) | [[[-1, 1]]]
float[1] x => float[1] y {r = Constant<value_float = 0.0>()
  t = Constant<value: tensor = bool {1}>() y = Dropout(x, r, t)} | np.float32([2]) | [2]
""",
    erase="int64[1] a, int64[1] b, int64 place => int64[n] y {"
    "s = SequenceConstruct(a, b) e = SequenceErase(s, place) "
    "y = ConcatFromSequence<axis = 0>(e)}",
)


@pytest.mark.parametrize(("text", "inputs", "wanted"), LISTS)
def test_lists(text: str, inputs: str, wanted: str) -> None:
    assert prepared(text).run(eval(f"[{inputs}]"))[0].tolist() == eval(wanted)


def test_constant_of_shape_keeps_bits() -> None:
    payload = np.array([0x7FA00001], np.uint32).view(np.float32)
    tensor = onnx.numpy_helper.from_array(payload)
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"], value=tensor)
    with jax.debug_nans(True):
        (y,) = onnx_backend.run_node(node, [np.array([2, 3])], outputs=None)
    assert_same_bits(y, np.broadcast_to(payload, (2, 3)))


LARGEST = 2**63 - 1
EIGHT = np.arange(8).reshape(4, 2)
REVERSED = np.array([[4, 7], [2, 5], [0, 3], [6, 1]])


def BRAIN(values: Any) -> np.ndarray:
    return np.asarray(values, ml_dtypes.bfloat16)


def one_hot(last: int, depth: int) -> np.ndarray:
    return np.eye(depth, dtype=int)[[1, 100, last]]


H = np.float16
LARGE = H([60000, 60000, -60000])  # whose sums are beyond float16
PAIR = LARGE[None, None, :2]
SIDES = H([[[300, 400]]])  # as are their squares
SPREAD = H([[[-300, 300]]])  # and their variance
ONE, NONE = H([1]), H([0])
MANY = np.zeros(4096, int)  # whose ones 16 bits do not count one by one
# Operators, inputs and results that ONNX Runtime has not, or not exactly.
EXACT: list[tuple[str, list[Any], Any]] = [
    *(("Range", *exact_range(*row)) for row in RANGES),
    *(
        ("ReverseSequence", [EIGHT.astype(t), [3, 4]], REVERSED.astype(t))
        for t in (np.complex64, np.complex128, ml_dtypes.bfloat16)
    ),
    ("ReduceMean", [np.uint32([4000000001, 4000000003])], np.uint32([4000000002])),
    ("ReduceMean", [[LARGEST, LARGEST - 1, LARGEST - 2]], [LARGEST - 1]),
    ("ReduceMean", [[-LARGEST, -LARGEST, 1 - LARGEST]], [1 - LARGEST]),
    ("ReduceMean", [np.uint64([2**64 - 1, 2**64 - 3])], np.uint64([2**64 - 2])),
    ("Pow", [np.int32([0, 3, -1]), np.int32([-1, -1, -3])], np.int32([0, 0, -1])),
    ("Pow", [[-1, 1, 3], [-(2**63), -(2**63), 39]], [1, 1, 3**39]),
    ("NonZero", [np.float32(3)], np.zeros((0, 1), int)),
    ("NonZero", [np.float32(0)], np.zeros((0, 0), int)),
    ("OneHot", [np.float32([1.5, -0.5, -1.5, 3]), 3, [0, 1]],
     np.eye(4, 3, dtype=int)[[1, 0, 2, 3]]),
    ("OneHot", [np.uint64([2**64 - 1, 1]), 2, [0, 1]], [[0, 0], [0, 1]]),
    ("OneHot", [np.uint8([1, 100, 255]), 400, [0, 1]], one_hot(255, 400)),
    ("OneHot", [np.int8([1, 100, -1]), 400, [0, 1]], one_hot(-1, 400)),
    ("Sum", [*LARGE[:, None]], LARGE[:1]),
    ("Mean", [LARGE, LARGE], LARGE),
    ("ReduceSum", [LARGE], LARGE[:1]),
    ("ReduceMean", [LARGE[:2]], LARGE[:1]),
    ("ReduceL2", [SIDES], H([[[500]]])),
    ("ReduceProd", [H([300, 300, 0.25])], H([22500])),
    ("ReduceLogSum", [LARGE[:2]], H([np.log(120000)])),
    ("CumSum", [H([2048, 1, 1]), [0]], H([2048, 2048, 2050])),
    ("CumProd", [H([300, 300, 0.25]), [0]], H([300, np.inf, 22500])),
    ("AveragePool<kernel_shape = [2]>", [LARGE[None, None]], H([[[60000, 0]]])),
    ("LpPool<kernel_shape = [2]>", [SIDES], H([[[500]]])),
    ("GlobalAveragePool", [PAIR], PAIR[..., :1]),
    ("GlobalLpPool", [SIDES], H([[[500]]])),
    ("LpNormalization", [SIDES], H([[[0.6, 0.8]]])),
    ("LRN<size = 1, alpha = 1.0, beta = 0.5>", [SIDES], H([[[1, 1]]])),
    ("InstanceNormalization", [SPREAD, ONE, NONE], H([[[-1, 1]]])),
    ("GroupNormalization<num_groups = 1>", [SPREAD, ONE, NONE], H([[[-1, 1]]])),
    *(
        (f'{kind}<reduction = "add">', [t([0]), index, t(MANY + 1)], t([4096]))
        for kind, index in (("ScatterElements", MANY), ("ScatterND", MANY[:, None]))
        for t in (H, BRAIN)
    ),
    ('ScatterElements<reduction = "mul">', [ONE, [0, 0, 0], H([300, 300, 0.25])],
     H([22500])),
]  # fmt: skip


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(("kind", "inputs", "wanted"), EXACT)
def test_results_are_exact(kind: str, inputs: list[Any], wanted: Any) -> None:
    """Also of constants, and of 64 bits outside the mode, which stays as it is."""
    arrays, wanted = list(map(np.asarray, inputs)), np.asarray(wanted)
    names = "pqrst"[: len(inputs)]
    result = f"{type_of(wanted.dtype)}[{','.join('uvw'[: wanted.ndim])}] y"
    text = f"@28 {result} {{y = {kind}({', '.join(names)})}}"
    constants = dict(zip(names, arrays, strict=True))
    for given, stored in ((arrays, {}), ([], constants)):
        model = onnx_backend.prepare(model_of(text, given, **stored))
        compare = assert_same_sequence if kind == "Range" else assert_same_bits
        compare(model.run(given)[0], wanted)
    assert not jax.config.read("jax_enable_x64")


# Quantized products -------------------------------------------------------------------


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("magnitude", [1, 17, 127])
def test_sums_of_quantized_products_are_exact(
    magnitude: int, is_constant: bool
) -> None:
    """Also beyond 24 bits, and where constant weights say that floats have them all."""
    random = np.random.default_rng(0)
    p = random.integers(0, 256, (3, 3001), np.uint8)
    q = random.integers(-magnitude, magnitude + 1, (3001, 2), np.int8)
    given, constants = ([p], {"q": q}) if is_constant else ([p, q], {})
    source = model_of("int32[a,b] y {y = MatMulInteger(p, q)}", given, **constants)
    (y,) = onnx_backend.prepare(source).run(given)
    assert_same_bits(y, (p.astype(np.int64) @ q.astype(np.int64)).astype(np.int32))


@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize(
    "shapes",
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
    shapes: tuple[tuple[int, ...], ...], kinds: tuple[str, str]
) -> None:
    """Also of the least and the largest elements."""
    random, given = np.random.default_rng(0), []
    for shape, kind in zip(shapes, kinds * 2, strict=True):
        info = np.iinfo(kind)
        values = [info.min, info.max, random.integers(info.min, info.max)]
        given.append(random.choice(values, shape).astype(kind))
    a, b, p, q = (x.astype(np.int64) for x in given)
    p = p[:, None] if p.ndim == 1 else p
    wanted = np.matmul(a - p, b - q).astype(np.int32)
    dims = ",".join("xyz"[: wanted.ndim])
    source = model_of(f"int32[{dims}] y {{y = MatMulInteger(p, q, r, s)}}", given)
    assert_same_bits(onnx_backend.prepare(source).run(given)[0], wanted)
