"""`onnxgrad help`: topics, pages, commands, and what is said of a word that is neither."""

from __future__ import annotations

import json
import pydoc
from collections.abc import Callable
from pathlib import Path

import pytest

import onnxgrad
from onnxgrad.help import TOPICS, Passage, headings, page, source
from tests.cli.conftest import Result
from tests.helpers import ROOT

Run = Callable[..., Result]


def test_every_page_is_a_topic() -> None:
    pages = {p.stem for p in (ROOT / "onnxgrad" / "help").glob("*.md")}
    assert pages == set(TOPICS) and len(TOPICS) == len(pages)
    assert all(source(t).startswith(f"# {headings(t)[0]}\n") for t in TOPICS)


def test_the_list_of_topics(run: Run, tmp_path: Path) -> None:
    done = run("help", "--json", tmp_path / "topics.json")
    assert done.code == 0 and not done.err
    assert all(f"{topic} " in done.out and headings(topic)[0] in done.out for topic in TOPICS)
    assert list(json.loads((tmp_path / "topics.json").read_text())["topics"]) == list(TOPICS)


def test_a_page_is_itself_in_a_pipe_and_rendered_on_a_terminal(run: Run) -> None:
    piped = run("help", "proof")
    assert piped.code == 0 and piped.out == page("proof") and "# Proof and tolerances" in piped.out
    rendered = run("help", "proof", "--color", "always")
    assert "\x1b[" in rendered.out and "# Proof" not in rendered.out
    assert run("help", "proof", "-q").out == ""


def test_links_are_commands_in_a_terminal(run: Run) -> None:
    assert "[proof](proof.md)" in source("start")
    assert "`onnxgrad help proof`" in run("help", "start").out


def test_a_command_shows_its_options(run: Run) -> None:
    assert run("help", "optimize").out == run("optimize", "--help").out != ""


@pytest.mark.parametrize(
    ("word", "answer"),
    [("optimze", "did you mean 'optimize'?"), ("xyz", "there are start, ")],
)
def test_an_unknown_topic(run: Run, word: str, answer: str) -> None:
    done = run("help", word)
    assert done.code == 2 and done.out == "" and answer in done.err and len(done.lines) == 1


@pytest.mark.parametrize(
    ("words", "read", "says"),
    [
        ("dynamic batch", "open-batch", "rebatch"),
        ("rebatch", "open-batch", "make a fixed batch dynamic"),
        ("change batch size", "commands", "open-batch MODEL -o OUT"),
        ("tie", "train-step", "one parameter"),
        ("tied weights", "training", "--tie"),
        ("best weights", "training", "--patience"),
        ("early stopping", "fit", "without a smaller held-out loss"),
        ("layers", "verify", "compare the values inside both models"),
        ("compare layers", "proof", "--layers"),
        ("remove output", "edit", "nodes and weights that only it needs"),
        ("merge models", "join", "chain (merge) two models"),
        ("split model", "lift", "split a model"),
        ("clip_norm", "train-step", "largest norm"),
        ("resume", "fit", "checkpoint"),
        ("freeze weights", "training", "wrt"),
        ("save memory", "gradients", "--checkpoint"),
        ("residuals", "gradients", "--split"),
        ("change opset", "convert-opset", "upgrade"),
        ("subgraph", "extract", "between given values"),
        ("new axis", "vmap", "rows"),
        ("predict", "fit", "outputs of the model"),
        ("federated", "training", "clients"),
        ("gradient", "gradients", "finite differences"),
        ("onnxslim", "coming-from", "onnxgrad optimize"),
    ],
)
def test_words_are_searched(run: Run, tmp_path: Path, words: str, read: str, says: str) -> None:
    done = run("help", *words.split(), "--json", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())["found"]
    shown = [f"{p['topic']}: {p['heading']}: {p['text']}" for p in found[:12]]
    assert done.code == 0 and not done.err and f"onnxgrad help {read} " in done.out
    assert any(s.startswith(f"{read}: ") and says in s for s in shown), shown


def test_a_word_is_the_beginning_of_a_word_and_all_must_stand_in_a_passage() -> None:
    passage = Passage("training", "A step", "properties of clip_norm and ties")
    assert passage.points(["tie"]) == passage.points(["clip-norm"]) == 1
    assert passage.points(["ties", "step"]) > passage.points(["ties"])
    assert passage.points(["ties", "batch"]) == passage.points(["norms"]) == 0


def test_python_points_there() -> None:
    assert "onnxgrad help TOPIC" in pydoc.render_doc(onnxgrad)
