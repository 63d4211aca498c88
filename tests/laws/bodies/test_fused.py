"""onnxgrad/laws/bodies/fused.py, on one node each."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, check_op, normal, op_model, positive
from tests.helpers import parse

DOMAINS = {"com.microsoft": 1}


def check(node: str, feeds: dict[str, Any], domain: str = "com.microsoft.", **options: Any) -> None:
    """The oracle computes what onnxruntime does, and the gradient agrees with the oracle's differences."""
    node = node.replace("= ", f"= {domain}", 1)
    model = op_model(node, feeds, domains=DOMAINS, **options)
    wanted, got = run(model, feeds), reference(model, feeds)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, atol=1e-5, rtol=1e-5, err_msg=name)
    check_op(node, feeds, domains=DOMAINS, **options)


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize(
    ("node", "feeds"),
    [
        ("y = Gelu (x)", {"x": normal(3, 4)}),
        ("y = FastGelu (x)", {"x": normal(3, 4)}),
        ("y = FastGelu (x, b)", {"x": normal(2, 3, 4), "b": normal(4)}),
        ("y = QuickGelu (x)", {"x": normal(3, 4)}),
        ("y = QuickGelu <alpha = 1.0> (x)", {"x": normal(3, 4)}),
        ("y = QuickGelu <alpha = 0.5> (x)", {"x": normal(3, 4)}),
        ("y = BiasGelu (x, b)", {"x": normal(2, 3, 4), "b": normal(4)}),
    ],
)
def test_gelu(node: str, feeds: dict[str, Any], opset: int) -> None:
    check(node, feeds, opset=opset)


@pytest.mark.parametrize(
    ("attributes", "a", "b"),
    [
        ("", (3, 4), (4, 5)),
        ("<alpha = 0.25>", (2, 3, 4), (4, 5)),
        ("<transA = 1>", (4, 3), (4, 5)),
        ("<transB = 1>", (3, 4), (5, 4)),
        ("<transA = 1, transB = 1, alpha = 2.0>", (2, 4, 3), (2, 5, 4)),
        ("<transB = 1>", (2, 3, 4, 6), (3, 5, 6)),
        ("<transA = 1>", (4,), (4, 5)),
        ("<transB = 1>", (3, 4), (4,)),
        ("<transBatchA = 1>", (3, 2, 4), (2, 4, 5)),
        ("<transBatchB = 1>", (2, 3, 4), (4, 2, 5)),
        ("<transBatchA = 1, transA = 1>", (4, 2, 3), (2, 4, 5)),
        ("<transBatchB = 1, transB = 1, alpha = 3.0>", (2, 3, 4), (5, 2, 4)),
        ("<transBatchA = 1, transBatchB = 1>", (3, 2, 6, 4), (4, 2, 6, 5)),
    ],
)
def test_fused_matmul(attributes: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(f"y = FusedMatMul {attributes} (a, b)", {"a": normal(*a), "b": normal(*b, seed=1)})


@pytest.mark.parametrize(
    "attributes",
    [
        'activation = "Relu"',
        'activation = "LeakyRelu", activation_alpha = 0.3',
        'activation = "Tanh", transB = 1',
        'activation = "Sigmoid", transA = 1, alpha = 0.5, beta = 2.0',
        'activation = "HardSigmoid", activation_alpha = 0.1, activation_beta = 0.4',
        'activation = "Elu", activation_alpha = 0.5',
        'activation = "Softplus"',
        'activation = "Softsign"',
        'activation = "ThresholdedRelu", activation_alpha = 0.3',
    ],
)
def test_fused_gemm(attributes: str) -> None:
    a = normal(4, 3) if "transA" in attributes else normal(3, 4)
    b = normal(5, 4) if "transB" in attributes else normal(4, 5)
    check(f"y = FusedGemm <{attributes}> (a, b, c)", {"a": a, "b": b, "c": normal(5)})


def test_fused_gemm_without_a_bias() -> None:
    check('y = FusedGemm <activation = "Tanh"> (a, b)', {"a": normal(3, 4), "b": normal(4, 5)})


@pytest.mark.parametrize(
    ("attributes", "operands"),
    [
        ('activation = "Relu"', "x, w, b"),
        ('activation = "Relu"', "x, w"),
        ('activation = "Relu", pads = [1, 0, 1, 0], strides = [2, 1]', "x, w, b, z"),
        ('activation = "Tanh", auto_pad = "SAME_UPPER", kernel_shape = [3, 2]', "x, w, b"),
        ('activation = "Sigmoid", dilations = [2, 1]', "x, w, b"),
        ('activation = "LeakyRelu", activation_params = [0.3]', "x, w, b"),
        ('activation = "Clip", activation_params = [-0.5, 0.5]', "x, w, b"),
        ('activation = "HardSigmoid", activation_params = [0.2, 0.4]', "x, w, b"),
        ("group = 2", "x, w, b"),
    ],
)
def test_fused_conv(attributes: str, operands: str) -> None:
    feeds = {
        "x": normal(2, 2, 5, 4),
        "w": normal(4, 1 if "group" in attributes else 2, 3, 2),
        "b": normal(4),
    }
    if "z" in operands:
        feeds["z"] = normal(2, 4, 3, 3)
    given = {n: v for n, v in feeds.items() if n in operands.split(", ")}
    check(f"y = FusedConv <{attributes}> ({operands})", given)


@pytest.mark.parametrize(
    ("node", "names"),
    [
        ("y = SkipLayerNormalization <epsilon = 0.001> (x, s, w, b)", "xswb"),
        ("y = SkipLayerNormalization (x, s, w)", "xsw"),
        ("y = SkipLayerNormalization (x, s, w, b, c)", "xswbc"),
        ("y = SkipLayerNormalization (x, s, w, , c)", "xswc"),
        ("y, , , t = SkipLayerNormalization (x, s, w, b, c)", "xswbc"),
        ("y = SkipSimplifiedLayerNormalization <epsilon = 0.001> (x, s, w)", "xsw"),
        ("y, , , t = SkipSimplifiedLayerNormalization (x, s, w, c)", "xswc"),
    ],
)
@pytest.mark.parametrize("opset", [18, 23])
def test_skip_layer_normalization(node: str, names: str, opset: int) -> None:
    feeds = {
        "x": normal(2, 3, 4),
        "s": normal(2, 3, 4, seed=1),
        "w": positive(4),
        "b": normal(4),
        "c": normal(4, seed=2),
    }
    outputs = ["y", "t"] if " t " in node else ["y"]
    check(node, {n: feeds[n] for n in names}, outputs=outputs, opset=opset)


def test_a_skip_that_broadcasts() -> None:
    feeds = {"x": normal(2, 3, 4), "s": normal(3, 4, seed=1), "w": positive(4), "b": normal(4)}
    check("y = SkipLayerNormalization (x, s, w, b)", feeds)


@pytest.mark.parametrize("axis", ["", "<axis = 1, epsilon = 0.01>", "<axis = -2>"])
def test_simplified_layer_normalization(axis: str) -> None:
    scale = positive(4) if not axis else positive(3, 4)
    check(
        f"y = SimplifiedLayerNormalization {axis} (x, w)",
        {"x": normal(2, 3, 4), "w": scale},
        domain="",
    )


IDS = {
    "ids": np.array([[1, 0, 2], [3, 3, 1]], np.int32),
    "seg": np.array([[0, 0, 1], [1, 0, 1]], np.int32),
}
TABLES = {
    "word": normal(5, 4),
    "pos": normal(6, 4, seed=1),
    "part": normal(2, 4, seed=2),
    "w": positive(4),
    "b": normal(4),
}


@pytest.mark.parametrize(
    ("node", "more"),
    [
        ("y, m = EmbedLayerNormalization <epsilon = 0.001> (ids, seg, word, pos, part, w, b)", {}),
        ("y, m = EmbedLayerNormalization (ids, , word, pos, , w, b)", {}),
        ("y, m, t = EmbedLayerNormalization (ids, seg, word, pos, part, w, b)", {}),
        (
            "y, m = EmbedLayerNormalization (ids, seg, word, pos, part, w, b, mask)",
            {"mask": np.array([[1, 1, 0], [1, 1, 1]], np.int32)},
        ),
        (
            "y, m = EmbedLayerNormalization (ids, seg, word, pos, part, w, b, , at)",
            {"at": np.array([[2, 5, 0], [1, 1, 0]], np.int32)},
        ),
        (
            "y, m = EmbedLayerNormalization (ids, seg, word, pos, part, w, b, , at)",
            {"at": np.array([[2, 5, 0]], np.int32)},
        ),
    ],
)
def test_embed_layer_normalization(node: str, more: dict[str, Any]) -> None:
    feeds = {**IDS, **TABLES, **more}
    used = {
        n: v
        for n, v in feeds.items()
        if f" {n}," in f" {node.partition('(')[2][:-1]}," or f"({n}," in node
    }
    check(node, used, outputs=["y", "t", "m"] if " t " in node else ["y", "m"])


TWICE = [
    ("y = FastGelu (x, b)", {"x": normal(2, 4), "b": normal(4)}),
    ("y = BiasGelu (x, b)", {"x": normal(2, 4), "b": normal(4)}),
    ("y = FusedMatMul <transB = 1, alpha = 0.5> (x, b)", {"x": normal(2, 4), "b": normal(3, 4)}),
    (
        "y = SkipLayerNormalization (x, s, b)",
        {"x": normal(2, 4), "s": normal(2, 4, seed=1), "b": positive(4)},
    ),
    (
        "y = SkipSimplifiedLayerNormalization (x, s, b)",
        {"x": normal(2, 4), "s": normal(2, 4, seed=1), "b": positive(4)},
    ),
]


@pytest.mark.parametrize(("node", "feeds"), TWICE)
def test_second_derivatives(node: str, feeds: dict[str, Any]) -> None:
    model = op_model(node.replace("= ", "= com.microsoft.", 1), feeds, domains=DOMAINS)
    once = gradient(model, ["x"], adjoint="input")
    seed = normal(*(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim), seed=5)
    check_model(once, {**feeds, "y_grad": seed}, ["x", "b"], target="x_grad")


@pytest.mark.parametrize(("node", "feeds"), TWICE)
def test_half_precision(node: str, feeds: dict[str, Any]) -> None:
    half = {n: v.astype(np.float16) for n, v in feeds.items()}
    model = op_model(
        node.replace("= ", "= com.microsoft.", 1), half, domains=DOMAINS, outputs=["y"]
    )
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    graph = gradient(model, adjoint="input")
    assert {v.type.tensor_type.elem_type for v in graph.graph.output} == {onnx.TensorProto.FLOAT16}
    half["y_grad"] = normal(
        *(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim)
    ).astype(np.float16)
    wanted, got = reference(graph, half), run(graph, half)
    for name, value in wanted.items():
        np.testing.assert_allclose(
            got[name].astype(np.float64), value, atol=0.02 * np.abs(value).max(), err_msg=name
        )


def test_the_rank_is_needed_to_transpose() -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "my" : 1]> g (float[2,3] x) => (float y) '
        "{ a = my.Op (x) y = com.microsoft.FusedMatMul <transA = 1> (a, x) }"
    )
    with pytest.raises(InputError, match="needs the rank of 'a'"):
        gradient(onnx.parser.parse_model(text), adjoint="input")


def test_an_activation_that_nobody_knows() -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g (float[2,3] x, float[3,2] w) => (float[2,2] y) '
        '{ y = com.microsoft.FusedGemm <activation = "Cubic"> (x, w) }'
    )
    with pytest.raises(InputError, match=r"FusedGemm.*its activation 'Cubic' is not known"):
        gradient(onnx.parser.parse_model(text), adjoint="input")


def given(bits: int, k: int, zero: str, n: int = 6, block: int = 16) -> dict[str, Any]:
    rng = np.random.default_rng(bits + k)
    blocks = -(-k // block)
    feeds: dict[str, Any] = {
        "x": normal(2, 3, k),
        "q": rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.02, n * blocks).astype(np.float32),
    }
    if zero == "packed":
        feeds["z"] = rng.integers(0, 256, n * -(-blocks * bits // 8)).astype(np.uint8)
    elif zero == "float":
        feeds["z"] = rng.uniform(0, 15, n * blocks).astype(np.float32)
    return feeds


def node(bits: int, k: int, operands: str) -> str:
    attributes = f"K = {k}, N = 6, bits = {bits}, block_size = 16"
    return f"y = com.microsoft.MatMulNBits <{attributes}> ({operands})"


@pytest.mark.parametrize(
    ("bits", "k", "zero"),
    [
        (4, 32, ""),
        (4, 40, ""),
        (4, 48, "packed"),
        (4, 40, "float"),
        (8, 32, ""),
        (8, 32, "packed"),
        (2, 64, ""),
        (2, 48, "packed"),
    ],
)
def test_packed_integers(bits: int, k: int, zero: str) -> None:
    """The oracle computes what onnxruntime does, and the gradient agrees with its differences."""
    feeds = given(bits, k, zero)
    text = node(bits, k, ", ".join(feeds))
    model = op_model(text, feeds, domains=DOMAINS)
    np.testing.assert_allclose(reference(model, feeds)["y"], run(model, feeds)["y"], atol=1e-5)
    check_op(text, feeds, domains=DOMAINS)


def test_a_bias() -> None:
    feeds = {**given(4, 32, ""), "c": normal(6)}
    text = node(4, 32, "x, q, s, , , c")
    model = op_model(text, feeds, domains=DOMAINS)
    np.testing.assert_allclose(reference(model, feeds)["y"], run(model, feeds)["y"], atol=1e-5)
    # onnxruntime does not load a bias of unknown size
    check_op(text, feeds, domains=DOMAINS, symbolic=False)


def test_integers_in_another_order_are_refused() -> None:
    text = node(4, 32, "x, q, s, , i")
    graph = f"g (float[3,32] x, uint8[6,2,8] q, float[12] s, int32[32] i) => (float[3,6] y) {{ {text} }}"
    header = '<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>'
    with pytest.raises(InputError, match="not in the order of rows and blocks"):
        gradient(parse(f"{header} {graph}"), "x", "y", adjoint="input")
