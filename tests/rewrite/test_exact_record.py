"""The exact record: a verdict on each rewrite; planted laws are refuted without any tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxgrad import optimize
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.passes.base import RulePass
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite import exact_record
from onnxgrad.rewrite.exact_record import ExactProver, ExactReport, RewriteNotExact
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import count, rewrite
from onnxgrad.verify.exact.decide import decide
from tests.helpers import MODELS_DIR, parse
from tests.rewriting import ABS_OF_NEG_TWICE, model_of

x, y, c, d, w = map(capture, "xycdw")


def record(model: Any, *laws: Any, passes: Any = None, **options: Any) -> ExactReport:
    """The record of a run of laws, decided in this process."""

    planted = type("Planted", (RulePass,), {"name": "planted", "laws": laws})
    program, trace = load(model), Trace()
    prover = ExactProver(program, trace, decide=lambda window, _: decide(window), **options)
    Pipeline.of(passes=[planted()] if passes is None else passes).run(program, trace)
    return prover.finish()


def model(text: str, **values: Any) -> ModelProto:
    constants = {name: np.asarray(value, np.float32) for name, value in values.items()}
    return model_of(f"g (float[N,3] x) => (float[N,3] y) {{ {text} }}", constants)


# ---- laws that are wrong -------------------------------------------------------------------------


@rewrite(P.Mul(x, c.const), shrinks=count("Mul"))
def product_with_a_tiny_number(x: Var, c: Var) -> Any:
    """x c = x"""
    return x


@rewrite(P.Relu(P.Mul(x, c.const)))
def relu_of_a_scale(x: Var, c: Var) -> Any:
    """Relu(c x) = c Relu(x): wrong for negative c"""
    return op.Relu(x) * c


@rewrite(P.Cast(P.Cast(x)), shrinks=count("Cast"))
def cast_there_and_back(x: Var) -> Any:
    """Cast(Cast(x)) = x"""
    return x


@rewrite(P.MatMul(x, w.const))
def weight_one_ulp_off(x: Var, w: Var) -> Any:
    """x w = x v, where one element of v is the float next to that of w"""
    array = np.array(w.const)
    array.flat[4] = np.nextafter(array.flat[4], np.float32(np.inf))
    return op.MatMul(x, array)


@rewrite(P.Add(P.Mul(x, c.const), P.Mul(x, d.const)), shrinks=count("Add"))
def sum_of_two_scales(x: Var, c: Var, d: Var) -> Any:
    """c x + d x = (c d) x"""
    return x * (c.const * d.const)


@rewrite(P.Sub(x, y), shrinks=count("Sub"))
def difference_turned(x: Var, y: Var) -> Any:
    """x - y = y - x, written with the sign on a number that no operand has"""
    return op.Add(x, y) * 1.0


@pytest.mark.parametrize(
    ("law", "made", "why"),
    [
        (product_with_a_tiny_number, model("y = Mul(x, s)", s=2.0**-31), "y.* differs"),
        (relu_of_a_scale, model("p = Mul(x, s) y = Relu(p)", s=[-2.0, 1, 3]), "differs"),
        (weight_one_ulp_off, model("y = MatMul(x, w)", w=np.arange(9).reshape(3, 3) / 7),
         r"\[1, 1\] is not the rounding"),
        (sum_of_two_scales, model("p = Mul(x, s) q = Mul(x, t) y = Add(p, q)", s=1.5, t=2.75), ""),
        (difference_turned, model("n = Neg(x) y = Sub(x, n)"), "differs"),
        (cast_there_and_back, model_of(
            "g (int64[N] x) => (int64[N] y) { a = Cast<to=3>(x) y = Cast<to=7>(a) }"), "differs"),
    ],
)  # fmt: skip
def test_a_wrong_law_is_refuted(law: Any, made: ModelProto, why: str) -> None:
    with pytest.raises(RewriteNotExact, match=rf"rewrite 1, {law.name} \(pass planted\).*{why}"):
        record(made, law)


def test_a_narrowing_cast_of_floats_that_goes_is_not_exact() -> None:
    found = record(model("a = Cast<to=10>(x) y = Cast<to=1>(a)"), cast_there_and_back)
    assert (found.exact, dict(found.sampled)) == (0, {"the laws of Cast are not known": 1})


# ---- laws that are right -------------------------------------------------------------------------


@rewrite(P.Div(P.Mul(x, x), x), shrinks=count("Div"))
def square_over_itself(x: Var) -> Any:
    """x x / x = x"""
    return x


@rewrite(P.Neg(x), shrinks=count("Neg"))
def neg_by_quotient(x: Var) -> Any:
    """-x = (0 - x x) / x"""
    return (0.0 - x * x) / x


@rewrite(P.Mul(P.Mul(x, c.const), d.const), shrinks=count("Mul"))
def product_of_two_numbers(x: Var, c: Var, d: Var) -> Any:
    """(x c) d = x (c d)"""
    return x * (c.const * d.const)


@rewrite(P.Mul(P.Mul(P.Mul(P.Mul(x, c.const), d.const), w.const), y.const))
def product_of_four_numbers(x: Var, c: Var, d: Var, w: Var, y: Var) -> Any:
    """((x c) d) w) y = x (c d w y)"""
    return x * (c.const * d.const * w.const * y.const)


def test_divisors_of_the_new_form_are_listed() -> None:
    gone = record(model("p = Mul(x, x) y = Div(p, x)"), square_over_itself)
    assert (gone.exact, gone.partial) == (1, [])
    new = record(model("y = Neg(x)"), neg_by_quotient)
    assert (new.exact, new.partial) == (1, ["divisor"]) and "new: divisor" in str(new.each[0])
    assert str(new) == "1 of 1 rewrite exact; new forms compute divisor"


def test_a_computed_number_is_exact_up_to_its_rounding() -> None:
    made = model("p = Mul(x, s) y = Mul(p, t)", s=[0.1, 0.7, 1.3], t=[0.3, 0.9, 1.1])
    found = record(made, product_of_two_numbers)
    assert found.rounded == 1 and str(found.each[0]) == "exact up to rounding of 1 weight"
    assert found.to_dict()["each"][0]["weights"] == list(found.each[0].weights) != []


def test_without_a_witness_nothing_is_refuted() -> None:
    text = "a = Mul(x, p) b = Mul(a, q) c = Mul(b, r) y = Mul(c, s)"
    made = model(text, p=[0.1, 0.7, 1.3], q=[0.3, 0.9, 1.1], r=0.7, s=[0.2, 3, 0.6])
    found = record(made, product_of_four_numbers)
    assert found.each[0].reason.startswith("no witness for constant")
    assert dict(found.sampled) == {"a constant without witness": 1} and found.share == 0


def test_a_rewrite_of_control_flow_is_sampled() -> None:
    found = record(parse(ABS_OF_NEG_TWICE), passes="inline,remove-noops,merge-consecutive")
    assert found.chained and set(found.sampled) <= {
        "it changes If", "it changes the call of a local function", "it is inside a local function",
    }  # fmt: skip


def test_a_change_of_no_rewrite_breaks_the_chain() -> None:
    program, trace = load(model("n = Neg(x) y = Neg(n)")), Trace()
    prover = ExactProver(program, trace, decide=lambda window, _: decide(window))
    program.main.set_operand(list(program.main.bindings)[1], 0, program.main.inputs[0])
    found = prover.finish()
    assert not found.chained and found.share == 0 and "was not recorded" in str(found)


def test_no_time_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_record, "_ALL", 0.0)
    made = model("p = Mul(x, s) y = Mul(p, t)", s=0.5, t=2.0)
    assert dict(record(made, product_of_two_numbers).sampled) == {
        "the time for exact proofs is up": 1
    }


# ---- models --------------------------------------------------------------------------------------


def test_the_option_decides_in_the_child() -> None:
    made = model("p = Mul(x, s) q = Mul(p, t) y = Neg(q)", s=0.75, t=[0.3, 0.9, 1.1])
    options = {"passes": [product_of_two_numbers], "verify": False, "report": True}
    done = optimize(made, exact=True, **options)
    assert "same algebra: 1 of 1 rewrite exact, 1 of them up to rounding of 1 weight" in str(done)
    assert done.to_dict()["exact"]["rounded"] == 1 and "planted" not in str(done)
    plain = optimize(made, **options)
    assert plain.to_dict()["exact"] is None and "same algebra" not in str(plain)
    assert plain.model.SerializeToString() == done.model.SerializeToString()
    wrong = model("p = Mul(x, s) q = Mul(x, t) y = Add(p, q)", s=1.5, t=2.75)
    with pytest.raises(RewriteNotExact, match="sum_of_two_scales"):
        optimize(wrong, exact=True, verify=False, passes=[sum_of_two_scales])


@pytest.mark.slow
@pytest.mark.parametrize("merge", ("auto", "always"))
@pytest.mark.parametrize("path", sorted(MODELS_DIR.glob("*.onnx")), ids=lambda path: path.stem)
def test_most_rewrites_of_the_models_are_exact(path: Any, merge: str) -> None:
    done = optimize(path, exact=True, verify=False, report=True, merge=merge, allow_growth=True)
    found = done.outcome.exact
    assert found is not None and found.chained and (found.share >= 0.85 or found.of < 10)
