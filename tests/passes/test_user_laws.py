"""Rules and families where passes stand."""

from __future__ import annotations

import pytest

import onnxgrad
from onnxgrad import P, capture, op
from onnxgrad.ir.var import Var
from tests.helpers import parse

a = capture("a")


@onnxgrad.rewrite(P.Neg(P.Neg(a)))
def twice(a: Var) -> object:
    """--a = a"""
    return op.Identity(a)


def test_passes_rules_and_names_in_one_list() -> None:
    model = parse("g (float[3] x) => (float[3] y) { p = Neg(x) q = Neg(p) y = Relu(q) }")
    found = onnxgrad.optimize(model, passes=[twice, "remove-noops"])
    assert [n.op_type for n in found.graph.node] == ["Relu"]


def test_a_wrong_rule_is_refuted() -> None:
    model = parse("g (float[3] x) => (float[3] y) { p = Neg(x) y = Relu(p) }")
    wrong = onnxgrad.rewrite(P.Neg(a))(lambda a: op.Abs(a))
    with pytest.raises(onnxgrad.RewriteRefuted, match="number 1"):
        onnxgrad.optimize(model, passes=[wrong])
