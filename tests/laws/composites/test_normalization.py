"""onnxgrad/laws/composites/normalization.py: RMSNormalization and LayerNormalization from their chains."""

from __future__ import annotations

import pytest

from tests.helpers import unindented
from tests.laws.composites.chains import NUMBERS, raised
from tests.rewriting import assert_same_results, weights

HEAD = f"g (float[2,S,8] x, float[8] w, float[8] b) => (float[2,S,8] y) {NUMBERS}"
MOMENT = "p = Pow(x, two) m = ReduceMean <keepdims = 1> (p, ax) a = Add(m, eps)"
RMS = {
    "torch": f"{MOMENT} q = Sqrt(a) i = Reciprocal(q) z = Mul(x, i) y = Mul(w, z)",
    "divided": f"{MOMENT.replace('Pow(x, two)', 'Mul(x, x)')} q = Sqrt(a) z = Div(x, q) y = Mul(z, w)",
    "one over": f"{MOMENT} q = Sqrt(a) i = Div(one, q) z = Mul(i, x) y = Mul(z, w)",
    "power": f"{MOMENT} i = Pow(a, minus) z = Mul(x, i) y = Mul(z, w)",
}
CENTRE = "u = ReduceMean <keepdims = 1{0}> (x{1}) d = Sub(x, u) p = Pow(d, two) m = ReduceMean <keepdims = 1{0}> (p{1}) a = Add(m, eps) q = Sqrt(a)"


@pytest.mark.parametrize("body", RMS.values(), ids=RMS)
@pytest.mark.parametrize("opset", [23, 24, 25])
def test_rms_normalization(body: str, opset: int) -> None:
    done = raised(f"{HEAD} {{ {body} }}", opset=opset)
    assert done.text == unindented("""
        g(x: f32[2,S,8], w: f32[8], b: f32[8]) {
          y: f32[2,S,8] = RMSNormalization(x, w, axis=-1, epsilon=1e-05)
          return y
        }
    """)
    done.prove()


def test_rms_normalization_of_half_in_float() -> None:
    text = f"""g (float16[2,S,8] h, float16[8] w) => (float16[2,S,8] y) {NUMBERS}
        {{ x = Cast <to = 1> (h) {MOMENT} q = Sqrt(a) z = Div(x, q) c = Cast <to = 10> (z) y = Mul(w, c) }}"""
    done = raised(text)
    assert done.ops == ["RMSNormalization"]
    assert_same_results(done)


@pytest.mark.parametrize("opset", [17, 18, 20, 23])
@pytest.mark.parametrize("last", ["z = Div(d, q)", "i = Reciprocal(q) z = Mul(d, i)"])
def test_layer_normalization(opset: int, last: str) -> None:
    centre = CENTRE.format(*((", axes = [-1]", "") if opset < 18 else ("", ", ax")))
    done = raised(f"{HEAD} {{ {centre} {last} t = Mul(z, w) y = Add(t, b) }}", opset=opset)
    assert [str(b) for b in done.block.bindings] == [
        "y: f32[2,S,8] = LayerNormalization(x, w, b, axis=-1, epsilon=1e-05)"
    ]
    done.prove()
    without = raised(f"{HEAD} {{ {centre} {last} y = Mul(z, w) }}", opset=opset)
    assert without.ops == ["LayerNormalization"]
    without.prove()


def test_over_two_axes() -> None:
    text = f"""g (float[2,S,4,8] x, float[4,8] w) => (float[2,S,4,8] y) <int64[2] both = {{-2, 3}}, float two = {{2}}, float eps = {{0.00001}}>
        {{ {MOMENT.replace("ax", "both")} q = Sqrt(a) z = Div(x, q) y = Mul(w, z) }}"""
    done = raised(text)
    assert done.ops == ["RMSNormalization"] and "axis=-2" in done.text
    done.prove()


@pytest.mark.parametrize("rank", range(6))
def test_an_epsilon_of_more_axes_widens_the_result(rank: int) -> None:
    """onnxruntime fuses such a chain, and its result then lacks the axes: not that of the raised form."""
    ones = "1," * max(rank - 3, 0)
    head = HEAD.replace("float eps = {0.00001}", f"float{[1] * rank or ''} eps = {{0.00001}}")
    head = head.replace("=> (float[", f"=> (float[{ones}")
    for body, op in (
        (RMS["torch"], "RMSNormalization"),
        (f"{CENTRE.format('', ', ax')} z = Div(d, q) y = Mul(z, w)", "LayerNormalization"),
    ):
        done = raised(f"{head} {{ {body} }}")
        assert done.ops == [op] + ["Unsqueeze"] * (rank > 3)
        done.prove()


STAY = {
    "over another axis": (HEAD, RMS["torch"].replace("ax)", "mid)"), "not over the last axes"),
    "an epsilon of the run": (HEAD.replace("float[8] b", "float eps").replace(", float eps = {0.00001}", ""), RMS["torch"], "epsilon is not a constant number"),
    "a weight of one": (HEAD.replace("float[8] w", "float[1] w"), RMS["torch"], "not a vector over the normalised axes"),
    "double": (HEAD.replace("float", "double"), RMS["torch"], "no RMSNormalization for f64"),
    "rows of nothing": (HEAD.replace("8]", "0]"), RMS["torch"], "which is empty"),
}  # fmt: skip


@pytest.mark.parametrize(("head", "body", "reason"), STAY.values(), ids=STAY)
def test_what_means_something_else_stays(head: str, body: str, reason: str) -> None:
    done = raised(f"{head} {{ {body} }}")
    assert "RMSNormalization" not in done.ops and reason in done.declined


def test_of_centred_values_it_is_no_layer_normalization_by_another_mean() -> None:
    centre = CENTRE.format("", ", ax").replace("(x, ax)", "(x, mid)", 1)
    done = raised(f"{HEAD} {{ {centre} z = Div(d, q) y = Mul(z, w) }}")
    assert "LayerNormalization" not in done.ops and "two means" in done.declined
    done.prove()


def test_an_older_opset_is_told() -> None:
    done = raised(f"{HEAD} {{ {RMS['torch']} }}", opset=20)
    assert "RMSNormalization needs opset 23, the model has 20" in done.declined


def test_a_bias_that_is_wider_stays() -> None:
    text = "g (float[2,8] x, float[2,8] b) => (float[2,8] y) { n = LayerNormalization(x, w) y = Add(n, b) }"
    done = raised(text, weights(w=(8,)))
    assert done.ops == ["LayerNormalization", "Add"] and "not a vector" in done.declined
