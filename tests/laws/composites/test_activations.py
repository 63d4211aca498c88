"""onnxgrad/laws/composites/activations.py: Gelu, HardSigmoid, HardSwish and Softmax from their chains."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.verify import run
from tests.laws.composites.chains import NUMBERS, raised
from tests.rewriting import apply, model_of, special

HEAD = f"g (float[2,S,8] x) => (float[2,S,8] y) {NUMBERS}"

GELU = {
    "x/r2, x e1 half": "d = Div(x, r2) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)",
    "x r05, half x e1": "d = Mul(r05, x) e = Erf(d) a = Add(one, e) m = Mul(half, x) y = Mul(a, m)",
    "half e1 x": "d = Div(x, r2) e = Erf(d) a = Add(e, one) m = Mul(half, a) y = Mul(x, m)",
}
TANH = {
    "pow": "p = Pow(x, three) m = Mul(p, k) a = Add(x, m) u = Mul(a, s) t = Tanh(u) o = Add(t, one) h = Mul(x, half) y = Mul(h, o)",
    "x x x": "q = Mul(x, x) p = Mul(q, x) m = Mul(k, p) a = Add(m, x) u = Mul(s, a) t = Tanh(u) o = Add(one, t) h = Mul(half, o) y = Mul(x, h)",
    "factored": "p = Mul(x, x) m = Mul(p, k) a = Add(one, m) c = Mul(x, a) u = Mul(s, c) t = Tanh(u) o = Add(t, one) h = Mul(x, half) y = Mul(h, o)",
}
HARD = {
    "x clip / 6": "a = Add(x, three) q = Clip(a, zero, six) m = Mul(x, q) y = Div(m, six)",
    "x (clip / 6)": "a = Add(x, three) q = Clip(a, zero, six) d = Div(q, six) y = Mul(d, x)",
    "x clip sixth": "a = Add(three, x) q = Clip(a, zero, six) d = Mul(q, sixth) y = Mul(x, d)",
    "x HardSigmoid(x)": "d = HardSigmoid <alpha = 0.16666667> (x) y = Mul(x, d)",
}


@pytest.mark.parametrize("body", GELU.values(), ids=GELU)
@pytest.mark.parametrize("opset", range(20, 27))
def test_gelu(body: str, opset: int) -> None:
    done = raised(f"{HEAD} {{ {body} }}", opset=opset)
    assert [str(b).split(" = ")[1] for b in done.block.bindings] == ["Gelu(x)"]
    done.prove(checks=("float64", "onnxruntime"))


@pytest.mark.parametrize("body", TANH.values(), ids=TANH)
def test_gelu_by_tanh(body: str) -> None:
    done = raised(f"{HEAD} {{ {body} }}")
    assert [str(b).split(" = ")[1] for b in done.block.bindings] == ["Gelu(x, approximate='tanh')"]
    done.prove()


@pytest.mark.parametrize("body", HARD.values(), ids=HARD)
@pytest.mark.parametrize("opset", [14, 18, 22])
def test_hard_swish(body: str, opset: int) -> None:
    done = raised(f"{HEAD} {{ {body} }}", opset=opset)
    assert done.ops == ["HardSwish"]
    done.prove()


@pytest.mark.parametrize("body", HARD.values(), ids=HARD)
@pytest.mark.parametrize("opset", [11, 13])
def test_hard_swish_before_its_opset(body: str, opset: int) -> None:
    done = raised(f"{HEAD} {{ {body} }}", opset=opset)
    assert done.ops == ["HardSigmoid", "Mul"]
    assert done.reasons("hard_swish") == [
        f"HardSwish needs opset 14, the model has {opset}: raise it with --target-opset 14"
    ]
    done.prove()
    feeds = {"x": special(2, 3, 8)}
    want, got = (run(m, feeds, optimize=False)["y"] for m in (done.before, done.after))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("bounds", "ops"),
    [
        ("min = 0.0, max = 6.0", ["HardSigmoid", "Mul"]),
        ("min = 0.0, max = 3.0", ["Add", "Clip", "Mul", "Div"]),
        ("max = 6.0", ["Add", "Clip", "Mul", "Div"]),
    ],
)
def test_hard_swish_where_bounds_are_attributes(bounds: str, ops: list[str]) -> None:
    body = f"a = Add(x, three) q = Clip <{bounds}> (a) m = Mul(x, q) y = Div(m, six)"
    done = raised(f"{HEAD} {{ {body} }}", opset=10)
    assert done.ops == ops
    done.prove()


@pytest.mark.parametrize("last", ["y = Div(q, six)", "y = Mul(q, sixth)"])
def test_hard_sigmoid(last: str) -> None:
    done = raised(f"{HEAD} {{ a = Add(x, three) q = Clip(a, zero, six) {last} }}", opset=13)
    assert done.ops == ["HardSigmoid"]
    done.prove()


SOFTMAX = "m = ReduceMax <keepdims = 1{0}> (x{1}) d = Sub(x, m) e = Exp(d) q = ReduceSum <keepdims = 1> (e, ax) y = Div(e, q)"


@pytest.mark.parametrize("opset", [13, 17, 18, 23])
def test_softmax(opset: int) -> None:
    body = SOFTMAX.format(", axes = [-1]" if opset < 18 else "", "" if opset < 18 else ", ax")
    done = raised(f"{HEAD} {{ {body} }}", opset=opset)
    assert done.ops == ["Softmax"]
    done.prove()
    feeds = {"x": special(2, 3, 8)}
    want, got = (run(m, feeds, optimize=False)["y"] for m in (done.before, done.after))
    np.testing.assert_allclose(got, want, rtol=1e-6)


STAY = {
    "another root of two": ("d = Div(x, three) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)", 20),
    "few digits": ("d = Div(x, rough) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)", 20),
    "another x": ("z = Neg(x) d = Div(z, r2) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)", 20),
    "clipped at 3": ("a = Add(x, three) q = Clip(a, zero, three) m = Mul(x, q) y = Div(m, six)", 20),
    "clipped at 3, before HardSwish": ("a = Add(x, three) q = Clip(a, zero, three) m = Mul(x, q) y = Div(m, six)", 13),
    "weighed by another": ("z = Neg(x) a = Add(x, three) q = Clip(a, zero, six) m = Mul(z, q) y = Div(m, six)", 13),
    "no lower bound": ("a = Add(x, three) q = Clip(a, , six) m = Mul(x, q) y = Div(m, six)", 20),
    "HardSigmoid of another": ("z = Neg(x) d = HardSigmoid <alpha = 0.16666667> (z) y = Mul(x, d)", 20),
    "HardSigmoid's default": ("d = HardSigmoid (x) y = Mul(x, d)", 20),
    "another axis": ("m = ReduceMax <keepdims = 1> (x, ax) d = Sub(x, m) e = Exp(d) q = ReduceSum <keepdims = 1> (e, mid) y = Div(e, q)", 20),
    "without the largest": ("e = Exp(x) q = ReduceSum <keepdims = 1> (e, ax) y = Div(e, q)", 20),
}  # fmt: skip


@pytest.mark.parametrize(("body", "opset"), STAY.values(), ids=STAY)
def test_what_means_something_else_stays(body: str, opset: int) -> None:
    done = raised(f"{HEAD} {{ {body} }}", opset=opset)
    assert not {"Gelu", "HardSwish", "Softmax"} & set(done.ops)
    assert body.count("HardSigmoid") == done.count("HardSigmoid")


def test_what_others_read_stays() -> None:
    head = f"g (float[2,8] x) => (float[2,8] y, float[2,8] e) {NUMBERS}"
    body = "d = Div(x, r2) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)"
    assert "Gelu" not in raised(f"{head} {{ {body} }}").ops
    soft = "m = ReduceMax <keepdims = 1> (x, ax) d = Sub(x, m) e = Exp(d) q = ReduceSum <keepdims = 1> (e, ax) y = Div(e, q)"
    done = raised(f"{head} {{ {soft} }}")
    assert "Softmax" not in done.ops and "exponential has other readers" in done.declined


def test_an_older_opset_and_another_dtype_are_told() -> None:
    body = GELU["half e1 x"]
    done = raised(f"{HEAD} {{ {body} }}", opset=19)
    assert "Gelu" not in done.ops
    assert "Gelu needs opset 20, the model has 19: raise it with --target-opset 20" in done.declined
    half = (HEAD + f" {{ {body} }}").replace("float[2", "double[2").replace("float ", "double ")
    done = apply(model_of(half, opset=20), "raise-composites")
    assert "Gelu" not in done.ops and "onnxruntime has no Gelu for f64" in done.declined


def test_inside_an_if() -> None:
    text = f"""g (float[2,8] x, bool c) => (float[2,8] r) {NUMBERS} {{
        r = If (c) <
            then_branch = t () => (float[2,8] y) {{ {GELU["half e1 x"]} }},
            else_branch = e () => (float[2,8] z) {{ z = Neg(x) }}> }}"""
    done = raised(text)
    assert done.counts["Gelu"] == 1
    done.prove()
