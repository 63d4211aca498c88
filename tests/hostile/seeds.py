"""Small valid models of every kind, which random damage starts from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.cli.conftest import BRANCHES
from tests.helpers import parse
from tests.hostile.build import INT64, function, graph, model, node, tensor, value


def seeds() -> Iterator[tuple[str, bytes]]:
    """(name, file); float inputs, so that every command has something to do."""
    yield "branches", parse(BRANCHES).SerializeToString()
    kernel = tensor("w", np.ones((2, 2, 3, 3)), np.float32)
    one = [tensor(n, [1.0, 1.0], np.float32) for n in "smuv"]
    yield "conv", model(
        [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("BatchNormalization", "c s m u v", "b"),
         node("Relu", "b", "r"), node("MaxPool", "r", "p", kernel_shape=[2, 2]), node("Flatten", "p", "f"),
         node("ReduceSum", "f", "y", keepdims=0)], [kernel, *one], x=value("x", (1, 2, 8, 8)),
    ).SerializeToString()  # fmt: skip
    yield "shapes", model(
        [node("Shape", "x", "s"), node("Gather", "s i", "n"), node("Unsqueeze", "n a", "u"),
         node("Concat", "u k", "t", axis=0), node("Reshape", "x t", "r"), node("Transpose", "r", "q", perm=[1, 0]),
         node("Softmax", "q", "y", axis=-1)],
        [tensor("i", 0), tensor("a", [0]), tensor("k", [-1])], x=value("x", ("N", 3)),
    ).SerializeToString()  # fmt: skip
    body = graph(
        [node("Identity", "c", "d"), node("Tanh", "s", "t")],
        [value("i", (), INT64), value("c", (), 9), value("s")], [value("d", (), 9), value("t")],
    )  # fmt: skip
    yield (
        "loop",
        model(
            [node("Loop", "n g x", "y", body=body)], [tensor("n", 3), tensor("g", True)]
        ).SerializeToString(),
    )
    branch = [graph([node(op, "x", "o")], outputs=[value("o", None)]) for op in ("Neg", "Exp")]
    yield "if", model(
        [node("ReduceMax", "x", "m", keepdims=0), node("Cast", "m", "c", to=9),
         node("If", "c", "y", then_branch=branch[0], else_branch=branch[1])]
    ).SerializeToString()  # fmt: skip
    yield "function", model(
        [node("p", "x", "h", domain="f"), node("p", "h", "y", domain="f")],
        functions=[function("p", [node("Sigmoid", "a", "h"), node("Mul", "a h", "b")])], imports=[("f", 1)],
    ).SerializeToString()  # fmt: skip
    scale = [tensor("s", 0.1, np.float32), tensor("z", 3, np.int8)]
    yield (
        "quantized",
        model(
            [
                node("QuantizeLinear", "x s z", "q"),
                node("DequantizeLinear", "q s z", "d"),
                node("MatMul", "d w", "y"),
            ],
            [*scale, tensor("w", np.ones((3, 2)), np.float32)],
        ).SerializeToString(),
    )
    yield "folded", model(
        [node("Constant", "", "c", value_float=2.0), node("Range", "l n t", "r"), node("Cast", "r", "f", to=1),
         node("Mul", "f c", "k"), node("Add", "x k", "y")], [tensor("l", 0), tensor("n", 3), tensor("t", 1)],
    ).SerializeToString()  # fmt: skip
    image = value("x", (1, 2, 4, 4))
    yield "opset 9", model(
        [node("Upsample", "x s", "u", mode="nearest"), node("Slice", "u", "c", starts=[1, 0], ends=[2, 6], axes=[1, 3]),
         node("Pad", "c", "p", pads=[0, 0, 1, 1, 0, 0, 1, 1]), node("Clip", "p", "k", min=0.0, max=1.0),
         node("Squeeze", "k", "q", axes=[1]), node("ReduceSum", "q", "y", axes=[1, 2], keepdims=0)],
        [tensor("s", [1.0, 1.0, 2.0, 2.0], np.float32)], x=image, opset=9,
    ).SerializeToString()  # fmt: skip
    yield "opset 11", model(
        [node("Resize", "x r s", "u", mode="linear"), node("Pad", "u a", "p"), node("Clip", "p l", "k"),
         node("Split", "k", "m n", axis=3, split=[4, 6]), node("TopK", "m t", "v i"), node("Softmax", "v", "y", axis=2)],
        [tensor("r", [], np.float32), tensor("s", [1.0, 1.0, 2.0, 2.0], np.float32),
         tensor("a", [0, 0, 1, 1, 0, 0, 1, 1]), tensor("l", 0.0, np.float32), tensor("t", [2])], x=image, opset=11,
    ).SerializeToString()  # fmt: skip
