"""Models of PaddlePaddle through paddle2onnx: its own names and its chains for what ONNX has."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import paddle
import paddle.nn.functional as F
import paddle2onnx
from paddle import Tensor, nn

from exporting.others import IR_VERSION, Exported, Models

PACKAGES = ("paddlepaddle", "paddle2onnx", "onnx", "onnxruntime")
OPSET = 17


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _ids(below: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, below, shape)


class _Layer(nn.Layer):
    """A function of one or two tensors with the layers that it uses."""

    def __init__(self, call: Callable[..., object], *parts: nn.Layer) -> None:
        super().__init__()
        self.call, self.parts = call, nn.LayerList(parts)

    def forward(self, x: Tensor, y: Tensor | None = None) -> object:
        """What the function gives."""
        return self.call(x) if y is None else self.call(x, y)


def _exported(layer: nn.Layer, **feeds: np.ndarray) -> Exported:
    """Exports with a first axis of any size, norms and biases as after training."""
    rng = np.random.default_rng(2)
    for name, value in (*layer.named_parameters(), *layer.named_buffers()):
        if value.ndim != 1:
            continue
        drawn = rng.uniform(0.5, 1.5, value.shape) if "variance" in name else None
        drawn = value.numpy() + rng.normal(0, 0.2, value.shape) if drawn is None else drawn
        value.set_value(drawn.astype(np.float32))
    layer.eval()
    specs = [
        paddle.static.InputSpec([None, *v.shape[1:]], str(v.dtype), n) for n, v in feeds.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        saved, path = f"{folder}/model", f"{folder}/model.onnx"
        paddle.jit.save(layer, saved, specs)
        weights = Path(f"{saved}.pdiparams")  # there is none without parameters
        paddle2onnx.export(
            f"{saved}.json", str(weights) if weights.is_file() else "", path, OPSET,
            optimize_tool="none",  # which would install packages by itself
        )  # fmt: skip
        model = onnx.load(path)
    model.ir_version = min(model.ir_version, IR_VERSION)
    found = layer(*map(paddle.to_tensor, feeds.values()))
    expected = found if isinstance(found, (list, tuple)) else [found]
    names = [value.name for value in model.graph.input]  # paddle2onnx keeps the order, not always
    return Exported(model, {n: feeds[n] for n in names}, tuple(v.numpy() for v in expected))


def mlp() -> Exported:
    """Linear layers between six activations."""
    parts = (
        nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 12), nn.Hardswish(), nn.Linear(12, 12),
        nn.SELU(), nn.Linear(12, 8), nn.Mish(), nn.Linear(8, 8), nn.Swish(), nn.Linear(8, 3),
        nn.Softmax(),
    )  # fmt: skip
    return _exported(nn.Sequential(*parts), x=_normal(4, 6))


def cnn() -> Exported:
    """Convolutions with BatchNorm, both poolings, flattened."""
    parts = (
        nn.Conv2D(3, 6, 3, padding=1), nn.BatchNorm2D(6), nn.ReLU(), nn.MaxPool2D(2),
        nn.Conv2D(6, 8, 3, bias_attr=False), nn.BatchNorm2D(8), nn.ReLU6(),
        nn.AdaptiveAvgPool2D(2), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    return _exported(nn.Sequential(*parts), image=_normal(2, 3, 10, 10))


def mobile_block() -> Exported:
    """A mobile block: pointwise, depthwise, squeeze and excitation, a sum."""
    wide = nn.Sequential(nn.Conv2D(4, 12, 1), nn.BatchNorm2D(12), nn.Hardswish())
    deep = nn.Sequential(nn.Conv2D(12, 12, 5, padding=2, groups=12), nn.BatchNorm2D(12))
    gate = nn.Sequential(
        nn.AdaptiveAvgPool2D(1),
        nn.Conv2D(12, 4, 1),
        nn.ReLU(),
        nn.Conv2D(4, 12, 1),
        nn.Hardsigmoid(),
    )
    back = nn.Sequential(nn.Conv2D(12, 4, 1), nn.BatchNorm2D(4))

    def call(x: Tensor) -> Tensor:
        y = F.relu(deep(wide(x)))
        return x + back(y * gate(y))

    return _exported(_Layer(call, wide, deep, gate, back), x=_normal(2, 4, 8, 8))


def lstm() -> Exported:
    """Two LSTM layers in both directions."""
    cell, out = nn.LSTM(4, 5, 2, direction="bidirect"), nn.Linear(10, 3)
    return _exported(_Layer(lambda x: out(cell(x)[0]), cell, out), steps=_normal(2, 6, 4))


def gru() -> Exported:
    """Words to vectors, a GRU, a class for each word."""
    table, cell, out = nn.Embedding(20, 6), nn.GRU(6, 5), nn.Linear(5, 4)
    layer = _Layer(lambda x: out(cell(table(x))[0]), table, cell, out)
    return _exported(layer, words=_ids(20, 2, 7))


def transformer() -> Exported:
    """An encoder layer of two heads."""
    return _exported(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1), x=_normal(2, 5, 8))


def unet() -> Exported:
    """Down by strides, up by resampling and by transposed convolution, with GroupNorm."""
    down, norm = nn.Conv2D(2, 6, 3, 2, 1), nn.GroupNorm(3, 6)
    up, out = nn.Conv2DTranspose(6, 4, 2, 2), nn.Conv2D(12, 1, 3, padding="same")

    def call(x: Tensor) -> Tensor:
        y = F.silu(norm(down(x)))
        z = F.interpolate(y, size=[8, 8], mode="nearest")
        return out(paddle.concat([x, up(y), z], axis=1))

    return _exported(_Layer(call, down, norm, up, out), image=_normal(2, 2, 8, 8))


def two_inputs() -> Exported:
    """Two towers and their cosine, with an argmax beside it."""
    a, b = nn.Linear(5, 8), nn.Linear(3, 8)

    def call(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        u, v = F.tanh(a(x)), F.elu(b(y))
        return F.cosine_similarity(u, v), paddle.argmax(u + v, axis=1)

    return _exported(_Layer(call, a, b), x=_normal(4, 5), y=_normal(4, 3) + 1.0)


def indexing() -> Exported:
    """Slices, gathers, a one-hot, a running sum, the largest, and a choice."""

    def call(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        y = paddle.gather(x, i)
        best, where = paddle.topk(y, 2, axis=1)
        y = paddle.where(y > 0, paddle.cumsum(y, axis=1), y[:, ::-1])
        ones = F.one_hot(where[:, 0], 4)
        return paddle.concat([y, ones, best], axis=1), paddle.stack([y, y**2]).flatten(1)

    return _exported(_Layer(call), x=_normal(6, 4), i=_ids(6, 3))


def loop() -> Exported:
    """A while of steps and an if, both decided by data."""

    def call(x: Tensor) -> Tensor:
        i = paddle.zeros([], "int64")
        y = paddle.abs(x) + 1.0

        def step(i: Tensor, r: Tensor) -> list[Tensor]:
            return [i + 1, 0.5 * (r + y / r)]

        _, found = paddle.static.nn.while_loop(lambda i, r: i < 4, step, [i, y])
        return paddle.static.nn.cond(x.sum() > 0, lambda: found, lambda: found * 2.0)

    return _exported(_Layer(call), x=_normal(5, 2))


def volumes() -> Exported:
    """Convolution over time beside one over volumes, with InstanceNorm."""
    time, space = nn.Conv1D(3, 4, 3, padding=1), nn.Conv3D(1, 2, 2)
    norm, out = nn.InstanceNorm1D(4), nn.Linear(4 + 2, 2)

    def call(x: Tensor, y: Tensor) -> Tensor:
        a = norm(time(x)).mean(axis=2)
        b = F.relu(space(y)).max(axis=[2, 3, 4])
        return out(paddle.concat([a, b], axis=1))

    layer = _Layer(call, time, space, norm, out)
    return _exported(layer, steps=_normal(2, 3, 8), volume=_normal(2, 1, 4, 4, 4))


MODELS: Models = {
    build.__name__: build
    for build in (
        mlp, cnn, mobile_block, lstm, gru, transformer, unet, two_inputs, indexing, loop, volumes,
    )
}  # fmt: skip
