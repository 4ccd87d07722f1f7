"""Settings of JAX and Hypothesis for all tests, and the fixtures that they share."""

import collections
import contextlib
import signal
from collections.abc import Iterator

import hypothesis
import jax
import pytest

pytest.register_assert_rewrite(
    "assertions", "command_line", "onnx_models", "wrong_calls.form"
)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)  # for meshes

# Compilation makes the first example slow; derandomized, a run is repeatable.
for name, count in {"repeatable": 20, "brief": 5}.items():
    hypothesis.settings.register_profile(
        name, deadline=None, derandomize=True, max_examples=count, print_blob=True
    )
hypothesis.settings.register_profile("long", deadline=None, max_examples=400)
hypothesis.settings.load_profile("repeatable")  # --hypothesis-profile comes after


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run only the first case of each test, and every Nth case after it"
    parser.addoption("--every", metavar="N", type=int, default=1, help=text)
    group = parser.getgroup("random programs over meshes")
    group.addoption("--programs", metavar="COUNT", type=int, default=160)
    group.addoption("--first-program", metavar="SEED", type=int, default=20)


@pytest.hookimpl(trylast=True)  # of the tests that -m chooses
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out the cases that `--every` does not choose."""
    counts: dict[str, int] = collections.defaultdict(int)
    chosen, left = [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        (left if counts[name] % config.option.every else chosen).append(item)
        counts[name] += 1
    items[:] = chosen
    config.hook.pytest_deselected(items=left)


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def x64(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Runs a test with 64-bit mode off and on."""
    with jax.enable_x64(request.param):
        yield request.param


@pytest.fixture
def x32() -> Iterator[None]:
    """Turns 64-bit mode off."""
    with jax.enable_x64(False):
        yield


@contextlib.contextmanager
def turned_off(*flags: str) -> Iterator[None]:
    """Turns flags of JAX off in every thread: its contexts do so in their own."""
    before = {flag: getattr(jax.config, flag) for flag in flags}
    for flag in flags:
        jax.config.update(flag, False)
    yield
    for flag in flags:
        jax.config.update(flag, before[flag])


@pytest.fixture
def with_jit() -> Iterator[None]:
    """Turns JAX_DISABLE_JIT off."""
    with turned_off("jax_disable_jit"):
        yield


@pytest.fixture
def with_caches() -> Iterator[None]:
    """Turns JAX_CHECK_TRACER_LEAKS off, too, under which every call is traced."""
    with turned_off("jax_disable_jit", "jax_check_tracer_leaks"):
        yield


@pytest.fixture(autouse=True)
def unoptimized(request: pytest.FixtureRequest) -> Iterator[None]:
    """Turns most of XLA's optimizations off, which take longer than what they save.

    They remain for tests of rounding, which use `optimized`.
    """
    is_off = "optimized" not in request.fixturenames
    jax.config.update("jax_disable_most_optimizations", is_off)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def optimized() -> None:
    """Leaves XLA's optimizations on."""


@pytest.fixture
def nans_are_data() -> Iterator[None]:
    """Turns JAX_DEBUG_NANS off, for tests that move or make NaNs on purpose."""
    with jax.debug_nans(False):
        yield


@pytest.fixture
def interrupts_reach_children() -> Iterator[None]:
    """Turns on what background processes of a shell ignore, and those of nohup."""
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangups = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupts)
    signal.signal(signal.SIGHUP, hangups)
