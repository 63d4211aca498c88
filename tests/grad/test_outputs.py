"""The outputs of a gradient: one per requested value, of its own name, with its own adjoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import check_gradient, gradient, jvp
from onnxgrad.errors import InputError, NotProved
from onnxgrad.grad.checking import check
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.running import session as onnxruntime
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import run
from onnxgrad.verify.values import Feeds
from tests.grad.numeric import check_model, normal
from tests.helpers import parse

X = "float[3] a, float[3] b, float[3] c, float[3] d"

# nodes of graphs from a, b, c, d to y in which adjoints coincide
ALIKE = {
    "a sum of sums": "p = Add (a, b) q = Add (p, c) y = Tanh (q)",
    "one sum": "y = Sum (a, b, c)",
    "the seed itself": "y = Add (a, b)",
    "values that do not reach the target": "y = Neg (d)",
    "all of it": "p = Add (a, b) e = Exp (d) q = Add (p, e) y = Identity (q)",
}


@pytest.mark.parametrize("simplify", [True, False])
@pytest.mark.parametrize("nodes", ALIKE.values(), ids=ALIKE)
def test_values_that_share_an_adjoint_have_outputs_of_their_own(nodes: str, simplify: bool) -> None:
    model = parse(f"g ({X}) => (float[3] y) {{ {nodes} }}")
    graph = gradient(model, adjoint="input", simplify=simplify)
    assert [v.name for v in graph.graph.output] == ["y", "a_grad", "b_grad", "c_grad", "d_grad"]
    check_model(model, {n: normal(3, seed=i) for i, n in enumerate("abcd")}, seeds=[0])


def test_a_loop_state_twice() -> None:
    """Adjoints that coincide inside a body too."""
    model = parse(
        """g (float[3] a, float[3] b, float[3] c) => (float[3] y) <int64 n = {2}> {
        y = Loop (n, "", a) <body: graph = body (int64 i, bool go, float[3] s) => (bool on, float[3] t) {
           on = Identity (go) p = Add (b, c) q = Add (s, p) t = Sin (q) }>
    }"""
    )
    check_model(model, {n: normal(3, seed=i) for i, n in enumerate("abc")}, seeds=[0])


def test_forward_mode_of_a_sum() -> None:
    model = parse(
        "g (float[3] x, float[3] b) => (float[3] y, float[3] z) { y = Add (x, b) z = Sub (x, b) }"
    )
    feeds = {
        "x": normal(3),
        "b": normal(3),
        "x_tangent": normal(3, seed=1),
        "b_tangent": normal(3, seed=2),
    }
    graph = jvp(model, target=["y", "z"])
    assert [v.name for v in graph.graph.output] == ["y", "z", "y_tangent", "z_tangent"]
    found = Reference(graph).run(feeds)
    np.testing.assert_allclose(
        found["y_tangent"], feeds["x_tangent"] + feeds["b_tangent"], rtol=1e-6
    )
    np.testing.assert_allclose(
        found["z_tangent"], feeds["x_tangent"] - feeds["b_tangent"], rtol=1e-6
    )


def test_a_name_that_is_taken_is_said() -> None:
    """With adjoint="input" the adjoint of a target's own is no longer free."""
    model = parse("g (float[3] x) => (float[3] y) { y = Sin (x) }")
    with pytest.warns(UserWarning, match="'y_grad' is taken: the gradient of 'y' is 'y_grad_2'"):
        graph = gradient(model, ["y"], adjoint="input")
    assert [v.name for v in graph.graph.output] == ["y", "y_grad_2"]
    u = normal(3)
    np.testing.assert_array_equal(run(graph, {"x": normal(3), "y_grad": u})["y_grad_2"], u)


# ---- whose fault it is --------------------------------------------------------------------------------------------


def refuse(monkeypatch: pytest.MonkeyPatch, outputs: set[int], stage: str = "run") -> None:
    """onnxruntime takes no model with so many outputs."""
    real = onnxruntime.run

    def attempt(model: onnx.ModelProto, *arguments: object, **options: object) -> object:
        if len(model.graph.output) in outputs:
            raise RunFailed(stage, "no kernel")
        return real(model, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(onnxruntime, "run", attempt)


def test_our_result_that_does_not_run_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Sin (x) }")
    refuse(monkeypatch, {2})
    with pytest.raises(
        NotProved, match="our result, does not run in onnxruntime, though the model does: no kernel"
    ):
        check_gradient(model)
    refuse(monkeypatch, {2}, "timeout")
    with pytest.raises(RunFailed, match="gave no answer"):
        check_gradient(model, inputs={"x": normal(3)})


def test_a_model_that_does_not_run_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Sin (x) }")
    refuse(monkeypatch, {1, 2})
    with pytest.raises(
        InputError, match="the model itself does not run on these inputs: no kernel"
    ):
        check_gradient(model, inputs={"x": normal(3)})


def test_a_reference_that_computes_something_else_judges_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Differences and gradient of the one agree with each other, and say nothing about what onnxruntime computes."""
    model = parse("g (float[3] x) => (float[3] y) { y = Sin (x) }")

    class Wrong(Float64):
        def run(self, feeds: Feeds, **options: Any) -> dict[str, Any]:
            return {
                n: v + feeds["x"] if n == "y" else v
                for n, v in super().run(feeds, **options).items()
            }

    monkeypatch.setattr(check, "Float64", Wrong)
    with pytest.raises(
        NotProved, match="onnxruntime and the float64 reference compute another 'y'"
    ):
        check_gradient(model)
