"""onnxgrad/laws/bodies/linear_attention.py, and the oracle's kernels against
onnxruntime's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import check_gradient
from tests.grad.numeric import check_op, normal
from tests.laws.bodies.test_attention import DOMAINS, agrees_with_onnxruntime, refuses

B, T, D, V = 2, 4, 3, 2
OPERANDS = ("q", "k", "v", "past", "decay", "beta")


def call(name: str, attributes: str, operands: str, results: str) -> onnx.NodeProto:
    text = f"g () => () {{ {results} = com.microsoft.{name} <{attributes}> ({operands}) }}"
    return onnx.parser.parse_graph(text).node[0]


def attention(
    rule: str, n: int, m: int, keys: int, more: dict[str, Any], attributes: str = ""
) -> tuple[onnx.NodeProto, dict[str, Any]]:
    feeds = {
        "q": normal(B, T, n * D),
        "k": normal(B, T, keys * D, seed=1),
        "v": normal(B, T, m * V, seed=2),
        "past": normal(B, m, D, V, seed=3),
        **({"decay": -np.abs(normal(B, T, m, seed=4))} if "gated" in rule else {}),
        **({"beta": np.abs(normal(B, T, m, seed=5)) / 2} if "delta" in rule else {}),
        **more,
    }
    feeds = {name: value for name, value in feeds.items() if value is not None}
    given = f'q_num_heads = {n}, kv_num_heads = {m}, update_rule = "{rule}"{attributes}'
    names = ", ".join(name if name in feeds else "" for name in OPERANDS).rstrip(", ")
    return call("LinearAttention", given, names, "y, s"), feeds


CASES: list[tuple[str, int, int, int, dict[str, Any]]] = [
    ("linear", 2, 2, 2, {}),
    ("gated", 2, 2, 2, {}),
    ("gated", 2, 2, 2, {"decay": -np.abs(normal(B, T, 2 * D))}),
    ("delta", 2, 2, 2, {}),
    ("gated_delta", 2, 2, 2, {}),
    ("gated_delta", 2, 2, 2, {"past": None, "beta": np.abs(normal(B, T, 1))}),
    ("gated_delta", 2, 2, 1, {}),
    ("gated_delta", 2, 4, 2, {}),
    ("gated_delta", 4, 2, 2, {}),
    ("linear", 2, 2, 2, {"past": None}),
]


@pytest.mark.parametrize(("rule", "n", "m", "keys", "more"), CASES)
def test_linear_attention(rule: str, n: int, m: int, keys: int, more: dict[str, Any]) -> None:
    made, feeds = attention(rule, n, m, keys, more)
    agrees_with_onnxruntime(made, feeds, ["y", "s"])
    check_op(made, feeds, outputs=["y", "s"], domains=DOMAINS, symbolic=False)


def test_a_scale_of_its_own() -> None:
    made, feeds = attention("delta", 2, 2, 2, {}, ", scale = 0.3")
    agrees_with_onnxruntime(made, feeds, ["y", "s"])
    check_op(made, feeds, outputs=["y", "s"], domains=DOMAINS, symbolic=False)


def test_any_batch_and_length() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[N,T,6] q, float[N,T,6] k, float[N,T,4] v, float[N,T,2] d, float[N,T,2] b)
        => (float[N,T,4] y) {
          y, s = com.microsoft.LinearAttention <q_num_heads = 2, kv_num_heads = 2> (q, k, v, , d, b)
        }"""
    )
    assert check_gradient(model, dims={"N": 3, "T": 5}).verdict == "agrees"
    assert check_gradient(model, dims={"N": 1, "T": 1}).verdict == "agrees"


X, W = normal(B, V, T), normal(V, 1, 3, seed=1)
PLAIN = 'activation = "none"'
CONVOLUTIONS: list[tuple[str, dict[str, Any]]] = [
    (PLAIN, {}),
    (PLAIN, {"bias": normal(V)}),
    ('activation = "silu"', {"bias": normal(V), "past": normal(B, V, 2)}),
    ('activation = "swish"', {"past": normal(B, V, 2)}),
    (PLAIN, {"w": normal(V, 1, 1)}),
    (PLAIN, {"x": normal(B, V, 1), "past": normal(B, V, 2)}),
]


@pytest.mark.parametrize(("attributes", "more"), CONVOLUTIONS)
def test_causal_convolution(attributes: str, more: dict[str, Any]) -> None:
    feeds = {"x": X, "w": W, **more}
    names = ", ".join(n if n in feeds else "" for n in ("x", "w", "bias", "past")).rstrip(", ")
    made = call("CausalConvWithState", attributes, names, "y, s")
    agrees_with_onnxruntime(made, feeds, ["y", "s"])
    check_op(made, feeds, outputs=["y", "s"], domains=DOMAINS, symbolic=False)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (call("LinearAttention", "q_num_heads = 2, kv_num_heads = 2, state_window = 2", "x, x, x", "y, s"), "state_window"),
        (call("LinearAttention", "q_num_heads = 2, kv_num_heads = 2", "x, x, x", "y, s"), "without its decay"),
        (call("CausalConvWithState", "dilation = 2", "x, w", "y, s"), "dilation"),
        (call("CausalConvWithState", "channels_last = 1", "x, w", "y, s"), "channels_last"),
    ],
)  # fmt: skip
def test_what_is_declined(made: onnx.NodeProto, reason: str) -> None:
    refuses(made, {"x": X, "w": W}, reason)
