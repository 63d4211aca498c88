"""Bytes alive over a run: each value from the node that gives it to its last reader."""

from __future__ import annotations

import onnxgrad
from onnxgrad.grad import differentiate
from onnxgrad.report.gradient import GradientMade
from onnxgrad.report.html.gradient import gradient_page, live_bytes, memory
from tests.helpers import parse
from tests.report.html.common import chain, data_of, section_of


def alive(text: str, **sizes: int) -> list[tuple[str, int]]:
    found = live_bytes(onnxgrad.load(parse(text)).main, sizes)
    return [(b.out.name, size) for b, size in found]


def test_a_value_dies_with_its_last_reader() -> None:
    # a lives until d; y, an output, to the end
    assert alive("""g (float[5] x) => (float[5] y) {
        a = Relu (x)  b = Neg (a)  c = Abs (b)  d = Add (a, c)  y = Tanh (d) }""") == [
        ("a", 20), ("b", 40), ("c", 60), ("d", 60), ("y", 40),
    ]  # fmt: skip


def test_open_sizes_count_as_given() -> None:
    text = "g (float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }"
    assert alive(text, N=10) == [("y", 120)]
    assert alive(text) == [("y", 64 * 12)]


def test_a_nested_graph_reads_when_its_node_runs() -> None:
    assert alive("""g (bool c, float[2] x) => (float[2] y) {
        a = Relu (x)  b = Neg (x)  d = Abs (b)
        y = If (c) <then_branch = t () => (float[2] p) { p = Neg (a) }, else_branch = e () => (float[2] r) { r = Abs (d) }> }"""
    )[-1] == ("y", 24)  # fmt: skip


def test_a_long_run_keeps_its_peak() -> None:
    block = onnxgrad.load(chain(9000, named=False)).main
    found = memory({"run": block})
    assert found is not None
    (curve,) = found["curves"]
    assert len(curve["bytes"]) <= 4000
    assert max(curve["bytes"]) == max(size for _, size in live_bytes(block, {}))
    assert curve["at"][0] < 0.001 and curve["at"][-1] > 0.999
    assert len(curve["at"]) == len(curve["where"]) == len(curve["bytes"])


def test_nothing_computed_is_no_curve() -> None:
    assert memory({"run": onnxgrad.load(parse("g (float[2] x) => (float[2] x) { }")).main}) is None


MODEL = "models/training/mlp.onnx"


def test_new_nodes_stand_apart_and_the_memory_is_compared() -> None:
    found = differentiate(onnxgrad.load(MODEL), "params", checkpoint="auto")
    plain = differentiate(onnxgrad.load(MODEL), "params")
    check = onnxgrad.check_gradient(MODEL, "params")
    page = gradient_page(GradientMade(found, 12, 0.1, check), "mlp", plain, {})
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
    assert report["verdict"]["word"] == "agrees with finite differences"
    rows = section_of(page, "rows")["rows"]
    assert {r["label"] for r in rows} == {v.name for v in check.values if v.judged}


def test_without_a_check_it_says_so() -> None:
    made = GradientMade(differentiate(onnxgrad.load(MODEL)), 12, 0.1, None)
    page = gradient_page(made, "mlp", None, {})
    assert data_of(page)["reports"][0]["verdict"]["word"] == "not checked"
    assert [c["label"] for c in section_of(page, "curves")["curves"]] == ["gradient"]
