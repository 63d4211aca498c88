"""onnxgrad/laws/bodies/attention.py, and the oracle's kernels against onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, normal, op_model

B, S, N, H, L = 2, 4, 2, 3, 5
DOMAINS = {"com.microsoft": 1}
X, W, BIAS = normal(B, S, 5), normal(5, 3 * N * H), normal(3 * N * H)
ENDS, BOTH = np.array([2, 4], np.int32), np.array([4, 3, 1, 0], np.int32)
KEYS = np.array([[1, 0, 1, 1], [0, 1, 1, 1]], np.int32)
PAIRS = np.random.default_rng(0).integers(0, 2, (B, S, S)).astype(np.int32)
PAIRS[:, :, 0] = 1

ATTENTION: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("", {"mask": ENDS}),
    ("", {"mask": BOTH}),
    ("", {"mask": np.array([4, 2, 0, 4, 8, 0, 4, 8], np.int32)}),
    ("", {"mask": KEYS}),
    ("", {"mask": PAIRS}),
    (", mask_filter_value = -1.5", {"mask": KEYS}),
    (", unidirectional = 1", {}),
    (", unidirectional = 1", {"mask": KEYS}),
    (", unidirectional = 1", {"mask": PAIRS}),
    (", scale = 0.4", {"added": normal(1, N, S, S)}),
    ("", {"added": normal(B, 1, S, S), "mask": ENDS}),
    (", qkv_hidden_sizes = [4, 4, 6]", {"w": normal(5, 14), "b": normal(14)}),
]


def attention(attributes: str, more: dict[str, Any]) -> tuple[onnx.NodeProto, dict[str, Any]]:
    feeds = {"x": X, "w": W, "b": BIAS, **more}
    names = [
        "x",
        "w",
        "b",
        "mask" if "mask" in feeds else "",
        "",
        "added" if "added" in feeds else "",
    ]
    return node("Attention", names, ["y"], attributes), feeds


def node(op: str, inputs: list[str], outputs: list[str], attributes: str) -> onnx.NodeProto:
    text = f"{', '.join(outputs)} = com.microsoft.{op} <num_heads = {N}{attributes}> ({', '.join(inputs)})"
    return onnx.parser.parse_graph(f"g () => () {{ {text} }}").node[0]


def agrees_with_onnxruntime(
    made: onnx.NodeProto, feeds: dict[str, Any], outputs: list[str], opset: int = 21
) -> None:
    model = op_model(made, feeds, outputs=outputs, domains=DOMAINS, opset=opset)
    wanted, got = run(model, feeds), reference(model, feeds)
    for name in outputs:
        assert np.allclose(got[name], wanted[name], atol=1e-5, rtol=1e-5), name


@pytest.mark.parametrize(("attributes", "more"), ATTENTION)
def test_attention(attributes: str, more: dict[str, Any]) -> None:
    made, feeds = attention(attributes, more)
    agrees_with_onnxruntime(made, feeds, ["y"])
    check_op(made, feeds, outputs=["y"], domains=DOMAINS)


@pytest.mark.parametrize("mask", [ENDS, BOTH])
def test_the_length_of_a_mask_is_compared_beforehand_where_it_is_known(mask: Any) -> None:
    made, feeds = attention("", {"mask": mask})
    found = gradient(op_model(made, feeds, outputs=["y"], domains=DOMAINS), adjoint="input")
    assert "Equal" not in {n.op_type for n in found.graph.node}


def test_attention_without_a_bias() -> None:
    """onnxruntime 1.31 crashes on it, not on its gradient graph."""
    check_op(
        node("Attention", ["x", "w"], ["y"], ""), {"x": X, "w": W}, outputs=["y"], domains=DOMAINS
    )


def test_keys_and_values_that_attention_returns() -> None:
    made, feeds = node("Attention", ["x", "w", "b"], ["y", "kv"], ""), {"x": X, "w": W, "b": BIAS}
    agrees_with_onnxruntime(made, feeds, ["y", "kv"])
    check_op(made, feeds, outputs=["y", "kv"], domains=DOMAINS)


Q, K, V = normal(B, S, N * H), normal(B, L, N * H, seed=1), normal(B, L, N * 2, seed=2)
SEEN = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], np.int32)
MULTI: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    (", scale = 0.4", {"bias": normal(2 * N * H + N * 2)}),
    ("", {"mask": np.array([2, 5], np.int32)}),
    ("", {"mask": np.array([5, 3, 0, 4, 8, 0, 5, 8], np.int32)}),
    ("", {"mask": SEEN}),
    ("", {"mask": np.repeat(SEEN[:, None], S, axis=1)}),
    (", mask_filter_value = -2.0", {"mask": SEEN, "bias": normal(2 * N * H + N * 2)}),
    ("", {"added": normal(B, 1, S, L)}),
    (", unidirectional = 1", {}),
    (", unidirectional = 1", {"k": normal(B, S, N * H), "v": normal(B, S, N * 2)}),
    (", unidirectional = 1", {"q": normal(B, S + 3, N * H)}),
    ("", {"k": normal(B, N, L, H), "v": normal(B, N, L, H, seed=3)}),
    ("", {"k": normal(B, N, L, H), "v": normal(B, N, L, H), "bias": normal(3 * N * H)}),
]


def multi(
    attributes: str, more: dict[str, Any], outputs: list[str]
) -> tuple[onnx.NodeProto, dict[str, Any]]:
    feeds = {"q": Q, "k": K, "v": V, **more}
    names = ["q", "k", "v", *(n if n in feeds else "" for n in ("bias", "mask", "added"))]
    return node("MultiHeadAttention", names, outputs, attributes), feeds


@pytest.mark.parametrize(("attributes", "more"), MULTI)
def test_multi_head_attention(attributes: str, more: dict[str, Any]) -> None:
    made, feeds = multi(attributes, more, ["y"])
    agrees_with_onnxruntime(made, feeds, ["y"])
    check_op(made, feeds, outputs=["y"], domains=DOMAINS)


def test_all_results_of_multi_head_attention() -> None:
    made, feeds = multi(
        "",
        {"bias": normal(2 * N * H + N * 2), "added": normal(B, 1, S, L)},
        ["y", "pk", "pv", "qk"],
    )
    agrees_with_onnxruntime(made, feeds, ["y", "pk", "pv", "qk"])
    check_op(made, feeds, outputs=["y", "pk", "pv", "qk"], domains=DOMAINS)


SLOTS, STEP = 5, {name: normal(B, 1, N * H, seed=i) for i, name in enumerate("qkv")}
CACHES = {"pk": normal(B, N, SLOTS, H, seed=4), "pv": normal(B, N, SLOTS, H, seed=5)}
CROSS = {"k": normal(B, N, L, H, seed=1), "v": normal(B, N, L, H, seed=2)}
OF_STEP = ("q", "k", "v", "mask", "added", "pk", "pv", "n", "", "", "bias")
DECODERS: list[tuple[int | None, str, dict[str, Any]]] = [
    (0, "", {}),
    (2, "", {}),
    (4, ", scale = 0.4", {"bias": normal(3 * N * H)}),
    (2, "", {"mask": np.array([[1, 0, 1], [0, 1, 1]], np.int32)}),
    (2, "", {"added": normal(1, N, 1, 3)}),
    (None, "", {}),
    (None, "", {"mask": SEEN, "bias": normal(3 * N * H)}),
]


@pytest.mark.parametrize(("past", "attributes", "more"), DECODERS)
def test_decoder_masked_attention(past: int | None, attributes: str, more: dict[str, Any]) -> None:
    """past: how many positions the caches hold; None: cross-attention."""
    feeds = {**STEP, **(CROSS if past is None else CACHES), **more}
    outputs = ["y"] if past is None else ["y", "ck", "cv"]
    if past is not None:
        feeds["n"] = np.array([past], np.int32)
        attributes += ", past_present_share_buffer = 1"
    names = [name if name in feeds else "" for name in OF_STEP]
    made = node("DecoderMaskedMultiHeadAttention", names, outputs, attributes)
    agrees_with_onnxruntime(made, feeds, outputs)
    check_op(made, feeds, outputs=outputs, domains=DOMAINS)


@pytest.mark.parametrize(
    ("made", "feeds", "reason"),
    [
        (
            node("Attention", ["x", "w", "b", "", "", "", "n"], ["y"], ""),
            {"n": np.array(1, np.int32)},
            "cache",
        ),
        (node("Attention", ["x", "w", "b"], ["y"], ", do_rotary = 1"), {}, "do_rotary"),
        (
            node("Attention", ["x", "w", "b", "m"], ["y"], ""),
            {"m": np.ones((B, 1, S, S), np.int32)},
            "mask of type",
        ),
        (node("MultiHeadAttention", ["p"], ["y"], ""), {"p": normal(B, S, N, 3, H)}, "packed"),
        (
            node("MultiHeadAttention", ["x", "x", "x", "", "", "", "p", "p", "n"], ["y"], ""),
            {"p": normal(B, N, 1, H), "n": np.array(1, np.int32)},
            "shared cache",
        ),
        (
            node("DecoderMaskedMultiHeadAttention", [*"xxx", *[""] * 5, "n"], ["y"], ""),
            {"n": np.array([1], np.int32)},
            "beams",
        ),
    ],
)
def test_what_is_declined(made: onnx.NodeProto, feeds: dict[str, Any], reason: str) -> None:
    refuses(made, {"x": X, "w": W, "b": BIAS, **feeds}, reason)


def refuses(made: onnx.NodeProto, feeds: dict[str, Any], reason: str) -> None:
    """`gradient` names the operator and says what has no rule."""
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in feeds.items()
    ]
    graph = helper.make_graph([made], "g", given, [helper.make_tensor_value_info("y", 1, None)])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    with pytest.raises(InputError, match=f"com.microsoft::{made.op_type} at .*{reason}"):
        gradient(helper.make_model(graph, opset_imports=imports, ir_version=10), adjoint="input")
