"""Every command and every Python block of the documentation runs, and prints what stands there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from onnxgrad.help import TOPICS, source
from tests.helpers import ROOT
from tests.language_models import language_model
from tests.pages import Command, commands, run_page, same_text


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own that has the repository's models and a language model, and from which Python imports."""
    (tmp_path / "models").symlink_to(ROOT / "models")
    onnx.save(language_model("llama"), tmp_path / "llm.onnx")  # a user's own
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


# many proofs: a model is reduced, two are held to a lock, bounds and coverage are shown
MARKS = dict.fromkeys(("faq", "recipes", "proof"), pytest.mark.slow)
# its blocks for PyTorch run where that is installed, and the exporters warn
MARKS["training"] = pytest.mark.filterwarnings("ignore")


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    "topic", [pytest.param(t, marks=MARKS[t]) if t in MARKS else t for t in TOPICS]
)
def test_page(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_page(source(topic), f"{topic}.md", capsys) > 0 or topic in ("numbers", "compared")


@pytest.mark.peers
@pytest.mark.usefixtures("session")
def test_the_page_of_laws_with_onnxscript(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    assert run_page(source("laws"), "laws.md", capsys) > 0


@pytest.mark.torch
@MARKS["training"]
@pytest.mark.usefixtures("session")
def test_the_page_of_training_with_torch(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert run_page(source("training"), "training.md", capsys) > 0


def test_the_reader_of_commands() -> None:
    block = "pip install x\n$ onnxgrad a 'b c'   # exit code 1\none\n...\n$ onnxgrad d\n"
    assert list(commands(block)) == [
        Command(("onnxgrad", "a", "b c"), "one\n...", 1),
        Command(("onnxgrad", "d"), "", 0),
    ]


@pytest.mark.parametrize("word", ["a{b=1,c=2}", "'a' b{c=1,d=2}", "a{1..3}"])
def test_the_reader_refuses_braces_that_a_shell_expands(word: str) -> None:
    with pytest.raises(AssertionError, match="quote the braces"):
        list(commands(f"$ onnxgrad {word}\n"))
    quoted = "$ onnxgrad 'a{b=1,c=2}' c{d=1},{x}\n"
    assert [c.words for c in commands(quoted)] == [("onnxgrad", "a{b=1,c=2}", "c{d=1},{x}")]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a ... c", "a b  c", True),
        ("nodes 12", "nodes 13", False),
        ("12 ms, 1.0e-7", "9.5 ms, 3.1e-08", True),
        ("y[0, 1]: 0.5 → 0.6 done", "y[7]: 1e-3 → 2 done", True),
    ],
)
def test_the_comparison(shown: str, printed: str, same: bool) -> None:
    assert same_text(shown, printed) is same
