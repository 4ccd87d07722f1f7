"""Learns to smooth long sequences from both sides, over devices that share their time.

Slow waves, padded to one array [batch, time, feature], are to be freed of noise. A
moving average h[t] = a h[t-1] + (1 - a) x[t] reads each sequence forwards and another
one backwards, over `dml_jax.reverse_sequence`. Learned are, for every feature, both
decays a and how much each average counts.

    python docs/examples/long_sequence.py
    export XLA_FLAGS=--xla_force_host_platform_device_count=8
    python docs/examples/long_sequence.py --mesh time=8

take a few gradient steps on one device and on eight. The losses are the same, but for
the rounding of sums; a device holds an eighth, and needs about an eighth of the memory.
"""

import argparse
import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax import reverse_sequence

PARTS = 16  # of the time, each scanned by itself; more on more devices
NOISE = 1.0  # the amplitude of the waves is 1 too
LEARNING_RATE = 0.5  # of one feature


class Sequences(NamedTuple):
    noisy: Array  # float32 [batch, time, feature]
    clean: Array  # the same
    lengths: Array  # int32 [batch]


class Parameters(NamedTuple):
    decays: Array  # [direction, feature], before a sigmoid
    gains: Array  # [direction, feature]


def moving_average(decay: Array, x: Array, parts: int) -> Array:
    """Scans all parts of the time at once, then adds what comes from before a part."""
    batch, time, features = x.shape
    by_step = jnp.moveaxis(x.reshape(batch, parts, time // parts, features), 2, 0)
    # Of each part, so that their gradients are summed once and not in every step.
    decays = jnp.broadcast_to(decay, by_step.shape[1:])

    def step(state: Array, x: Array) -> tuple[Array, Array]:
        state = decays * state + (1 - decays) * x
        return state, state

    def join(earlier: tuple[Array, Array], later: tuple[Array, Array]):
        return earlier[0] * later[0], later[0] * earlier[1] + later[1]

    last, states = lax.scan(step, jnp.zeros_like(by_step[0]), by_step)
    steps = jnp.arange(1, len(states) + 1, dtype=x.dtype)
    faded = decay ** steps[:, None, None, None]  # after so many steps of a part
    over_parts = jnp.broadcast_to(faded[-1], (1, parts, features)), last
    _, after = lax.associative_scan(join, over_parts, axis=1)
    before = jnp.pad(after[:, :-1], [(0, 0), (1, 0), (0, 0)])
    return jnp.moveaxis(states + faded * before, 0, 2).reshape(x.shape)


def loss(parameters: Parameters, data: Sequences, parts: int) -> Array:
    def backwards(x: Array) -> Array:
        return reverse_sequence(x, data.lengths, batch_axis=0, time_axis=1)

    # Gradients contain 0 times the padding, which must be finite.
    valid = (jnp.arange(data.noisy.shape[1]) < data.lengths[:, None])[:, :, None]
    noisy, clean = (jnp.where(valid, x, 0) for x in (data.noisy, data.clean))
    decays = jax.nn.sigmoid(parameters.decays)
    first = moving_average(decays[0], noisy, parts)
    second = backwards(moving_average(decays[1], backwards(noisy), parts))
    error = parameters.gains[0] * first + parameters.gains[1] * second - clean
    squares = jnp.where(valid, error**2, 0)
    return squares.sum() / (data.lengths.sum() * error.shape[2])


def make_sequences(batch: int, time: int, features: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    lengths = random.integers(time // 2, time, batch, np.int32, endpoint=True)
    periods = random.uniform(100, 1000, (batch, 1, features))
    clean = np.sin(2 * np.pi / periods * np.arange(time)[:, None]).astype(np.float32)
    noisy = clean + NOISE * random.standard_normal(clean.shape, np.float32)
    return noisy, clean, lengths


def pad(array: np.ndarray, *multiples: int) -> np.ndarray:
    """Adds zeros behind the leading dimensions, up to multiples of these numbers."""
    widths = [(0, 0)] * array.ndim
    for dimension, multiple in enumerate(multiples[: array.ndim]):
        widths[dimension] = (0, -array.shape[dimension] % multiple)
    return np.pad(array, widths)


def mesh_of(text: str) -> Mesh:
    """The mesh of `data=2,time=4`; an axis that is not named has one device."""
    axes = ("data", "time")
    pairs = [re.fullmatch(r"(\w+)=([1-9]\d{0,5})", part) for part in text.split(",")]
    sizes = {pair[1]: int(pair[2]) for pair in pairs if pair and pair[1] in axes}
    if len(sizes) < len(pairs):
        message = f"expected data=2, time=4 or data=2,time=4, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    shape = tuple(sizes.get(axis, 1) for axis in axes)
    needed, devices = math.prod(shape), jax.devices()
    if needed > len(devices):
        raise argparse.ArgumentTypeError(
            f"{text} needs {needed} devices and JAX has {len(devices)}: ask for fewer, "
            f"or have JAX take a CPU for {needed} by "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={needed}"
        )
    axis_types = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(shape, axes, axis_types=axis_types, devices=devices[:needed])


def main() -> None:
    # Without the usage an error is one line.
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS)
    parser.add_argument(
        "--mesh",
        type=mesh_of,
        metavar="data=D,time=T",
        help="divide batches over D devices, their time over T (default: one device)",
    )
    defaults = {"batch": 4, "time": 65536, "features": 8, "steps": 5}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    sizes = arguments.batch, arguments.time, arguments.features
    if min(*sizes, arguments.steps) < 1:
        parser.error("--batch, --time, --features and --steps must be above 0")

    # What does not divide is padded: empty sequences, and steps behind the last one.
    mesh = arguments.mesh or mesh_of("data=1")
    parts = math.lcm(PARTS, mesh.shape["time"])
    arrays = [pad(a, mesh.shape["data"], parts) for a in make_sequences(*sizes)]
    specs = P("data", "time"), P("data", "time"), P("data")
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    data = Sequences(*jax.device_put(arrays, shardings))
    weights = np.stack([np.full((2, sizes[2]), value, np.float32) for value in (2, 0)])
    parameters = jax.device_put(Parameters(*weights), NamedSharding(mesh, P()))
    rate = LEARNING_RATE * sizes[2]  # the loss is a mean over the features

    @jax.jit
    def train(parameters: Parameters, data: Sequences) -> tuple[Parameters, Array]:
        value, slope = jax.value_and_grad(loss)(parameters, data, parts)
        moved = jax.tree.map(lambda w, d: w - rate * d, parameters, slope)
        return moved, value

    program = train.lower(parameters, data).compile()
    shard = data.noisy.addressable_shards[0].data.nbytes
    temporary = program.memory_analysis().temp_size_in_bytes
    axes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    print(f"mesh {axes}, on each device:")
    print(f"  noisy sequences    {shard:12,} bytes")
    print(f"  temporary memory   {temporary:12,} bytes")
    for number in range(arguments.steps):
        parameters, value = program(parameters, data)
        print(f"step {number + 1}: loss {value:.5f}")


if __name__ == "__main__":
    main()
