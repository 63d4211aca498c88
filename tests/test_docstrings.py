"""What help() says: examples that run, and names that are there."""

from __future__ import annotations

import ast
import builtins
import contextlib
import doctest
import inspect
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from tests.helpers import ROOT

# what users write rules, laws and passes with, and what they call first
SHOWN = [
    "op", "P", "capture", "rewrite", "combine", "rewrite_call", "rewrite_bindings", "decline", "Pass",
    "RulePass", "vjp", "vjp_all", "body", "zero", "kernel", "gradient", "check_gradient",
    "check_product", "jvp", "hessian_vector_product", "jacobian", "optimize", "load", "inspect",
]  # fmt: skip
# of other libraries, of graphs in examples, of what a formula is given
ELSEWHERE = {"SessionOptions", "ModelProto", "binding", "first", "g", "y", "y_grad", "y_grad_2", "root",
             "roots", "group", "accumulation", "lr", "features", "trace", "program", "name"}  # fmt: skip
VERDICTS = {"equal", "different", "agrees", "differs"}
NAME = re.compile(r"`([A-Za-z_][\w.]*)`")
ERROR = re.compile(r"Raises? ((?:[A-Z]\w+(?:, | and | or )?)+)")


def documented() -> Iterator[tuple[str, Any, str]]:
    """Every public object and method, with its documentation."""
    for name in onnxgrad.__all__:
        found = getattr(onnxgrad, name)
        yield name, found, inspect.getdoc(found) or ""
        for member, value in vars(found).items() if inspect.isclass(found) else ():
            if not member.startswith("_") and (
                inspect.isfunction(value) or isinstance(value, property)
            ):
                yield f"{name}.{member}", value, inspect.getdoc(value) or ""


def known_to(name: str, found: Any) -> set[str]:
    """Parameters, members and operators that words in the documentation of `found` may mean."""
    owner = getattr(onnxgrad, name.split(".")[0])
    words = set(dir(owner)) if inspect.isclass(owner) else set()
    words |= set(getattr(owner, "__dataclass_fields__", {}) if inspect.isclass(owner) else ())
    with contextlib.suppress(ValueError):  # of a class that Python itself makes
        words |= set(inspect.signature(found).parameters) if callable(found) else set()
    return words


def test_everything_public_is_documented() -> None:
    assert [name for name, _, text in documented() if not text] == []


def test_docstrings_say_what_a_function_does_in_the_third_person() -> None:
    """Returns, Raises and Yields, as the style asks."""
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("onnxgrad", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in re.findall(r'^ +"""(?:Return|Raise|Yield) .*', path.read_text("utf-8"), re.M)
    ]
    assert found == []


def test_every_name_that_a_docstring_mentions_is_there() -> None:
    operators = {s.name for s in onnx.defs.get_all_schemas_with_history()}
    missing = []
    options = {w for name, found, _ in documented() for w in known_to(name, found)}
    for name, _, text in documented():
        said = {w.removeprefix("onnxgrad.") for w in NAME.findall(text)}
        said |= {w for names in ERROR.findall(text) for w in re.findall(r"[A-Z]\w+", names)}
        theirs = options | operators | set(onnxgrad.__all__) | ELSEWHERE
        theirs |= set(dir(builtins)) | set(dir(onnxgrad.Var)) | VERDICTS
        missing += [(name, w) for w in sorted(said) if w not in theirs and not _module(w)]
    assert missing == []


def _module(word: str) -> bool:
    """Whether it is a module of ours, to read on in, or a name in `onnxgrad.train`."""
    path = ROOT / "onnxgrad" / word.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    holder, _, last = word.rpartition(".")
    if holder in ("", "train"):
        return hasattr(onnxgrad.train, last)
    return _module(holder)


@pytest.mark.parametrize("name", SHOWN)
def test_it_has_an_example(name: str) -> None:
    assert ">>>" in (inspect.getdoc(getattr(onnxgrad, name)) or "")


# public objects, and the guide to gradient rules
EXAMPLES = {
    name: test
    for name, text in [
        *((name, text) for name, _, text in documented()),
        ("onnxgrad.grad.rules", onnxgrad.grad.rules.__doc__ or ""),
    ]
    for test in [doctest.DocTestParser().get_doctest(text, {}, name, None, None)]
    if test.examples
}


def test_the_guide_to_rules_shows_every_registration() -> None:
    """Lines joined into a paragraph are no examples any more, and so run nowhere."""
    guide = EXAMPLES["onnxgrad.grad.rules"].examples
    shown = {n.id for e in guide for n in ast.walk(ast.parse(e.source)) if isinstance(n, ast.Name)}
    assert {"vjp", "vjp_all", "body", "zero"} <= shown
    assert len(guide) == (onnxgrad.grad.rules.__doc__ or "").count(">>>")


def test_no_example_is_joined_to_the_line_before() -> None:
    texts = ((p, p.read_text("utf-8")) for p in sorted((ROOT / "onnxgrad").rglob("*.py")))
    joined = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path, text in texts
        for line in (text.splitlines() if ">>>" in text else ())
        if ">>>" in line.strip()[1:]
    ]
    assert joined == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    test = EXAMPLES[name]
    if "import onnxscript" in str(test.docstring) or "from onnxscript" in str(test.docstring):
        pytest.importorskip("onnxscript")
    test.globs = {"onnxgrad": onnxgrad, "onnx": onnx, "np": np}
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
    assert "".join(said) == ""
