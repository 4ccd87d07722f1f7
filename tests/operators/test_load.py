"""Many threads and many calls in one process."""

import functools
import gc
import itertools
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
    compile_operator,
)

Call: TypeAlias = Callable[[int], Any]  # of an array size

THREADS = 16
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


def directml_reversal(n: int) -> Any:
    x = BufferTensorDesc(DataType.FLOAT32, (2, n))
    of_x = BufferTensorDesc(DataType.UINT32, (2, 1))
    reverse = compile_operator(ReverseSubsequencesOperatorDesc(x, of_x, x, 1))
    return reverse(numbers(2, n), lengths(2, 1).astype(np.uint32))


ONNX_MODEL = onnx_backend.prepare(
    onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 25]>
    g (float[b,n] x, int64[b] l) => (float[b,n] y) {
      y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, l)
    }""")
)


def onnx_reversal(n: int) -> Any:
    return ONNX_MODEL.run([numbers(2, n), np.array([3, 3])]).y


def reversal(n: int) -> Any:
    return dml_jax.reverse_sequence(**ARGUMENTS["reverse_sequence"](7, 11, n))


each_call = pytest.mark.parametrize(
    "call",
    [
        reversal,
        pytest.param(directml_reversal, marks=pytest.mark.exhaustive),
        pytest.param(onnx_reversal, marks=pytest.mark.exhaustive),
    ],
)


@pytest.mark.usefixtures("switching_often", "with_caches")
@each_call
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
        for function, layout in itertools.product(FUNCTIONS, range(thread % 4, 8, 4)):
            case = random_case(function, layout)
            arrays = {
                name: np.full_like(case.arrays[name], thread) for name in linear(case)
            }
            with jax.enable_x64(mode):
                found = case.run(**arrays)
            if not np.array_equal(found, case.expected(**arrays)):
                return f"{case} in thread {thread}"
        return "right"

    jobs = [functools.partial(work, thread) for thread in range(THREADS)]
    assert at_once(jobs) == ["right"] * THREADS


@each_call
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
