"""What the package uses of JAX without a promise: its state, and parts that may go."""

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from children import printed_by
from formulations import text_for_cuda
from jax.experimental.pallas import mosaic_gpu as plgpu
from sampling import default_of

import dml_jax
from dml_jax import reference
from dml_jax._shared import jax_versions, lowering

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
LENGTHS = np.array([3, 0, 4])
REVERSED = reference.reverse_subsequences(X, LENGTHS[:, None, None], 1)


@pytest.fixture(autouse=True)
def nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_versions, "missing", {})


# The state of JAX ---------------------------------------------------------------------

COUNT = """
import jax, jax.numpy as jnp
import dml_jax
traces = {"before": 0, "step": 0}
def before(x):
    traces["before"] += 1
    return x + 1
before = jax.jit(before)
before(jnp.ones(3))
x, lengths = jnp.ones((4, 5)), jnp.array([1, 2, 3, 4])
reverse = lambda x: dml_jax.reverse_sequence(x, lengths, batch_axis=0, time_axis=1)
"""
CALLS = {
    "reverse_sequence": "reverse(x)",
    "gradient": "jax.grad(lambda x: reverse(x).sum())(x)",
    "slice": "dml_jax.slice(x, (0, 1), (2, 2))",
    "slice_grad": "dml_jax.slice_grad(x, (8, 5), (0, 0), (8, 5), (2, 1))",
    "fill": "dml_jax.fill_value_sequence((4,), 'float32', 1, 2)",
    "checked": "dml_jax.checked(reverse)(x)",
}
MODULES = {
    "directml": "import dml_jax.directml.dxdispatch",
    "onnx": "import dml_jax.onnx_backend",
}
# In jax 0.11 the kernels change the key, and take 0.4 s to import with the package.
if not (0, 11) <= jax.__version_info__ < (0, 12):
    MODULES |= {
        "GPU kernels": "import jax.experimental.pallas.mosaic_gpu",
    }
STEP = """
@jax.jit
def step(x):
    traces["step"] += 1
    return x - jax.grad(lambda x: (reverse(x) ** 2).sum())(x)
for _ in range(3):
    x = step(x)
print("step", traces["step"], step._cache_size(), sep=", ")
"""


@functools.cache
def shown() -> dict[str, str]:
    """How often functions were traced and compiled, and what was imported late."""

    def used(uses: dict[str, str]) -> Iterator[str]:
        for name, use in uses.items():
            sizes = "traces['before'], before._cache_size()"
            yield from (
                use,
                "before(jnp.ones(3))",
                f"print({name!r}, {sizes}, sep=', ')",
            )

    late = "print('modules', *set(sys.modules) - modules, sep=', ')"
    lines = [COUNT, "import sys", "modules = set(sys.modules)", *used(CALLS), late]
    printed = printed_by(*lines, STEP, *used(MODULES)).splitlines()
    return dict(line.split(", ", 1) for line in printed)


@pytest.mark.parametrize("use", [*CALLS, *MODULES])
def test_first_use_keeps_what_was_compiled(use: str) -> None:
    assert shown()[use] == "1, 1"


def test_first_calls_import_no_module_of_the_package() -> None:
    """Threads that import modules at the same time may fail or deadlock."""
    roots = "dml_jax", "jax.extend", "jax.interpreters"
    names = shown()["modules"].split(", ")
    assert [name for name in names if name.startswith(roots)] == []


def test_a_training_step_is_compiled_once() -> None:
    assert shown()["step"] == "1, 1"


# Parts that a version of JAX lacks ----------------------------------------------------


def raises(*_: Any, **__: Any) -> Any:
    raise AttributeError("it is gone")


def reverse() -> Callable[..., jax.Array]:
    """A function that JAX has not seen before."""
    return functools.partial(dml_jax.reverse_subsequences, axis=1)


@pytest.fixture
def warns_once() -> Iterator[None]:
    """One warning, which blames nobody, with the version of JAX and the error."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    (message,) = [str(each.message) for each in found]
    part = rf"failed with jax {re.escape(jax.__version__)} and is not used"
    assert re.search(
        rf"^dml_jax: .+ {part}; .+ \(AttributeError: it is gone\)$", message
    )


@pytest.mark.skipif(not jax_versions._SUPPORTS_MOSAIC, reason="it has no kernels")
@pytest.mark.parametrize("part", default_of(["inline_mgpu", "SMEM"], "SMEM"))
@pytest.mark.usefixtures("warns_once")
def test_kernels_are_left_out(part: str) -> None:
    shapes = [jax.ShapeDtypeStruct((64, n, 128), jnp.bfloat16) for n in (2048, 2049)]
    lengths = jax.ShapeDtypeStruct((64, 1, 128), np.int32)
    assert "mosaic_gpu" in text_for_cuda(reverse(), shapes[0], lengths)
    with mock.patch.object(plgpu, part, raises):
        for shape in shapes:  # the second one does not warn again
            program = text_for_cuda(reverse(), shape, lengths)
            assert "mosaic_gpu" not in program
            assert "gather" in program


class Gone:
    """A context of a lowering rule without the attributes that are read."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError("it is gone")


@pytest.mark.usefixtures("warns_once")
def test_lowering_without_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    read = lowering.partitioning
    monkeypatch.setattr(lowering, "partitioning", lambda _: read(Gone()))
    read(Gone())
    y = jax.jit(reverse())(X, LENGTHS[:, None, None])
    assert_same_bits(y, REVERSED)


@pytest.mark.usefixtures("warns_once")
def test_arrays_that_cannot_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "with_layout_constraint", raises)
    y = jax.jit(lambda x: lowering.materialize(x) + 1)(X)
    assert_same_bits(y, X + 1)


def test_without_contexts_of_users() -> None:
    """Operators do not need them."""
    shown = printed_by(
        "import jax",
        "del jax.make_user_context",
        COUNT,
        "print(reverse(x).sum() == x.sum())",
        "try:",
        "    dml_jax.checked(reverse)",
        "except NotImplementedError as error:",
        "    print(error)",
    )
    result, error = shown.splitlines()
    assert result == "True"
    assert error.startswith(f"checked: jax {jax.__version__} has no")
