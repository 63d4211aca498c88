"""Random models with sizes that depend on data, control flow and functions, through every preset: see the sweep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.laws.simplify_inference import batch_norm
from scripts.sweep_rewrites import sweep
from scripts.sweeping.rewrites import Judge
from scripts.sweeping.shrink import save_failure, shrink
from tests.helpers import parse


def test_a_few_random_models() -> None:
    counts, failures = sweep(20, models=25)
    assert not failures and counts["rewritings"] >= 3 * 15


@pytest.mark.slow
def test_many_random_models() -> None:
    counts, failures = sweep(21, models=500)
    assert not failures and counts["models that never run"] < 100


def test_a_wrong_rewrite_is_found_and_made_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BatchNormalization taken apart without its epsilon, in the midst of other things."""
    text = """g (float[2,3] x, float[2,3] z) => (float[2,3] y, float[2,3] u) {
      a = Relu(x) m = MatMul(a, w) b = BatchNormalization<epsilon=0.25>(m, s, s, s, s) c = Neg(b) y = Add(c, z) u = Abs(z) }"""
    model = parse(text)
    for name, array in {"w": np.eye(3), "s": np.arange(3)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    feeds = {name: np.ones((2, 3), np.float32) for name in "xz"}
    assert Judge(model, [feeds]).failure("default") is None

    monkeypatch.setitem(batch_norm.build.__globals__, "float", lambda v: float(v) / 2)
    found = Judge(model, [feeds]).failure("default")
    assert found is not None and found.kind == "results"

    def fails(smaller: onnx.ModelProto) -> bool:
        given = {v.name: feeds[v.name] for v in smaller.graph.input}
        judge = Judge(smaller, [given])
        again = judge.failure("default") if judge.cases else None
        return again is not None and again.kind == "results"

    smallest = shrink(model, fails)
    assert [n.op_type for n in smallest.graph.node][:2] == ["MatMul", "BatchNormalization"]
    assert len(smallest.graph.node) <= 3 and len(smallest.graph.output) == 1
    path = save_failure(tmp_path / "failures", "one", smallest, {"x": feeds["x"]}, found.words)
    assert onnx.load(path) == smallest and "off by" in path.with_suffix(".txt").read_text()
