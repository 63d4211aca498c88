"""Chains in the walk: what else is asked for is whole, other readers add up, blocks and checkpoints stay apart."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.grad import chains
from onnxgrad.verify.reference.evaluate import reference
from tests.grad.numeric import check_model, normal
from tests.grad.rules.test_chains import NUMBERS, ROOTS, SILU, gelu, root_mean_square
from tests.helpers import parse


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (gelu(), ["x", "t"]),
        (gelu(), ["q"]),
        (gelu(), ["x", "third"]),
        (SILU, ["x", "s"]),
        (root_mean_square(ROOTS["power"]), ["x", "r"]),
        (root_mean_square(ROOTS["power"]), ["x", "eps"]),
    ],
)
def test_the_adjoint_of_what_stands_between_is_whole(
    text: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parse(text)
    feeds = {"x": normal(2, 3, 4) if "2,3,4" in text else normal(2, 3)}
    feeds["y_grad"] = feeds["x"][::-1].copy()
    found = reference(gradient(model, asked, adjoint="input"), feeds)
    monkeypatch.setattr(chains, "_CHAINS", {})
    expected = reference(gradient(model, asked, adjoint="input"), feeds)
    assert found.keys() == expected.keys() and len(found) == 1 + len(asked)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12)


def test_other_readers_of_what_stands_between() -> None:
    text = SILU.replace("float[2,3] y)", "float[2,3] z)").replace(
        "y = Mul (x, s)", "y = Mul (x, s) k = Exp (s) z = Mul (y, k)"
    )
    check_model(parse(text), {"x": normal(2, 3)})


def test_inside_a_branch() -> None:
    text = """g (float[2,3] x, bool c) => (float[2,3] y) {
        e = Exp (x)
        y = If (c) <
          then_branch = t () => (float[2,3] a) { s = Sigmoid (e) a = Mul (e, s) },
          else_branch = f () => (float[2,3] b) { b = Neg (e) }
        >
    }"""
    for condition in (True, False):
        check_model(parse(text), {"x": normal(2, 3), "c": np.array(condition)}, wrt=["x"])


def test_with_checkpoints_and_twice() -> None:
    model = parse(
        f"g (float[2,3] x) => (float l) <{NUMBERS}> {{ p = Pow (x, three) q = Mul (p, third) "
        "a = Add (x, q) w = Mul (a, root) t = Tanh (w) h = Add (t, one) u = Mul (x, half) "
        "y = Mul (u, h) z = Exp (y) l = ReduceSum <keepdims = 0> (z) }"
    )
    plain = gradient(model, "x")
    check_model(gradient(model, "x", checkpoint=["y"]), {"x": normal(2, 3)}, wrt=["x"], target="l")
    check_model(plain, {"x": normal(2, 3)}, wrt=["x"], target="x_grad")


def test_where_each_binding_came_from() -> None:
    found = gradient(parse(SILU), "x", adjoint="input")
    made_by = {
        p.value for n in found.graph.node for p in n.metadata_props if p.key == "onnxgrad.made_by"
    }
    assert made_by == {"gradient of silu"}
