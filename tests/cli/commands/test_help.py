"""`onnxgrad help`: topics, pages, commands, and what is said of a word that is neither."""

from __future__ import annotations

import json
import pydoc
from collections.abc import Callable
from pathlib import Path

import pytest

import onnxgrad
from onnxgrad.cli.commands.help import _everything
from onnxgrad.help import TOPICS, Passage, headings, page, search, source
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
        ("remove output", "edit", "nodes and weights that no other output needs"),
        ("merge models", "join", "chain (merge) two models"),
        ("resize image", "preprocessing", "center-crop{size=224}"),
        ("nms", "preprocessing", "non-maximum suppression"),
        ("letterbox", "preprocessing", "letterbox{size=640"),
        ("split model", "lift", "split a model"),
        ("low-rank adapters", "lora", "low-rank adapters"),
        ("fine-tune a language model", "training", "onnxgrad lora llm.onnx"),
        ("AdapterFormat", "lora", "--onnxruntime"),
        ("clip_norm", "train-step", "largest norm"),
        ("resume", "fit", "checkpoint"),
        ("freeze weights", "training", "wrt"),
        ("confusion matrix", "training", "--measure confusion"),
        ("binary classifier", "training", "bce_with_logits"),
        ("uint8 labels", "training", "integers of any width"),
        ("save memory", "gradients", "--checkpoint"),
        ("residuals", "transformations", "--split"),
        ("change opset", "convert-opset", "upgrade"),
        ("subgraph", "extract", "between given values"),
        ("new axis", "vmap", "rows"),
        ("predict", "fit", "outputs of the model"),
        ("federated", "training", "clients"),
        ("gradient", "gradients", "finite differences"),
        ("onnxslim", "coming-from", "onnxgrad optimize"),
        ("mark a value as output", "edit", "mark a value of the main graph as an output"),
        ("rename dimension", "edit", "rename a symbolic dimension"),
        ("replace initializer", "edit", "replace the value of an initializer"),
        ("save outputs", "run", "show or save its outputs"),
        ("STFT", "ops", "`onnxgrad ops STFT` shows its gradient"),
        ("uint8", "training", "integers of any width"),
        ("remove doc strings", "metadata", "doc_string"),
        ("new weights", "transformations", "optimise the new export"),
        ("retrained model", "transformations", "of a retrained model"),
        ("data augmentation", "fit", "flip{axis=-1}"),
        ("learning rate finder", "fit", "--find-lr"),
        ("muon", "training", "Adafactor, Muon"),
        ("stochastic weight averaging", "training", "swa{start=1000"),
        ("kaiming", "train-step", "--init"),
        ("l-bfgs", "training", "SciPy"),
    ],
)
def test_words_are_searched(run: Run, tmp_path: Path, words: str, read: str, says: str) -> None:
    done = run("help", *words.split(), "--json", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())["found"]
    shown = [f"{p['topic']}: {p['heading']}: {p['text']}" for p in found[:12]]
    assert done.code == 0 and not done.err and "onnxgrad help" in done.out and read in done.out
    assert any(s.startswith(f"{read}: ") and says in s for s in shown), shown


# words that users of onnxsim, onnxslim, polygraphy, graphsurgeon and PyTorch type, and pages that answer
QUERIES = {
    "simplify model": "optimize coming-from start commands",
    "constant folding": "optimize coming-from commands",
    "resize input": "optimize edit open-batch commands",
    "overwrite input shape": "optimize coming-from commands proof",  # "--fix-dim writes the model"
    "fix batch size": "optimize coming-from commands",
    "static shape": "optimize commands coming-from",
    "dynamic shape": "open-batch commands transformations",  # "Opening a size"
    "remove identity": "passes optimize passes commands laws",
    "fuse batchnorm": "optimize passes commands laws coming-from",
    "infer shapes": "optimize commands",
    "skip optimization": "optimize coming-from",
    "check result": "verify proof commands",
    "external data": "coming-from optimize commands",
    "large model": "coming-from optimize proof hostile",
    "custom operator": "rules proof optimize faq",
    "inline functions": "optimize coming-from commands",
    "reduce model size": "optimize float16 commands",
    "slim model": "start optimize coming-from",
    "remove unused weights": "passes optimize commands",
    "dead code": "passes optimize commands coming-from laws",
    "convert to fp16": "float16 commands coming-from",
    "half precision": "float16 commands",
    "count flops": "inspect commands",
    "model size": "inspect optimize commands",
    "print graph": "inspect commands reports",
    "compare two models": "diff verify commands proof",  # "Comparing two models"
    "fold constants": "optimize commands coming-from",
    "common subexpression": "passes optimize commands coming-from",
    "extract subgraph": "extract commands",
    "bisect wrong result": "optimize proof commands",
    "debug accuracy": "verify proof",
    "compare outputs": "verify proof commands",
    "compare layer by layer": "verify proof",
    "reduce failing model": "reduce commands",
    "find failing node": "reduce verify proof commands",
    "dump tensors": "verify commands proof",
    "set tolerance": "verify optimize proof",
    "random inputs": "proof verify",
    "load input data": "verify optimize coming-from proof",
    "benchmark model": "bench commands",
    "measure latency": "bench commands numbers",
    "cosine similarity": "verify float16 proof",
    "sanitize model": "start optimize commands",
    "rename input": "edit commands",
    "rename node": "edit commands",
    "remove node": "edit optimize laws commands",
    "delete output": "edit commands",
    "insert node": "edit laws join commands",
    "replace pattern": "laws",
    "merge two models": "join commands",
    "concatenate models": "join commands",
    "strip metadata": "metadata commands",
    "change producer name": "metadata commands",
    "upgrade opset": "convert-opset commands",
    "downgrade opset": "convert-opset commands",
    "embed lora": "training train-step lift coming-from",
    "add preprocessing": "join edit commands",
    "change batch dimension": "open-batch commands",
    "remove dropout": "optimize training commands",
    "split model in two": "lift extract commands",
    "backward graph": "gradients grad commands",
    "on-device training": "training step-format train-step coming-from",
    "fine tune": "training fit",
    "freeze layers": "training gradients train-step",
    "web browser": "faq training step-format",
}


@pytest.mark.slow
def test_words_of_other_tools_find_their_pages() -> None:
    """Among the first five results."""
    every = list(_everything())
    found = {words: [p.topic for p in search(words, every)[:5]] for words in QUERIES}
    missed = {w: f for w, f in found.items() if not {*f} & {*QUERIES[w].split()}}
    assert missed == {} and len(QUERIES) >= 60


def test_a_passage_that_has_most_of_the_words_is_found_when_none_has_all(run: Run) -> None:
    among = [Passage("a", "", "weights of layers"), Passage("b", "", "weights and biases")]
    assert [p.topic for p in search("weights biases zzz", among)] == ["b"]
    assert search("qqq zzz", among) == [] and run("help", "qqq", "zzz").code == 2


def test_a_synonym_counts_less_than_the_word() -> None:
    among = [Passage("a", "", "drop it"), Passage("b", "", "remove it"), Passage("c", "", "keep")]
    assert [p.topic for p in search("remove the", among)] == ["b", "a"]


def test_a_word_is_the_beginning_of_a_word_and_all_must_stand_in_a_passage() -> None:
    passage = Passage("training", "A step", "properties of clip_norm and ties")
    assert passage.points(["tie"]) == passage.points(["clip-norm"]) == 4
    assert passage.points(["ties", "step"]) > passage.points(["ties"])
    assert passage.points(["ties", "batch"]) == passage.points(["norms"]) == 0


def test_python_points_there() -> None:
    assert "onnxgrad help TOPIC" in pydoc.render_doc(onnxgrad)
