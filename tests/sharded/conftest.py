"""Settings of tests on meshes of eight CPU devices."""

import jax
import pytest


@pytest.fixture(autouse=True)
def on_cpus(with_jit: None) -> None:  # noqa: ARG001
    """The tests compile programs, and run most of them once."""
    if jax.default_backend() != "cpu":
        pytest.skip("needs eight CPU devices: JAX_PLATFORMS=cpu")
