"""What the page says of a gradient: its check, and the memory with and without checkpoints."""

from __future__ import annotations

import onnxgrad
from onnxgrad.grad import differentiate
from onnxgrad.report.gradient import GradientMade
from tests.report.html.common import data_of, section_of

MODEL = "models/training/mlp.onnx"


def test_new_nodes_stand_apart_and_the_memory_is_compared() -> None:
    found = differentiate(onnxgrad.load(MODEL), "params", checkpoint="auto")
    plain = differentiate(onnxgrad.load(MODEL), "params")
    check = onnxgrad.check_gradient(MODEL, "params")
    page = GradientMade(found, 12, 0.1, check).to_html("mlp", plain)
    graphs = section_of(page, "graph")["graphs"]
    new = [n for n in graphs[1]["nodes"] if n.get("c") == "added"]
    assert len(graphs[0]["nodes"]) == 12 and len(new) == len(graphs[1]["nodes"]) - 12
    groups = graphs[1]["groups"]
    assert {groups[n["g"]][1].partition(".")[0] for n in new if groups[n["g"]][0] == 0} == {
        "gradient"
    }
    curves = section_of(page, "curves")["curves"]
    assert [c["label"] for c in curves] == ["without checkpoints", "with checkpoints"]
    assert all(max(c["bytes"]) > 0 for c in curves)
    report = data_of(page)["reports"][0]
    assert report["verdict"]["word"] == "agrees with differences"
    rows = section_of(page, "rows")["rows"]
    assert {r["label"] for r in rows} == {v.name for v in check.values if v.judged}


def test_without_a_check_it_says_so() -> None:
    page = GradientMade(differentiate(onnxgrad.load(MODEL)), 12, 0.1, None).to_html("mlp")
    assert data_of(page)["reports"][0]["verdict"]["word"] == "not checked"
    assert [c["label"] for c in section_of(page, "curves")["curves"]] == ["gradient"]
