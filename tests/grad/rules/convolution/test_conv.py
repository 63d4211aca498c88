"""onnxgrad/grad/rules/convolution/conv.py"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, check_op, normal
from tests.helpers import parse

CONVS = [
    ("", (6, 4, 3, 3)),
    ("strides = [2, 2]", (6, 4, 3, 3)),
    ("strides = [2, 3], pads = [1, 0, 2, 1]", (6, 4, 3, 2)),  # asymmetric pads
    ("dilations = [2, 1], pads = [0, 3, 1, 0]", (6, 4, 3, 3)),
    ("group = 2, pads = [1, 1, 1, 1]", (6, 2, 3, 3)),
    ("group = 4, strides = [2, 2], dilations = [1, 2]", (8, 1, 3, 3)),  # depthwise
    ("group = 2, strides = [2, 2], dilations = [3, 2], pads = [3, 1, 0, 2]", (6, 2, 2, 3)),
    ("strides = [4, 4]", (6, 4, 2, 2)),  # windows that leave gaps
    ("strides = [2, 2]", (6, 4, 1, 1)),
    ('auto_pad = "SAME_UPPER", strides = [2, 2]', (6, 4, 3, 4)),
    ('auto_pad = "SAME_LOWER", strides = [2, 3]', (6, 4, 4, 3)),
    ('auto_pad = "SAME_UPPER"', (6, 4, 2, 4)),
    ('auto_pad = "VALID", strides = [3, 3]', (6, 4, 1, 1)),
]


@pytest.mark.parametrize(("attributes", "w"), CONVS)
def test_conv(attributes: str, w: tuple[int, ...]) -> None:
    said = f"<kernel_shape = [{w[2]}, {w[3]}], {attributes}>".replace(", >", ">")
    check_op(
        f"y = Conv {said} (x, w, b)", {"x": normal(2, 4, 7, 9), "w": normal(*w), "b": normal(w[0])}
    )


def test_one_and_three_axes() -> None:
    check_op(
        "y = Conv <strides = [2], pads = [1, 1]> (x, w)",
        {"x": normal(2, 3, 8), "w": normal(4, 3, 3)},
    )
    feeds = {"x": normal(2, 3, 4, 3, 5), "w": normal(4, 3, 2, 2, 3)}
    check_op("y = Conv <pads = [1, 1, 1, 0, 0, 0]> (x, w)", feeds)


TRANSPOSED = [
    ("", (4, 3, 3, 3)),
    ("strides = [2, 2]", (4, 3, 3, 3)),
    ("strides = [3, 2], output_padding = [2, 1]", (4, 3, 3, 2)),
    ("strides = [2, 2], pads = [1, 0, 2, 1], dilations = [1, 2]", (4, 3, 3, 3)),
    ("group = 2, strides = [2, 2], pads = [1, 1, 1, 1]", (4, 3, 3, 3)),
    ('auto_pad = "SAME_UPPER", strides = [2, 2]', (4, 3, 3, 4)),
    ('auto_pad = "SAME_LOWER", strides = [2, 2]', (4, 3, 3, 4)),
]


@pytest.mark.parametrize(("attributes", "w"), TRANSPOSED)
def test_conv_transpose(attributes: str, w: tuple[int, ...]) -> None:
    said = f"<kernel_shape = [{w[2]}, {w[3]}], {attributes}>".replace(", >", ">")
    bias = normal(w[1] * (2 if "group" in attributes else 1))
    check_op(
        f"y = ConvTranspose {said} (x, w, b)", {"x": normal(2, 4, 5, 6), "w": normal(*w), "b": bias}
    )


@pytest.mark.parametrize("sizes", ["[14, 19]", "[16, 17]"])
def test_conv_transpose_with_output_shape(sizes: str) -> None:
    node = f"y = ConvTranspose <strides = [3, 3], output_shape = {sizes}> (x, w)"
    check_op(node, {"x": normal(2, 4, 5, 6), "w": normal(4, 3, 3, 3)}, symbolic=False)


@pytest.mark.parametrize(
    "attributes", ["", "<strides = [2, 3]>", "<strides = [1, 2], dilations = [3, 1]>"]
)
def test_pointwise(attributes: str) -> None:
    """Kernels of one pixel: products of matrices, with what a stride leaves unread left out."""
    feeds = {"x": normal(2, 3, 6, 8), "w": normal(4, 3, 1, 1), "b": normal(4)}
    check_op(f"y = Conv {attributes} (x, w, b)", feeds)
    check_op(
        f"y = Conv {attributes} (x, w)",
        {"x": feeds["x"]},
        ["x", "w"],
        constants={"w": feeds["w"]},
        symbolic=True,
    )
    check_op(f"y = ConvTranspose {attributes} (x, w)", {"x": feeds["x"], "w": normal(3, 4, 1, 1)})


def test_pointwise_with_an_output_padding_between_stride_and_dilation() -> None:
    """ONNX allows it, onnxruntime asks for less than the stride."""
    node = (
        "y = ConvTranspose <strides = [1, 2], dilations = [2, 1], output_padding = [1, 0]> (x, w)"
    )
    check_op(node, {"x": normal(2, 3, 4, 5), "w": normal(3, 2, 1, 1)}, onnxruntime=False)


def test_pointwise_in_other_ranks_and_with_output_padding() -> None:
    check_op("y = Conv <strides = [2]> (x, w)", {"x": normal(2, 3, 7), "w": normal(4, 3, 1)})
    check_op("y = Conv (x, w)", {"x": normal(2, 3, 2, 3, 4), "w": normal(2, 3, 1, 1, 1)})
    check_op(
        "y = ConvTranspose <strides = [2, 2], output_padding = [1, 0]> (x, w)",
        {"x": normal(2, 3, 3, 4), "w": normal(3, 2, 1, 1)},
    )


def test_strides_pads_and_dilations_at_once() -> None:
    check_op(
        "y = Col2Im <strides = [1, 2], pads = [1, 0, 0, 1], dilations = [1, 2]> (x, s, b)",
        {"x": normal(1, 8, 10)},
        constants={"s": np.array([5, 5]), "b": np.array([2, 2])},
        symbolic=False,
    )


# attributes, and how many positions a block of 2 x 3 has in an image of 5 x 6
WINDOWS = {
    "": 4 * 4,
    "<strides = [2, 1]>": 2 * 4,
    "<dilations = [1, 2]>": 4 * 2,
    "<pads = [1, 0, 0, 2], strides = [1, 2]>": 5 * 3,
    "<pads = [0, 1, 1, 0], strides = [2, 3], dilations = [2, 1]>": 2 * 2,
}


@pytest.mark.parametrize("at_run_time", [False, True])
@pytest.mark.parametrize("attributes", WINDOWS)
def test_col2im(attributes: str, at_run_time: bool) -> None:
    sizes = {"image": np.array([5, 6]), "block": np.array([2, 3])}
    feeds = {"x": normal(2, 3 * 2 * 3, WINDOWS[attributes])}
    node = f"y = Col2Im {attributes} (x, image, block)"
    if at_run_time:  # how many axes the image has must be declared then
        model = parse(
            f"g (float[a,b,c] x, int64[2] image, int64[2] block) => (float[N,C,H,W] y) {{ {node} }}"
        )
        check_model(model, {**feeds, **sizes})
    else:
        check_op(node, feeds, constants=sizes)


IMAGES = "y = Conv <pads = [1, 1, 1, 1]> (x, w, b)"


def _images(count: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    maps = 16 * count
    head = f"g (float[{count},8,2,2] x, float[{maps},8,3,3] w, float[{maps}] b)"
    model = parse(f"{head} => (float s) {{ {IMAGES} s = ReduceSumSquare <keepdims = 0> (y) }}")
    return model, {"x": normal(count, 8, 2, 2), "w": normal(maps, 8, 3, 3), "b": normal(maps)}


def _convolutions(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node if n.op_type == "Conv"]


def test_a_convolution_of_many_small_images_is_a_product() -> None:
    """The columns of the weight's gradient are those of the convolution itself."""
    model, feeds = _images(4)
    check_op(IMAGES, feeds, symbolic=False)
    graph = gradient(model, ["w", "b", "x"], "s")
    assert not _convolutions(graph)
    found, want = run(graph, feeds)["s"], run(model, feeds)["s"]
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_a_convolution_stays_without_its_weight_s_gradient_or_with_few_images() -> None:
    model, _ = _images(4)
    assert len(_convolutions(gradient(model, ["x", "b"], "s"))) == 1
    assert len(_convolutions(gradient(_images(3)[0], ["w"], "s"))) == 1
    assert len(_convolutions(gradient(model, ["w"], "s", form="small"))) == 2
    assert len(_convolutions(onnxgrad.linearize(model, ["w"], "s").forward)) == 1
