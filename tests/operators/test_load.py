"""Many threads, many calls and many shapes in one process.

There are few shapes by default, since each one is compiled. For more of them:

    DML_JAX_SHAPES=10000 python -m pytest -m "" tests/operators/test_load.py -k shapes
"""

import functools
import gc
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
import onnx.parser
import pytest
from cases import FUNCTIONS, linear, numbers, random_case
from test_compilations import ARGUMENTS, COMPILATION, lengths, recorded_events

import dml_jax
from dml_jax import onnx_backend
from dml_jax.directml import (
    BufferTensorDesc,
    DataType,
    ReverseSubsequencesOperatorDesc,
    SliceGradOperatorDesc,
    compile_operator,
)

Call: TypeAlias = Callable[[int], Any]  # of an array size

EXHAUSTIVE = pytest.mark.exhaustive
THREADS = 16
SHAPES = int(os.environ.get("DML_JAX_SHAPES", 40))
SIZES = itertools.count(20001)  # no other test has these


@pytest.fixture(scope="module", autouse=True)
def only_new_objects():
    """Excludes the objects of other tests, so that collections take less time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def switching_often():
    """Switches threads within a call."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of calls that threads make at the same time."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def work(i: int, call: Callable[[], Any]) -> None:
        barrier.wait()
        results[i] = call()

    threads = [threading.Thread(target=work, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# Threads ------------------------------------------------------------------------------


def directml_reversal(n: int) -> Any:
    x = BufferTensorDesc(DataType.FLOAT32, (2, n))
    of_x = BufferTensorDesc(DataType.UINT32, (2, 1))
    reverse = compile_operator(ReverseSubsequencesOperatorDesc(x, of_x, x, 1))
    return reverse(numbers(2, n), lengths(2, 1).astype(np.uint32))


def directml_gradient(n: int) -> Any:
    small, large = (BufferTensorDesc(DataType.FLOAT32, (s,)) for s in (3, n))
    put = compile_operator(SliceGradOperatorDesc(small, large, (1,), (5,), (-2,)))
    return put(numbers(3))


ONNX_MODEL = onnx_backend.prepare(
    onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 25]>
    g (float[b,n] x, int64[b] l) => (float[b,n] y) {
      y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, l)
    }""")
)


def onnx_reversal(n: int) -> Any:
    return ONNX_MODEL.run([numbers(2, n), np.array([3, 3])]).y


def call_of(function: str, n: int) -> Any:
    return getattr(dml_jax, function)(**ARGUMENTS[function](7, 11, n))


CALLS: dict[str, Call] = {
    "directml reversal": directml_reversal,
    "directml gradient": directml_gradient,
    "onnx": onnx_reversal,
    **{function: functools.partial(call_of, function) for function in FUNCTIONS},
}


def each_call(first: str) -> pytest.MarkDecorator:
    """Tests `first`, and the other calls if the run is exhaustive."""
    calls = [
        pytest.param(call, id=name, marks=() if name == first else EXHAUSTIVE)
        for name, call in CALLS.items()
    ]
    return pytest.mark.parametrize("call", calls)


@pytest.mark.usefixtures("switching_often", "with_caches")
@each_call("reverse_sequence")
def test_threads_that_make_the_same_call_share_a_compilation(call: Call):
    for _ in range(4):
        calls = [functools.partial(call, next(SIZES))] * THREADS
        with recorded_events() as events:
            results = at_once(calls)
        assert events.count(COMPILATION) == 1
        for result in results:
            np.testing.assert_array_equal(result, results[0])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("switching_often")
def test_threads_with_different_calls_do_not_mix_them_up():
    """Four threads share each case, two of them in 64-bit mode, with their own data."""

    def work(thread: int) -> str:
        mode = thread % 8 < 4
        for function, layout in itertools.product(FUNCTIONS, range(thread % 4, 32, 4)):
            case = random_case(function, layout)
            arrays = {
                name: np.full_like(case.arrays[name], thread) for name in linear(case)
            }
            with jax.enable_x64(mode):
                found = case.run(**arrays)
                assert jax.config.jax_enable_x64 is mode
            if not np.array_equal(found, case.expected(**arrays)):
                return f"{case} in thread {thread}"
        return "right"

    jobs = [functools.partial(work, thread) for thread in range(THREADS)]
    assert at_once(jobs) == ["right"] * THREADS


# Calls and shapes ---------------------------------------------------------------------


def programs() -> int:
    """The number of compiled programs."""
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


@each_call("slice")
def test_calls_keep_no_arrays_or_objects(call: Call):
    n = next(SIZES)
    for _ in range(20):  # fills the caches
        call(n)
    gc.collect()
    arrays, objects = len(jax.live_arrays()), len(gc.get_objects())
    for _ in range(100):
        call(n)
    gc.collect()
    assert len(jax.live_arrays()) == arrays
    assert len(gc.get_objects()) < objects + 100


@pytest.mark.usefixtures("with_caches")
@each_call("fill_value_sequence")
def test_a_new_shape_keeps_at_most_one_program(call: Call):
    call(next(SIZES))
    before, arrays = programs(), len(jax.live_arrays())
    for _ in range(SHAPES // 10):
        call(next(SIZES))
    assert programs() <= before + min(SHAPES // 10, 4096)  # entries of JAX's caches
    assert len(jax.live_arrays()) == arrays
