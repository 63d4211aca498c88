"""A model with steps of `preprocess` receives the weights of an export that has none."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import ModelProto

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.jobs.rebasing.inside_steps import Inside
from tests.helpers import parse
from tests.jobs.rebasing.test_changes import NET, filled
from tests.jobs.rebasing.test_rebase import optimized

IMAGE = "image,resize{{size=[6,6]}},to-float,normalize{{mean=[{},0.4,0.3],std=[0.2,0.3,0.1]}}"
TWO = NET.replace("(float[1,4] y)", "(float[1,4] y, float[1,4] u)")


def prepared(model: ModelProto, after: Any = "softmax,top-k{k=2}", mean: float = 0.5) -> ModelProto:
    return onnxgrad.preprocess(model, before=IMAGE.format(mean), after=after, verify=False)


def at(model: ModelProto, opset: int) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(model)
    made.opset_import[0].version = opset
    return made


def test_the_part_inside() -> None:
    """Nodes, names and types of the model before its steps; an input that no step reads stays."""
    text = "g (float[1,3,6,6] x, float[1] s) => (float[1,3] y) { p = GlobalAveragePool (x) f = Flatten (p) y = Mul (f, s) }"
    model = parse(text)
    made = onnxgrad.preprocess(model, before={"x": IMAGE.format(1)}, after="softmax", verify=False)
    inside = Inside.of(load_own(made))
    assert inside is not None and Inside.of(load_own(model)) is None
    found = inside.outline(made).graph
    assert [n.op_type for n in found.node] == ["GlobalAveragePool", "Flatten", "Mul"]
    assert [v.type for v in found.input] == [v.type for v in model.graph.input]
    assert [v.type for v in found.output] == [v.type for v in model.graph.output]
    assert not found.initializer and len(made.graph.initializer) > 10


@pytest.mark.parametrize("after", ["softmax,top-k{k=2}", {"y": "softmax"}, {"u": "softmax"}])
def test_exports_with_and_without_steps(after: Any) -> None:
    """Equal to steps around the new export, optimised; heads may replace one of two outputs."""
    text = TWO if isinstance(after, dict) else NET
    first, second = filled(text, 1), filled(text, 2)
    done = optimized(prepared(first, after))
    assert done.record.weights == {"b", "k", "c", "w", "w2"}
    anew = onnxgrad.optimize(prepared(second, after), verify=False)
    assert onnxgrad.rebase(done.model, second, record=done.record) == anew != done.model
    assert onnxgrad.rebase(done.model, prepared(second, after), record=done.record) == anew


def test_steps_must_be_those_of_the_record() -> None:
    first, second = filled(NET, 1), filled(NET, 2)
    done = optimized(prepared(first), verify=False)
    with pytest.raises(InputError, match="has other values: it is no weight, but a change of"):
        onnxgrad.rebase(done.model, prepared(second, mean=0.7), record=done.record)


@pytest.mark.parametrize(("old", "new"), [(11, 11), (20, 17), (17, 20), (11, 20)])
def test_another_opset(old: int, new: int) -> None:
    """An export is converted to the opset of the original, which steps may have raised to 13."""
    done = optimized(prepared(at(filled(NET, 1), old)), verify=False)
    found = onnxgrad.rebase(done.model, at(filled(NET, 2), new), record=done.record)
    assert found == onnxgrad.optimize(prepared(at(filled(NET, 2), old)), verify=False)
