"""SPEC, added after a second reading, S2: `gradient` as a pass among passes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError, NotProved
from onnxgrad.grad import vjp
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal
from tests.helpers import parse

MODEL = """g (float[4,3] x, float[3,2] w) => (float loss) {
    one = Constant <value_float = 1.0> ()
    m = Mul (x, one)
    h = MatMul (m, w)
    t = Tanh (h)
    u = Tanh (h)
    q = Mul (t, u)
    loss = ReduceSum <keepdims = 0> (q)
}"""
FEEDS = {"x": normal(4, 3), "w": normal(3, 2, seed=1)}


def test_no_constant_is_computed_from_a_weight() -> None:
    """Nor in a pass of optimize, which notes the weights whose values rewrites read."""
    model = parse(
        MODEL.replace(
            ", float[3,2] w) => (float loss)",
            ") => (float loss) <float[3,2] w = {1, 2, 3, 4, 5, 6}>",
        )
    )
    found = onnxgrad.optimize(model, passes="gradient{target=loss,wrt=x}", verify=False)
    assert "Transpose" in {n.op_type for n in found.graph.node}
    assert [t.name for t in found.graph.initializer if t.dims in ([3, 2], [2, 3])] == ["w"]


def test_between_other_passes() -> None:
    """What is before it cleans the model up, what is after it the gradient; both are proved."""
    found = onnxgrad.optimize(
        parse(MODEL),
        passes="remove-noops,merge-equal,gradient{target=loss,wrt=w x},merge-equal,remove-unused",
    )
    assert [v.name for v in found.graph.output] == ["loss", "w_grad", "x_grad"]
    ops = [n.op_type for n in found.graph.node]
    assert ops.count("Tanh") == 1 and ops.count("MatMul") == 3
    expected = run(onnxgrad.gradient(parse(MODEL), ["w", "x"]), FEEDS)
    got = run(found, FEEDS)
    for name in ("loss", "w_grad", "x_grad"):
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-5)


def test_the_command_line(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    from onnxgrad.cli.app import main

    source, target = f"{tmp_path}/m.onnx", f"{tmp_path}/g.onnx"
    onnx.save(parse(MODEL), source)
    assert (
        main(["optimize", source, "--passes", "gradient{target=loss;adjoint=input}", "-o", target])
        == 0
    )
    found = onnx.load(target)
    assert [v.name for v in found.graph.input] == ["x", "w", "loss_grad"]
    assert [v.name for v in found.graph.output] == ["loss", "x_grad", "w_grad"]


def test_stop_and_taking_away() -> None:
    found = onnxgrad.optimize(parse(MODEL), passes="gradient{target=loss,wrt=x w !w,stop=t}")
    expected = run(onnxgrad.gradient(parse(MODEL), "x", stop="t"), FEEDS)
    assert [v.name for v in found.graph.output] == ["loss", "x_grad"]
    np.testing.assert_allclose(run(found, FEEDS)["x_grad"], expected["x_grad"], rtol=1e-5)


def test_options_and_what_cannot_be() -> None:
    passes = Pipeline.of(passes="gradient{target=loss,checkpoint=auto,wrt=params}").passes
    assert passes[0].wrt == "params"  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="'nothing' is not a value"):
        onnxgrad.optimize(parse(MODEL), passes="gradient{target=nothing}", verify=False)
    with pytest.raises(InputError, match="needs opset 18"):
        onnxgrad.optimize(parse(MODEL, opset=17), passes="gradient{target=loss}", verify=False)
    twice = "gradient{target=loss,wrt=x},gradient{target=x_grad,wrt=w,adjoint=input}"
    found = onnxgrad.optimize(parse(MODEL), passes=twice, verify=False)
    assert [v.name for v in found.graph.output] == ["loss", "x_grad", "w_grad"]


def test_a_wrong_rule_is_not_proved() -> None:
    vjp("my.wrong::Twice", lambda g, y, x: g)
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "my.wrong" : 1]>
        g (float x) => (float y) { a = my.wrong.Twice (x) y = Sin (a) }
        <domain: "my.wrong", opset_import: ["" : 21]> Twice (a) => (b) { b = Add (a, a) }"""
    )
    with pytest.raises(NotProved, match="nothing was written"):
        onnxgrad.optimize(model, passes="gradient{target=y}")
