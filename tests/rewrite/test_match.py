"""The pattern language: what matches, and what it captures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.grad.finish import _ALL
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import load
from onnxgrad.ir.operator_index import bindings_of
from onnxgrad.rewrite.match import fits_origins, match_binding, may_match, origins_of
from onnxgrad.rewrite.pattern import Call, Each, Literal, P, capture
from tests.helpers import parse

x, y, z, p, q, axis = capture("x y z p q axis")


def block(
    body: str,
    inputs: str = "float[2,3] a, float[2,3] b, float[2,3] c",
    outputs: str = "o",
    **options: Any,
) -> BindingBlock:
    typed = ", ".join(f"float[] {name}" for name in outputs.split())
    return load(parse(f"g ({inputs}) => ({typed}) {{ {body} }}", **options)).main


def matches(pattern: Call, main: BindingBlock) -> list[dict[str, Any]]:
    """Captures of every match at the binding that defines the first output; values by name."""
    root = main.outputs[0].definition
    assert root is not None
    return [
        {k: _plain(v) for k, v in found.items() if isinstance(k, str)}
        for found in match_binding(pattern, root)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return getattr(value, "name", value)


def test_a_capture_used_twice_stands_for_one_value() -> None:
    assert matches(P.Sub(x, x), block("o = Sub(a, a)")) == [{"x": "a"}]
    assert matches(P.Sub(x, x), block("o = Sub(a, b)")) == []


SHARED = {
    "call": P.Relu(x),
    "either": P.Relu(x) | P.Tanh(y),
    "both": P.Relu(x) & ~P.Tanh(y),
    "not": ~P.Tanh(y),
    "call with a capture of an attribute": P.any_of("Relu", "Softmax")(x),
    "inside an alternative": P.Abs(y) | P.Relu(x),
}


@pytest.mark.parametrize("kind", SHARED)
def test_a_pattern_object_used_twice_stands_for_one_value(kind: str) -> None:
    n = SHARED[kind]
    one, two = "r = Relu(a) o = Sub(r, r)", "r = Relu(a) s = Relu(b) o = Sub(r, s)"
    assert len(matches(P.Sub(n, n), block(one))) == 1
    assert matches(P.Sub(n, n), block(two)) == []
    # also below other operators, and among any number of operands
    deep = "r = Relu(a) s = Relu({}) t = Neg(s) o = Sub(r, t)".format
    assert matches(P.Sub(n, P.Neg(n)), block(deep("b"))) == []
    assert matches(P.Sub(n, P.Neg(n)), block(deep("a"))) == [], "two nodes, hence two values"
    many = "r = Relu(a) s = Relu(b) o = Concat<axis = 0>({})".format
    assert len(matches(P.Concat(n, Each(n), axis=axis), block(many("r, r, r")))) == 1
    assert matches(P.Concat(n, Each(n), axis=axis), block(many("r, r, s"))) == []


def test_a_shared_pattern_tries_the_other_order_of_a_commutative_operator() -> None:
    n = P.Relu(x)
    main = block("r = Relu(a) s = Relu(b) t = Add(s, r) o = Sub(t, r)")
    assert [m["x"] for m in matches(P.Sub(P.Add(n, y), n), main)] == ["a"]


def test_a_pattern_object_in_two_each_stands_for_one_list() -> None:
    n = P.Relu(x) | P.Tanh(x)
    pattern = P.Sub(P.Concat(Each(n), axis=0), P.Concat(Each(n), axis=0))
    body = "r = Relu(a) t = Tanh(b) u = Concat<axis=0>(r, t) v = Concat<axis=0>({}) o = Sub(u, v)"
    assert [m["x"] for m in matches(pattern, block(body.format("r, t")))] == [["a", "b"]]
    assert matches(pattern, block(body.format("t, r"))) == []
    assert matches(pattern, block(body.format("r, t, r"))) == []


def test_a_label_used_twice_names_one_binding() -> None:
    pattern = P.Sub(P.Relu(x).named("n"), P.Relu(y).named("n"))
    assert matches(pattern, block("r = Relu(a) s = Relu(b) o = Sub(r, s)")) == []
    assert len(matches(pattern, block("r = Relu(a) o = Sub(r, r)"))) == 1


def test_a_capture_used_twice_for_attributes_compares_them() -> None:
    pattern = P.Concat(P.Softmax(x, axis=axis), P.Softmax(y, axis=axis))
    same = "s = Softmax<axis=1>(a) t = Softmax<axis=1>(b) o = Concat<axis=0>(s, t)"
    assert matches(pattern, block(same)) == [{"x": "a", "y": "b", "axis": 1}]
    assert matches(pattern, block(same.replace("<axis=1>(b)", "<axis=0>(b)"))) == []


def test_commutative_operators_match_in_both_orders_and_others_do_not() -> None:
    assert matches(P.Add(P.Relu(x), y), block("r = Relu(a) o = Add(b, r)")) == [
        {"x": "a", "y": "b"}
    ]
    assert matches(P.Sub(P.Relu(x), y), block("r = Relu(a) o = Sub(b, r)")) == []
    assert [m["x"] for m in matches(P.Mul(x, y), block("o = Mul(a, b)"))] == ["a", "b"]


def test_a_commutative_name_in_another_domain_is_not_commutative() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[2] a, float[2] b) => (float[2] o) { r = Relu(a) o = my.Add(b, r) }
    <domain: "my", opset_import: ["" : 20]> Add (u, v) => (w) { w = Sub(u, v) }"""
    main = load(parse(text)).main
    assert matches(P.domain("my").Add(P.Relu(x), y), main) == []
    assert len(matches(P.domain("my").Add(y, P.Relu(x)), main)) == 1
    assert matches(P.Add(y, P.Relu(x)), main) == [], "the default domain is not this one"


def test_any_of_and_alternatives() -> None:
    main = block("r = Tanh(a) o = Neg(r)")
    assert matches(P.Neg(P.any_of("Relu", "Tanh")(x)), main) == [{"x": "a"}]
    assert matches(P.Neg(P.Relu(x) | P.Sigmoid(x) | P.Tanh(y)), main) == [{"y": "a"}]
    assert matches(P.Neg(P.Relu(x) | P.Sigmoid(x)), main) == []


def test_an_optional_node_matches_with_and_without() -> None:
    pattern = P.Neg(P.Relu(x) | x)
    assert matches(pattern, block("r = Relu(a) o = Neg(r)"))[0] == {"x": "a"}
    assert matches(pattern, block("o = Neg(a)")) == [{"x": "a"}]


def test_each_takes_any_number_of_operands_and_gathers_lists() -> None:
    pattern = P.Concat(Each(P.Transpose(x, perm=p)), axis=axis)
    for n in (1, 2, 12, 13, 40):
        body = " ".join(f"t{i} = Transpose<perm=[1,0]>({'abc'[i % 3]})" for i in range(n))
        found = matches(
            pattern, block(f"{body} o = Concat<axis=0>({', '.join(f't{i}' for i in range(n))})")
        )
        assert found == [{"axis": 0, "x": ["abc"[i % 3] for i in range(n)], "p": [(1, 0)] * n}]


def test_each_fails_when_one_operand_does_not_fit() -> None:
    assert matches(P.Concat(Each(P.Relu(x))), block("r = Relu(a) o = Concat<axis=0>(r, b)")) == []


def test_each_after_fixed_operands_and_with_nothing_left() -> None:
    assert matches(P.Sum(x, Each(y)), block("o = Sum(a, b, c)")) == [{"x": "a", "y": ["b", "c"]}]
    assert matches(P.Sum(x, Each(y)), block("o = Sum(a)")) == [{"x": "a", "y": []}]


def test_each_with_a_common_capture() -> None:
    pattern = P.Concat(Each(P.Add(x, y), same=(x,)))
    assert matches(pattern, block("s = Add(a, b) t = Add(a, c) o = Concat<axis=0>(s, t)")) == [
        {"x": "a", "y": ["b", "c"]}
    ]
    assert matches(pattern, block("s = Sub(a, b) t = Add(a, c) o = Concat<axis=0>(s, t)")) == []
    assert matches(pattern, block("s = Add(a, b) t = Add(c, c) o = Concat<axis=0>(s, t)")) == []


def test_each_must_come_last() -> None:
    with pytest.raises(InputError, match="comes last"):
        P.Concat(Each(x), y)


def test_only_means_no_other_reader_no_output_and_the_same_block() -> None:
    pattern = P.Neg(P.Relu(x).only)
    assert len(matches(pattern, block("r = Relu(a) o = Neg(r)"))) == 1
    assert matches(pattern, block("r = Relu(a) o = Neg(r) q = Abs(r)", outputs="o q")) == []
    assert matches(pattern, block("r = Relu(a) o = Neg(r)", outputs="o r")) == []
    assert matches(P.Add(P.Relu(x).only, y), block("r = Relu(a) o = Add(r, r)")) == []
    nested = load(
        parse(
            """g (bool k, float[2] a) => (float[2] o) {
              r = Relu(a)
              o = If (k) <then_branch = t () => (float[2] u) { u = Neg(r) }, else_branch = e () => (float[2] v) { v = Abs(a) }>
            }"""
        )
    ).main
    branch = list(nested.bindings)[1].blocks["then_branch"]
    assert matches(pattern, branch) == [] and len(matches(P.Neg(P.Relu(x)), branch)) == 1


def test_attributes_written_defaulted_and_implied() -> None:
    assert len(matches(P.Transpose(x, perm=(1, 0)), block("o = Transpose(a)"))) == 1, (
        "no perm reverses"
    )
    assert matches(P.Transpose(x, perm=p), block("o = Transpose(a)", inputs="float[] a")) == [
        {"p": None, "x": "a"}
    ]
    assert len(matches(P.Softmax(x, axis=-1), block("o = Softmax(a)"))) == 1, "the schema's default"
    assert len(matches(P.Softmax(x, axis=1), block("o = Softmax(a)", opset=11))) == 1, (
        "and it is this opset's"
    )
    assert matches(P.Softmax(x, axis=0), block("o = Softmax<axis=1>(a)")) == []


def test_operands_beyond_the_pattern_must_be_omitted() -> None:
    inputs = "float[2,3] a, float lo, float hi"
    assert matches(P.Clip(x), block("o = Clip(a, lo)", inputs=inputs)) == []
    assert len(matches(P.Clip(x), block('o = Clip(a, "")', inputs=inputs))) == 1
    assert matches(P.Clip(x, None, z), block('o = Clip(a, "", hi)', inputs=inputs)) == [
        {"x": "a", "z": "hi"}
    ]
    assert matches(P.Clip(x, None, z), block("o = Clip(a, lo, hi)", inputs=inputs)) == []
    assert matches(P.Clip(x, y, z), block('o = Clip(a, "", hi)', inputs=inputs)) == [], (
        "a capture is a value"
    )


def test_where_const_label_and_output() -> None:
    main = block("s, t = Split<axis=1, num_outputs=2>(a) o = Neg(t)", inputs="float[2,4] a")
    assert len(matches(P.Neg(P.Split(x).output(1)), main)) == 1
    assert matches(P.Neg(P.Split(x)), main) == [], "the first output is another value"
    assert matches(P.Neg(x.where(lambda v: v.rank == 3)), main) == []
    constant = parse("g (float[2] a) => (float[2] o) <float[2] w = {1, 2}> { o = Add(a, w) }")
    assert [m["y"] for m in matches(P.Add(x, y.const), load(constant).main)] == ["w"]
    assert matches(P.Exp(x.shared), block("s = Neg(a) o = Exp(s)")) == []
    assert matches(P.Mul(x.shared, x), block("s = Neg(a) o = Mul(s, s)")) == [], "one reader"
    assert len(matches(P.Exp(x.shared), block("o = Exp(a) t = Abs(a)"))) == 1
    found = next(
        match_binding(P.Neg(P.Split(x).output(1).named("cut")), main.outputs[0].definition)
    )
    assert found["cut"].op == "Split"


def test_an_overridable_initializer_is_no_constant() -> None:
    text = "g (float[2] a, float[2] w = {1, 2}) => (float[2] o) { o = Add(a, w) }"
    assert matches(P.Add(x, y.const), load(parse(text)).main) == []
    assert len(matches(P.Add(x, y.const), load(parse(text, ir_version=3)).main)) == 1, (
        "below IR 4 nobody may override"
    )


def test_a_reference_to_a_functions_attribute_matches_nothing() -> None:
    """The caller decides the value, so no rule may reason about it."""
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[2,3] a) => (float[2,3] o) { o = my.f<to=1>(a) }
    <domain: "my", opset_import: ["" : 20]> f <to> (u) => (w) { w = Cast<to: int = @to>(u) }"""
    (function,) = load(parse(text)).functions.values()
    assert list(match_binding(P.Cast(x), next(iter(function.bindings)))) == []


def test_an_operand_that_may_be_left_out() -> None:
    pattern = P.Clip(x, y.maybe, z.maybe)
    typed = "float[2,3] a, float b, float c"
    assert matches(pattern, block("o = Clip(a)", typed)) == [{"x": "a", "y": None, "z": None}]
    assert matches(pattern, block('o = Clip(a, "", c)', typed)) == [{"x": "a", "y": None, "z": "c"}]
    assert matches(pattern, block("o = Clip(a, b)", typed)) == [{"x": "a", "y": "b", "z": None}]
    assert matches(P.Clip(x, y, z.maybe), block('o = Clip(a, "", c)', typed)) == []
    # one capture stands for one thing, and nothing is not b
    assert matches(P.Clip(x, y.maybe, y.maybe), block("o = Clip(a, b)", typed)) == []
    assert matches(P.Clip(x, y.const.maybe), block("o = Clip(a, b)", typed)) == []
    assert len(matches(P.Clip(x, y.const.maybe), block("o = Clip(a)", typed))) == 1


def test_how_many_each_takes() -> None:
    main = block("o = Concat <axis = 0> (a, b, c)")
    assert len(matches(P.Concat(Each(x, at_least=3)), main)) == 1
    assert (
        matches(P.Concat(Each(x, at_least=4)), main)
        == []
        == matches(P.Concat(Each(x, at_most=2)), main)
    )
    assert matches(P.Concat(x, Each(y, at_least=2, at_most=2)), main) == [
        {"x": "a", "y": ["b", "c"]}
    ]


def test_both_and_not() -> None:
    main = block("p = Relu(a) q = Neg(b) o = Sub(p, q)")
    relu, neg = P.Relu(y), P.Neg(z)
    assert matches(P.Sub(x & relu, neg), main) == [{"x": "p", "y": "a", "z": "b"}]
    assert matches(P.Sub(relu & neg, x), main) == []
    assert matches(P.Sub(~neg & x, ~relu), main) == [{"x": "p"}]
    assert matches(P.Sub(~relu, x), main) == []
    # what was found before counts: another operand than the first
    same = block("o = Sub(a, a)")
    assert matches(P.Sub(x, ~x), same) == [] and matches(P.Sub(x, ~x & y), main) == [
        {"x": "p", "y": "q"}
    ]
    # as roots
    assert len(matches(P.Sub(x, y) & ~P.Sub(x, P.Relu(x)), main)) == 1
    assert matches(~P.Add(x, y) & P.Sub(x, y), main) == [{"x": "p", "y": "q"}]
    assert matches(P.Sub(x, y) & ~P.Sub(P.Relu(z), y), main) == []


@pytest.mark.parametrize("op", ["Sum", "Max"])
def test_three_operands_commute(op: str) -> None:
    main = block(f"p = Relu(a) o = {op}(b, c, p)")
    found = matches(P.any_of(op)(P.Relu(x), y, z), main)
    assert {(m["x"], m["y"], m["z"]) for m in found} == {("a", "b", "c"), ("a", "c", "b")}
    assert len(matches(P.any_of(op)(x, x, y), block(f"o = {op}(a, b, a)"))) >= 1


def test_attributes_that_no_version_has() -> None:
    with pytest.raises(InputError, match=r"Transpose has no attribute 'prem': it has perm"):
        P.Transpose(x, prem=(1, 0))
    with pytest.raises(InputError, match="Relu has no attribute"):
        P.any_of("LeakyRelu", "Relu")(x, alpha=0.1)
    P.Reshape(x, shape=(1,))  # of opset 1
    P.domain("my").Transpose(x, prem=1)
    P.NoOperatorOfOnnx(x, anything=1)


def test_where_and_const_restrict_together() -> None:
    for both in (x.const.where(lambda v: v.rank == 1), x.where(lambda v: v.rank == 1).const):
        assert both.constant and both.test is not None
    absent = x.const.maybe
    assert x.const.origins == Literal(np.ones(())).origins != absent.origins is None


def test_what_computes_the_operands_excludes_no_match(models_dir: Path) -> None:
    """Every rule that simplifies gradients, at every binding of its operators."""
    tried = excluded = matched = 0
    for name in ("bert.raw", "googlenet", "lstmcell"):
        block = load(models_dir / f"{name}.onnx").main
        for rule in _ALL:
            for b in bindings_of(block, rule.pattern.heads or ()):
                tried += 1
                fits = fits_origins(rule.pattern, (b.domain, b.op), origins_of(b))
                found = next(match_binding(rule.pattern, b), None)
                assert fits or found is None, f"{rule.name} at {b}"
                excluded += not fits
                matched += found is not None
    assert excluded > tried // 2 and matched > 20


@pytest.mark.parametrize(
    ("middle", "fits"),
    [
        ("Mul (x, z)", False),
        ("Mul (x, two)", True),
        ("Mul (two, x)", True),
        ("Sub (x, two)", False),
    ],
)
def test_a_constant_below_the_root_is_looked_for_before_the_match(middle: str, fits: bool) -> None:
    """No rule is tried at a product of products that has no number."""
    block = load(
        parse(
            "g (float[4] x, float[4] z) => (float[4] y) <float two = {2.0}> "
            f"{{ a = {middle} y = Mul (a, z) }}"
        )
    ).main
    number, other, last = capture("c").const, *capture("a b")
    pattern = P.Mul(P.Mul(other, number).only, last)
    root = block.outputs[0].definition
    assert root is not None and may_match(pattern, root) == fits
    assert bool([*match_binding(pattern, root)]) == fits


@pytest.mark.parametrize(
    ("written", "called", "body"),
    [
        (x + y, P.Add(x, y), "o = Add (a, b)"),
        (1.0 + x, P.Add(1.0, x), "s = Constant <value = float {1}> () o = Add (s, a)"),
        (x - y, P.Sub(x, y), "o = Sub (a, b)"),
        (1.0 - x, P.Sub(1.0, x), "s = Constant <value = float {1}> () o = Sub (s, a)"),
        (x * y, P.Mul(x, y), "o = Mul (a, b)"),
        (np.float32(1) * x, P.Mul(1.0, x), "s = Constant <value = float {1}> () o = Mul (a, s)"),
        (x / y, P.Div(x, y), "o = Div (a, b)"),
        (1.0 / x, P.Div(1.0, x), "s = Constant <value = float {1}> () o = Div (s, a)"),
        (x**1.0, P.Pow(x, 1.0), "s = Constant <value = float {1}> () o = Pow (a, s)"),
        (x @ y, P.MatMul(x, y), "o = MatMul (a, b)"),
        (-x, P.Neg(x), "o = Neg (a)"),
    ],
)
def test_arithmetic_is_the_pattern_of_its_operators(written: Call, called: Call, body: str) -> None:
    main = block(body, "float[3,3] a, float[3,3] b")
    assert matches(written, main) == matches(called, main) != []
    other = block("o = Max (a, b)", "float[3,3] a, float[3,3] b")
    assert matches(written, other) == []
    swapped = block(f"{body.replace('o =', 'u =')} o = Abs (u)", "float[3,3] a, float[3,3] b")
    assert matches(P.Abs(written), swapped) == matches(P.Abs(called), swapped) != []
