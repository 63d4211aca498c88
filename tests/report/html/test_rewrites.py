"""What the page says of rewriting: laws, places, proofs, passes."""

from __future__ import annotations

import pytest

import onnxgrad
from onnxgrad.pipeline.optimize import Optimized, RewriteRefuted, optimize_program
from onnxgrad.pipeline.own_laws import OwnLaws
from onnxgrad.pipeline.pipeline import Pipeline
from onnxgrad.report.html.optimized import optimized
from onnxgrad.report.html.rewrites import passes, places, rewrites
from onnxgrad.report.optimized import Outcome
from tests.helpers import parse

TEXT = "g (float[2] x) => (float[2] y, float[2] z) { a = Identity (x)  y = Tanh (a)  b = Identity (x)  z = Neg (b) }"


@onnxgrad.rewrite(onnxgrad.P.Tanh(onnxgrad.capture("x")), shrinks="one Tanh less")
def tanh_is_softsign(x: onnxgrad.Var) -> object:
    """Tanh(x) = Softsign(x)"""
    return onnxgrad.op.Softsign(x)


def refuted(**options: bool) -> Outcome:
    """Of two rewrites that hold, and one that does not."""
    pipeline = Pipeline((*Pipeline.of(passes="remove-noops").passes, OwnLaws((tanh_is_softsign,))))
    with pytest.raises(RewriteRefuted) as error:
        optimize_program(parse(TEXT), pipeline, proof={"legs": ["float64"]}, **options)
    outcome = Outcome("m.onnx", None, "m.onnx", error=error.value)
    assert error.value.done is not None
    outcome.came_of(error.value.done)
    outcome.report = error.value.report
    return outcome


def done() -> Optimized:
    return optimize_program(parse(TEXT), Pipeline.of(passes="remove-noops"), prove=False)


def test_each_rewrite_has_its_law_and_place() -> None:
    found = done()
    data = rewrites(found.trace, None, {1: "equal on its own operands"})
    assert [law[1] for law in data["laws"]] == ["remove-noops"] and data["whole"] == ""
    assert [r[2] for r in data["rewrites"]] == ["equal on its own operands", ""]
    assert "Identity(x)" in data["rewrites"][0][1]
    ((name, count, laws),) = passes(found.trace, found.passes)["rows"]
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
