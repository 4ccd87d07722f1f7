"""A Keras model that From TensorFlow ports: its weights, its scores, and its ONNX file.

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
for number, weight in enumerate(model.get_weights()):
    # A trained model has biases other than 0 and 1.
    noise = np.random.default_rng(number).normal(size=weight.shape, scale=0.1)
    model.weights[number].assign(weight + noise)

names = [
    f"{direction}_{name}"
    for direction in ("forward", "backward")
    for name in ("kernel", "recurrent_kernel", "bias")
]
weights = dict(zip([*names, "kernel", "bias"], model.get_weights(), strict=True))
scores = model.predict(frames)
np.savez(
    FOLDER / "keras_lstm.npz", frames=frames, lengths=lengths, scores=scores, **weights
)
tf2onnx.convert.from_function(
    tf.function(model),
    input_signature=[tf.TensorSpec((None, None, 4), tf.float32, name="frames")],
    opset=17,
    output_path=FOLDER / "keras_lstm.onnx",
)
