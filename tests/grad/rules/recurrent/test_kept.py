"""GRU and LSTM replaced by a Scan that keeps their gates: the same numbers forward and back, for every form that it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import gradient
from onnxgrad.grad.rules.recurrent import _gates
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, check_op, normal, op_model, operators
from tests.grad.rules.recurrent.test_rnn import B, H, T, feeds_of, node_of, operands_of
from tests.helpers import parse

FORMS = {
    "LSTM": ("LSTM", {}),
    "coupled LSTM": ("LSTM", {"input_forget": 1}),
    "GRU": ("GRU", {}),
    "GRU that resets after the product": ("GRU", {"linear_before_reset": 1}),
}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little work there is."""
    monkeypatch.setattr(_gates, "_WORTH", 0)


def replaced(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """The gradient of a model, in which no operator of its kind is left."""
    graph = gradient(model, adjoint="input", **options)
    assert not {"GRU", "LSTM"} & set(operators(graph))
    return graph


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_forms_and_directions(form: str, direction: str) -> None:
    kind, attributes = FORMS[form]
    feeds = feeds_of(kind, 2 if direction == "bidirectional" else 1)
    node = node_of(kind, operands_of(kind), direction=direction, **attributes)
    check_op(node, feeds, symbolic=direction == "forward", seeds=(0,))
    model = op_model(node, feeds)
    graph = replaced(model, target="y")
    own = run(model, feeds)
    found = run(graph, {**feeds, "y_grad": own["y"]})
    for name, value in own.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("form", FORMS)
def test_without_optional_operands_and_with_one_step(form: str) -> None:
    kind, attributes = FORMS[form]
    for steps in (1, T):
        feeds = feeds_of(kind, steps=steps)
        given = {n: feeds[n] for n in "xwr"}
        check_op(node_of(kind, "x, w, r", **attributes), given, symbolic=False, seeds=(0,))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_batch_first(kind: str) -> None:
    feeds = feeds_of(kind, 2, layout=1)
    node = node_of(kind, operands_of(kind), direction="bidirectional", layout=1)
    check_op(node, feeds, symbolic=False, onnxruntime=False, seeds=(0,))
    replaced(op_model(node, feeds), target="y")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_other_activations_whose_slope_follows_from_their_value(kind: str) -> None:
    names = ["HardSigmoid", "Relu", "Tanh"][: 3 if kind == "LSTM" else 2]
    node = node_of(kind, operands_of(kind), activations=names)
    check_op(node, feeds_of(kind), symbolic=False, seeds=(0,))
    replaced(op_model(node, feeds_of(kind)), target="y")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_float64(kind: str) -> None:
    feeds = {n: v.astype(np.float64) for n, v in feeds_of(kind).items()}
    node = node_of(kind, operands_of(kind))
    check_op(node, feeds, symbolic=False, seeds=(0,), rtol=1e-6)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives(form: str) -> None:
    kind, attributes = FORMS[form]
    feeds = feeds_of(kind, steps=2)
    model = op_model(node_of(kind, operands_of(kind), **attributes), feeds, symbolic=True)
    first = replaced(model, wrt=["x", "r", "h"], target="y")
    given = {**feeds, "y_grad": normal(2, 1, B, H, seed=7)}
    check_model(first, given, ["x", "r", "y_grad"], target=["x_grad", "r_grad"], seeds=(0,))


@pytest.mark.parametrize("checkpoint", [None, "auto", ["h"], ["p"]])
def test_in_a_stack_with_and_without_checkpoints(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where gates are computed again; values keep their names, one that is asked for too."""
    model = parse("""g (float[3,2,4] x, float[1,16,4] w, float[1,16,4] r, float[1,12,4] u, float[1,12,4] s) => (float y) {
        p = Tanh (x)
        h, last = LSTM <hidden_size = 4> (p, w, r)
        one = Constant <value_ints = [1]> ()
        q = Squeeze (h, one)
        k = GRU <hidden_size = 4, linear_before_reset = 1> (q, u, s)
        e = Exp (k)
        y = ReduceSum <keepdims = 0> (e)
    }""")
    feeds = {
        v.name: normal(*(d.dim_value for d in v.type.tensor_type.shape.dim), seed=i)
        for i, v in enumerate(model.graph.input)
    }
    wrt = [*feeds, "h", "p"]
    expected = run(gradient(model, wrt), feeds)
    monkeypatch.setattr(_gates, "_WORTH", 0)
    graph = gradient(model, wrt, checkpoint=checkpoint)
    if checkpoint is None:
        assert not {"GRU", "LSTM"} & set(operators(graph))
    assert {"h", "k"} <= {name for n in graph.graph.node for name in n.output}
    found = run(graph, feeds)
    assert list(found) == ["y", *(f"{name}_grad" for name in wrt)]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("operands", "attributes"),
    [
        ("x, w, r, b, n", {}),
        ("x, w, r, b, , h, c, p", {}),
        ("x, w, r", {"clip": 0.5}),
        ("x, w, r", {"activations": ["Sigmoid", "Softsign", "Tanh"]}),
    ],
)
def test_what_is_computed_again(operands: str, attributes: dict[str, Any]) -> None:
    """Rows that end early, peepholes, and slopes that do not follow from the gate's value."""
    feeds = {**feeds_of("LSTM", peepholes=True), "n": np.array([3, 1], np.int32)}
    given = {n: v for n, v in feeds.items() if n in operands.split(", ")}
    model = op_model(node_of("LSTM", operands, **attributes), given)
    assert "LSTM" in operators(gradient(model, ["x"], "y", adjoint="input"))


@pytest.mark.parametrize(("batch", "kept"), [(8, False), (16, True), ("B", True), (1, False)])
def test_only_where_there_is_work_enough(batch: Any, kept: bool) -> None:
    model = parse(f"""g (float[5,{batch},32] x, float[1,128,32] w, float[1,128,32] r) => (float[5,1,{batch},32] y) {{
        y = LSTM <hidden_size = 32> (x, w, r)
    }}""")
    assert ("LSTM" not in operators(gradient(model, adjoint="input"))) == kept
