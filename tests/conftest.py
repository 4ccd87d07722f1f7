import signal

import hypothesis
import jax
import pytest

pytest.register_assert_rewrite("assertions", "dispatches", "onnx_models")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Compilation makes the first example slow; the seed makes a run repeatable.
hypothesis.settings.register_profile(
    "repeatable", deadline=None, derandomize=True, max_examples=50, print_blob=True
)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
hypothesis.settings.register_profile(
    "brief", deadline=None, derandomize=True, max_examples=10
)
hypothesis.settings.load_profile("repeatable")  # --hypothesis-profile comes after


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def x64(request):
    """Runs a test with 64-bit mode off and on."""
    with jax.enable_x64(request.param):
        yield request.param


@pytest.fixture
def x32():
    """Turns 64-bit mode off, for tests of what it would make needless."""
    with jax.enable_x64(False):
        yield


def turned_off(flag):
    """In every thread: JAX's context managers do so in their own alone."""
    before = getattr(jax.config, flag)
    jax.config.update(flag, False)
    yield
    jax.config.update(flag, before)


@pytest.fixture
def with_jit():
    """Turns `jit` on, for tests of what it does, where JAX_DISABLE_JIT is set."""
    yield from turned_off("jax_disable_jit")


@pytest.fixture
def with_caches(with_jit):
    """The same where JAX_CHECK_TRACER_LEAKS is set, which traces in every call."""
    yield from turned_off("jax_check_tracer_leaks")


@pytest.fixture
def nans_are_data():
    """Takes NaNs for no errors, for tests that move or make them on purpose."""
    with jax.debug_nans(False):
        yield


@pytest.fixture
def interrupts_reach_children():
    """What a shell starts in its background ignores them, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
