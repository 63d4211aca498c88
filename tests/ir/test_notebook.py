"""What notebooks show: short, and no name of a model is markup."""

from __future__ import annotations

from html.parser import HTMLParser

import onnxgrad
from onnxgrad.wording import text_html
from tests.report.html.common import HOSTILE, chain, hostile_model


def tags(text: str) -> set[str]:
    found: set[str] = set()

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.add(tag)

    Parser().feed(text)
    return found


def test_a_model_and_its_block() -> None:
    program = onnxgrad.load("models/training/mlp.onnx")
    assert repr(program).startswith("Program(") and repr(program).endswith(
        f"opset {program.opset})"
    )
    shown = program._repr_html_()
    assert "<b>mlp.onnx</b>" in shown and "12 nodes" in shown and ">loss</td>" in shown
    assert program.main._repr_html_() == text_html(str(program.main))
    model = onnxgrad.to_proto(program)
    for name in ("a graph", ""):
        model.graph.name = name
        assert f"<b>{name or 'model'}</b>" in onnxgrad.load(model)._repr_html_()


def test_what_is_long_is_cut() -> None:
    shown = onnxgrad.load(chain(500, named=False)).main._repr_html_()
    assert shown.count("\n") == 40 and "more lines" in shown
    assert len(text_html("x" * 10_000)) < 500


def test_names_are_text() -> None:
    program = onnxgrad.load(hostile_model())
    assert tags(program._repr_html_()) == {"div", "b", "span", "table", "tr", "td"}
    assert tags(program.main._repr_html_()) == {"pre"}
    found = onnxgrad.inspect(hostile_model())._repr_html_()
    assert tags(found) == {"div", "span", "table", "tr", "th", "td"}
    for shown in (program._repr_html_(), program.main._repr_html_(), found):
        assert HOSTILE[0] not in shown and "\x1b" not in shown and "\x00" not in shown


def test_verdicts() -> None:
    model = "models/training/mlp.onnx"
    proof = onnxgrad.verify(model, model, seeds=[0])
    assert proof._repr_html_() == text_html(str(proof))
    assert tags(onnxgrad.optimize(model, report=True, verify=False)._repr_html_()) >= {"table"}
