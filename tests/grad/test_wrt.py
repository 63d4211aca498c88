"""onnxgrad/grad/wrt.py: what is asked for, and every error of it in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxgrad import check_gradient, gradient
from onnxgrad.errors import InputError
from onnxgrad.grad import differentiate
from onnxgrad.ir.load import load
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal
from tests.helpers import parse

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3] x, float[3] y, int64[2] n) => (float[2,4] h, float s, int64[2] k)
<float[4] b = {1, 2, 3, 4}, float[1] scale = {2}, float[3] unused = {1, 2, 3}, int64[2] at = {0, 1}>
{
  c = Constant <value = float[3] {1, 2, 3}> ()
  p = MatMul (x, w)
  h = Add (p, b)
  e = Mul (h, scale)
  f = Add (y, c)
  t = ReduceSum <keepdims = 0> (e)
  r = ReduceSum <keepdims = 0> (f)
  s = Add (t, r)
  k = Add (n, at)
}"""


def model() -> onnx.ModelProto:
    found = onnx.parser.parse_model(TEXT)
    found.graph.initializer.append(numpy_helper.from_array(np.ones((3, 4), np.float32), "w"))
    return found


def asked(**options: Any) -> list[str]:
    return [v.name for v in gradient(model(), **{"target": "s", **options}).graph.output[3:]]


def test_the_default_is_every_float_input() -> None:
    assert asked() == ["x_grad", "y_grad"]


def test_params_are_weights_that_reach_the_target() -> None:
    assert asked(wrt="params") == ["b_grad", "scale_grad", "w_grad", "c_grad"]
    assert asked(wrt="params", target="r") == ["c_grad"]


def test_globs_prefer_inputs_and_weights() -> None:
    assert asked(wrt="[wx]") == ["x_grad", "w_grad"]
    assert asked(wrt=["?", "e"], target="s")[0] == "x_grad"
    assert asked(wrt=["p*"]) == ["p_grad"]


def test_globs_add_and_take_away() -> None:
    """Entry by entry: what is taken away may be added again."""
    everything = ["b_grad", "scale_grad", "w_grad", "c_grad"]
    assert (
        asked(wrt="params,!s*")
        == asked(wrt=["params", "!s*"])
        == [n for n in everything if n != "scale_grad"]
    )
    assert asked(wrt="params, !?, b") == ["scale_grad", "b_grad"]
    assert asked(wrt="[w,b],!b") == ["w_grad"]
    assert asked(wrt="params,x,!scale") == ["b_grad", "w_grad", "c_grad", "x_grad"]


def test_a_name_with_a_comma_or_an_exclamation_mark_is_a_name() -> None:
    found = parse("g (float x, float z) => (float y) { y = Mul (x, z) }")
    found.graph.input[0].name = found.graph.node[0].input[0] = "a,!b"
    assert [v.name for v in gradient(found, "a,!b").graph.output] == ["y", "a,!b_grad"]
    found.graph.input[1].name = found.graph.node[0].input[1] = "!z"
    assert [v.name for v in gradient(found, ["a,!b", "!z"]).graph.output] == [
        "y",
        "a,!b_grad",
        "!z_grad",
    ]


def test_targets_by_name_index_and_value() -> None:
    assert asked(target=1) == asked(target="1") == asked(target=-2) == ["x_grad", "y_grad"]
    assert asked(target="t") == ["x_grad", "y_grad"]


def test_batch_normalization_statistics_are_no_parameters() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]> m (float[2,3] x) => (float s)
    <float[3] a = {1, 2, 3}, float[3] b = {1, 2, 3}, float[3] mean = {1, 2, 3}, float[3] var = {1, 2, 3}>
    { y = BatchNormalization (x, a, b, mean, var) s = ReduceSum <keepdims = 0> (y) }"""
    graph = gradient(onnx.parser.parse_model(text), "params")
    assert [v.name for v in graph.graph.output] == ["s", "a_grad", "b_grad"]


ERRORS = [
    (
        {"target": None},
        "the model has 3 outputs (h: f32[2,4], s: f32[], k: i64[2]): choose the target",
    ),
    ({"target": "sum"}, "target 'sum' is not a value of the model"),
    ({"target": 3}, "target index 3 is out of range"),
    ({"target": -4}, "target index -4 is out of range"),
    (
        {"target": 0, "adjoint": "ones"},
        "target 'h' is f32[2,4], not a scalar: name a part, such as 'h[:,0]', which is summed, or",
    ),
    ({"target": "k"}, "target 'k' is i64[2], not a floating-point tensor"),
    ({"target": ["s", "s"]}, "target 's' is given twice"),
    ({"target": []}, "no target given"),
    (
        {"wrt": "X"},
        "wrt 'X' is not a value of the model (did you mean 'x'?); its inputs are x, y, n, and `print(",
    ),
    ({"wrt": "scal"}, "(did you mean 'scale'?)"),
    ({"wrt": ["x", "x"]}, "'x' is given twice in wrt"),
    ({"wrt": "n"}, "wrt 'n' is i64[2], not a floating-point tensor"),
    ({"wrt": "q*"}, "wrt 'q*' matches no floating-point value of the model; there are "),
    ({"wrt": []}, "wrt names nothing"),
    ({"wrt": "params,!q*"}, "wrt '!q*' takes nothing away"),
    ({"wrt": "params,!x"}, "wrt '!x' takes nothing away"),
    ({"wrt": "!x"}, "wrt '!x' takes nothing away"),
    ({"wrt": "params,!*"}, "wrt leaves nothing"),
    ({"wrt": "x,"}, "wrt '' is not a value of the model"),
    ({"adjoint": "twos"}, "adjoint must be one of auto, ones, input, not"),
    ({"names": "grad"}, "names must hold {} once"),
]


@pytest.mark.parametrize(("options", "message"), ERRORS, ids=[m[:30] for _, m in ERRORS])
def test_errors_name_what_they_found_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as e:
        gradient(model(), **{"target": "s", **options})
    assert message in str(e.value)
    assert "\n" not in str(e.value)


def test_a_model_of_integers() -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]> m (int64[2] x) => (int64[2] y) { y = Add (x, x) }'
    with pytest.raises(InputError, match=r"target 'y' is i64\[2\]"):
        gradient(onnx.parser.parse_model(text))


def test_no_float_input() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]> m (int64[2] x) => (float s) <float[3] w = {1, 2, 3}>
    { y = Gather (w, x) s = ReduceSum <keepdims = 0> (y) }"""
    parsed = onnx.parser.parse_model(text)
    with pytest.raises(
        InputError, match=r"no floating-point input \(inputs: x: i64\[2\]\).*wrt=\"params\""
    ):
        gradient(parsed)
    assert [v.name for v in gradient(parsed, "params").graph.output] == ["s", "w_grad"]


def test_a_value_inside_a_nested_graph_is_named_as_such() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]> m (float[2] x, bool c) => (float s) {
      y = If (c) <then_branch = a () => (float[2] t) { t = Exp (x) },
                  else_branch = b () => (float[2] u) { u = Sin (x) }>
      s = ReduceSum <keepdims = 0> (y) }"""
    with pytest.raises(InputError, match=r"'t' is not a value of the model.*local to then_branch"):
        gradient(onnx.parser.parse_model(text), "t")


def test_a_weight_that_no_reader_moves_by_is_none() -> None:
    """What is wrong, and where to look."""
    message = r"no weight that reaches the target: 'table' is none \(.*whole numbers\); `onnxgrad.weights\(model\)`"
    text = "g (float[8] x) => (float s) <float[8] table = {0,1,2,3,4,5,6,7}> { y = Mul (x, table) s = ReduceSum<keepdims=0> (y) }"
    with pytest.raises(InputError, match=message):
        gradient(parse(text), "params")
    assert [v.name for v in gradient(parse(text), "table").graph.output] == ["s", "table_grad"]


def test_seed_input_takes_any_shape() -> None:
    graph = gradient(model(), ["x"], "h", adjoint="input")
    assert graph.graph.input[-1].name == "h_grad"
    assert [d.dim_value for d in graph.graph.input[-1].type.tensor_type.shape.dim] == [2, 4]


def test_weights_inside_branches_are_parameters() -> None:
    """Both branches call their weight w: two weights. Constants of a body count too, numbers without an axis do not."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,3] x, bool c) => (float[2,4] y) {
      y = If (c) <
        then_branch: graph = t () => (float[2,4] p) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { p = MatMul (x, w) },
        else_branch: graph = e () => (float[2,4] q) <float[3,4] w = {2,0,1,0,1,0,1,0,1,0,1,0}, float s = {3.0}> {
          b = Constant <value = float[4] {1,2,3,4}> ()  h = MatMul (x, w)  o = Add (h, b)  q = Mul (o, s) }>
    }""")
    report = check_gradient(model, "params", inputs={"c": np.array(False)})
    assert report.ok and len(report.values) == 3
    assert sorted(c.name.split("_")[0] for c in report.values) == ["b", "w", "w"]
    graph = gradient(model, ["b", "s"], adjoint="input")
    assert [v.name for v in graph.graph.output] == ["y", "b_grad", "s_grad"]
    onnx.checker.check_model(graph, full_check=True)


@pytest.mark.parametrize("stored", ["initializer", "Constant"])
@pytest.mark.parametrize("wrt", ["x", "w", "params"])
def test_a_weight_that_a_nested_graph_returns(stored: str, wrt: str) -> None:
    """The weight moves to the main graph with its name, so the output needs another."""
    made = "w = Constant <value = float[1,3] {1, -2, 3}> ()" if stored == "Constant" else ""
    kept = "" if made else "<float[1,3] w = {1, -2, 3}>"
    for node in (
        f"z = If (c) <then_branch = t () => (float[1,3] w) {kept} {{ {made} }},"
        " else_branch = e () => (float[1,3] q) { q = Sin (x) }> y = Mul (z, x)",
        "n = Constant <value_ints = [3]> () m = Squeeze (n) y, z = Loop (m, c, x) <body = b (int64 i, bool go,"
        f" float[1,3] s) => (bool on, float[1,3] t, float[1,3] w) {kept} {{ {made} on = Identity (go) t = Mul (s, w) }}>",
    ):
        model = parse(f"g (float[1,3] x, bool c) => (float[1,3] y) {{ {node} }}")
        graph = gradient(model, wrt, "y", adjoint="input")
        x, ones, w = np.array([[0.5, 1, 2]], "f"), np.ones((1, 3), "f"), np.array([[1.0, -2, 3]])
        found = run(graph, {"x": x, "c": np.array(True), "y_grad": ones})
        by_x, by_w = (w, x) if "If" in node else (w**3, 3 * w**2 * x)
        name, expected = ("x", by_x) if wrt == "x" else ("w", by_w)
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=1e-6)


def test_the_seed_of_a_target_that_a_call_gives_goes_by_the_targets_name() -> None:
    """The call is opened, so that another value takes the target's place."""
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    body = helper.make_node("Relu", ["a"], ["b"])
    opsets = [helper.make_opsetid("", 20)]
    model.functions.append(helper.make_function("f", "F", ["a"], ["b"], [body], opsets))
    model.opset_import.add(domain="f", version=1)
    model.graph.node[0].op_type, model.graph.node[0].domain = "F", "f"
    assert differentiate(load(model), adjoint="input").seeds == {"y": "y_grad"}
    assert check_gradient(model).ok


@pytest.mark.parametrize("target", ["9" * 5000, "-" + "9" * 5000, "²", "--1", "٣"])
def test_what_looks_like_an_index_and_is_none(target: str) -> None:
    with pytest.raises(InputError, match="is not a value of the model"):
        gradient(parse("g (float x) => (float y) { y = Sin (x) }"), target=target)


# an input, one made in between, one with elements of several shapes; the last element of s is read by nobody
MODEL = """g (seq(float[3]) s, float[5] x, int64[2] parts, seq(int64) n) => (float l) {
    i = Constant <value_int = 1> ()
    j = Constant <value_int = 0> ()
    a = SequenceAt (s, i)
    b = SequenceAt (s, j)
    q = Mul (a, b)
    p = SplitToSequence (x, parts)
    d = SequenceAt (p, i)
    e = Sin (d)
    f = ReduceSum <keepdims = 0> (e)
    h = ReduceSum <keepdims = 0> (q)
    l = Mul (f, h)
}"""
FEEDS = {
    "s": [normal(3, seed=i) for i in range(3)],
    "x": normal(5),
    "parts": np.array([2, 3]),
    "n": [np.array(1)],
}


def test_the_gradient_of_a_sequence_is_one() -> None:
    graph = gradient(parse(MODEL), ["s", "p"])
    onnx.checker.check_model(graph)
    found = run(graph, FEEDS)
    a, b, d = FEEDS["s"][1], FEEDS["s"][0], FEEDS["x"][2:]
    f, h = np.sin(d).sum(), (a * b).sum()
    for got, expected in zip(found["s_grad"], [f * a, f * b, np.zeros(3)], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
    for got, expected in zip(found["p_grad"], [np.zeros(2), h * np.cos(d)], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_every_float_input_means_sequences_too_and_zero_is_a_sequence_of_zeros() -> None:
    graph = gradient(parse(MODEL))
    assert [v.name for v in graph.graph.output] == ["l", "s_grad", "x_grad"]
    cut = MODEL.replace("SequenceAt (s, i)", "Identity (c)").replace(
        "SequenceAt (s, j)", "Identity (c)"
    )
    cut = cut.replace("{", "{ c = Constant <value_floats = [1.0, 2.0, 3.0]> ()", 1)
    with pytest.warns(UserWarning, match="no requested value reaches"):
        unreached = gradient(parse(cut), ["s"])
    assert [list(v) for v in run(unreached, FEEDS)["s_grad"]] == [[0.0] * 3] * 3


def test_the_numeric_check_moves_every_element() -> None:
    report = check_gradient(parse(MODEL), ["s", "p", "x"], inputs=FEEDS)
    assert report.ok and [v.name for v in report.values] == ["s", "p", "x"]
    assert all(v.judged and v.gradient != 0 for v in report.values)


def test_a_sequence_of_integers_is_refused() -> None:
    with pytest.raises(InputError, match=r"wrt 'n' is seq\(i64\[\]\), not a floating-point tensor"):
        gradient(parse(MODEL), ["n"])
