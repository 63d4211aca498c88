"""Models that draw random numbers are proved on equal draws, or not proved at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad import P, capture, op, rewrite
from onnxgrad.jobs.rewriting import RewriteRefuted
from onnxgrad.verify import verify
from onnxgrad.verify.proof_model import proof_model
from onnxgrad.verify.random_operators import randoms, same_draws
from onnxgrad.verify.reference.evaluate import reference
from tests.helpers import parse

WEIGHTS = np.random.default_rng(0).uniform(-1, 1, (8, 4)).astype(np.float32)
SIGNS = np.where(np.arange(32).reshape(8, 4) % 4, 1, -1).astype(np.float32)
MODEL = """g (float[N,8] x) => (float[N,4] y)
    <float r = {0.5}, bool t = {1}, float s = {0.05}, int8 z = {0}> { %s y = MatMul (d, w) }"""
BODIES = {
    "RandomNormalLike": "n = RandomNormalLike (x) d = Add (x, n)",
    "RandomUniformLike": "n = RandomUniformLike <low = -2.0> (x) d = Add (x, n)",
    "RandomNormal": "n = RandomNormal <mean = 1.0, scale = 3.0, shape = [1, 8]> () d = Add (x, n)",
    "seed": "n = RandomNormalLike <seed = 1.0> (x) d = Add (x, n)",
    "small": "n = RandomNormalLike <scale = 0.01> (x) d = Add (x, n)",
    "Bernoulli": "p = Sigmoid (x) n = Bernoulli (p) d = Mul (x, n)",
    "Multinomial": "n = Multinomial <sample_size = 8> (x) f = Cast <to = 1> (n) d = Add (x, f)",
    "Dropout": "d = Dropout <seed = 3> (x, r, t)",
    "mask": "e, m = Dropout (x, r, t) f = Cast <to = 1> (m) d = Add (e, f)",
    "nested": """d = If (t) <then_branch = a () => (float[N,8] a) { a = Dropout (x, r, t) },
        else_branch = b () => (float[N,8] b) { n = RandomNormalLike (x) b = Add (x, n) }>""",
}


def model(body: str, weights: np.ndarray[Any, Any] = WEIGHTS, opset: int = 20) -> onnx.ModelProto:
    made = parse(MODEL % body, opset=opset)
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return made


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "equal"), (SIGNS, "different")])
def test_equal_draws_tell_wrong_weights_from_right_ones(
    kind: str, factor: Any, verdict: str
) -> None:
    report = verify(model(BODIES[kind]), model(BODIES[kind], WEIGHTS * factor))
    assert report.verdict == verdict and all(check.ran for check in report.checks.values())
    assert any("both models get the same draws of" in note for note in report.notes)


@pytest.mark.parametrize("opset", [9, 11, 14])
def test_tables_are_read_at_every_opset(opset: int) -> None:
    made = [model(BODIES["RandomNormalLike"], w, opset) for w in (WEIGHTS, WEIGHTS * SIGNS)]
    assert verify(made[0], made[0]).verdict == "equal" and verify(*made).verdict == "different"


def test_a_distribution_that_changed_is_a_difference() -> None:
    body = BODIES["RandomNormal"]
    for changed in (body.replace("3.0", "3.1"), body.replace("mean = 1.0", "mean = 0.0")):
        assert verify(model(body), model(changed)).verdict == "different"
    # a plain and a Like operator may draw the same
    like = "n = RandomNormalLike (x) d = Add (x, n)"
    plain = "n = RandomNormal <shape = [1, 8]> () d = Add (x, n)"
    assert verify(model(like), model(plain), dims={"N": 1}).verdict == "equal"


def test_two_draws_that_change_places_are_a_difference() -> None:
    text = "n = RandomNormalLike (x) m = RandomNormalLike (x) e = Mul (x, %s) d = Add (e, %s)"
    assert verify(model(text % ("n", "m")), model(text % ("m", "n"))).verdict == "different"


@pytest.mark.parametrize(
    ("ours", "theirs", "nodes"),
    [
        (BODIES["Dropout"], "q = Dropout <seed = 3> (x, r, t) d = Identity (q)", "Dropout 'd'"),
        (BODIES["seed"], BODIES["seed"].replace("1.0", "2.0"), "RandomNormalLike 'n'"),
        ("d = Identity (x)", BODIES["RandomNormalLike"], "RandomNormalLike 'n'"),
        (BODIES["Bernoulli"], "d = Identity (x)", "Bernoulli 'n'"),
    ],
)
def test_draws_without_a_counterpart_prove_nothing(ours: str, theirs: str, nodes: str) -> None:
    report = verify(model(ours), model(theirs))
    assert report.verdict == "not proved" and nodes in report.summary
    assert ("export in eval mode" in report.summary) == ("Dropout" in nodes)
    assert report.summary.count("y depends on random draws") == 1


def test_nodes_match_by_their_own_names_too() -> None:
    a, b = model(BODIES["Dropout"]), model("q = Dropout <seed = 3> (x, r, t) d = Identity (q)")
    for made in (a, b):
        made.graph.node[0].name = "/drop"
    assert verify(a, b).verdict == "equal"


def test_an_output_beside_the_draws_is_proved() -> None:
    text = """g (float[N] x) => (float[N] y, float[N] z) {
        %s = RandomNormalLike (x) y = Add (x, %s) z = Neg (x) }"""
    report = verify(parse(text % ("n", "n")), parse(text % ("k", "k")))
    assert report.verdict == "not proved" and len(report.unproved) == 1
    broken = parse((text % ("k", "k")).replace("Neg", "Abs"))
    report = verify(parse(text % ("n", "n")), broken)
    assert report.verdict == "different" and report.worst is not None and report.worst.output == "z"


def test_a_bound_of_the_users_own_judges_what_does_not_match() -> None:
    made = [
        model("n = RandomNormalLike <scale = 0.01> (x) d = Add (x, n)"),
        model("k = RandomNormalLike <scale = 0.01> (x) d = Add (x, k)"),
    ]
    assert verify(*made).verdict == "not proved"
    assert verify(*made, metric="cosine=0.9").verdict == "within bounds"


FUNCTION = """<ir_version: 10, opset_import: ["" : 20, "f" : 1]>
g (float[4] x) => (float[4] y) { y = f.noisy (x) }
<domain: "f", opset_import: ["" : 20]> noisy (a) => (b) { n = RandomNormalLike (a) b = Add (a, n) }"""


def test_draws_in_functions_are_named() -> None:
    made = onnx.parser.parse_model(FUNCTION)
    report = verify(made, made)
    assert report.verdict == "not proved" and "RandomNormalLike 'n'" in report.summary


@pytest.mark.parametrize(
    ("body", "opset", "draws"),
    [
        ("d = Dropout (x)", 12, False),
        ("d = Dropout (x, r)", 20, False),
        ("f = Constant <value = bool {0}> () d = Dropout (x, r, f)", 20, False),
        ("d = Dropout (x, r, t)", 20, True),
        ("c = ReduceMax <keepdims = 0> (x) g = Cast <to = 9> (c) d = Dropout (x, r, g)", 20, True),
        ("d = Dropout (x)", 10, False),
        # each version at which the rule changes, and the last before it
        ("d = Dropout (x)", 6, True),
        ("d = Dropout <is_test = 1> (x)", 6, False),
        ("d = Dropout <is_test = 0> (x)", 1, True),
        ("d = Dropout (x)", 7, False),
        ("d = Dropout (x)", 11, False),
        ("d = Dropout (x, r, t)", 12, True),
    ],
)
def test_a_dropout_draws_if_it_may_train(body: str, opset: int, draws: bool) -> None:
    assert bool(randoms(model(body, opset=opset))) == draws


def test_a_training_mode_that_is_computed_is_followed() -> None:
    body = "c = ReduceMax <keepdims = 0> (x) g = Greater (c, h) d = Dropout (x, r, g)"
    text = MODEL.replace("<float r", "<float h = {0}, float r") % body
    made = [parse(text), parse(text)]
    for m, w in zip(made, (WEIGHTS, WEIGHTS * SIGNS), strict=True):
        m.graph.initializer.append(numpy_helper.from_array(w, "w"))
    low = {"x": np.full((2, 8), -1, np.float32)}  # nothing drops
    (x,) = same_draws(proof_model(made[0]), proof_model(made[0])).same
    assert x == "Dropout 'd'"
    report = verify(made[0], made[0], inputs=low)
    assert report.verdict == "equal"
    assert verify(*made, inputs=low).verdict == "different"


def test_models_without_draws_are_left_as_they_are() -> None:
    a = proof_model(model("d = Neg (x)"))
    found = same_draws(a, a)
    assert found.original is a and found.candidate is a and not found.notes


@pytest.mark.slow
def test_optimize_refuses_a_wrong_rule_behind_a_dropout() -> None:
    x, w = capture("x w")

    @rewrite(P.MatMul(x, w.const))
    def wrong(x: Any, w: Any) -> Any:
        """A product is one with other weights."""
        return op.MatMul(x, np.asarray(w.const * np.float32([0.5, 1, 1, 1])))

    made = model(BODIES["Dropout"])
    assert onnxgrad.optimize(made).graph.node[0].op_type == "Dropout"
    with pytest.raises(RewriteRefuted, match="DIFFERENT") as refused:
        onnxgrad.optimize(made, passes=[wrong])
    assert refused.value.culprit is not None and refused.value.culprit.rule == "wrong"


def test_stored_results_of_a_model_that_draws_prove_nothing(tmp_path: Path) -> None:
    x = {"x": np.ones((2, 8), np.float32)}
    report = verify(model(BODIES["Dropout"]), inputs=x, expect={"y": np.ones((2, 4), np.float32)})
    (why,) = report.unproved
    assert not report.ok and why.startswith("y depends on random draws that differ from run to run")
    assert "(export in eval mode, or `onnxgrad edit --mode inference`)" in why


TEXT = "g (float[200,200] x) => (%s y) <float r = {0.3}, bool t = {1}> { y = %s }"
ONES = {"x": np.ones((200, 200), np.float32)}


@pytest.mark.parametrize(
    ("node", "kind", "mean", "deviation"),
    [
        ("RandomNormalLike (x)", "float[200,200]", 0.0, 1.0),
        (
            "RandomNormal <mean = 2.0, scale = 3.0, shape = [200, 200]> ()",
            "float[200,200]",
            2.0,
            3.0,
        ),
        ("RandomUniformLike <low = -1.0, high = 3.0> (x)", "float[200,200]", 1.0, 4 / 12**0.5),
        ("RandomNormalLike <dtype = 11> (x)", "double[200,200]", 0.0, 1.0),
        ("RandomUniformLike <dtype = 10> (x)", "float16[200,200]", 0.5, 12**-0.5),
        ("Dropout (x, r, t)", "float[200,200]", 1.0, (0.3 / 0.7) ** 0.5),
    ],
)
def test_mean_and_deviation(node: str, kind: str, mean: float, deviation: float) -> None:
    model = proof_model(parse(TEXT % (kind, node)))
    made = same_draws(model, model).original
    assert not any("Random" in n.op_type or n.op_type == "Dropout" for n in made.proto.graph.node)
    found = np.asarray(reference(made.proto, ONES)["y"], np.float64)
    assert found.shape == (200, 200)
    assert found.mean() == pytest.approx(mean, abs=0.03 * max(deviation, 1))
    assert found.std() == pytest.approx(deviation, rel=0.03)


@pytest.mark.parametrize("chance", [0.0, 0.2, 1.0])
def test_bernoulli_is_1_as_often_as_its_operand_says(chance: float) -> None:
    model = proof_model(parse(TEXT % ("float[200,200]", "Bernoulli (x)")))
    feeds = {"x": np.full((200, 200), chance, np.float32)}
    found = np.asarray(reference(same_draws(model, model).original.proto, feeds)["y"])
    assert set(np.unique(found)) <= {0.0, 1.0}
    assert found.mean() == pytest.approx(chance, abs=0.01)


def test_an_empty_shape_draws_nothing_and_a_scalar_one() -> None:
    model = proof_model(parse("g (float[a,b] x) => (float[a,b] y) { y = RandomNormalLike (x) }"))
    made = same_draws(model, model).original.proto
    for shape in ((0, 3), (3, 0)):
        assert np.asarray(reference(made, {"x": np.zeros(shape, np.float32)})["y"]).shape == shape
    model = proof_model(parse("g (float x) => (float y) { y = RandomNormalLike (x) }"))
    made = same_draws(model, model).original.proto
    assert np.asarray(reference(made, {"x": np.float32(0)})["y"]).shape == ()


def test_multinomial_draws_classes_as_often_as_their_logits_say() -> None:
    text = "g (float[50,2] x) => (int64[50,80] y) { y = Multinomial <sample_size = 80, dtype = 7> (x) }"
    model = proof_model(parse(text))
    feeds = {"x": np.log(np.tile(np.float32([0.25, 0.75]), (50, 1)))}
    found = np.asarray(reference(same_draws(model, model).original.proto, feeds)["y"])
    assert set(np.unique(found)) == {0, 1} and found.mean() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("node", ["RandomNormalLike (x)", "RandomUniform <shape = [2, 4]> ()"])
def test_a_file_that_does_not_open_is_not_proved_by_its_draws(node: str) -> None:
    """The proof replaces both random nodes, and each model then opens."""
    text = f"g (float[2,4] x) => (float[2,4] y) {{ r = {node} y = Add (r, x) }}"
    old, new = parse(text, opset=17), parse(text, opset=22)
    report = verify(old, new)
    name = node.split()[0]
    assert report.verdict == "not proved" and f"has no kernel of {name} of opset 22" in str(report)
    assert f"the newest opset at which {name} runs is 21" in report.summary
    assert verify(old, parse(text, opset=21))


def test_a_file_that_does_not_load_beside_its_draws_is_different() -> None:
    text = "g (float[4] x) => (float[4] y) {{ r = RandomNormalLike (x) {} y = Add (z, x) }}"
    report = verify(parse(text.format("z = Neg (r)")), parse(text.format("z = Foo (r)")))
    assert report.verdict == "different" and "does not load" in report.summary
