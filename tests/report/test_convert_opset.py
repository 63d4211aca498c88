"""onnxgrad/report/convert_opset.py: another opset, and newer operators, in Python."""

from __future__ import annotations

import onnx
import pytest

import onnxgrad
from tests.helpers import ROOT, parse

TEXT = "g (float[2,S] x) => (float[2] y) { y = ReduceSum <axes = [1], keepdims = 0> (x) }"


def test_the_kind_that_was_given() -> None:
    made = onnxgrad.convert_opset(parse(TEXT, opset=12), 23)
    assert isinstance(made, onnx.ModelProto) and made.opset_import[0].version == 23
    done = onnxgrad.convert_opset(made, 12, report=True)
    assert done.proof.ok and done.model.opset_import[0].version == 12
    assert [f.rule for f in done.rewrites] == ["convert_opset"]


def test_what_cannot_be_is_an_error() -> None:
    with pytest.raises(onnxgrad.InputError, match="not between 7 and 28"):
        onnxgrad.convert_opset(parse(TEXT, opset=12), 29)


@pytest.mark.slow
def test_optimize_with_newer_operators() -> None:
    model = ROOT / "models/vit.onnx"
    made = onnxgrad.optimize(model, target_opset=23)
    assert sum(n.op_type == "Attention" for n in made.graph.node) == 12
    assert not any(
        n.op_type == "Attention" for n in onnxgrad.optimize(model, verify=False).graph.node
    )
