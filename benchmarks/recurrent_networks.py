"""LSTMs over padded sequences, as different libraries compute them.

The gates are in the order i, f, g, o. A network in JAX is a function of its layers, of
a batch [batch, time, features] and of lengths. A layer has the weights of the input
[directions, features, gates], those of the state [directions, units, gates] and a bias
[directions, gates]. A step multiplies its inputs by their weights itself, as the cells
of Flax do, and casts the weights to the dtype of the carry, which is that of the batch.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import dml_jax
from benchmarks.measure import Candidate
from benchmarks.workloads import Device

Layers = list[dict[str, jax.Array]]
Network = Callable[[Layers, jax.Array, jax.Array], jax.Array]
Program = tuple[Candidate, Callable[[], dict[str, Any]]]  # with what is known of it
LEARNING_RATE = 0.01
OURS = dict(bidirectional_scan=2, padded_scan=1)  # and the number of directions


def networks(ours: str, device: Device, dtype: np.dtype) -> dict[str, Network]:
    """The networks in JAX by name, ours first."""
    is_both = OURS[ours] == 2
    layers: dict[str, Any] = {ours: _bidirectional if is_both else _padded}
    if importlib.util.find_spec("flax"):
        layers["nnx.Bidirectional" if is_both else "nnx.RNN"] = _flax
    layers["lax.scan, 1 step"] = functools.partial(_masked_scans, unroll=1)
    if device == "gpu":
        layers["lax.scan, 8 steps"] = functools.partial(_masked_scans, unroll=8)
    elif is_both:
        layers["lax.scan of both"] = functools.partial(_scan_of_both, unroll=1)
    found: dict[str, Network] = {
        name: functools.partial(_network, layer) for name, layer in layers.items()
    }
    if device == "gpu" and dtype == np.float32:
        found["cuDNN in JAX"] = _cudnn
    return found


def sharded_networks(device: Device) -> dict[str, Network]:
    """Both directions in one loop, ours first, with as many steps in an iteration."""
    scan = functools.partial(_scan_of_both, unroll=8 if device == "gpu" else 1)
    layers = {"bidirectional_scan": _bidirectional, "lax.scan of both": scan}
    return {name: functools.partial(_network, layer) for name, layer in layers.items()}


def forward(network: Network, layers: Layers, x: jax.Array, lengths: jax.Array) -> Any:
    """The outputs at valid steps, and zeros at the padding."""
    return jnp.where(_valid(x, lengths)[..., None], network(layers, x, lengths), 0)


def gradient(network: Network, layers: Layers, x: jax.Array, lengths: jax.Array) -> Any:
    """The gradient of the mean square of the outputs by the weights."""

    def loss(layers: Layers) -> jax.Array:
        outputs = forward(network, layers, x, lengths)
        return jnp.mean(outputs.astype(jnp.float32) ** 2)

    return jax.grad(loss)(layers)


def step(network: Network, layers: Layers, x: jax.Array, lengths: jax.Array) -> Any:
    """New weights, after a step that makes the mean square of the outputs smaller."""

    def update(weight: jax.Array, gradient: jax.Array) -> jax.Array:
        return weight - jnp.asarray(LEARNING_RATE, weight.dtype) * gradient

    return jax.tree.map(update, layers, gradient(network, layers, x, lengths))


def as_numpy(found: Any) -> Any:
    """Arrays of JAX or of torch in float32."""

    def convert(x: Any) -> np.ndarray:
        return np.asarray(
            x if isinstance(x, jax.Array) else x.cpu().float(), np.float32
        )

    return jax.tree.map(convert, found)


def _valid(x: jax.Array, lengths: jax.Array) -> jax.Array:
    return jnp.arange(x.shape[1])[None] < lengths[:, None]


# JAX ----------------------------------------------------------------------------------


def _network(layer: Any, layers: Layers, x: jax.Array, lengths: jax.Array) -> jax.Array:
    """Layers of functions from weights, batch and lengths to outputs of directions."""
    for weights in layers:
        x = jnp.concatenate(layer(weights, x, lengths), axis=2)
    return x


def _lstm(weights: dict[str, jax.Array], carry: Any, x: jax.Array) -> Any:
    h, c = carry
    w, u, b = (weights[name].astype(h.dtype) for name in "wub")
    i, f, g, o = jnp.split(x @ w + h @ u + b[None], 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def _masked_lstm(weights: dict[str, jax.Array], carry: Any, row: Any) -> Any:
    x, is_valid = row
    new, h = _lstm(weights, carry, x)
    keep = functools.partial(jnp.where, is_valid[:, None])
    return jax.tree.map(keep, new, carry), h


def _direction(weights: dict[str, jax.Array], d: int) -> dict[str, jax.Array]:
    return {name: array[d] for name, array in weights.items()}


def _zeros(weights: dict[str, jax.Array], x: jax.Array) -> Any:
    zeros = jnp.zeros((x.shape[0], weights["u"].shape[1]), x.dtype)
    return zeros, zeros


def _padded(weights: Any, x: jax.Array, lengths: jax.Array) -> Any:
    arrays = _direction(weights, 0), _zeros(weights, x), x, lengths
    return [dml_jax.padded_scan(_lstm, *arrays)[1]]


def _bidirectional(weights: Any, x: jax.Array, lengths: jax.Array) -> Any:
    arrays = weights, (_zeros(weights, x),) * 2, (x, x), lengths
    return dml_jax.bidirectional_scan(_lstm, *arrays)[1]


def _masked_scans(weights: Any, x: jax.Array, lengths: jax.Array, unroll: int) -> Any:
    """A scan with a mask for each direction, the second one with `reverse=True`."""
    rows = jnp.moveaxis(x, 1, 0), _valid(x, lengths).T
    outputs = []
    for d in range(len(weights["u"])):
        body = functools.partial(_masked_lstm, _direction(weights, d))
        init, reverse = _zeros(weights, x), d == 1
        _, hs = lax.scan(body, init, rows, reverse=reverse, unroll=unroll)
        outputs.append(jnp.moveaxis(hs, 0, 1))
    return outputs


def _scan_of_both(weights: Any, x: jax.Array, lengths: jax.Array, unroll: int) -> Any:
    """Both directions in one `lax.scan` of a masked step under `jax.vmap`."""
    valid = _valid(x, lengths)
    pair = x, dml_jax.reverse_padded(x, lengths)
    xs = jnp.stack([jnp.moveaxis(x, 1, 0) for x in pair], 1)
    xs = jnp.where(valid.T[:, None, :, None], xs, 0)

    def body(carry: Any, row: Any) -> Any:
        new, h = jax.vmap(_masked_lstm, (0, 0, (0, None)))(weights, carry, row)
        return new, jnp.where(row[1][None, :, None], h, 0)

    init = jax.tree.map(lambda x: jnp.stack([x, x]), _zeros(weights, x))
    _, hs = lax.scan(body, init, (xs, valid.T), unroll=unroll)
    forward, backward = (jnp.moveaxis(hs[:, d], 0, 1) for d in range(2))
    return forward, dml_jax.reverse_padded(backward, lengths)


def _flax(weights: Any, x: jax.Array, lengths: jax.Array) -> Any:
    nnx: Any = importlib.import_module("flax.nnx")
    directions, features, gates = weights["w"].shape

    def reader(d: int) -> Any:
        options = dict(dtype=x.dtype, rngs=nnx.Rngs(0))
        cell = nnx.OptimizedLSTMCell(features, gates // 4, **options)
        cell.dense_i.kernel = nnx.Param(weights["w"][d])
        cell.dense_h.kernel = nnx.Param(weights["u"][d])
        cell.dense_h.bias = nnx.Param(weights["b"][d])
        return nnx.RNN(cell)

    c_and_h = _zeros(weights, x)
    if directions == 1:
        return [reader(0)(x, seq_lengths=lengths, initial_carry=c_and_h)]
    both = nnx.Bidirectional(reader(0), reader(1), merge_fn=lambda *outputs: outputs)
    return both(x, seq_lengths=lengths, initial_carry=(c_and_h,) * 2)


def _cudnn(layers: Layers, x: jax.Array, lengths: jax.Array) -> jax.Array:
    rnn: Any = importlib.import_module("jax.experimental.rnn")
    count, units, _ = layers[0]["u"].shape
    directions = [(layer, d) for layer in layers for d in range(count)]
    matrices = [layer[n][d].T.ravel() for layer, d in directions for n in "wu"]
    biases = [
        bias
        for layer, d in directions
        for bias in (layer["b"][d], jnp.zeros_like(layer["b"][d]))
    ]
    states = jnp.zeros((len(directions), x.shape[0], units), x.dtype)
    outputs, _, _ = rnn.lstm(
        x,
        states,
        states,
        jnp.concatenate(matrices + biases),
        lengths,
        input_size=x.shape[2],
        hidden_size=units,
        num_layers=len(layers),
        dropout=0.0,
        bidirectional=count == 2,
    )
    return outputs


# torch --------------------------------------------------------------------------------


def torch_programs(
    layers: Layers, x: jax.Array, lengths: jax.Array, device: Device
) -> dict[tuple[str, str], Program]:
    """Of packed and of padded sequences by mode and name, if torch is installed."""
    if not importlib.util.find_spec("torch"):
        return {}
    torch: Any = importlib.import_module("torch")
    rnn: Any = importlib.import_module("torch.nn.utils.rnn")
    where = "cuda" if device == "gpu" else "cpu"
    lstm = _torch_lstm(torch, layers, where, getattr(torch, x.dtype.name))
    frames = torch.tensor(np.asarray(x, np.float32)).to(where, lstm.weight_ih_l0.dtype)
    sizes = torch.tensor(np.asarray(lengths, np.int64))
    valid = (torch.arange(x.shape[1])[None] < sizes[:, None])[..., None].to(where)
    optimizer = torch.optim.SGD(lstm.parameters(), LEARNING_RATE)

    def packed() -> Any:
        packed = rnn.pack_padded_sequence(frames, sizes, True, enforce_sorted=False)
        return rnn.pad_packed_sequence(lstm(packed)[0], True, 0.0, x.shape[1])[0]

    def padded() -> Any:
        return torch.where(valid, lstm(frames)[0], 0)

    def forward(run: Callable[[], Any]) -> Any:
        with torch.no_grad():
            return run()

    def step(run: Callable[[], Any]) -> Any:
        optimizer.zero_grad()
        loss = run().float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def wait(_: Any) -> None:
        if device == "gpu":
            torch.cuda.synchronize()

    def facts(call: Callable[[], Any]) -> dict[str, Any]:
        if device == "cpu":
            return {}
        optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return dict(memory_bytes=torch.cuda.max_memory_allocated() - before)

    found = {}
    for name, run in {"torch, packed": packed, "torch, padded": padded}.items():
        for mode, function in dict(forward=forward, step=step).items():
            call = functools.partial(function, run)
            candidate = Candidate(name, call, wait)
            found[mode, name] = candidate, functools.partial(facts, call)
    return found


def _torch_lstm(torch: Any, layers: Layers, where: str, dtype: Any) -> Any:
    """All in one dtype; cuDNN computes with no other weights."""
    directions, features, gates = layers[0]["w"].shape
    options = dict(bidirectional=directions == 2, batch_first=True)
    lstm = torch.nn.LSTM(features, gates // 4, len(layers), **options)
    arrays = {
        f"{name}_l{i}{end}": np.asarray(layer[key][d], np.float32).T
        for i, layer in enumerate(layers)
        for d, end in enumerate(("", "_reverse")[:directions])
        for name, key in (("weight_ih", "w"), ("weight_hh", "u"), ("bias_ih", "b"))
    }
    with torch.no_grad():
        for name, parameter in lstm.named_parameters():
            found = arrays.get(name)
            parameter.copy_(torch.tensor(found) if found is not None else 0 * parameter)
    return lstm.to(where, dtype)
