"""The TPU kernel gives what the reference gives, in Pallas' interpreter for TPUs."""

import itertools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from formulations import as_lowered, data, lines, require_reversed
from sampling import default_of

from dml_jax._reverse import tpu
from dml_jax._reverse.tpu_layout import Tpu
from dml_jax._shared import bitwise, jax_versions

pytestmark = [
    pytest.mark.skipif(
        not jax_versions._SUPPORTS_MOSAIC, reason="this JAX has XLA's form instead"
    ),
    pytest.mark.usefixtures("with_jit", "nans_are_data"),
]

V4 = Tpu(vmem_bytes=2**24, generation=4)
V5 = Tpu(vmem_bytes=2**27, generation=5)
TINY = Tpu(vmem_bytes=200 * 2**10, generation=5)  # lines of 12 registers

GROUP = 8  # registers

# Shape, axis, the shape of the lengths, and the TPU: what random shapes hardly have.
LINES = {
    "rows": ((37, 150), 1, (37, 1), V5),
    "rows-of-a-group": ((3, 1024), 1, (3, 1), V5),
    "rows-of-many-groups": ((9, 2203), 1, (9, 1), V5),
    "columns": ((70, 128), 0, (1, 128), V5),
    "columns-of-many-groups": ((550, 128), 0, (1, 128), V5),
    "features": ((3, 41, 128), 1, (3, 1, 1), V5),
    "features-without-gathers": ((3, 41, 128), 1, (3, 1, 1), V4),
    "columns-without-gathers": ((70, 128), 0, (1, 128), V4),
    "rows-without-masks-of-parts": ((37, 150), 1, (37, 1), V4),
    "time-major-without-masks-of-parts": ((70, 9, 128), 0, (1, 9, 1), V4),
    "one-register-a-step": ((17, 8, 128), 0, (1, 8, 128), V5),
    "too-long-line": ((25_001,), 0, (1,), TINY),
    "too-long-rows": ((3, 22, 2000), 2, (3, 22, 1), TINY),
    "too-long-features": ((6, 1600, 100), 1, (6, 1, 1), TINY),
    "blocks-of-features": ((6, 41, 128), 1, (6, 1, 1), TINY),
    "features-of-many-groups": ((2, 550, 128), 1, (2, 1, 1), V5),
    "heads": ((3, 41, 4, 128), 1, (3, 1, 1, 1), V5),
    "transposed-columns": ((199, 100), 0, (1, 1), TINY),
    "lengths-broadcast-the-operand": ((1, 150, 3), 1, (9, 1, 1), V5),
}
OF_EACH_KIND = "rows", "columns", "features", "too-long-line", "too-long-rows"
DEFAULT = [("rows", "uint8"), ("columns", "float32"), ("too-long-line", "uint16")]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch):
    from jax.experimental.pallas import tpu as pltpu

    from dml_jax._reverse import barrel_shift_kernel, registers

    monkeypatch.setattr(tpu, "_MIN_BYTES", 0)
    # The code is as long as a group, and that of 64 takes half a minute to compile.
    for module in (registers, barrel_shift_kernel):
        monkeypatch.setattr(module, "GROUP", GROUP)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(detect_races=True)):
        yield


def check(x: np.ndarray, lengths: np.ndarray, axis: int, device: Tpu = V5) -> None:
    def barrel_shift(x: jax.Array, lengths: jax.Array, axis: int) -> jax.Array | None:
        y = tpu.barrel_shift_on(device, x, lengths, axis)
        assert y is not None
        return y

    require_reversed(as_lowered(barrel_shift, "tpu"), x, lengths, axis)


@pytest.mark.parametrize(
    ("name", "dtype"),
    default_of(
        [
            *itertools.product(LINES, ["uint8"]),
            *itertools.product(OF_EACH_KIND, ["uint16", "float32"]),
        ],
        *DEFAULT,
    ),
)
def test_lines(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch):
    """XLA reverses what is too long."""
    shape, axis, lengths_shape, device = LINES[name]
    by_xla = mock.Mock(wraps=tpu._flip_and_slice)
    monkeypatch.setattr(tpu, "_flip_and_slice", by_xla)
    check(*lines(shape, axis, lengths_shape, dtype), device)
    assert by_xla.called == name.startswith("too-long")


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_lengths_next_to_whole_registers(dtype: str):
    """In lines that are shifted in groups of registers."""
    group = GROUP * 128
    lengths = np.add.outer([128, group, 2 * group], [-1, 0, 1]).astype(np.int32)
    shape = (9, 2 * group + 200)
    x = data(shape, dtype)
    check(x, lengths.reshape(9, 1), 1)


@pytest.mark.exhaustive
def test_groups_of_the_size_of_programs(monkeypatch: pytest.MonkeyPatch):
    from dml_jax._reverse import barrel_shift_kernel, registers

    for module in (registers, barrel_shift_kernel):
        monkeypatch.setattr(module, "GROUP", 64)
    check(*lines((9, 17003), 1, (9, 1), "uint16"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "dtype",
    ["bool", "int2", "uint4", "float8_e8m0fnu", "bfloat16", "int64", "complex64"],
)
def test_dtypes(dtype: str):
    x, lengths, axis = lines((9, 150), 1, (9, 1), dtype)
    if bitwise.is_narrow_float(x.dtype):
        # On a CPU, the interpreter moves narrow floats as float32, which changes NaNs.
        x[np.isnan(x.astype(np.float32))] = 1
    check(x, lengths, axis)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_pairs_of_floats_are_left_to_xla(dtype: str):
    with jax.enable_x64(True):
        x = jnp.ones((9, 150), dtype)
        assert tpu.barrel_shift_on(V5, x, jnp.ones((9, 1), int), 1) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(20))
def test_random_shapes(seed: int):
    random = np.random.default_rng(seed)
    rank, most = int(random.integers(1, 4)), 40_000
    shape: list[int] = []
    for size in random.choice([1, 2, 3, 4, 5, 9, 20, 37, 128, 150, 260, 300], rank):
        shape.append(int(min(size, most)))
        most //= shape[-1]
    axis = int(random.integers(rank))
    of_lengths = [int(random.choice([size, 1])) for size in shape]
    of_lengths[axis] = 1
    dtype = random.choice(["uint8", "uint16", "float32"])
    device = V4 if random.integers(4) == 0 else V5
    check(*lines(tuple(shape), axis, tuple(of_lengths), str(dtype)), device)
