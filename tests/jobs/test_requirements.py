"""What a recipe may require, and what misses it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.jobs.requirements import (
    Facts,
    Held,
    Latency,
    bound_of,
    check_operators,
    facts_of,
    hold,
    left_to_ci,
    operators_of,
    within_tolerance,
)
from onnxgrad.rewrite.exact_record import Decided, ExactReport
from onnxgrad.verify import Report, verify
from tests.helpers import parse

MODEL = parse("""<ir_version: 10, opset_import: ["": 20, "d": 1]> g (float[2,2] x) => (float[2,2] y) {
      a = MatMul(x, x) b = MatMul(a, x) y = d.f(b) }
      <domain: "d", opset_import: ["": 20]> f (p) => (q) { q = Tanh(p) }""")
PROGRAM = onnxgrad.load(MODEL)
RESULT = facts_of(PROGRAM, PROGRAM.proto)
# a model twice as large, and one that somebody said yes to
GIVEN = replace(RESULT, operators={"MatMul": 8}, bytes=2 * RESULT.bytes, memory=1000)
BASELINE = replace(RESULT, parameters=10, latency=Latency("input", 0.5, 0.4, 0.6))
TIMED = replace(RESULT, memory=900, latency=Latency("input", 0.8, 0.7, 0.9))


def held(name: str, text: object, result: Facts = RESULT, **known: object) -> Held:
    return hold(name, bound_of(name, text), result, GIVEN, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("MatMul", 2, ""),
        ("MatMul", "<=1", "2 MatMul, not <= 1"),
        ("MatMul + Tanh", "== 3", ""),
        ("MatMul+Tanh", "<3", "3 MatMul+Tanh, not < 3"),
        ("nodes", ">=4", ""),
        ("nodes", "<= -50%", ""),
        ("nodes", "<= -60%", "4 nodes, not <= -60% (3.2)"),
        ("nodes", "< input", ""),
        ("d::f", "!=1", "1 d::f, not != 1"),
        ("opset", "<= 20", ""),
        ("opset", "<= 17", "20 opset, not <= 17"),
        ("parameters", 0, ""),
        ("bytes", "<= -50%", ""),
        ("bytes", "<= 10kB", ""),
        ("bytes", "<= input - 51 %", "is filled in below"),
    ],
)
def test_counts(name: str, text: int | str, words: str) -> None:
    found = held(name, text)
    if words.startswith("is filled"):
        words = f"{RESULT.bytes} bytes, not <= -51% ({GIVEN.bytes * 0.49:,.10g})"
    assert found.why == words and found.held == (not words)


def test_the_value_and_what_the_bound_comes_to_are_known() -> None:
    found = held("bytes", "<= +10%")
    assert found.bound == "<= +10%" and found.value == RESULT.bytes
    assert found.limit == pytest.approx(2.2 * RESULT.bytes)
    assert found.to_dict()["held"] is True


def test_the_baseline() -> None:
    assert "it has no baseline" in held("nodes", "<= baseline").why
    assert held("nodes", "<= baseline", baseline=BASELINE).held
    assert not held("nodes", "< baseline", baseline=BASELINE).held
    assert held("nodes", "< baseline +5%", baseline=BASELINE).held
    assert held("parameters", "<= baseline -100%", baseline=BASELINE).limit == 0
    assert held("interface", "== baseline", baseline=BASELINE).held
    other = replace(BASELINE, outputs={"z": "f32[2,2]"})
    moved = held("interface", "== baseline", baseline=other).why
    assert moved == "outputs changed: z f32[2,2] → y f32[2,2]"
    assert held("interface", "== input").held and held("interface", " ==input ").held
    renamed = replace(RESULT, inputs={"other": "float[2,2]"})
    assert held("interface", "== input", renamed).why.startswith("inputs changed: ")


def test_what_is_measured() -> None:
    assert held("latency", "<= 0.9").why == "it could not be measured"
    assert held("latency", "<= 0.9", TIMED).held
    assert held("latency", "<= -10%", TIMED).held and not held("latency", "<= -35%", TIMED).held
    assert not held("latency", "<= baseline", TIMED, baseline=BASELINE).held
    assert held("latency", "<= 0.75", TIMED).held and held("latency", ">= 0.85", TIMED).held
    assert held("latency", "<= 0.69", TIMED).why == (
        "0.80 latency (quartiles 0.70 to 0.90), not <= 0.69"
    )
    assert held("latency", "<= baseline +60%", TIMED, baseline=BASELINE).held
    assert held("memory", "<= -10%", TIMED).held and held("memory", "< 1 kB", TIMED).held
    assert held("memory", "<= baseline", TIMED, baseline=BASELINE).why == (
        "the baseline has no such value"
    )
    there = replace(BASELINE, memory=900, memory_on="cuda")
    assert held("memory", "<= baseline", replace(TIMED, memory_on="cuda"), baseline=there).held
    assert not held("memory", "<= baseline", replace(TIMED, memory_on="cpu"), baseline=there).held


def test_ratios_to_two_models_are_not_compared() -> None:
    other = replace(TIMED, latency=Latency("old.onnx", 0.4, 0.4, 0.4))
    assert held("latency", "<= 1.1 of old.onnx", other).held
    found = held("latency", "<= baseline", other, baseline=BASELINE)
    assert not found.held and found.why == "the baseline has no such value"


def test_the_checks_of_the_proof() -> None:
    proof = verify(PROGRAM, MODEL, checks=["onnxruntime"])
    assert held("checks", ["onnxruntime"], proof=proof).held
    found = held("checks", ["float64", "onnxruntime"], proof=proof)
    assert not found.held and "float64 check" in found.why
    assert held("checks", ["onnxruntime"]).why == "nothing was proved"


def test_the_share_of_exact_rewrites() -> None:
    decided = [Decided(i, "p", "r", "exact" if i else "sampled", reason="sizes") for i in range(4)]
    report = ExactReport(decided)
    assert held("exact", ">= 75%", exact=report).held
    found = held("exact", " >80 % ", exact=report)
    assert (found.bound, found.value, found.limit, found.held) == ("> 80%", 75.0, 80.0, False)
    assert found.why == "75% exact, not > 80%: 3 of 4 rewrites exact, 1 sampled (1 sizes)"
    assert held("exact", ">= 75%").why == "no rewrite was evaluated: verify.exact is false"
    report.chained = False
    assert not held("exact", ">= 1%", exact=report).held


def test_the_tolerance_of_the_proof() -> None:
    proof: Report = verify(PROGRAM, MODEL)
    assert within_tolerance(None, proof) == [] and within_tolerance(1, None) == []
    (found,) = within_tolerance(0, proof)
    assert found.held and found.value == 0
    (found,) = within_tolerance(-1.0, proof)
    assert found.why == "a difference of 0.00e+00 of max, tolerance = -1"


def test_unknown_operators() -> None:
    known = operators_of(PROGRAM)
    assert known == {"MatMul", "Tanh", "d::f"}
    check_operators(["nodes", "bytes", "d::f + MatMul", "Gemm"], known, "r.toml")
    check_operators(["own::g"], known, "r.toml", others=True)
    for names, wrong in (
        ("MatMul+Gem", "'Gem', which is not an operator"), ("MatMull", "did you mean 'MatMul'"),
        ("parameter", "did you mean 'parameters'"), ("own::g", "'own::g', which is not an operator"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"^r.toml: require names .*{wrong}"):
            check_operators([names], known, "r.toml")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (3, "== 3"),
        (" <= 164 ", "<= 164"),
        ("<= -10%", "<= -10%"),
        ("<=+2.5 %", "<= +2.5%"),
        ("<= input", "<= input"),
        ("< Baseline", "< baseline"),
        ("<= baseline + 5%", "<= baseline +5%"),
    ],
)
def test_bounds_as_text(text: object, shown: str) -> None:
    assert str(bound_of("bytes", text)) == shown


def test_sizes_have_units() -> None:
    assert bound_of("memory", "<= 1.5 MiB").number == 1.5 * 2**20
    assert bound_of("bytes", "<= 10MB").number == 10**7
    assert bound_of("parameters", "<= 1.5M").number == 1_500_000


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nodes", "164", "cannot read the requirement"),
        ("nodes", "<= 1.5", "the number must be whole"),
        ("nodes", True, "cannot read the requirement"),
        ("nodes", 1.5, "cannot read the requirement"),
        ("nodes", None, "cannot read the requirement"),
        ("nodes", "<= 90%", "cannot read the requirement"),
        ("nodes", "<= 10kB", "only bytes and memory have a unit"),
        (
            "parameters",
            "<= 10kB",
            "only bytes and memory have a unit, and parameters K, M, G and T",
        ),
        ("latency", "<= 5ms", 'is a ratio to the time of the input: write "<= 0.9"'),
        ("latency", "<= 5M", "is a ratio to the time of the input"),
        ("latency", "fast", "is a ratio to the time of the input"),
        ("bytes", "<= 10 of old.onnx", "only latency is a ratio"),
        ("bytes", "<= -110%", "an upper bound of 0 cannot be met"),
        ("interface", 1, 'cannot hold \'interface\' to 1: write "== input" or "== baseline"'),
        ("interface", "<= 3", 'write "== input" or "== baseline"'),
        ("interface", "<= baseline", 'write "== input" or "== baseline"'),
        ("interface", "== baseline +5%", 'write "== input" or "== baseline"'),
        ("interface", True, 'write "== input" or "== baseline"'),
        ("nodes", "few", "signs are <= >= == != < >"),
        ("nodes", "<= 3MB", "and parameters K, M, G and T; write a number or text such as"),
        ("checks", "float64", "write a list of 'float64'"),
        ("exact", "<= 90%", 'write ">= 90%"'),
        ("exact", ">= 101%", 'write ">= 90%"'),
        ("exact", 90, 'write ">= 90%"'),
        ("checks", [], "write a list"),
        ("checks", ["left"], "write a list"),
    ],
)
def test_bounds_that_have_no_meaning(name: str, text: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        bound_of(name, text)


def test_what_only_ci_holds() -> None:
    required = {"nodes": "<= baseline", "bytes": "<= -1%", "latency": "<= 1", "memory": "<= 1GB"}
    assert left_to_ci(required) == ["nodes", "latency", "memory"]
