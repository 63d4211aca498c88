"""Models of Keras 3 and TensorFlow through tf2onnx: NHWC, recurrent layers, control flow."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
import tf2onnx
from keras import layers

from exporting.others import IR_VERSION, Exported, Models

PACKAGES = ("tensorflow-cpu", "keras", "tf2onnx", "onnx", "onnxruntime")
OPSET = 18


def _exported(
    call: Callable[..., object], feeds: dict[str, np.ndarray], batch: str = "first"
) -> Exported:
    """Traces a function of tensors; with `batch` "first" the first axis may have any size."""
    signature = [
        tf.TensorSpec((None, *v.shape[1:]) if batch == "first" else v.shape, v.dtype, name=n)
        for n, v in feeds.items()
    ]
    model, _ = tf2onnx.convert.from_function(
        tf.function(call, autograph=False), input_signature=signature, opset=OPSET
    )
    model.ir_version = min(model.ir_version, IR_VERSION)
    expected = tf.nest.flatten(call(*map(tf.constant, feeds.values())))
    return Exported(model, feeds, tuple(v.numpy() for v in expected))


def _of_keras(model: keras.Model, **feeds: np.ndarray) -> Exported:
    """A Keras model, its norms and biases as after training."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if weight.path.endswith(("bias", "gamma", "beta", "moving_mean")):
            weight.assign(np.asarray(weight) + rng.normal(0, 0.2, weight.shape))
        elif weight.path.endswith("moving_variance"):
            weight.assign(rng.uniform(0.5, 1.5, weight.shape))
    if len(feeds) == 1:
        return _exported(lambda x: model(x, training=False), feeds)
    return _exported(lambda *x: model(x, training=False), feeds)


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def _ids(below: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(2).integers(1, below, shape).astype(np.int32)


def _gelu(x: object) -> object:
    """By tanh: tf2onnx does not know Erfc, of which the exact one is made."""
    return keras.activations.gelu(x, approximate=True)


def cnn() -> Exported:
    """Convolutions with BatchNormalization and both poolings, flattened, NHWC."""
    model = keras.Sequential(
        [
            layers.Input((12, 12, 3)),
            layers.Conv2D(8, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(5, activation="softmax"),
        ]
    )
    return _of_keras(model, image=_normal(2, 12, 12, 3))


def separable() -> Exported:
    """Depthwise, separable and dilated convolutions around a sum, with squeeze and excitation."""
    x = image = layers.Input((10, 10, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
    a = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    a = layers.BatchNormalization()(a)
    a = layers.ReLU(6.0)(a)
    a = layers.SeparableConv2D(8, 3, dilation_rate=2, padding="same")(a)
    s = layers.GlobalAveragePooling2D(keepdims=True)(a)
    s = layers.Conv2D(8, 1, activation="hard_sigmoid")(layers.Conv2D(4, 1, activation="relu")(s))
    x = layers.Add()([x, layers.Multiply()([a, s])])
    x = layers.GlobalMaxPooling2D()(x)
    return _of_keras(keras.Model(image, layers.Dense(4)(x)), image=_normal(2, 10, 10, 3))


def lstm() -> Exported:
    """Two LSTM layers, the first in both directions."""
    x = steps = layers.Input((6, 4))
    x = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(x)
    x = layers.LSTM(6)(x)
    return _of_keras(keras.Model(steps, layers.Dense(3)(x)), steps=_normal(2, 6, 4))


def gru() -> Exported:
    """Words to vectors, a GRU that skips what is masked, a class for each word."""
    x = words = layers.Input((7,), dtype="int32")
    x = layers.Embedding(20, 6, mask_zero=True)(x)
    x = layers.GRU(5, return_sequences=True)(x)
    x = layers.TimeDistributed(layers.Dense(4, activation="softmax"))(x)
    ids = _ids(20, 2, 7)
    ids[0, 5:] = 0
    return _of_keras(keras.Model(words, x), words=ids)


def activations() -> Exported:
    """A Dense layer in front of each of thirteen activations."""
    x = given = layers.Input((8,))
    for activation in (
        "elu", "selu", _gelu, "softplus", "softsign", "silu", "mish", "hard_sigmoid", "tanh",
        "leaky_relu", "exponential", "log_softmax", "relu6",
    ):  # fmt: skip
        x = layers.Dense(8, activation=activation)(x)
    return _of_keras(keras.Model(given, layers.PReLU()(x)), x=_normal(3, 8))


class Places(layers.Layer):
    """Adds a learnt vector to each place of a sequence."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.table = layers.Embedding(places, width)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """x (n, places, width) -> the same shape."""
        return x + self.table(keras.ops.arange(x.shape[1]))


def transformer() -> Exported:
    """An encoder block: embeddings of words and places, attention in two heads, GELU."""
    words = layers.Input((6,), dtype="int32")
    x = layers.Embedding(30, 8)(words)
    x = Places(6, 8)(x)
    y = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)
    y = layers.LayerNormalization()(x)
    x = x + layers.Dense(8)(layers.Dense(16, activation=_gelu)(y))
    return _of_keras(keras.Model(words, x), words=_ids(30, 2, 6))


def two_inputs() -> Exported:
    """An image and a row of numbers; two heads come out."""
    image, row = layers.Input((8, 8, 1)), layers.Input((5,))
    x = layers.Conv2D(4, 3, strides=2, activation="relu")(image)
    x = layers.Flatten()(x)
    x = layers.Concatenate()([x, layers.Dense(6, activation="tanh")(row)])
    x = layers.Dense(8, activation="relu")(x)
    near = layers.Dot(axes=1, normalize=True)([x, layers.Dense(8)(row)])
    heads = [layers.Dense(3, activation="softmax")(x), near]
    model = keras.Model([image, row], heads)
    return _of_keras(model, image=_normal(2, 8, 8, 1), row=_normal(2, 5))


def unet() -> Exported:
    """Down by strides, up by transposed convolution and by bilinear resampling, with a skip."""
    x = image = layers.Input((12, 12, 2))
    a = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    b = layers.Conv2D(6, 3, strides=2, padding="same", activation="relu")(a)
    b = layers.GroupNormalization(3)(b)
    c = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(b)
    d = layers.UpSampling2D(2, interpolation="bilinear")(b)
    x = layers.Concatenate()([a, c, d])
    x = layers.Cropping2D(1)(layers.ZeroPadding2D((2, 1))(x))
    return _of_keras(keras.Model(image, layers.Conv2D(1, 1)(x)), image=_normal(2, 12, 12, 2))


def volumes() -> Exported:
    """Convolution over time with causal padding beside one over volumes."""
    steps, volume = layers.Input((9, 3)), layers.Input((4, 6, 6, 1))
    x = layers.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu")(steps)
    x = layers.MaxPooling1D(2, padding="same")(x)
    y = layers.Conv3D(3, 2, activation="relu")(volume)
    y = layers.AveragePooling3D((1, 2, 2), padding="same")(y)
    both = layers.Concatenate()([layers.Flatten()(x), layers.Flatten()(y)])
    model = keras.Model([steps, volume], layers.Dense(2)(both))
    return _of_keras(model, steps=_normal(2, 9, 3), volume=_normal(2, 4, 6, 6, 1))


def loop() -> Exported:
    """tf.while_loop: Newton's steps towards a root until all are near."""

    def root(x: tf.Tensor) -> tf.Tensor:
        y = tf.abs(x) + 1.0
        start = (tf.constant(0), y)
        _, found = tf.while_loop(
            lambda i, r: tf.logical_and(i < 20, tf.reduce_max(tf.abs(r * r - y)) > 1e-3),
            lambda i, r: (i + 1, 0.5 * (r + y / r)),
            start,
        )
        return found

    return _exported(root, {"x": _normal(5)})


def branches() -> Exported:
    """tf.cond inside tf.map_fn, and a table that is written to."""

    def call(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.map_fn(
            lambda r: tf.cond(tf.reduce_sum(r) > 0, lambda: tf.sort(r), lambda: tf.exp(r) - 1.0), x
        )
        best, where = tf.math.top_k(rows, 2)
        table = tf.tensor_scatter_nd_update(tf.zeros((4, 3)), [[0], [2]], rows[:2])
        return best + tf.cast(where, tf.float32), tf.einsum("ij,kj->ik", table, table)

    return _exported(call, {"x": _normal(4, 3)}, batch="fixed")


MODELS: Models = {
    build.__name__: build
    for build in (
        cnn, separable, lstm, gru, activations, transformer, two_inputs, unet, volumes, loop,
        branches,
    )
}  # fmt: skip
