"""A value is overwritten only when everybody has read it."""

from __future__ import annotations

import onnx
import pytest

from onnxgrad.ir.load import load
from onnxgrad.train.in_place import may_be_overwritten

SAFE = {
    "read once, by the update": "n = Add (p, x)",
    "read before": "a = Mul (p, x) n = Sub (a, x)",
    "read twice by the update": "n = Mul (p, p)",
}
UNSAFE = {
    "read beside the update": "n = Add (x, x) y = Mul (p, x)",
    "read through a view beside it": "v = Transpose (p) n = Add (p, x) y = MatMul (v, x)",
    "an update that is no elementwise one": "n = MatMul (p, x)",
    "returned itself": "n = Add (p, x) y = Identity (p)",
    "read in a branch": "n = Add (p, x) y = If (c) <then_branch = t () => (float[2, 2] o) { o = Relu (p) },"
    " else_branch = e () => (float[2, 2] o2) { o2 = Neg (x) }>",
}


def answer(body: str) -> bool:
    more = ", float[2, 2] y" if " y = " in body else ""
    text = f'<ir_version: 8, opset_import: ["": 18]> g (float[2, 2] p, float[2, 2] x, bool c) => (float[2, 2] n{more}) '
    block = load(onnx.parser.parse_model(f"{text} {{ {body} }}")).main
    named = {v.name: v for v in block.vars()}
    return may_be_overwritten(block, named["p"], named["n"])


@pytest.mark.parametrize("body", SAFE.values(), ids=SAFE)
def test_safe(body: str) -> None:
    assert answer(body)


@pytest.mark.parametrize("body", UNSAFE.values(), ids=UNSAFE)
def test_unsafe(body: str) -> None:
    assert not answer(body)
