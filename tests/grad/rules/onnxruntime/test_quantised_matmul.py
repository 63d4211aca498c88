"""onnxgrad/grad/rules/onnxruntime/quantised_matmul.py: integers of 2, 4 and 8 bits, blocks and zero points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.grad import gradient
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_op, normal, op_model
from tests.helpers import parse

DOMAINS = {"com.microsoft": 1}


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
    check_op(text, feeds, domains=DOMAINS)


def test_integers_in_another_order_are_refused() -> None:
    text = node(4, 32, "x, q, s, , i")
    graph = f"g (float[3,32] x, uint8[6,2,8] q, float[12] s, int32[32] i) => (float[3,6] y) {{ {text} }}"
    header = '<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>'
    with pytest.raises(InputError, match="not in the order of rows and blocks"):
        gradient(parse(f"{header} {graph}"), "x", "y", adjoint="input")
