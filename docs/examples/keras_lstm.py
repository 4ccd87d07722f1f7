"""Keras layers that From TensorFlow ports: their weights, outputs, and an ONNX file.

    pip install tensorflow-cpu tf2onnx
    python docs/examples/keras_lstm.py

writes `keras_lstm.npz` and `keras_lstm.onnx` beside this file. Those in the repository
were made with Python 3.12.1, tensorflow-cpu 2.21.0, keras 3.15.1, tf2onnx 1.17.0 and
onnx 1.23.2.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import pathlib

import numpy as np
import tensorflow as tf
import tf2onnx
from tensorflow.keras import layers

FOLDER = pathlib.Path(__file__).parent

tf.keras.utils.set_random_seed(0)
inputs = layers.Input((None, 4))
masked = layers.Masking()(inputs)  # steps that are 0 are skipped
states = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(masked)
model = tf.keras.Model(inputs, layers.Dense(3)(states))

lengths = np.array([3, 5, 1])
frames = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32)
frames[np.arange(5) >= lengths[:, None]] = 0


def add_noise(layer):
    """A trained layer has biases other than 0 and 1."""
    for number, weight in enumerate(layer.get_weights()):
        noise = np.random.default_rng(number).normal(size=weight.shape, scale=0.1)
        layer.weights[number].assign(weight + noise)


add_noise(model)
# Keras' default is return_sequences=False: the state after the last step.
both_ends = layers.Bidirectional(layers.LSTM(5))
gru = layers.GRU(5)
ending = tf.keras.Model(inputs, [both_ends(masked), gru(masked)])
both_ends.set_weights(model.get_weights()[:6])
add_noise(gru)

names = [
    f"{direction}_{name}"
    for direction in ("forward", "backward")
    for name in ("kernel", "recurrent_kernel", "bias")
]
weights = dict(zip([*names, "kernel", "bias"], model.get_weights(), strict=True))
gru_names = "gru_kernel", "gru_recurrent_kernel", "gru_bias"
weights |= dict(zip(gru_names, gru.get_weights(), strict=True))
ends, gru_end = ending.predict(frames)
np.savez(
    FOLDER / "keras_lstm.npz",
    frames=frames,
    lengths=lengths,
    scores=model.predict(frames),
    ends=ends,
    gru_end=gru_end,
    **weights,
)
tf2onnx.convert.from_function(
    tf.function(model),
    input_signature=[tf.TensorSpec((None, None, 4), tf.float32, name="frames")],
    opset=17,
    output_path=FOLDER / "keras_lstm.onnx",
)
