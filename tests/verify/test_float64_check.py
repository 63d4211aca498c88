from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import kernel, verify
from onnxgrad.verify import float64_check
from onnxgrad.verify.proof_model import proof_model
from onnxgrad.verify.report import Case
from onnxgrad.verify.trials import Trial
from tests.helpers import parse

ALONE, BOTH = ("float64",), ("float64", "onnxruntime")


def gathering(place: int) -> onnx.ModelProto:
    return parse(
        f"g (float[4] x) => (float[1] y) <int64[1] i = {{{place}}}> {{ y = Gather (x, i) }}"
    )


@pytest.mark.parametrize("checks", [ALONE, BOTH])
def test_a_candidate_that_fails_where_the_original_runs_differs(checks: Sequence[str]) -> None:
    report = verify(gathering(1), gathering(7), checks=checks)
    assert report.verdict == "different"
    check = report.checks["float64"]
    assert check.ran and check.worst is not None
    assert check.worst.reason == (
        "the second model does not run in float64: Gather -> 'y': IndexError: index out of range "
        "for axis 0 of size 4"
    )


def test_one_that_fails_on_some_inputs_only_differs() -> None:
    """It compared equal on the cases before."""
    pick = parse("g (float[4] x, int64[1] i) => (float[1] y) { y = Gather (x, i) }")
    part = parse(
        """g (float[4] x, int64[1] i) => (float[1] y) <int64[1] a = {0}, int64[1] b = {3}> {
             s = Slice (x, a, b) y = Gather (s, i) }"""
    )
    x = np.arange(4, dtype=np.float32)
    inputs = [{"x": x, "i": np.array([i])} for i in (0, 2, 3)]
    assert verify(pick, part, inputs=inputs[:2], checks=ALONE)
    report = verify(pick, part, inputs=inputs, checks=ALONE)
    assert report.verdict == "different" and "does not run in float64" in str(report.worst)


@pytest.mark.parametrize("which", ["original", "candidate"])
def test_an_operator_without_a_kernel_proves_nothing_alone(which: str) -> None:
    strange = parse("g (float[4] x) => (float[4] y) { y = com.microsoft.SampleOp (x) }")
    plain = parse("g (float[4] x) => (float[4] y) { y = Identity (x) }")
    pair = (strange, plain) if which == "original" else (plain, strange)
    report = verify(*pair, checks=ALONE)
    assert report.verdict == "not proved" and not report.checks["float64"].ran
    assert f"the {which}: the operator com.microsoft::SampleOp is not known" in report.summary


def test_a_leg_without_a_kernel_is_named_beside_one_that_ran() -> None:
    model = parse(
        """g (float[2,2] x) => (float[2,2] y) <float[2,2] k = {9, 0, 0, 9}> {
             s = Add (x, k) y = com.microsoft.SampleOp (s) }"""
    )
    report = verify(model, model)
    assert report.ok and "float64 check did not run" in report.summary
    assert "com.microsoft::SampleOp is not known" in report.summary


def test_a_kernel_of_the_users_that_raises_makes_a_difference() -> None:
    @kernel("my.domain::Positive")
    def positive(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        if (x < 0).any():
            raise ValueError("negative")
        return x

    plain = parse("g (float[4] x) => (float[4] y) { y = Identity (x) }")
    own = parse("g (float[4] x) => (float[4] y) { y = my.domain.Positive (x) }")
    report = verify(plain, own, checks=ALONE)
    assert report.verdict == "different" and "ValueError: negative" in str(report.worst)


QUANTISED = """g (float[N,33] x) => (float[N,33] y) <float k = {K}, float s = {1}, uint8 z = {0}> {
  m = Mul (x, k)  q = QuantizeLinear (m, s, z)  y = DequantizeLinear (q, s, z) }"""


def test_another_rounding_before_a_quantisation_is_the_originals_own_noise() -> None:
    """Elements a bit above a tie, where float32 and float64 agree: in another form of the model they lie below it."""
    x = np.full((1, 33), 5.000001, np.float32)
    x[0, 0] = 2000.0
    k = np.float32(0.1)
    near, far = (parse(QUANTISED.replace("K", repr(v))) for v in (float(k - 3 * np.spacing(k)), 0.11))  # fmt: skip
    original = parse(QUANTISED.replace("K", repr(float(k))))
    report = verify(original, near, inputs={"x": x}, weights="rounded", checks=["onnxruntime", "float64"])  # fmt: skip
    (check,) = (d for d in report.differences if d.check == "onnxruntime")
    assert check.ok and check.rel == 1 / 200 and check.tolerance == 1e-2
    assert not verify(original, far, inputs={"x": x}, weights="rounded").ok


def test_the_bits_of_the_original_as_deployed_are_its_own() -> None:
    """An int8 file may differ from itself, optimised and not, by more than any tolerance."""
    case = Case(seed=0, dims={})
    trial = Trial(case, {}, {"y": np.zeros(2, np.float32)})
    assert not trial.deploys({"y": np.ones(2, np.float32)})
    trial.deployed = {"y": np.ones(2, np.float32)}
    assert trial.deploys({"y": np.ones(2, np.float32)})
    for other in (np.ones(2), np.float32([1, 1.5]), np.ones((2, 1), np.float32), None):
        assert not trial.deploys({"y": other})


@pytest.mark.parametrize(("off", "verdict"), [(2e-6, "not proved"), (0.3, "different")])
def test_a_budget_that_ends_before_other_roundings_ran_refutes_no_rounding(
    off: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load, the first command of README was refused: its folded weights differ by 2.5e-6 of max."""

    def widen(self: float64_check._OtherRoundings, *_: object) -> None:
        self.oracle.left = 0.0

    monkeypatch.setattr(float64_check._OtherRoundings, "widen", widen)
    text = "g (float[2, 4] x) => (float[2, 4] y) <float k = {%r}> { y = Mul (x, k) }"
    report = verify(
        parse(text % 1.0), parse(text % (1.0 + off)), weights="rounded", checks=["float64"]
    )
    assert report.verdict == verdict, str(report)
    assert ("over its budget" in report.summary) == (verdict == "not proved")


@pytest.mark.parametrize(
    ("off", "budget", "verdict"),
    [(6e-6, 1e-9, "not proved"), (0.3, 1e-9, "different"), (6e-6, 20.0, "different")],
)
def test_a_budget_that_ends_early_refutes_no_rounding_in_onnxruntime(
    off: float, budget: float, verdict: str
) -> None:
    """Without float64 the original's noise is not known: a folded mobilenet was different under load."""
    text = "g (float[2, 4] x) => (float[2, 4] y) <float k = {%r}> { y = Mul (x, k) }"
    models = parse(text % 1.0), parse(text % (1.0 + off))
    report = verify(*models, weights="rounded", float64_budget=budget)
    assert report.verdict == verdict, str(report)
    assert ("over its budget" in report.summary) == (verdict == "not proved")


def test_no_more_roundings_run_than_explain_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[N,6] x) => (float[N,6] y) <float k = {%r}, float e = {64}> { t = Tanh (x) m = %s (t, k) y = Pow (m, e) }"
    pair = [parse(text % (0.70710677, "Mul")), parse(text % (1.4142135, "Div"))]
    seeds: list[int] = []
    moved = float64_check.Oracle.moved

    def noted(self: float64_check.Oracle, *arguments: Any) -> Any:
        seeds.append(arguments[-1])
        return moved(self, *arguments)

    monkeypatch.setattr(float64_check.Oracle, "moved", noted)
    assert verify(*pair).verdict == "equal" and set(seeds) == {0}
    seeds.clear()
    wrong = parse(text % (1.414, "Div"))
    assert verify(pair[0], wrong).verdict == "different" and set(seeds) == {0, 1, 2}


def test_another_candidate_is_compiled_anew() -> None:
    """The proof replaces the one that was compiled ahead if it draws random numbers."""
    first, second = (
        proof_model(parse(f"g (float[2] x) => (float[2] y) {{ y = {op} (x) }}"))
        for op in ("Neg", "Abs")
    )
    oracle = float64_check.Oracle(first, first, 20.0)
    oracle.hold(second)
    oracle.prepare("candidate")
    oracle.hold(first)
    found = oracle.candidate({"x": np.array([1, 2], np.float32)})
    assert found is not None and found["y"].tolist() == [-1, -2]


@pytest.mark.parametrize("size", [61, 71, 171])
def test_a_scale_folded_in_several_steps(size: int) -> None:
    """Its error is that of every step: more than that of rounding the result alone."""
    f = np.float32
    root = np.sqrt(f(1) / np.sqrt(f(size)))
    scale = float(root * root)
    assert abs(scale * size**0.5 - 1) > 2 * 2.0**-24
    original = parse(f"""g (float[3,{size}] x) => (float[3,{size}] y) {{
      n = Shape <start = -1> (x) c = Cast <to = 1> (n) r = Sqrt (c) o = Constant <value_floats = [1.0]> ()
      s = Div (o, r) t = Sqrt (s) a = Mul (t, t) y = PRelu (x, a) }}""")
    folded = parse(f"g (float[3,{size}] x) => (float[3,{size}] y) {{ y = LeakyRelu (x) }}")
    for factor, verdict in ((1.0, "equal"), (1 + 1e-6, "different"), (1 - 1e-6, "different")):
        alpha = onnx.helper.make_attribute("alpha", scale * factor)
        del folded.graph.node[0].attribute[:]
        folded.graph.node[0].attribute.append(alpha)
        assert verify(original, folded, checks=ALONE).verdict == verdict, factor
