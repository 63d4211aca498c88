"""The first difference of two exports is named; names alone are none."""

from __future__ import annotations

import pytest

from onnxgrad import optimize
from onnxgrad.errors import InputError
from onnxgrad.jobs.rebasing.architecture import are_equal, same_places
from tests.helpers import parse

TEXT = """g (float[N,2] x, bool c) => (float[N,2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> {
  p = LeakyRelu <alpha = 0.25> (x)
  q = If (c) <then_branch = t () => (float[N,2] u) <float[2] w = {1, 2}> { u = Add (p, w) },
              else_branch = e () => (float[N,2] v) { v = Mul (p, b) }>
  y = Add (q, a) }"""


def test_equality() -> None:
    """Values of initializers and descriptions of nodes make no difference; all else does."""
    model = parse(TEXT)
    weights = parse(TEXT.replace("float[2] b = {3, 4}", "float[2] b = {5, 6}"))
    weights.graph.node[0].doc_string = "text"
    weights.graph.node[1].metadata_props.add(key="stack", value="line 3")
    assert are_equal(model, weights)
    for old, new in (
        ("0.25", "0.5"), ("Mul", "Div"), ("(q, a)", "(a, q)"), ("[N,", "[M,"), (" w", " k"),
        ("y = Add (q, a)", "z = Add (q, a)  y = Neg (z)"), ("float[2] a", "float[2] bias"),
    ):  # fmt: skip
        assert not are_equal(model, parse(TEXT.replace(old, new)))
    assert not are_equal(model, parse(TEXT, opset=21))
    weights.ir_version += 1
    assert not are_equal(model, weights)


def test_equality_of_nested_graphs() -> None:
    """As `optimize` records them: without descriptions, and without the values of weights."""
    original = optimize(parse(TEXT), rebasable=True, report=True, verify=False).record.original
    trained = parse(TEXT.replace("float[2] w = {1, 2}", "float[2] w = {5, 6}"))
    inner = trained.graph.node[1].attribute[0].g.node[0]
    inner.doc_string = "text"
    inner.metadata_props.add(key="stack", value="line 3")
    assert are_equal(original, trained)
    inner.op_type = "Sub"
    assert not are_equal(original, trained)


def test_places() -> None:
    other = (
        TEXT.replace("p =", "r =")
        .replace("(p,", "(r,")
        .replace(" w", " k")
        .replace("float[2] a", "float[2] bias")
    )
    other = other.replace("(q, a)", "(q, bias)").replace("[N,", "[batch,")
    other = other.replace(
        "<float[2] bias = {1, 2}, float[2] b = {3, 4}>",
        "<float[2] b = {3, 4}, float[2] bias = {1, 2}>",
    )
    found = same_places(parse(TEXT), parse(other))
    assert found == {"w": ["k"], "b": ["b"], "a": ["bias"]}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("LeakyRelu <alpha = 0.25>", "Elu <alpha = 0.25>", r"node 0 of the graph, Elu '' is LeakyRelu '' in the original"),
        ("alpha = 0.25", "alpha = 0.5", "node 0 of the graph, LeakyRelu '': 'alpha' has another value"),
        ("v = Mul (p, b)", "v = Div (p, b)", "node 0 of 'else_branch' of node 1 of the graph"),
        ("y = Add (q, a)", "z = Add (q, a)  y = Neg (z)", "the graph has 4 nodes, the original 3"),
        ("y = Add (q, a)", "y = Add (a, q)", "reads 'a' where the original reads 'q'"),
        ("float[N,2] x", "float[N,3] x", "input 'x' has another type than 'x'"),
        ("(float[N,2] x, bool c)", "(float[N,2] x, bool c, float d)", "the graph has 3 inputs, the original 2"),
        ("<alpha = 0.25>", "", "only one of the two has alpha"),
    ],
)  # fmt: skip
def test_differences(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(InputError, match="another architecture: ") as refused:
        same_places(parse(TEXT), parse(TEXT.replace(old, new)))
    assert message in str(refused.value)


def test_other_opsets_and_functions() -> None:
    with pytest.raises(InputError, match="the default domain has opset 21, the original 20"):
        same_places(parse(TEXT), parse(TEXT, opset=21))
    calls = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[2] x) => (float[2] y) { y = my.f (x) }
    <domain: "my", opset_import: ["" : 20]> f (a) => (b) { b = Neg (a) }"""
    assert same_places(parse(calls), parse(calls)) == {}
    with pytest.raises(InputError, match="a local function differs"):
        same_places(parse(calls), parse(calls.replace("Neg", "Abs")))


def test_what_differs_is_counted_and_its_cause_named() -> None:
    """An export beside a model that was joined before it was optimised."""
    model = parse("g (float[N,2] x, float[N,2] z) => (float[N,2] y) { y = Add (x, z) }")
    other = parse("g (float[N,2] x) => (float[N,2] y) { y = Neg (x) }")
    with pytest.raises(
        InputError, match="the graph has 1 input, the original 2; if commands changed"
    ):
        same_places(model, other)
    longer = parse("g (float[N,2] x) => (float[N,2] y) { t = Neg (x) y = Exp (t) }")
    with pytest.raises(InputError, match=r"has 1 node, the original 2; .*\(join, edit, preprocess"):
        same_places(longer, other)
