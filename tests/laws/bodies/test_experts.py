"""onnxgrad/laws/bodies/experts.py, and the oracle's MoE against onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.grad.numeric import check_op, normal
from tests.laws.bodies.test_attention import DOMAINS, agrees_with_onnxruntime, refuses

TOKENS, HIDDEN, EXPERTS, INNER = 5, 3, 4, 2


def moe(attributes: str, more: dict[str, Any]) -> tuple[onnx.NodeProto, dict[str, Any]]:
    both = 2 if "swiglu" in attributes else 1
    feeds = {
        "x": normal(TOKENS, HIDDEN),
        "router": normal(TOKENS, EXPERTS, seed=1),
        "w1": normal(EXPERTS, both * INNER, HIDDEN, seed=2),
        "b1": normal(EXPERTS, both * INNER, seed=3),
        "w2": normal(EXPERTS, HIDDEN, INNER, seed=4),
        "b2": normal(EXPERTS, HIDDEN, seed=5),
        **more,
    }
    feeds = {name: value for name, value in feeds.items() if value is not None}
    names = ", ".join(n if n in feeds else "" for n in ("x", "router", "w1", "b1", "w2", "b2"))
    text = f"g () => () {{ y = com.microsoft.MoE <{attributes}> ({names}) }}"
    return onnx.parser.parse_graph(text).node[0], feeds


SWIGLU = 'activation_type = "swiglu", swiglu_fusion = 1'
CASES: list[tuple[str, dict[str, Any]]] = [
    ("k = 1", {}),
    ('k = 2, activation_type = "silu"', {}),
    ('k = 2, activation_type = "gelu", normalize_routing_weights = 1', {}),
    ('k = 4, activation_type = "identity"', {"b1": None, "b2": None}),
    (f"k = 2, {SWIGLU}", {}),
    (f"k = 3, {SWIGLU}, swiglu_limit = 0.7, activation_alpha = 1.7, activation_beta = 1.0", {}),
    ('k = 2, activation_type = "silu"', {"x": normal(1, TOKENS, HIDDEN)}),
]


@pytest.mark.parametrize(("attributes", "more"), CASES)
def test_moe(attributes: str, more: dict[str, Any]) -> None:
    made, feeds = moe(attributes, more)
    agrees_with_onnxruntime(made, feeds, ["y"])
    check_op(made, feeds, outputs=["y"], domains=DOMAINS)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_of_equally_likely_experts_the_later_ones_are_taken(k: int) -> None:
    """As at the first step of a router that starts at zero."""
    made, feeds = moe(f"k = {k}", {"router": np.zeros((TOKENS, EXPERTS), np.float32)})
    agrees_with_onnxruntime(made, feeds, ["y"])
    check_op(made, feeds, ["x", "w1", "w2", "b1", "b2"], outputs=["y"], domains=DOMAINS)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ("k = 2, use_sparse_mixer = 1", "use_sparse_mixer"),
        ('activation_type = "swiglu"', "swiglu_fusion=1"),
        ('activation_type = "relu2"', "activation_type 'relu2'"),
        (f"{SWIGLU}, swiglu_limit_after_activation = 1", "swiglu_limit_after_activation"),
    ],
)
def test_what_is_declined(attributes: str, reason: str) -> None:
    refuses(*moe(attributes, {}), reason)
