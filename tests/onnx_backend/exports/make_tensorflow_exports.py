"""Exports recurrent models of Keras and reversals of TensorFlow by tf2onnx.

    python tests/onnx_backend/exports/make_tensorflow_exports.py

writes the files `keras_*` and `tensorflow_*` in this folder. Those in the repository
were made with Python 3.11.7, tensorflow-cpu 2.21.0, keras 3.15.1, tf2onnx 1.17.0 and
onnx 1.23.2. tf2onnx gives the nodes another order in each run.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import pathlib

import tensorflow as tf
import tf2onnx
from tensorflow.keras import layers

FOLDER = pathlib.Path(__file__).parent
FEATURES, STATE = 4, 5
FRAMES = tf.TensorSpec((None, None, FEATURES), tf.float32, name="frames")
LENGTHS = tf.TensorSpec((None,), tf.int32, name="lengths")


def recogniser(layer: type[layers.Layer], **options: bool) -> tf.keras.Model:
    """Reads frames forwards and backwards, without those that are zero."""
    frames = layers.Input((None, FEATURES))
    masked = layers.Masking(name="mask")(frames)
    recurrent = layer(STATE, return_sequences=True, **options)
    states = layers.Bidirectional(recurrent, name="both")(masked)
    symbols = layers.Dense(3, name="symbols")(states)
    return tf.keras.Model(frames, symbols, name="net")


def reverse(frames: tf.Tensor) -> tf.Tensor:
    return tf.reverse(frames, [1])


def reverse_sequence(frames: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    return tf.reverse_sequence(frames, lengths, seq_axis=1, batch_axis=0)


if __name__ == "__main__":
    tf.keras.utils.set_random_seed(0)
    for name, function, signature in (
        ("keras_gru", recogniser(layers.GRU), [FRAMES]),
        ("keras_lstm", recogniser(layers.LSTM), [FRAMES]),
        ("tensorflow_reverse", reverse, [FRAMES]),
        ("tensorflow_reverse_sequence", reverse_sequence, [FRAMES, LENGTHS]),
    ):
        tf2onnx.convert.from_function(
            tf.function(function),
            input_signature=signature,
            opset=17,
            output_path=FOLDER / f"{name}.onnx",
        )
