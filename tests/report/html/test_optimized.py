"""What the page says of rewriting: laws, places, proofs, passes."""

from __future__ import annotations

import pytest

import onnxgrad
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.rewriting import RewriteRefuted, optimize_program
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.passes.user_laws import UserLaws
from onnxgrad.report.html.optimized import optimized, passes, places, rewrites
from onnxgrad.report.html.plots import choices, differences
from onnxgrad.rewrite.worklist import count
from tests.helpers import parse
from tests.report.html.common import data_of, section_of

TEXT = "g (float[2] x) => (float[2] y, float[2] z) { a = Identity (x)  y = Tanh (a)  b = Identity (x)  z = Neg (b) }"


@onnxgrad.rewrite(onnxgrad.P.Tanh(onnxgrad.capture("x")), shrinks=count("Tanh"))
def tanh_is_softsign(x: onnxgrad.Var) -> object:
    """Tanh(x) = Softsign(x)"""
    return onnxgrad.op.Softsign(x)


def refuted(**options: bool) -> Outcome:
    """Of two rewrites that hold, and one that does not."""
    pipeline = Pipeline((*Pipeline.of(passes="remove-noops").passes, UserLaws((tanh_is_softsign,))))
    with pytest.raises(RewriteRefuted) as error:
        optimize_program(parse(TEXT), pipeline, proof={"checks": ["float64"]}, **options)
    outcome = Outcome("m.onnx", None, "m.onnx", error=error.value)
    assert error.value.done is not None
    outcome.adopt(error.value.done)
    outcome.report = error.value.report
    return outcome


def done() -> Outcome:
    return optimize_program(parse(TEXT), Pipeline.of(passes="remove-noops"), prove=False)


def test_each_rewrite_has_its_law_and_place() -> None:
    found = done()
    data = rewrites(found.trace, None, {1: "equal on its own operands"})
    assert [law[1] for law in data["laws"]] == ["remove-noops"] and data["whole"] == ""
    assert [r[2] for r in data["rewrites"]] == ["equal on its own operands", ""]
    assert "Identity(x)" in data["rewrites"][0][1]
    ((name, count, laws),) = passes(found)["rows"]
    assert (name, count, laws[0][1]) == ("remove-noops", 2, 2)


def test_places_stand_alone_where_there_is_no_graph() -> None:
    shown = places(done().trace)
    assert shown is not None and shown["open"] == 0
    ((law, lines, _),) = shown["groups"]
    assert "=" in law and [line.split()[0] for line in lines] == ["1", "2"]
    assert places(optimize_program(parse(TEXT), Pipeline(()), prove=False).trace) is None


@pytest.mark.parametrize(
    ("options", "others", "blame"),
    [
        ({}, "", "the first that changes the result"),
        (
            {"each": True, "prove": False},
            "equal on its own operands",
            "the first whose two forms differ",
        ),
    ],
)
def test_a_refuted_model_is_drawn_and_opens_at_the_rewrite_to_blame(
    options: dict[str, bool], others: str, blame: str
) -> None:
    found = optimized(refuted(**options))
    graph = found["sections"][0]
    assert graph["kind"] == "graph" and graph["blamed"] == 3
    assert [r[2] for r in graph["rewrites"]] == [others, others, blame]
    became = [{n["o"]: n.get("c") for n in side["nodes"]} for side in graph["graphs"]]
    assert became[0]["Tanh"] == "changed" and became[1]["Softsign"] == "changed"
    assert found["verdict"]["word"] == "different"
    if not options:
        assert found["verdict"]["text"].startswith("in y, on cpu")
        assert graph["whole"].startswith("with the whole model: DIFFERENT")
    (name, count, laws) = next(s for s in found["sections"] if s["kind"] == "passes")["rows"][1]
    assert (name, count, laws) == ("own-laws", 1, [["tanh_is_softsign", 1]])


MODEL = """g (float[N,3] x) => (float[N,3] y, int64 k) <int64 one = {1}> {
    a = Identity (x)  y = Tanh (a)  k = Identity (one) }"""


@pytest.fixture(scope="module")
def optimised_model() -> onnxgrad.OptimizedModel:
    return onnxgrad.optimize(parse(MODEL), report=True, seeds=[0])


def test_the_verdict_and_the_figures_come_first(optimised_model: onnxgrad.OptimizedModel) -> None:
    (report,) = data_of(optimised_model.to_html())["reports"]
    assert report["verdict"]["word"] == "equal" and report["verdict"]["tone"] == "good"
    cards = {c["label"]: c for c in report["cards"]}
    assert list(cards) == ["nodes", "file size", "parameters", "worst difference", "rewrites"]
    assert optimised_model.outcome.before is not None and optimised_model.outcome.after is not None
    assert cards["nodes"]["value"] == str(optimised_model.outcome.after.nodes)
    assert cards["nodes"]["note"] == f"from {optimised_model.outcome.before.nodes}"
    assert cards["rewrites"]["value"] == str(len(optimised_model.rewrites))


def test_the_first_rewrite_has_a_place_to_open_at(
    optimised_model: onnxgrad.OptimizedModel,
) -> None:
    found = section_of(optimised_model.to_html(), "graph")
    shown = {n for graph in found["graphs"] for node in graph["nodes"] for n in node.get("w", ())}
    assert found["blamed"] == 0 and 1 in shown
    assert shown <= set(range(1, len(found["rewrites"]) + 1))


def test_differences_stand_against_what_is_allowed(
    optimised_model: onnxgrad.OptimizedModel,
) -> None:
    found = section_of(optimised_model.to_html(), "rows")
    assert {(r["label"], r["check"]) for r in found["rows"]} == {
        (name, check) for name in ("y", "k") for check in ("float64", "onnxruntime")
    }
    for row in found["rows"]:
        assert row["ok"] and row["value"] <= row["bound"]
    # nothing that depends on the clock
    assert "seconds" not in str(data_of(optimised_model.to_html()))


def test_a_failed_proof_is_shown() -> None:
    a, b = (
        parse("g (float[2] x) => (float[2] y) { y = Neg (x) }"),
        parse("g (float[2] x) => (float[2] y) { y = Abs (x) }"),
    )
    report = onnxgrad.verify(a, b, seeds=[0])
    error = onnxgrad.NotProved("they differ")
    found = optimized(Outcome("m.onnx", None, "m.onnx", report=report, error=error))
    assert found["verdict"]["tone"] == "bad" and ["they differ", "bad"] in found["verdict"]["notes"]
    plotted = differences(report)
    assert plotted is not None and not plotted["rows"][0]["ok"]
    assert next(c for c in found["cards"] if c["label"] == "worst difference")["tone"] == "bad"


def test_without_a_proof_it_says_so() -> None:
    found = optimized(Outcome("m.onnx", None, "m.onnx"))
    assert (found["verdict"]["tone"], found["verdict"]["word"]) == ("unsure", "not proved")


def test_what_was_measured_is_plotted() -> None:
    decisions = [
        {"choice": "a", "kept": True, "ratio": 0.9, "spread": 0.02},
        {"choice": "b", "kept": False, "ratio": 1.1, "spread": None},
        {"choice": "c", "kept": False, "ratio": None, "spread": None},
    ]
    found = choices({"decisions": decisions, "total": None, "provider": "cpu", "threads": 1})
    assert found is not None
    assert [(r["label"], r["low"], r["ok"]) for r in found["rows"]] == [
        ("a", 0.88, True),
        ("b", 1.1, False),
    ]
    assert choices(None) is None
