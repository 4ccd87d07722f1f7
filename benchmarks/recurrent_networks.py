"""Bidirectional LSTMs over padded sequences, as different libraries compute them.

The gates are in the order i, f, g, o, and all values in one dtype. A network in JAX is
a function of its layers, of a batch [batch, time, features] and of lengths. A layer has
the weights of the input [2, features, gates], those of the state [2, units, gates] and
a bias [2, gates].
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import dml_jax
from benchmarks.workloads import Device

Layers = list[dict[str, jax.Array]]
Network = Callable[[Layers, jax.Array, jax.Array], jax.Array]
LEARNING_RATE = 0.01


def networks(device: Device, dtype: np.dtype) -> dict[str, Network]:
    """The networks in JAX by name, ours first."""
    found: dict[str, Network] = {
        name: functools.partial(_network, layer)
        for name, layer in dict(
            dml_jax=_one_scan, two_scans=_two_scans, reverse_scan=_reverse_scan
        ).items()
    }
    if importlib.util.find_spec("flax"):
        found["flax"] = functools.partial(_network, _flax)
    if device == "gpu" and dtype == np.float32:
        found["jax.experimental.rnn"] = _cudnn
    return found


def forward(network: Network, layers: Layers, x: jax.Array, lengths: jax.Array) -> Any:
    """The outputs at valid steps, and zeros at the padding."""
    return jnp.where(_valid(x, lengths)[..., None], network(layers, x, lengths), 0)


def step(network: Network, layers: Layers, x: jax.Array, lengths: jax.Array) -> Any:
    """New weights, after a step that makes the mean square of the outputs smaller."""

    def loss(layers: Layers) -> jax.Array:
        outputs = forward(network, layers, x, lengths)
        return jnp.mean(outputs.astype(jnp.float32) ** 2)

    def update(weight: jax.Array, gradient: jax.Array) -> jax.Array:
        return weight - jnp.asarray(LEARNING_RATE, weight.dtype) * gradient

    return jax.tree.map(update, layers, jax.grad(loss)(layers))


def _valid(x: jax.Array, lengths: jax.Array) -> jax.Array:
    return jnp.arange(x.shape[1])[None] < lengths[:, None]


# JAX ----------------------------------------------------------------------------------


def _network(layer: Any, layers: Layers, x: jax.Array, lengths: jax.Array) -> jax.Array:
    """Layers of functions from weights, batch and lengths to outputs of directions."""
    for weights in layers:
        x = jnp.concatenate(layer(weights, x, lengths), axis=2)
    return x


def _lstm(weights: jax.Array, carry: Any, gates: jax.Array) -> Any:
    h, c = carry
    i, f, g, o = jnp.split(gates + h @ weights, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def _zeros(weights: dict[str, jax.Array], x: jax.Array) -> Any:
    zeros = jnp.zeros((x.shape[0], weights["u"].shape[1]), x.dtype)
    return zeros, zeros


def _gates(weights: dict[str, jax.Array], x: jax.Array, d: int) -> jax.Array:
    """The products of all steps of one direction."""
    return x @ weights["w"][d] + weights["b"][d, None, None]


def _one_scan(weights: Any, x: jax.Array, lengths: jax.Array) -> Any:
    x = jnp.where(_valid(x, lengths)[..., None], x, 0)
    gates = jnp.einsum("bti,dig->dbtg", x, weights["w"]) + weights["b"][:, None, None]
    init = (_zeros(weights, x),) * 2
    _, outputs = dml_jax.bidirectional_scan(_lstm, weights["u"], init, gates, lengths)
    return outputs


def _two_scans(weights: Any, x: jax.Array, lengths: jax.Array) -> Any:
    """The second one between reversals."""

    def scan(x: jax.Array, d: int) -> jax.Array:
        cell = functools.partial(_lstm, weights["u"][d])
        gates = jnp.moveaxis(_gates(weights, x, d), 1, 0)
        _, outputs = lax.scan(cell, _zeros(weights, x), gates)
        return jnp.moveaxis(outputs, 0, 1)

    x = jnp.where(_valid(x, lengths)[..., None], x, 0)
    backward = scan(dml_jax.reverse_padded(x, lengths), 1)
    return scan(x, 0), dml_jax.reverse_padded(backward, lengths)


def _reverse_scan(weights: Any, x: jax.Array, lengths: jax.Array) -> Any:
    """Two scans with a mask, the second one with `reverse=True`."""
    valid = _valid(x, lengths)
    x = jnp.where(valid[..., None], x, 0)

    def scan(d: int) -> jax.Array:
        def masked(carry: Any, row: Any) -> Any:
            gates, is_valid = row
            new, h = _lstm(weights["u"][d], carry, gates)
            keep = functools.partial(jnp.where, is_valid[:, None])
            return jax.tree.map(keep, new, carry), h

        rows = jnp.moveaxis(_gates(weights, x, d), 1, 0), valid.T
        _, outputs = lax.scan(masked, _zeros(weights, x), rows, reverse=d == 1)
        return jnp.moveaxis(outputs, 0, 1)

    return scan(0), scan(1)


def _flax(weights: Any, x: jax.Array, lengths: jax.Array) -> Any:
    nnx: Any = importlib.import_module("flax.nnx")
    _, features, gates = weights["w"].shape
    x = jnp.where(_valid(x, lengths)[..., None], x, 0)

    def reader(d: int) -> Any:
        options = dict(dtype=x.dtype, rngs=nnx.Rngs(0))
        cell = nnx.OptimizedLSTMCell(features, gates // 4, **options)
        cell.dense_i.kernel = nnx.Param(weights["w"][d])
        cell.dense_h.kernel = nnx.Param(weights["u"][d])
        cell.dense_h.bias = nnx.Param(weights["b"][d])
        return nnx.RNN(cell)

    c_and_h = (_zeros(weights, x),) * 2
    both = nnx.Bidirectional(reader(0), reader(1), merge_fn=lambda *outputs: outputs)
    return both(x, seq_lengths=lengths, initial_carry=c_and_h)


def _cudnn(layers: Layers, x: jax.Array, lengths: jax.Array) -> jax.Array:
    rnn: Any = importlib.import_module("jax.experimental.rnn")
    units = layers[0]["u"].shape[1]
    directions = [(layer, d) for layer in layers for d in range(2)]
    matrices = [layer[n][d].T.ravel() for layer, d in directions for n in "wu"]
    biases = [
        bias
        for layer, d in directions
        for bias in (layer["b"][d], jnp.zeros_like(layer["b"][d]))
    ]
    states = jnp.zeros((len(directions), x.shape[0], units), x.dtype)
    outputs, _, _ = rnn.lstm(
        jnp.where(_valid(x, lengths)[..., None], x, 0),
        states,
        states,
        jnp.concatenate(matrices + biases),
        lengths,
        input_size=x.shape[2],
        hidden_size=units,
        num_layers=len(layers),
        dropout=0.0,
        bidirectional=True,
    )
    return outputs


# torch --------------------------------------------------------------------------------


class TorchNetwork(NamedTuple):
    """Calls of `torch.nn.LSTM`."""

    name: str
    forward: Callable[[], Any]
    step: Callable[[], Any]
    wait: Callable[[Any], None]
    outputs: Callable[[], np.ndarray]


def torch_networks(
    layers: Layers, x: jax.Array, lengths: jax.Array, device: Device
) -> Iterator[TorchNetwork]:
    """With packed and with padded sequences, if torch is installed."""
    if not importlib.util.find_spec("torch"):
        return
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

    for name, run in dict(torch_packed=packed, torch_padded=padded).items():
        found = forward(run).float().cpu().numpy()  # before a step changes the weights
        yield TorchNetwork(
            name,
            functools.partial(forward, run),
            functools.partial(step, run),
            wait,
            lambda found=found: found,
        )


def _torch_lstm(torch: Any, layers: Layers, where: str, dtype: Any) -> Any:
    _, features, gates = layers[0]["w"].shape
    options = dict(bidirectional=True, batch_first=True)
    lstm = torch.nn.LSTM(features, gates // 4, len(layers), **options)
    arrays = {
        f"{name}_l{i}{end}": np.asarray(layer[key][d], np.float32).T
        for i, layer in enumerate(layers)
        for d, end in enumerate(("", "_reverse"))
        for name, key in (("weight_ih", "w"), ("weight_hh", "u"), ("bias_ih", "b"))
    }
    with torch.no_grad():
        for name, parameter in lstm.named_parameters():
            found = arrays.get(name)
            parameter.copy_(torch.tensor(found) if found is not None else 0 * parameter)
    return lstm.to(where, dtype)
