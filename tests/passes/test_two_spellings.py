"""The default domain is spelled "" or "ai.onnx": what is done to a model does not depend on it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

from onnxgrad import gradient, optimize
from onnxgrad.jobs.inspection.differences import diff
from onnxgrad.verify import feeds_for, run
from onnxgrad.verify.reference.evaluate import Reference
from tests.helpers import parse

RELU = "g (float[2,3] x) => (float[2,3] y) { a = Relu(x) t = Transpose<perm=[0,1]>(a) b = Exp(t) s = Shape(b) y = Reshape(b, s) }"
BRANCHES = """g (bool k, float[2] x) => (float[2] o) {
  o = If (k) <then_branch = t () => (float[2] u) { i = Identity(x) u = Neg(i) }, else_branch = f () => (float[2] v) { v = Abs(x) }> }"""


def respelled(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in (
        copy.graph.node
    ):  # onnxruntime loads nested graphs and functions in the other spelling only
        node.domain = node.domain or "ai.onnx"
    for entry in copy.opset_import:
        entry.domain = entry.domain or "ai.onnx"
    return copy


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(
        node.op_type
        for nodes in (model.graph.node, *(f.node for f in model.functions))
        for node in nodes
    )


def assert_runs_alike(model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    feeds = feeds_for(model, seed=0)
    want, got = run(model, feeds), run(other, feeds)
    assert {name: value.tobytes() for name, value in want.items()} == {
        n: v.tobytes() for n, v in got.items()
    }


@pytest.mark.parametrize("text", [RELU, BRANCHES])
@pytest.mark.parametrize("passes", ["outline", "outline,inline", None])
def test_passes(text: str, passes: str | None) -> None:
    model = parse(text)
    plain, other = optimize(model, passes=passes), optimize(respelled(model), passes=passes)
    assert kinds(plain) == kinds(other)
    assert_runs_alike(plain, other)


def test_groups_that_differ_in_spelling_share_a_function() -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Relu(y) }")
    model.graph.node[1].domain = "ai.onnx"
    assert len(optimize(model, passes="outline{max_size=1}").functions) == 1


def test_reference_and_diff() -> None:
    model = parse(RELU)
    feeds = feeds_for(model, seed=0)
    assert (
        Reference(respelled(model)).run(feeds)["y"].tobytes()
        == Reference(model).run(feeds)["y"].tobytes()
    )
    found = diff(model, respelled(model))
    assert not found.replaced and not found.model


@pytest.mark.parametrize("name", ["training/mlp", "mobilenet_v2.raw"])
def test_models(name: str, models_dir: Path) -> None:
    model = onnx.load(models_dir / f"{name}.onnx")
    assert kinds(optimize(model, verify=False)) == kinds(optimize(respelled(model), verify=False))
    if name.startswith("training"):
        plain, other = (gradient(m, "params", "loss") for m in (model, respelled(model)))
        assert kinds(plain) == kinds(other)
        assert_runs_alike(plain, other)
