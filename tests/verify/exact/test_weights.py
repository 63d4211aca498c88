"""Weights that a rewrite computed: exact up to their rounding, element by element."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from onnxgrad.verify.exact.decide import decide
from onnxgrad.verify.exact.window import Decision, Window
from tests.verify.exact.test_decide import window

W = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
S = np.random.default_rng(2).uniform(0.5, 2, 3).astype(np.float32)


def folded(body: str, new: np.ndarray, *, dtype: type = np.float32) -> Window:
    """Scaling a product by S, against a product with the weight `new`, that `body` computes."""
    old = "{ p = MatMul(x, w) y = Mul(p, s) }"
    made = window(old, "{ y = MatMul(x, v) }", outputs="float[N,3] y")
    constants = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(S, "s")]
    made.old.graph.initializer.extend(constants)
    made.new.graph.initializer.append(numpy_helper.from_array(new.astype(dtype), "v"))
    witness: ModelProto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g () => (float[4,3] v) {{ {body} }}'
    )
    witness.graph.initializer.extend(constants)
    return Window(made.old, made.new, made.claims, (), {"v": witness})


def verdict(found: Decision) -> tuple[str, tuple[str, ...]]:
    return found.verdict, found.rounded


def test_a_scale_that_is_folded() -> None:
    assert verdict(decide(folded("v = Mul(w, s)", W * S))) == ("rounded", ("v",))


@pytest.mark.parametrize("steps", [1, -1])
def test_an_element_that_is_one_ulp_off(steps: int) -> None:
    new = W * S
    new[2, 1] = np.nextafter(new[2, 1], np.float32(steps * np.inf))
    found = decide(folded("v = Mul(w, s)", new))
    assert found.verdict == "refuted" and "v[2, 1]" in found.stopped_by


def test_a_witness_that_is_another_formula_proves_nothing() -> None:
    found = decide(folded("v = Div(w, s)", W / S))
    assert found.verdict == "refuted" and "y[0, 0]" in found.stopped_by


def test_operations_that_round_twice_have_twice_the_room() -> None:
    body = "r = Reciprocal(s) v = Div(w, r)"
    twice = (W / (np.float32(1) / S)).astype(np.float32)
    assert verdict(decide(folded(body, twice))) == ("rounded", ("v",))
    off = twice * np.float32(1 + 1e-6)
    assert decide(folded(body, off)).verdict == "refuted"


def test_a_divisor_in_which_numbers_cancel_is_not_judged() -> None:
    body = "a = Add(s, s) d = Sub(a, s) v = Mul(w, d) q = Div(v, d)"
    found = decide(folded(body, W * S))
    assert found.verdict in ("sampled", "refuted") and not found


def test_equal_bytes_need_no_witness() -> None:
    made = window("{ t = Transpose(w) y = MatMul(x, t) }", "{ y = MatMul(x, v) }",
                  outputs="float[N,3] y")  # fmt: skip
    made.old.graph.initializer.append(numpy_helper.from_array(W.T.copy(), "w"))
    made.new.graph.initializer.append(numpy_helper.from_array(W, "v"))
    assert decide(made).verdict == "exact"


ROOTS = [
    ("{ y = Gelu(x) }",
     "<float[1] r = {1.4142135381698608398}, float[1] o = {1}, float[1] h = {0.5}>"
     "{ d = Div(x, r) e = Erf(d) f = Add(e, o) m = Mul(x, f) y = Mul(m, h) }", ("r",)),
    ('{ y = Gelu<approximate = "tanh">(x) }',
     "<float[1] s = {0.79788458347320556641}, float[1] c = {0.044714998453855514526}, float[1] o = {1}, "
     "float[1] h = {0.5}> { a = Mul(x, x) b = Mul(a, x) d = Mul(b, c) e = Add(x, d) f = Mul(e, s) "
     "t = Tanh(f) u = Add(t, o) m = Mul(x, u) y = Mul(m, h) }", ("s", "c")),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "names"), ROOTS, ids=["erf", "tanh"])
def test_constants_next_to_roots(old: str, new: str, names: tuple[str, ...]) -> None:
    assert verdict(decide(window(old, new, opset=20))) == ("rounded", names)
    for wrong in (new.replace("1.41421353", "1.41421365"), new.replace("0.044714998", "0.0447151")):
        if wrong != new:
            assert not decide(window(old, wrong, opset=20))
