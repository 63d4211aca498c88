"""The page is one file that loads nothing, is the same for the same data, and runs no name of a model."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

import onnxgrad
from onnxgrad import verify
from onnxgrad.report.html.page import changed_card, embedded, page, proof_verdict
from tests.helpers import parse
from tests.report.html.common import HOSTILE, data_of, hostile_model


class Elements(HTMLParser):
    """Every element with its attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style") and data.strip():
            self.texts.append((self.found[-1][0], data))


@pytest.fixture(scope="module")
def hostile() -> str:
    return onnxgrad.inspect(hostile_model()).to_html()


def test_it_loads_nothing(hostile: str) -> None:
    elements = Elements(hostile)
    assert [
        (tag, a)
        for tag, a in elements.found
        if {"src", "href", "srcset", "data", "action"} & set(a)
    ] == []
    assert [
        tag for tag, _ in elements.found if tag in ("link", "img", "iframe", "object", "base")
    ] == []
    styles = [text for tag, text in elements.texts if tag == "style"]
    assert styles and not any(re.search(r"url\(|@import", text) for text in styles)
    scripts = "".join(text for tag, text in elements.texts if tag == "script")
    assert not re.search(
        r"\bfetch\(|XMLHttpRequest|WebSocket|\bimport\(|sendBeacon|sourceMappingURL", scripts
    )


def test_its_policy_allows_its_own_scripts_and_nothing_else(hostile: str) -> None:
    elements = Elements(hostile)
    policy = next(
        a["content"]
        for tag, a in elements.found
        if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy
    for tag, text in elements.texts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        is_data = text.startswith("{") and tag == "script"
        assert (f"'sha256-{digest}'" in policy) is not is_data


def test_no_name_of_a_model_is_markup(hostile: str) -> None:
    # the page of another model has the very same elements
    own = Elements(onnxgrad.inspect("models/training/mlp.onnx").to_html())
    tags = [tag for tag, _ in Elements(hostile).found]
    assert tags == [tag for tag, _ in own.found]
    assert "window.harmed = 1</script>" not in hostile and "<img" not in hostile
    graph = data_of(hostile)["reports"][0]["sections"][0]["graphs"][0]
    names = [value[0] for value in graph["values"]]
    assert HOSTILE[0] in names and HOSTILE[1] in names
    assert (
        "a\\x00\\x1b[31m\\x7f&lt;&amp;\\u003c" in names
    )  # what steers a terminal is shown, not done


@pytest.mark.parametrize("text", HOSTILE)
def test_data_ends_no_script(text: str) -> None:
    found = embedded({"name": text})
    assert found.isascii()
    assert not set("<>&") & set(found)


def test_the_title_is_text() -> None:
    made = page(HOSTILE[0], [])
    assert "<title>&lt;/script&gt;" in made


def test_the_same_data_gives_the_same_page(hostile: str) -> None:
    assert onnxgrad.inspect(hostile_model()).to_html() == hostile


def test_the_licences_of_what_is_inside_stand_in_it(hostile: str) -> None:
    found = dict(data_of(hostile)["licenses"])
    assert list(found) == ["d3", "d3-ease", "dagre", "uPlot"]
    for name, who in (
        ("d3", "Bostock"),
        ("d3-ease", "Penner"),
        ("dagre", "Pettitt"),
        ("uPlot", "Sorokin"),
    ):
        assert who in found[name]


def test_what_changed_has_its_share() -> None:
    assert changed_card("nodes", 200, 50, str)["share"] == -75.0
    assert changed_card("nodes", 50, 200, str)["tone"] == "more"
    assert "share" not in changed_card("nodes", 5, 5, str)


def test_the_outputs_that_differ_stand_first() -> None:
    names = "abcde"
    outputs = ", ".join(f"float[2] {name}" for name in names)

    def model(op: str) -> str:
        nodes = " ".join(f"{n} = {'Neg' if n == 'a' else op} (x)" for n in names)
        return f"g (float[2] x) => ({outputs}) {{ {nodes} }}"

    report = verify(parse(model("Exp")), parse(model("Tanh")), seeds=[0], checks=["float64"])
    found = proof_verdict(report)
    assert found["tone"] == "bad" and found["word"] == "different"
    said = found["text"].partition(" on cpu")[0]
    assert report.worst is not None and said.startswith(f"in {report.worst.output}, ")
    assert said.endswith(", 1 more,") and "a" not in said.split(", ")
    same = verify(parse(model("Exp")), parse(model("Exp")), seeds=[0], checks=["float64"])
    assert proof_verdict(same)["text"].startswith("on cpu")
