"""onnxgrad/grad/rules/convolution/conv.py"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import gradient
from onnxgrad.grad.rules.convolution import conv
from onnxgrad.verify.reference.evaluate import reference
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


PLACED = "gradient of normalized_convolution"


def _normalized(attributes: str, x: tuple[int, ...], w: tuple[int, ...], *, more: str = "") -> Any:
    """A model whose BatchNormalization reads a Conv, and its feeds: scale 0 in the first map."""
    feeds = {"x": normal(*x), "w": normal(*w), "b": normal(w[0]), "s": normal(w[0], seed=1)}
    feeds |= {"o": normal(w[0], seed=2), "m": normal(w[0], seed=3)}
    feeds["v"] = np.abs(normal(w[0], seed=4)) + 0.5
    feeds["s"][0] = 0
    inputs = ", ".join(f"float[{','.join(map(str, v.shape))}] {k}" for k, v in feeds.items())
    body = f"c = Conv {attributes} (x, w, b) y = BatchNormalization (c, s, o, m, v) {more}"
    rank = ",".join("abcd"[: len(x)])
    return parse(f"g ({inputs}) => (float[{rank}] {'z' if more else 'y'}) {{ {body} }}"), feeds


def _rules(graph: onnx.ModelProto) -> set[str]:
    return {
        p.value for n in graph.graph.node for p in n.metadata_props if p.key == "onnxgrad.made_by"
    }


@pytest.mark.parametrize(
    ("attributes", "x", "w"),
    [
        ("", (2, 3, 9, 8), (4, 3, 2, 2)),
        ("<strides = [2, 1], pads = [1, 0, 2, 1]>", (2, 3, 9, 8), (4, 3, 3, 2)),
        ("<group = 4, pads = [1, 1, 1, 1]>", (2, 4, 6, 7), (4, 1, 3, 3)),
        ("<strides = [2], dilations = [2]>", (3, 2, 19), (2, 2, 3)),
    ],
)
def test_a_normalized_convolution(
    attributes: str, x: tuple[int, ...], w: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "_MANY", 1)
    model, feeds = _normalized(attributes, x, w)
    assert PLACED in _rules(gradient(model, ["w"], "y", adjoint="input"))
    check_model(model, feeds)
    check_model(parse(onnx.printer.to_text(model.graph).replace("(x, w, b)", "(x, w)")), feeds)


def test_an_image_s_gradient_scales_the_weight_and_forms_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conv, "_MANY", 1)
    model, feeds = _normalized("", (2, 3, 9, 8), (4, 3, 2, 2))
    graph = gradient(model, ["x", "b"], "y", adjoint="input")
    assert PLACED in _rules(graph)
    operators = [n.op_type for n in graph.graph.node]
    assert operators.count("ConvTranspose") + operators.count("Conv") == 2
    assert operators.count("BatchNormalization") == 1
    check_model(model, feeds, ["x", "b", "m"])


def test_a_normalized_convolution_of_an_open_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "_MANY", 1)
    model, feeds = _normalized("", (2, 3, 9, 8), (4, 3, 2, 2))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    assert PLACED in _rules(gradient(model, ["w"], "y", adjoint="input"))
    check_model(model, feeds)


@pytest.mark.parametrize(
    ("wrt", "more", "options"),
    [
        (["s", "x"], "", {}),  # the scale's gradient without the weight's
        (["w", "c"], "", {}),
        (["w"], "e = Exp (c) z = Add (y, e)", {}),  # another reader of the convolution
        (["w"], "", {"form": "small"}),
    ],
)
def test_a_convolution_and_its_normalization_stay_apart(
    wrt: list[str], more: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "_MANY", 1)
    model, feeds = _normalized("", (2, 3, 9, 8), (4, 3, 2, 2), more=more)
    assert PLACED not in _rules(gradient(model, wrt, adjoint="input", **options))
    check_model(model, feeds, [v for v in wrt if v != "c"])


def test_few_positions_or_a_large_weight_stay_apart() -> None:
    for x, w in (((2, 3, 9, 8), (4, 3, 2, 2)), ((1, 64, 18, 18), (64, 64, 3, 3))):
        model, _ = _normalized("", x, w)
        assert PLACED not in _rules(gradient(model, ["w"], "y", adjoint="input"))
    model, _ = _normalized("", (1, 64, 66, 66), (64, 64, 3, 3))
    assert PLACED in _rules(gradient(model, ["w"], "y", adjoint="input"))


def test_a_normalized_convolution_in_onnxruntime_is_as_exact() -> None:
    """Against float64: sums of the weight times its gradient in place of sums over positions."""
    model, feeds = _normalized("<pads = [1, 1, 1, 1]>", (4, 8, 32, 32), (16, 8, 3, 3))
    feeds = {k: v.astype(np.float32) for k, v in feeds.items()}
    graph = gradient(model, ["w", "s", "v"], "y", adjoint="input")
    assert PLACED in _rules(graph)
    feeds["y_grad"] = normal(4, 16, 32, 32, seed=5).astype(np.float32)
    found = run(graph, feeds)
    exact = reference(graph, {k: v.astype(np.float64) for k, v in feeds.items()})
    for name in ("w_grad", "s_grad", "v_grad"):
        scale = np.abs(exact[name]).max()
        np.testing.assert_allclose(found[name], exact[name], rtol=0, atol=3e-6 * scale)
