"""A custom operator that cannot run is a boundary: all around it is proved, and the verdict says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import CannotRun, InputError
from onnxgrad.verify import Report, verify
from onnxgrad.verify.custom_operators.boundaries import around, unknown_operators
from onnxgrad.verify.custom_operators.result_types import result_types
from onnxgrad.verify.proof_model import proof_model
from onnxgrad.verify.reference.user_operators import NOT_KNOWN
from tests.helpers import MODELS_DIR, parse

HEAD = '<ir_version: 10, opset_import: ["": 20, "acme": 1]>'
MIDDLE = """g (float[N,4] x, float[4] b) => (float[N,4] y) {
  i = Identity (x)  c = Add (i, b)  m = acme.Mystery <k = 3> (c, b)  t = Tanh (m)  y = Mul (t, b) }"""


def model(text: str) -> onnx.ModelProto:
    return parse(f"{HEAD} {text}")


def against(text: str, *changes: tuple[str, str]) -> Report:
    """The model against itself with these changes."""
    other = text
    for before, after in changes:
        assert before in other
        other = other.replace(before, after)
    return verify(model(text), model(other))


def with_custom(name: str, operator: str, places: tuple[int, ...]) -> onnx.ModelProto:
    """A real model with a custom node behind some nodes of this operator, whose types nothing declares."""
    made = onnx.load(MODELS_DIR / name)
    nodes, count = list(made.graph.node), -1
    del made.graph.node[:]
    for node in nodes:
        count += node.op_type == operator
        result = node.output[0]
        if node.op_type == operator and count in places:
            node.output[0] = f"{result}_before"
            made.graph.node.append(node)
            node = helper.make_node("Mystery", [node.output[0]], [result], domain="acme")
            kept = [v for v in made.graph.value_info if v.name != result]
            del made.graph.value_info[:]
            made.graph.value_info.extend(kept)
        made.graph.node.append(node)
    made.opset_import.append(helper.make_opsetid("acme", 1))
    return made


def test_what_is_around_is_rewritten_and_proved() -> None:
    done = onnxgrad.optimize(model(MIDDLE), report=True)
    assert {r.rule for r in done.rewrites} == {"identity"}
    assert done.proof.verdict == "equal" and done.proof.around == ("acme::Mystery",)
    assert all(check.ran for check in done.proof.checks.values())
    said = "equal, around 1 custom node that did not run (acme::Mystery), on cpu"
    assert done.proof.summary == said
    compared = done.proof.compared
    assert compared["m: operand 0 of acme::Mystery"] and compared["y"]
    assert "m: operand 1 of acme::Mystery" not in compared  # an input of both


@pytest.mark.parametrize(
    "change",
    [
        ("Add (i, b)", "Sub (i, b)"),  # before it
        ("Tanh (m)", "Sigmoid (m)"),  # behind it
        ("(c, b)", "(b, c)"),
        ("(c, b)", "(c, c)"),
        ("Mul (t, b)", "Mul (t, m)"),
    ],
)
def test_a_difference_on_either_side_is_found(change: tuple[str, str]) -> None:
    assert against(MIDDLE, change).verdict == "different"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("k = 3", "k = 4"), "only the second model has the acme::Mystery of 'm'"),
        (("m = acme.Mystery <k = 3> (c, b)", "m = Identity (c)"), "lacks 'm', and differs"),
        (("acme.Mystery <k = 3> (c, b)", "acme.Mystery <k = 3> (c)"), "only the second model"),
    ],
)
def test_other_custom_nodes_prove_nothing(change: tuple[str, str], why: str) -> None:
    report = against(MIDDLE, change)
    assert report.verdict == "not proved" and why in report.summary
    assert "onnxruntime lacks acme::Mystery" in report.summary


def test_a_node_of_another_name_is_the_only_one_of_its_kind() -> None:
    report = against(MIDDLE, ("m = acme", "z = acme"), ("Tanh (m)", "Tanh (z)"))
    assert report.verdict == "equal" and report.around


def test_a_node_whose_result_does_not_matter_may_go() -> None:
    text = """g (float[4] x) => (float[4] y) { m = acme.Mystery (x)  s = Shape (m)  z = Sub (s, s)
      f = Cast <to = 1> (z)  y = Add (x, f) }"""
    report = verify(model(text), parse("g (float[4] x) => (float[4] y) { y = Identity (x) }"))
    assert report.verdict == "equal" and report.around == ("acme::Mystery",)
    dead = text.replace("y = Add (x, f)", "y = Identity (x)")
    assert onnxgrad.optimize(model(dead), report=True).proof.around == ()


def test_equal_nodes_may_be_merged() -> None:
    text = """g (float[4] x) => (float[4] y) { a = Neg (x)  b = Neg (x)
      m = acme.Mystery (a)  n = acme.Mystery (b)  y = Add (m, n) }"""
    report = against(text, ("n = acme.Mystery (b)", ""), ("Add (m, n)", "Add (m, m)"))
    assert report.verdict == "equal" and report.around == ("acme::Mystery",)
    assert against(text, ("Add (m, n)", "Add (m, a)")).verdict == "different"


def test_several_operators_one_behind_another() -> None:
    text = """g (int64[N] ids) => (float[N] y, float[N] z) <float[1] w = {2}> {
      i = Identity (ids)  e = acme.Look (i)  p, q = acme.Both (e, , w)  r = Identity (q)
      s = Mul (p, w)  y = Add (s, w)  z = Sub (r, w) }"""
    report = verify(model(text), onnxgrad.optimize(model(text)))
    assert report.verdict == "equal" and report.around == ("acme::Look", "acme::Both")
    assert against(text, ("z = Sub (r, w)", "z = Sub (p, w)")).verdict == "different"


BRANCH = """g (float[4] x, bool c) => (float[4] y) { k = Abs (x)  h = If (c) <
    then_branch = t () => (float[4] p) { p = acme.Mystery (k) },
    else_branch = e () => (float[4] q) { q = Neg (x) }>  i = Identity (h)  y = Exp (i) }"""
CALL = """g (float[4] x) => (float[4] y) { k = Abs (x)  h = acme.F (k)  y = Exp (h) }
    <domain: "acme", opset_import: ["": 20, "acme": 1]> F (v) => (w) { u = acme.Mystery (v)  w = G (u) }
    <domain: "", opset_import: ["": 20]> G (v) => (w) { w = Tanh (v) }"""


def test_a_node_that_holds_one_is_a_boundary_as_a_whole() -> None:
    assert (report := against(BRANCH)).verdict == "equal" and report.around == (
        "acme::Mystery in If",
    )
    assert against(BRANCH, ("k = Abs", "k = Neg")).verdict == "different"  # it is captured
    assert against(BRANCH, ("q = Neg", "q = Abs")).verdict == "different"


def test_a_call_of_a_function_that_holds_one() -> None:
    text = CALL.replace("G (u)", "acme.G (u)").replace('<domain: "",', '<domain: "acme",')
    assert (report := against(text)).verdict == "equal" and report.around == (
        "acme::Mystery in acme::F",
    )
    assert against(text, ("k = Abs", "k = Neg")).verdict == "different"
    assert against(text, ("w = Tanh", "w = Sin")).verdict == "different"


# a custom operator in a body with nodes to rewrite: the nodes, what a wrong change is, where
INSIDE = "p0 = Identity (%s)  p1 = acme.Mystery (p0)  p2 = Neg (p1)  p3 = Neg (p2)  %s = Exp (p3)"
AN_IF = """g (float[4] x, bool c) => (float[4] y) { k = Abs (x)
    h = If (c) <then_branch = t () => (float[4] p) { %s }, else_branch = e () => (float[4] q) { %s }>  y = Exp (h) }"""
A_LOOP = """g (float[4] x, int64 n) => (float[4] y, float[K,4] all) { go = Constant <value = bool {1}> ()
    h, all = Loop (n, go, x) <body = b (int64 i, bool on, float[4] s) => (bool more, float[4] z, float[4] o) {
      more = Identity (on)  %s  o = Abs (p1) }>  y = Exp (h) }"""
A_FUNCTION = """g (float[4] x, bool c) => (float[4] y) { h = acme.F <a = 2> (x)  j = acme.F (h)  y = Exp (j) }
    <domain: "acme", opset_import: ["": 20, "acme": 1]> F <a> (v) => (w) { %s }"""
BODIES = {
    "one branch": AN_IF % (INSIDE % ("k", "p"), "q = Neg (x)"),
    "the other branch": AN_IF % ("p = acme.Mystery (k)", "p2 = Neg (x)  p3 = Neg (p2)  q = Exp (p3)"),
    "both branches": AN_IF % (INSIDE % ("k", "p"), INSIDE % ("x", "q")),
    "an If in an If": AN_IF % (
        f"p = If (c) <then_branch = a () => (float[4] u) {{ {INSIDE % ('k', 'u')} }}, else_branch = b () => (float[4] v) {{ v = Neg (x) }}>",
        "q = Neg (x)"),
    "a branch that is always taken": (AN_IF % (INSIDE % ("k", "p"), "q = Neg (x)")).replace(
        ", bool c", "").replace("k = Abs", "c = Constant <value = bool {1}> ()  k = Abs"),
    "one that feeds another": AN_IF % (INSIDE % ("k", "m") + "  p = acme.Mystery (m)", INSIDE % ("k", "q")),
    "a Loop": A_LOOP % (INSIDE % ("s", "z")),
    "a Scan": f"""g (float[4] x, float[5,4] w) => (float[4] y, float[5,4] all) {{
        h, all = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] v) => (float[4] z, float[4] o) {{
          {INSIDE % ('s', 'm')}  z = Tanh (m)  o = Add (p1, v) }}> (x, w)  y = Exp (h) }}""",
    "a function": A_FUNCTION % (INSIDE % ("v", "w")).replace("Mystery", "Mystery <k : int = @a>"),
    "a Loop in a function": A_FUNCTION.replace("bool c", "int64 n").replace("(x)", "(x, n)").replace("(h)", "(h, n)").replace("(v)", "(v, n)") % (
        "go = Constant <value = bool {1}> ()  w = Loop (n, go, v) <body = b (int64 i, bool on, float[4] s) => (bool more, float[4] z) {"
        f" more = Identity (on)  {INSIDE % ('s', 'z')} }}>"),
    "no declared types": (AN_IF % (INSIDE % ("k", "p"), "q = Neg (x)")).replace("(float[4] p)", "(p)").replace("(float[4] q)", "(q)"),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [n if n == "both branches" else pytest.param(n, marks=pytest.mark.slow) for n in BODIES]
)
def test_bodies_are_rewritten_and_proved(name: str) -> None:
    custom = model(BODIES[name])
    done = onnxgrad.optimize(custom, report=True)
    assert done.rewrites and done.proof.verdict == "equal"
    assert {*done.proof.around} == {"acme::Mystery"} and done.model != custom
    wrong = against(BODIES[name], ("p3 = Neg (p2)", "p3 = Abs (p2)"))
    assert wrong.verdict == "different"


def test_bodies_with_other_states_are_a_boundary_together() -> None:
    text = A_LOOP % (INSIDE % ("s", "z"))
    longer = text.replace("Loop (n, go, x)", "Loop (n, go, x, x)").replace(
        "float[4] s)", "float[4] s, float[4] r)"
    )
    longer = longer.replace("z, float[4] o)", "z, float[4] r2, float[4] o)").replace(
        "o = Abs", "r2 = Neg (r)  o = Abs"
    )
    report = verify(model(text), model(longer.replace("h, all =", "h, unused, all =")))
    assert (
        report.verdict == "not proved"
        and "the bodies around acme::Mystery in Loop ('h') differ" in report.summary
    )


def test_pairs_by_order_do_not_refute() -> None:
    text = """g (float[4] x) => (float[4] y) { a = Neg (x)  m = acme.Mystery (a)  n = acme.Mystery (x)  y = Sub (m, n) }"""
    other = "g (float[4] x) => (float[4] y) { p = acme.Mystery (x)  a = Neg (x)  q = acme.Mystery (a)  y = Sub (q, p) }"
    report = verify(model(text), model(other))
    assert report.verdict == "not proved" and "paired by their order, and differs" in report.summary
    same = text.replace("m = ", "q = ").replace("n = ", "p = ").replace("(m, n)", "(q, p)")
    assert verify(model(text), model(same)).verdict == "equal"


# the second result is as large as what the first one makes of it, or as a value between declares
CHAIN = """g (float[N,3,16,16] x, float[4,3,3,3] w, float[5,4,3,3] v) => (float[P,5,6,6] y) {
  i = Conv (x, w)  m = acme.Mystery (i)  c = Conv <strides = [2, 2]> (m, v)  d = Neg (c)
  n = acme.Mystery (d)  y = Mul (n, n) }"""


@pytest.mark.parametrize("declared", [(), (("c", [None, 5, 6, 6]),), (("d", ["N", 5, 6, 6]),)])
def test_sizes_behind_a_custom_node(
    declared: tuple[tuple[str, list[int | str | None]], ...],
) -> None:
    chain = model(CHAIN)
    chain.graph.value_info.extend(helper.make_tensor_value_info(n, 1, s) for n, s in declared)
    report = verify(chain, onnxgrad.optimize(chain))
    assert report.verdict == "equal" and len(report.around) == 2
    wrong = model(CHAIN.replace("Neg (c)", "Abs (c)"))
    assert verify(chain, wrong).verdict == "different"
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim][1:]
        for v in around(
            *(proof_model(m) for m in (chain, chain)), [("acme", "Mystery")]
        ).original.proto.graph.input
    }
    assert shapes["m of acme::Mystery"] == [4, 14, 14]
    assert shapes["n of acme::Mystery"] == [5, 6, 6]


def test_a_declared_size_that_does_not_run_proves_nothing() -> None:
    chain = model(CHAIN)
    chain.graph.value_info.append(helper.make_tensor_value_info("m", 1, [1, 7, 14, 14]))
    report = verify(chain, chain)
    assert report.verdict == "not proved" and "onnxruntime lacks acme::Mystery" in report.summary


def test_a_computed_size_comes_before_a_declared_one() -> None:
    chain = model(CHAIN.replace("Mul (n, n)", "Mul (n, d)"))
    chain.graph.value_info.append(helper.make_tensor_value_info("c", 1, [7, 5, 6, 6]))
    assert verify(chain, chain).verdict == "equal"


def test_a_result_that_is_an_output() -> None:
    text = CHAIN.replace("=> (float", "=> (float[N,4,14,14] m, float")
    report = verify(model(text), onnxgrad.optimize(model(text)))
    assert report.verdict == "equal" and len(report.around) == 2


def test_nothing_that_runs_proves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result of another shape than its operand's, which nothing declares."""
    text = """g (float[2,3] x) => (float[5,7] y) {
      i = Identity (x)  m = acme.Grow (i)  y = Mul (m, w) }"""
    grow = model(text)
    w = np.arange(35, dtype=np.float32).reshape(5, 7)
    grow.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(grow, tmp_path / "m.onnx")
    out = tmp_path / "o.onnx"
    assert main(["optimize", str(tmp_path / "m.onnx"), "-o", str(out), "-q"]) == 1
    assert "not proved: onnxruntime lacks acme::Grow (--custom-ops" in capsys.readouterr().err
    assert not out.exists()
    grow.graph.value_info.append(helper.make_tensor_value_info("m", 1, [5, 7]))
    onnx.save(grow, tmp_path / "m.onnx")
    assert main(["optimize", str(tmp_path / "m.onnx"), "-o", str(out), "--json", "-"]) == 0
    printed = json.loads(capsys.readouterr().out)["models"][0]["proof"]
    assert printed["around"] == ["acme::Grow"] and out.exists()


def test_a_result_of_unknown_type_is_not_guessed() -> None:
    text = "g (float[2] x) => (float[2] y) { m = acme.Source ()  y = Mul (x, m) }"
    report = against(text)
    assert report.verdict == "not proved" and "type of 'm' is neither declared" in report.summary


def test_what_is_wrong_for_another_reason_is_still_an_error() -> None:
    with pytest.raises(InputError, match="does not load in onnxruntime"):
        verify(model(MIDDLE.replace("Tanh (m)", "Tanh (q)")), model(MIDDLE))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "operator", "places"),
    [
        ("resnet18.onnx", "Relu", (4, 9)),
        ("bert.raw.onnx", "MatMul", (7, 20)),
        ("llama.raw.onnx", "MatMul", (9,)),
        ("mobilenet_v2.raw.onnx", "Conv", (5, 12, 30)),
        ("whisper.raw.onnx", "LayerNormalization", (2, 5)),
        ("gpt2.onnx", "Softmax", (1,)),
    ],
)
def test_real_models(name: str, operator: str, places: tuple[int, ...]) -> None:
    custom = with_custom(name, operator, places)
    done = onnxgrad.optimize(custom, report=True)
    assert done.proof.verdict == "equal" and len(done.proof.around) == len(places)
    wrong = onnxgrad.optimize(custom)
    node = next(n for n in reversed(wrong.graph.node) if n.op_type in ("MatMul", "Conv", "Gemm"))
    bad = helper.make_node("Neg", [f"{node.output[0]}_"], [node.output[0]])
    node.output[0] += "_"
    at = list(wrong.graph.node).index(node)
    wrong.graph.node.insert(at + 1, bad)
    assert verify(custom, wrong).verdict == "different"


def test_a_real_model() -> None:
    done = onnxgrad.optimize(with_custom("training/mlp.onnx", "Gemm", (1,)), report=True)
    assert done.proof.verdict == "equal" and done.proof.around == ("acme::Mystery",)


def test_the_operators_of_onnx_are_never_suspects() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3, "acme" : 1, "com.microsoft" : 1]>
        g (float[2,3] x) => (float[2,3] y) { t = Tanh (x) s = ai.onnx.ml.Scaler <offset = [0.0], scale = [1.0]> (t)
        m = com.microsoft.Gelu (s) y = acme.Mystery (m) }"""
    found = unknown_operators(parse(text), CannotRun("it failed"))
    assert (
        found is not None and list(found.operators) == [("acme", "Mystery")] and not found.certain
    )
    named = CannotRun(f"acme:Mystery(-1) {NOT_KNOWN}")
    assert unknown_operators(parse(text), named) is not None


@pytest.mark.parametrize("last", [False, True])
def test_sizes_that_are_declared_under_new_names_are_those_of_the_operand(last: bool) -> None:
    """Each was drawn by itself, and a Conv of pictures of 224 by 64 by 8 took all memory."""
    model = parse(f"""<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
      g (float[1,3,16,16] x) => (float[a,b,c,d] y) <float[a,b,c,d] q, float[e,f,g,h] v> {{
        q = my.Quant (x) v = my.Quant (w) c = Conv <pads = [1,1,1,1]> (q, v) r = Relu (c)
        {"y = my.Quant (r)" if last else "y = Relu (r)"} }}""")
    w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    types = result_types(model, [n for n in model.graph.node if n.domain], model)
    sizes = {n: [d.dim_value for d in t.tensor_type.shape.dim] for n, t in types.items()}
    assert sizes["q"] == [1, 3, 16, 16] and sizes["v"] == [4, 3, 3, 3]
    assert verify(model, model)


def test_sizes_of_the_inputs_stay_open_behind_a_custom_operator() -> None:
    model = parse("""<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
      g (float[N,3] x) => (float[N,7] y) <float[N,7] q> { q = my.Map (x) y = Relu (q) }""")
    (node,) = (n for n in model.graph.node if n.domain)
    dims = result_types(model, [node], model)["q"].tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["N", 7]
