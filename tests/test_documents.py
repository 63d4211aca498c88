"""What the documents name is there: paths, commands with their options, passes, public names; CONTRIBUTING's Python runs."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Iterator

import pytest

import onnxgrad
from onnxgrad.cli.arguments import add_options
from onnxgrad.cli.parser import add_common
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.help import TOPICS
from onnxgrad.passes.base import all_passes
from onnxgrad.passes.presets import PRESETS
from tests.helpers import ROOT

PAGES = [f"onnxgrad/help/{topic}.md" for topic in TOPICS]
# the names of other tools stand in the first column of its tables
OF_OTHER_TOOLS = "onnxgrad/help/coming-from.md"
DOCUMENTS = [
    "README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "ORIGINS.md", "SECURITY.md",
    *PAGES,
]  # fmt: skip
PACKAGE = ROOT / "onnxgrad"
# what only a reader's machine has, or what is written in the place of something
ELSEWHERE = re.compile(r"\.venv|/|https?:|OUT\b|MODEL\b|FILE\b|.*[<>*{}$\[\]():=]")
SUFFIXES = (".py", ".md", ".toml", ".yml", ".yaml", ".onnx", ".txt", ".json", ".npz")
# files that a command of the text writes, or that are the reader's own
WRITTEN = {
    "out.onnx", "grad.onnx", "gradient.onnx", "build/lstm_script.onnx", "trained.onnx", "train.onnx", "eval.onnx", "predict.onnx", "manifest.json", ".npz",
    "classifier.onnx", "train.npz", "held_out.npz", "onnxgrad.toml", "onnxgrad.lock.json", "old.onnx",
    "nightly/lstm_script.onnx",
}  # fmt: skip
# options of other programs, wherever they are named
OF_OTHERS = {
    "--update-golden",
    "--near",
    "--help",
    "--version",
    "--package-config",
    "--maxprocesses",
    "--no-deps",
    "--durations",
}


def text_of(name: str) -> str:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"^\|.*?\|", "|", text, flags=re.MULTILINE) if name == OF_OTHER_TOOLS else text


def fenced(text: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def code(text: str) -> Iterator[str]:
    """Lines of shell and output blocks, and code between backticks."""
    for language, content in fenced(text):
        if language != "python":
            yield from content.splitlines()
    yield from re.findall(
        r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    )


def paths(text: str) -> set[str]:
    """The words of code that look like a path inside the repository, and the targets of links."""
    words = {
        w.strip("'\",;.") if not w.startswith(".") else w
        for line in code(text)
        for w in line.split()
    }
    found = {w for w in words if (w.endswith(SUFFIXES) or re.fullmatch(r"[\w.-]+(/[\w.-]*)+", w))}
    links = re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", text)
    return {w for w in (*found, *links) if not ELSEWHERE.match(w) and w not in WRITTEN}


def is_there(path: str) -> bool:
    """From the top or inside the package, a module also without its suffix."""
    return any((base / p).exists() for base in (ROOT, PACKAGE) for p in (path, f"{path}.py"))


@functools.cache
def options_of(command: str) -> frozenset[str]:
    parser = argparse.ArgumentParser()
    add_options(parser, COMMANDS[command])
    add_common(parser)
    return frozenset(o for action in parser._actions for o in action.option_strings)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_path_exists(name: str) -> None:
    named = paths(text_of(name))
    # a file that the text has just placed in a folder is named alone
    alone = {p for p in named if "/" not in p and not is_there(p)}
    known = {f.name for f in PACKAGE.rglob("*.py")}
    assert sorted(p for p in named - alone if not is_there(p)) == []
    if name not in PAGES:  # whose commands run, in a folder where they write and read files
        assert sorted(alone - known) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_command_and_option_exists(name: str) -> None:
    anywhere = frozenset().union(*map(options_of, COMMANDS)) | OF_OTHERS
    for line in code(text_of(name)):
        commands = re.findall(r"\bonnxgrad ([a-z][\w-]*)(?!\S*[/.])", line)
        assert [c for c in commands if c not in COMMANDS] == [], line
        own = options_of(commands[0]) | OF_OTHERS if len(commands) == 1 else anywhere
        assert [o for o in re.findall(r"(?<![\w-])--[a-z][\w-]*", line) if o not in own] == [], line


def test_the_table_of_commands_is_whole() -> None:
    table = text_of("onnxgrad/help/commands.md").split("## Options of", 1)[0]
    assert [c for c in COMMANDS if f"`{c}" not in table] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_pass_and_preset_exists(name: str) -> None:
    text = text_of(name)
    rows = [line for line in text.splitlines() if re.search(r"\bpass(es)? `", line)]
    named = [p for line in rows for group in re.findall(r"\bpass(?:es)? ((?:`[\w-]+`(?:, | and )?)+)", line)
             for p in re.findall(r"`([\w-]+)`", group)]  # fmt: skip
    named += [
        p.partition("{")[0]
        for line in code(text)
        for p in re.findall(r"--passes ([a-z]{3}[\w-]+)", line)
    ]
    assert [p for p in named if p not in all_passes() and p not in PRESETS] == []
    assert [p for p in re.findall(r"preset `([\w-]+)`", text) if p not in PRESETS] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_public_name_is_public(name: str) -> None:
    text = text_of(name)
    named = set(re.findall(r"\bonnxgrad\.([a-zA-Z_]\w*)\b(?![\w.]*[./])", text))
    named |= {
        n.strip()
        for names in re.findall(r"from onnxgrad import (.+)", text)
        for n in names.split(",")
    }
    folders = {p.stem for p in PACKAGE.iterdir()}
    # metadata keys that we write into nodes and functions, and the end of a file's name
    others = {"made_by", "inline", "toml", "trained"}
    # groups of entry points
    points = (PACKAGE / "plugins" / "entry_points.txt").read_text("utf-8")
    others |= set(re.findall(r"^\[onnxgrad\.(\w+)\]$", points, re.MULTILINE))
    assert sorted(named - set(onnxgrad.__all__) - folders - others) == []


def test_the_house_is_shown_whole() -> None:
    """Every folder of the package and every module beside them stands in ARCHITECTURE.md."""
    text = text_of("ARCHITECTURE.md")
    folders = {
        f"{p.parent.relative_to(PACKAGE)}/" for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE
    }
    assert sorted(f for f in folders if f"`{f}`" not in text) == []
    modules = {p.name for p in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py", "version.py"}
    assert sorted(m for m in modules if f"`{m}`" not in text) == []


def test_contributing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python, block after block, as one session."""
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for language, block in fenced(text_of("CONTRIBUTING.md")):
        if language == "python":
            exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    assert {"softsign", "abs_of_neg", "simplify_abs", "thresholded_relu", "run"} <= set(names)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see `a/b.py` and [c](d/e.md#x)", {"a/b.py", "d/e.md"}),
        ("`python -m pytest tests/grad --update-golden`", {"tests/grad"}),
        ("`OUT.onnx` `.venv/bin/python` `<digest>.txt` `/etc/x.py` [y](https://x.y/z.md)", set()),
        ("```\nir/load reads\n```\n```python\nx = 'n/o.py'\n```", {"ir/load"}),
    ],
)
def test_the_finder_of_paths(text: str, found: set[str]) -> None:
    assert paths(text) == found


def test_what_is_not_there_is_noticed() -> None:
    assert is_there("ir/load") and is_there("tests/helpers.py") and not is_there("ir/nothing.py")
    assert "--merge" in options_of("optimize") and "--merge" not in options_of("verify")


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_what_a_document_finds_in_a_file_is_there(name: str) -> None:
    """`A`, `B` in `file.py`: the file has both words."""
    found = re.findall(
        r"((?:`[\w.]+`(?:, | and ))*`[\w.]+`) (?:in|of) `([\w/]+\.py)`", text_of(name)
    )
    assert len(found) > 3
    missing = []
    for words, path in found:
        (file,) = [f for f in (ROOT / path, PACKAGE / path) if f.is_file()]
        text = file.read_text(encoding="utf-8")
        missing += [
            f"{word} in {path}"
            for word in re.findall(r"`([\w.]+)`", words)
            if not re.search(rf"\b{word.rpartition('.')[2]}\b", text)
        ]
    assert missing == []
