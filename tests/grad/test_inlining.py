"""onnxgrad/grad/inlining.py: bodies that are registered for operators without a schema."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad import body, check_gradient, gradient
from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.verify.running.session import run

HEADER = '<ir_version: 10, opset_import: ["": 21, "my": 1, "com.microsoft": 1]>'


def parse(graph: str, functions: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEADER} {graph} {functions}")


def ops_of(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def test_a_registered_body_is_differentiated_in_the_operators_place() -> None:
    def weighted(
        x: Var, other: Var | None, *, weight: float = 3.0, power: int = 2, binding: Binding
    ) -> Var:
        assert binding.op == "Weighted"
        y = x * weight if power == 1 else x * x * weight
        return y if other is None else y + other

    body("my::Weighted", weighted)
    model = parse(
        "g (float[2] x, float[2] z) => (float[2] y) { y = my.Weighted <weight = 5.0> (x, z) }"
    )
    graph = gradient(model, adjoint="input")
    assert "Weighted" not in ops_of(graph)
    x, seed = np.array([1.0, -2.0], np.float32), np.array([1.0, 10.0], np.float32)
    found = run(graph, {"x": x, "z": x, "y_grad": seed})
    np.testing.assert_allclose(found["y"], 5 * x * x + x)
    np.testing.assert_allclose(found["x_grad"], 10 * x * seed)
    np.testing.assert_allclose(found["z_grad"], seed)
    model = parse("g (float[2] x) => (float[2] y) { y = my.Weighted <power = 1> (x) }")
    np.testing.assert_allclose(
        run(gradient(model, adjoint="input"), {"x": x, "y_grad": seed})["x_grad"], 3 * seed
    )


def test_a_call_that_no_gradient_passes_stays() -> None:
    graph = gradient(
        parse(
            "g (float[2] x, float[2] c) => (float[2] y) { d = com.microsoft.Gelu (c) y = Mul (x, d) }"
        ),
        ["x"],
        adjoint="input",
    )
    assert (
        ops_of(graph).count("Gelu") == 1
        and next(n for n in graph.graph.node if n.op_type == "Gelu").domain
    )


def test_an_output_that_the_body_does_not_compute() -> None:
    body("my::Two", lambda x: (x + x, None))
    model = parse("g (float[2] x) => (float[2] y) { a, b = my.Two (x) y = Add (a, b) }")
    with pytest.raises(InputError, match=r"the body of my::Two does not compute 'b' of"):
        gradient(model, adjoint="input")
    model = parse("g (float[2] x) => (float[2] y) { y, = my.Two (x) }")
    assert "Two" not in ops_of(gradient(model, adjoint="input"))


def test_a_body_that_returns_its_operand() -> None:
    body("my::Same", lambda x: x)
    graph = gradient(parse("g (float[2] x) => (float[2] y) { y = my.Same (x) }"), adjoint="input")
    ones = np.ones(2, np.float32)
    assert [v.name for v in graph.graph.output] == ["y", "x_grad"]
    np.testing.assert_array_equal(run(graph, {"x": ones, "y_grad": 4 * ones})["x_grad"], 4 * ones)


def test_the_models_own_function_goes_first() -> None:
    body("my::Same", lambda x: op.Neg(x))
    function = '<domain: "my", opset_import: ["": 21]> Same (x) => (y) { y = Exp (x) }'
    graph = gradient(
        parse("g (float[2] x) => (float[2] y) { y = my.Same (x) }", function), adjoint="input"
    )
    assert "Exp" in ops_of(graph) and "Neg" not in ops_of(graph)


def test_types_flow_through_what_onnx_cannot_type() -> None:
    """No value between the calls has a type in the file, and ReduceMean's rule needs its operand's."""
    model = parse(
        "g (float[2,3] x, float[3] w) => (float[2,1] y) <int64[1] last = {-1}> { a = com.microsoft.Gelu (x) "
        "b = Sub (a, x) c = com.microsoft.SkipLayerNormalization (b, x, w) d = com.microsoft.QuickGelu (c) "
        "y = ReduceMean (d, last) }"
    )
    graph = gradient(model, adjoint="input")
    assert {n.domain for n in graph.graph.node} == {""}
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = run(graph, {"x": x, "w": np.ones(3, np.float32), "y_grad": np.ones((2, 1), np.float32)})
    assert found["x_grad"].shape == (2, 3) and np.isfinite(found["x_grad"]).all()


def test_a_name_is_taken_once() -> None:
    with pytest.raises(InputError, match=r"com.microsoft::Gelu has a gradient rule already"):
        body("com.microsoft::Gelu", lambda x: x)
    body("com.microsoft::Gelu", lambda x: op.Neg(x), replace=True)
    graph = gradient(
        parse("g (float[2] x) => (float[2] y) { y = com.microsoft.Gelu (x) }"), adjoint="input"
    )
    assert set(ops_of(graph)) == {"Neg"}


@pytest.mark.parametrize(
    ("node", "functions"),
    [
        ("GroupNormalization <num_groups = 2> (x, s, b)", ""),
        ("my.F (x, s, b)", """<opset_import: ["": 21], domain: "my"> F (x, s, b) => (y) {
            axes = Constant <value_ints = [1]> () t = Neg (s) n = Unsqueeze (t, axes)
            m = Unsqueeze (b, axes) p = Mul (x, n) y = Add (p, m) }"""),
    ],
)  # fmt: skip
def test_weights_that_a_body_computes_from_are_not_folded(node: str, functions: str) -> None:
    model = parse(
        "g (float[2,4,5] x, float[2,4,5] u) => (float z) <float[4] s = {1, 2, 3, 4}, "
        f"float[4] b = {{0.5, 1, 2, 3}}> {{ y = {node} p = Mul (y, u) z = ReduceSum (p) }}",
        functions,
    )
    assert check_gradient(model, "params", "z")
    assert check_gradient(model, ["s", "b", "x"], "z")
