"""onnxgrad/grad/checking/same_outputs.py: outputs that a gradient graph shares with the model are the model's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad import check_gradient
from onnxgrad.errors import NotProved
from onnxgrad.grad.checking import check
from onnxgrad.grad.checking.report import TOO_SMALL
from onnxgrad.grad.checking.same_outputs import same_outputs
from tests.helpers import parse

TEXT = """g (float[N,4] x) => (float[N,4] o, int64[N,4] k, float s) {
  t = Tanh (x) o = Mul (t, t) f = Floor (x) k = Cast <to = 7> (f) s = ReduceSum <keepdims = 0> (o) }"""


def test_another_output_than_that_of_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(TEXT)
    assert check_gradient(model, "x", "s").ok
    formed: Any = check.Check.__post_init__

    def wrong(self: Any) -> None:
        formed(self)
        (node,) = (n for n in self.graph.graph.node if n.op_type == "Floor")
        node.op_type = "Ceil"

    monkeypatch.setattr(check.Check, "__post_init__", wrong)
    with pytest.raises(NotProved, match="another output 'k'"):
        check_gradient(model, "x", "s")


def test_rounding_is_looked_at_in_float64() -> None:
    one, other = {"y": np.array([1.0, 2.0])}, {"y": np.array([1.0, 2.1])}
    same_outputs(one, other, 1e-4, lambda names: (other, other))
    same_outputs(one, one, 1e-4, lambda names: pytest.fail("they are equal"))
    with pytest.raises(NotProved, match="'y'"):
        same_outputs(one, other, 1e-4, lambda names: (one, other))
    with pytest.raises(NotProved, match="'y'"):
        same_outputs({"y": np.array([np.nan, 2.0])}, one, 1e-4, lambda names: ({"y": np.array([np.nan, 2.0])}, one))  # fmt: skip


def test_a_loss_that_rounding_makes_0() -> None:
    """The loss of a label that is certain is 0 in float32."""
    model = parse("""g (float[N,3] x, int64[N] t) => (float l) {
      l = SoftmaxCrossEntropyLoss (x, t) }""")
    certain = {"x": np.float32([[30, 0, 1]]), "t": np.array([0])}
    (value,) = check_gradient(model, "x", "l", inputs=certain).values
    assert (value.judged, value.why) == (False, TOO_SMALL)
    likely = {"x": np.float32([[12, 0, 1]]), "t": np.array([0])}
    assert check_gradient(model, "x", "l", inputs=likely).ok
    wrong = {"x": np.float32([[0, 30, 1]]), "t": np.array([0])}
    assert check_gradient(model, "x", "l", inputs=wrong).ok
