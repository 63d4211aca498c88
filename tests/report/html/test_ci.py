"""What the page says of `onnxgrad ci`: a report for each model, the worst first."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxgrad.__main__ import main
from tests.helpers import ROOT, parse
from tests.report.html.common import data_of

ASSETS = ROOT / "onnxgrad" / "report" / "html" / "assets"
SMALL = "g (float[N,4] x) => (float[N,4] y) { a = Identity (x)  b = Tanh (a)  y = Relu (b) }"
RECIPE = """
[ci]
models = ["*.onnx"]
out = "build/{name}.onnx"
[models."b.onnx".require]
Tanh = "== 0"
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    monkeypatch.chdir(tmp_path)
    for name in ("a.onnx", "b.onnx"):
        onnx.save(parse(SMALL), name)
    Path("onnxgrad.toml").write_text(RECIPE)

    def made() -> list[dict[str, Any]]:
        assert main(["ci", "--keep-going", "-q", "--html", "page.html"]) == 1
        return data_of(Path("page.html").read_text(encoding="utf-8"))["reports"]

    return made


def test_the_worst_model_comes_first(page: Callable[[], list[dict[str, Any]]]) -> None:
    first, bad, good = page()
    assert (first["title"], first["verdict"]["word"]) == ("onnxgrad.toml", "refused")
    assert first["verdict"]["text"] == "1 of 2 models" and first["verdict"]["tone"] == "bad"
    assert [row[1] for row in first["sections"][0]["rows"]] == ["b.onnx", "a.onnx"]
    assert (bad["title"], bad["verdict"]["word"], bad["verdict"]["tone"]) == (
        "b.onnx",
        "failed",
        "bad",
    )
    assert (good["title"], good["verdict"]["word"], good["verdict"]["tone"]) == (
        "a.onnx",
        "passed",
        "good",
    )
    missed = next(s for s in bad["sections"] if s["title"] == "Requirements")["rows"][0]
    assert missed[:4] == ["Tanh", "== 0", "1", "0"] and missed[4][0] == ["missed", "red"]
    cards = {c["label"]: c["value"] for c in good["cards"]}
    assert cards["nodes"] == "2" and cards["worst difference"] == "0"
    graph = next(s for s in good["sections"] if s["kind"] == "graph")
    assert [n.get("c") for n in graph["graphs"][0]["nodes"]] == ["removed", "changed", None]
    assert graph["graphs"][0]["nodes"][0]["w"] == [1] and "= Identity(x)" in graph["rewrites"][0][1]
    # what was not written has no graph, but its rewrites with their places
    kinds = [s["kind"] for s in bad["sections"]]
    assert "graph" not in kinds and "passes" in kinds
    rewritten = next(s for s in bad["sections"] if s["title"] == "Rewrites")
    assert "= Identity(x)" in rewritten["groups"][0][1][0] and "--html FILE" in rewritten["note"]


def test_the_same_run_gives_the_same_page(page: Callable[[], list[dict[str, Any]]]) -> None:
    page()
    first = Path("page.html").read_bytes()
    page()
    assert Path("page.html").read_bytes() == first


def test_the_verdict_comes_first_and_tables_scroll() -> None:
    """What the page of 400 pixels rests on, without a browser: the order in which the elements are
    made, and tables that never widen the page.
    """
    main_js, sections, css = (
        (ASSETS / name).read_text(encoding="utf-8")
        for name in ("main.js", "sections.js", "page.css")
    )
    shown = main_js[main_js.index("page.replaceChildren(") :]
    places = [shown.index(part) for part in ("report.summary(", "choice(", "...sections")]
    assert places == sorted(places)
    summary = sections[sections.index("report.summary =") : sections.index("const cell =")]
    parts = ('h("h1"', 'class: "verdict"', 'class: "notes"', 'class: "cards"')
    assert [summary.index(part) for part in parts] == sorted(summary.index(p) for p in parts)
    # each table of data is made inside an element that scrolls by itself
    assert sections.count('h("table"') == sections.count('h("div", { class: "scroll" }, h("table"')
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", css)
    for words in (".notes li", ".verdict > span:last-child"):
        assert re.search(rf"{re.escape(words)} \{{[^}}]*overflow-wrap: anywhere", css)
    assert re.search(r"\.verdict \{[^}]*flex-wrap: wrap", css)
    assert not re.search(r"[{; ]order:|-reverse", css)  # nothing is moved by the style
