"""Equal bindings and equal initializers become one; what draws or differs in a bit does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.helpers import parse, unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

PASSES = "merge-equal,remove-unused"


def merged(text: str, constants: dict[str, Any] | None = None, **options: Any) -> Done:
    done = apply(model_of(text, constants, **options), PASSES)
    assert_same_results(done)
    return done


def test_what_is_left_of_a_graph() -> None:
    text = """g (float[2,2] x) => (float[2,2] o) <float[2,2] w = {1, 2, 3, 4}, float[2,2] v = {1, 2, 3, 4}> {
        a = MatMul(x, w)
        b = MatMul(x, v)
        r = Relu(a)
        s = Relu(b)
        o = Add(r, s)
      }"""
    assert merged(text).text == unindented("""
        g(x: f32[2,2], w: f32[2,2] const = [[1, 2], [3, 4]]) {
          a: f32[2,2] = MatMul(x, w)
          r: f32[2,2] = Relu(a)
          o: f32[2,2] = Add(r, r)
          return o
        }
    """)


def test_chains_collapse_in_one_go() -> None:
    body = (
        "".join(f"{p}1 = Relu(x) {p}2 = Exp({p}1) {p}3 = Neg({p}2) " for p in "abc")
        + "o = Sum(a3, b3, c3)"
    )
    assert merged(f"g (float[2] x) => (float[2] o) {{ {body} }}").ops == [
        "Relu",
        "Exp",
        "Neg",
        "Sum",
    ]


def test_several_results() -> None:
    text = """g (float[4] x) => (float[2] o) { a, b = Split<axis=0, num_outputs=2>(x) c, d = Split<axis=0, num_outputs=2>(x)
      s = Add(a, d) t = Add(c, b) o = Sub(s, t) }"""
    assert merged(text).ops == ["Split", "Add", "Sub"]


@pytest.mark.parametrize(
    "pair",
    [
        "a = Softmax<axis=0>(x) b = Softmax<axis=1>(x)",
        "a = Sub(x, y) b = Sub(y, x)",
        'a = Clip(x, l) b = Clip(x, "", l)',
        "a = Cast<to=1>(x) b = Cast<to=10>(x)",
    ],
)
def test_what_differs_stays(pair: str) -> None:
    text = f"g (float[2,2] x, float[2,2] y, float l) => (float[] o, float[] p) {{ {pair} o = Identity(a) p = Neg(b) }}"
    model = parse(text.replace("float[] p", "float16[] p") if "Cast" in pair else text)
    assert len(apply(model, PASSES).ops) == 4


@pytest.mark.parametrize(
    "draw",
    [
        "RandomNormalLike(x)",
        "RandomUniform<shape=[2]>()",
        "RandomUniformLike<seed=1.0>(x)",
        "Bernoulli(x)",
        "Dropout(x, r, t)",
    ],
)
def test_two_draws_are_two_draws(draw: str) -> None:
    """Merging them made a difference of two draws 0 elsewhere."""
    text = f"""g (float[2] x) => (float[2] o) {{
      t = Constant<value = bool {{1}}>() r = Constant<value_float=0.5>() a = {draw} b = {draw} o = Sub(a, b) }}"""
    op = draw.split("(")[0].split("<")[0]
    assert apply(parse(text), PASSES).ops.count(op) == 2


def test_a_dropout_in_inference_merges_and_one_before_opset_7_does_not() -> None:
    text = "g (float[2] x) => (float[2] o) { a = Dropout(x) b = Dropout(x) o = Sub(a, b) }"
    assert merged(text).ops == ["Dropout", "Sub"]
    assert apply(parse(text, opset=6, ir_version=7), PASSES).ops.count("Dropout") == 2
    text = text.replace("Dropout(", "Dropout<is_test = 1>(")
    assert apply(parse(text, opset=6, ir_version=7), PASSES).ops.count("Dropout") == 1


def test_calls_and_control_flow_stay() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[2] x) => (float[2] o) { a = my.f(x) b = my.f(x) o = Sub(a, b) }
    <domain: "my", opset_import: ["" : 20]> f (u) => (v) { v = RandomNormalLike(u) }"""
    assert apply(parse(text), PASSES).ops == ["f", "f", "Sub"]
    branches = "<then_branch = t () => (float[2] u) { u = RandomNormalLike(x) }, else_branch = e () => (float[2] v) { v = Abs(x) }>"
    loop = f"g (bool k, float[2] x) => (float[2] o) {{ a = If(k) {branches} b = If(k) {branches.replace(' u', ' p').replace(' v', ' q')} o = Sub(a, b) }}"
    assert apply(parse(loop), PASSES).ops.count("If") == 2


def test_two_outputs_keep_both_names() -> None:
    done = merged(
        "g (float[2] x) => (float[2] a, float[2] b, float[2] c) { a = Relu(x) b = Relu(x) d = Relu(x) c = Neg(d) }"
    )
    assert done.ops == ["Relu", "Relu", "Neg"]
    one = merged(
        "g (float[2] x) => (float[2] b, float[2] c) { a = Relu(x) b = Relu(x) c = Neg(a) }"
    )
    assert one.ops == ["Relu", "Neg"] and [v.name for v in one.block.outputs] == ["b", "c"]


def test_within_a_branch_and_with_what_it_captures() -> None:
    text = """g (bool k, float[2] x) => (float[2] o) {
      a = Relu(x) b = Relu(x)
      o = If (k) <then_branch = t () => (float[2] u) { c = Neg(a) d = Neg(b) u = Add(c, d) }, else_branch = e () => (float[2] v) { v = Abs(b) }> }"""
    done = merged(text)
    assert (done.count("Relu"), done.count("Neg")) == (1, 1)


# ---- initializers ----------------------------------------------------------------------------------------------------


def test_equal_initializers_whichever_field_holds_them() -> None:
    model = parse(
        "g (float[2] x) => (float[2] o) <float[2] u = {1, 2}, float[2] v = {1, 2}> { a = Mul(x, u) b = Add(a, v) o = Add(b, w) }"
    )
    model.graph.initializer.append(
        model_of("g () => () {}", {"w": np.array([1, 2], np.float32)}).graph.initializer[0]
    )
    done = apply(model, PASSES)
    assert_same_results(done)
    assert len(done.block.initializers) == 2, (
        "as floats and as raw bytes: two, not one, and never wrong"
    )


@pytest.mark.parametrize(
    ("u", "v"),
    [
        (np.array([0.0], np.float32), np.array([-0.0], np.float32)),
        (np.zeros(2, np.float32), np.zeros(2, np.int32)),
        (np.zeros((1, 2), np.float32), np.zeros((2, 1), np.float32)),
        (np.array([np.nan], np.float32), np.array([-np.nan], np.float32)),
    ],
)
def test_a_bit_a_dtype_or_a_shape_of_difference(u: Any, v: Any) -> None:
    model = model_of(
        "g (float[2,2] x) => (float[2,2] o) { a = Cast<to=1>(u) b = Cast<to=1>(v) c = Div(x, a) d = Div(x, b) o = Sub(c, d) }",
        {"u": u, "v": v},
    )
    assert len(apply(model, "merge-equal").block.initializers) == 2


def test_plus_and_minus_zero_give_different_results() -> None:
    text = "g (float[2] x) => (float[2] o, float[2] p) { o = Div(x, z) p = Div(x, n) }"
    done = apply(model_of(text, {"z": np.float32(0.0), "n": np.float32(-0.0)}), PASSES)
    assert_same_results(done, exact=True)
    assert len(done.block.initializers) == 2


def test_defaults_and_outputs_are_interface() -> None:
    text = "g (float[2] x, float[2] u = {1, 2}, float[2] v = {1, 2}) => (float[2] o) { a = Mul(x, u) o = Add(a, v) }"
    assert len(merged(text).block.initializers) == 2
    returned = "g (float[2] x) => (float[2] o, float[2] u, float[2] v) <float[2] u = {1, 2}, float[2] v = {1, 2}> { a = Mul(x, u) o = Add(a, v) }"
    assert len(merged(returned).block.initializers) == 2


def test_strings() -> None:
    text = "g (string[2] x) => (bool[2] o) { a = Equal(x, u) b = Equal(x, v) c = Equal(x, w) d = And(a, b) o = And(c, d) }"
    constants = {
        "u": np.array(["a", "b"], object),
        "v": np.array(["a", "b"], object),
        "w": np.array(["ab", ""], object),
    }
    done = apply(model_of(text, constants), PASSES)
    assert len(done.block.initializers) == 2 and done.count("Equal") == 2


def test_the_binding_that_stays_says_where_both_came_from() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] o) { a = Relu(x) b = Relu(x) c = Relu(x) d = Add(a, b) o = Add(c, d) }"
    )
    for node, scope in zip(model.graph.node, ("one", "two", "one")):
        node.metadata_props.add(key="namespace", value=scope)
    done = apply(model, PASSES)
    (relu,) = [n for n in done.after.graph.node if n.op_type == "Relu"]
    assert {e.key: e.value for e in relu.metadata_props} == {"namespace": "one | two"}
    assert model.graph.node[0].metadata_props[0].value == "one", "the argument is never changed"


def test_merging_reaches_a_fixpoint() -> None:
    done = merged(
        "g (float[2,2] x) => (float[2,2] o) { a = MatMul(x, w) b = MatMul(x, w) o = Add(a, b) }",
        weights(w=(2, 2)),
    )
    assert not apply(done.after, PASSES).trace.rewrites


@pytest.mark.parametrize(
    ("inputs", "first", "second"),
    [
        ("float[4,4] w", "Gemm(x, w)", "Gemm<alpha = 1.0, transA = 0>(x, w)"),
        ("float w", "Softmax(x)", "Softmax<axis = -1>(x)"),
        ("float w", "Transpose(x)", "Transpose<perm = [1, 0]>(x)"),
        ("float[4,4] w", "Add(x, w)", "Add(w, x)"),
        ("float[4,4] w", "Mul(x, w)", "Mul(w, x)"),
        ("float[4,4] w", "Clip(x)", 'Clip(x, "", "")'),
    ],
)
def test_equal_in_other_words(inputs: str, first: str, second: str) -> None:
    text = "g (float[4,4] x, %s) => (float[4,4] a, float[4,4] b) { p = %s q = %s a = Neg(p) b = Sin(q) }"
    assert len(merged(text % (inputs, first, second)).ops) == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Sub(x, w)", "Sub(w, x)"),
        ("Max(x, w)", "Max(w, x)"),
        ("Gemm(x, w)", "Gemm<alpha = 2.0>(x, w)"),
        ("Transpose(x)", "Transpose<perm = [0, 1]>(x)"),
        ("Clip(x, n)", 'Clip(x, "", n)'),
        ("Softmax(x)", "Softmax<axis = 0>(x)"),
    ],
)
def test_different_in_other_words(first: str, second: str) -> None:
    text = "g (float[4,4] x, float[4,4] w, float n) => (float[4,4] a, float[4,4] b) { p = %s q = %s a = Neg(p) b = Sin(q) }"
    assert len(merged(text % (first, second)).ops) == 4


BRANCHES = """g (bool p, float[2,{n}] x) => (float[2,4] y) {{
    {head}
    b = If (p) <then_branch = t () => (float[2,4] a) <float[{n},4] u = {{{values}}}> {{ a = MatMul (x, u) }},
                else_branch = e () => (float[2,4] c) <float[{n},4] v = {{{other}}}> {{ m = MatMul (x, v) c = Neg (m) }}>
    y = {last} }}"""


def branches(
    n: int, other: float = 0.5, head: str = "", last: str = "Abs (b)", **options: Any
) -> Any:
    """Two branches, each with a weight of n rows."""
    values, second = (", ".join([str(number)] * (4 * n)) for number in (0.5, other))
    return model_of(
        BRANCHES.format(n=n, head=head, last=last, values=values, other=second), **options
    )


def constants_of(done: Done) -> list[list[str]]:
    """The initializers of the main graph, then those of the blocks in it."""
    return [list(block.initializers) for block in done.program.blocks()]


LARGE = (1 << 16) + 1  # times 4 floats: more than what sinks


@pytest.mark.parametrize(
    ("n", "options", "names"),
    [
        (LARGE, "", [["u"], [], []]),
        (LARGE - 1, "", [[], ["u"], ["v"]]),
        (2, "", [[], ["u"], ["v"]]),
        (2, "{small=true}", [["u"], [], []]),
        (2, "{small=true,floats=false}", [[], ["u"], ["v"]]),
    ],
)
def test_constants_of_two_branches(n: int, options: str, names: list[list[str]]) -> None:
    done = apply(branches(n), f"merge-equal{options},sink-constants")
    assert constants_of(done) == names
    assert apply(done.after, f"merge-equal{options},sink-constants").trace.rewrites == []
    if n == 2:
        done.prove()


def test_constants_of_a_branch_and_of_the_graph_around_it() -> None:
    """The graph's own stays, an initializer or a Constant."""
    values = ", ".join(["0.5"] * 8)
    for head, names in (("", ["w"]), (f"w = Constant <value = float[2,4] {{{values}}}> ()", [])):
        model = branches(2, head=head, last="Add (b, w)")
        if names:
            model.graph.initializer.append(helper.make_tensor("w", 1, (2, 4), [0.5] * 8))
        done = apply(model, "merge-equal{small=true}")
        assert constants_of(done) == [names, [], []]
        done.prove()


def test_a_name_that_another_branch_has_is_not_taken() -> None:
    model = branches(2)
    graph = model.graph.node[0].attribute[1].g
    assert graph.name == "e"
    for node in graph.node:  # the other branch's m is called u
        for field in (node.input, node.output):
            field[:] = ["u" if name == "m" else name for name in field]
    done = apply(model, "merge-equal{small=true}")
    assert constants_of(done) == [["u_2"], [], []]
    done.prove()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("other", "another value"),
        ("returned", "the interface"),
        ("input", "an input"),
        ("old", "below IR 4"),
    ],
)
def test_what_another_block_keeps(change: str, reason: str) -> None:
    model = branches(2, 0.25 if change == "other" else 0.5)
    branch = model.graph.node[0].attribute[0].g
    if change == "returned":
        branch.node[0].output[0], branch.output[0].name = "q", "u"
    elif change == "input":
        model = branches(2, head="k = Neg (w)")
        model.graph.initializer.append(helper.make_tensor("w", 1, (2, 4), [0.5] * 8))
        model.graph.input.append(model.graph.input[1])
        model.graph.input[-1].name = "w"
        for attribute in model.graph.node[1].attribute:
            attribute.g.initializer[0].float_data[0] += 1 if attribute.name == "then_branch" else 0
    elif change == "old":
        model.ir_version = 3
    assert apply(model, "merge-equal{small=true}").trace.rewrites == [], reason


def test_constants_of_bodies_and_deeper_blocks() -> None:
    """In the innermost graph around the readers; a function's body holds none."""
    scan = """sc (float[3,2] s) => (float[3,2] t) { w = Constant <value = float[2] {1, 2}> () a = Mul (s, w)
      c = Constant <value = bool {1}> ()
      t = If (c) <then_branch = g1 () => (float[3,2] p) { k = Constant <value = float[2] {1, 2}> () p = Add (a, k) },
                  else_branch = g2 () => (float[3,2] q) { l = Constant <value = float[2] {3, 4}> () r = Add (a, l) q = Mul (r, l) }> }"""
    text = f"g (float[5,3,2] x) => (float[5,3,2] y) {{ y = Scan <num_scan_inputs = 1, body = {scan}> (x) }}"
    done = apply(model_of(text), "merge-equal{small=true}")
    assert done.fired("equal_constants_of_blocks") == 1 and done.count("Constant") == 3
    done.prove()
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (bool p, float[2] x) => (float[2] y) { y = my.F (p, x) }
    <domain: "my", opset_import: ["" : 20]>
    F (p, x) => (y) { y = If (p) <then_branch = t () => (float[2] a) <float[2] u = {1, 2}> { a = Mul (x, u) },
                                  else_branch = e () => (float[2] c) <float[2] v = {1, 2}> { c = Add (x, v) }> }"""
    assert apply(parse(text), "merge-equal{small=true}").trace.rewrites == []


def test_a_constant_sinks_beside_an_equal_one() -> None:
    """The default preset runs once: the constant that sinks meets its equal in the branch."""
    text = """g (bool p, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
      y = If (p) <then_branch = t () => (float[2] a) <float[2] u = {1, 2}> { b = Div (x, w) a = Add (b, u) },
                  else_branch = e () => (float[2] c) { c = Neg (x) }> }"""
    done = apply(parse(text), "default")
    assert [len(names) for names in constants_of(done)] == [0, 1, 0]
    assert apply(done.after, "default").trace.rewrites == []
    done.prove()
