"""What is said of words that mean nothing, and how a --help reads at any width."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxgrad.cli.parser import fitted
from onnxgrad.cli.usage import COMMANDS
from tests.cli.conftest import Result
from tests.helpers import ROOT

Run = Callable[..., Result]
MODELS = ROOT / "models" / "training"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nonsense"], "unknown command 'nonsense' (see onnxgrad --help)"),
        (["optimise", "a"], "unknown command 'optimise' (did you mean 'optimize'?)"),
        (["a.onnx"], "write one first, as in onnxgrad inspect a.onnx"),
        (["inspect"], "the following arguments are required: MODEL (see onnxgrad inspect --help)"),
        (["inspect", "a", "b"], "unexpected 'b' (see onnxgrad inspect --help)"),
        (
            ["--nonsense"],
            "unknown option --nonsense: `onnxgrad help nonsense` may find it (see onnxgrad --help)",
        ),
        (["grad", "a", "--ouput=b"], "unknown option --ouput (did you mean '--output'?)"),
        (["grad", "a", "--out", "b"], "unknown option --out (did you mean '--output'?)"),
        (["grad", "a", "-output", "b"], "unknown option -output (did you mean '--output'?)"),
        (
            ["optimize", "a", "--preset", "defualt"],
            "invalid choice: 'defualt' (did you mean 'default'?): choose",
        ),
        (["passes", "fold_constant"], "did you mean 'fold-constant'?"),
        (["ops", "matmul"], "did you mean 'MatMul'?"),
        (["inspect", MODELS / "mpl.onnx"], "No such file or directory (did you mean 'mlp.onnx'?)"),
        (["grad", MODELS / "mlp.onnx", "-o", "x", "--mode", "forward"], "--mode is for --jacobian"),
    ],
)
def test_bad_words(run: Run, words: list[object], says: str) -> None:
    done = run(*words)
    assert done.code == 2 and len(done.lines) == 1 and done.out == "" and says in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["optimize", "in", "out"], "no output is named: write -o {out}"),
        (["optimize", "in", "in2"], "; if {in2} is the output of {in}, write -o {in2}"),
        (["float16", "in", "out"], "no output is named: write -o {out} (see"),
        (["convert-opset", "in", "--to", "20", "out"], "no output is named: write -o {out}"),
        (["lift", "in", "--prepare", "in2", "out"], "no output is named: write -o {out}"),
        (["join", "in", "in2", "out"], "no output is named: write -o {out}"),
        (["join", "in", "in2"], "required: -o/--output"),
        (["lift", "in", "--prepare", "out"], "required: -o/--output"),
        (["grad", "in", "out"], "no output is named: write -o {out}"),
        (["grad", "in", "-o", "in2", "out"], "unexpected '{out}'"),
        (["inspect", "in", "out"], "unexpected '{out}'"),
    ],
)
def test_an_output_without_its_option(
    run: Run, tmp_path: Path, words: list[str], says: str
) -> None:
    """A second model in the place of an input is an output, unless the command reads it."""
    files = {name: str(tmp_path / f"{name}.onnx") for name in ("in", "in2", "out")}
    for name in ("in", "in2"):
        Path(files[name]).write_bytes((MODELS / "mlp.onnx").read_bytes())
    done = run(*(files.get(word, word) for word in words))
    assert done.code == 2 and len(done.lines) == 1 and says.format(**files) in done.err
    assert not Path(files["out"]).exists()


@pytest.mark.parametrize("columns", [40, 60])
def test_no_word_of_a_help_is_cut(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """At any width the same words, and at 60 columns all lines fit."""
    for name in COMMANDS:
        monkeypatch.setenv("COLUMNS", "1000")
        wide = run(name, "--help").out
        monkeypatch.setenv("COLUMNS", str(columns))
        narrow = run(name, "--help").out
        assert [w for w in narrow.split() if w != "\\"] == wide.split()
        too_wide = [line for line in narrow.splitlines() if len(line) > columns]
        assert columns < 60 or too_wide == []


def test_a_message_is_wrapped_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "30")
    text = "onnxgrad: models/a-b.onnx: a word too wide: " + "x" * 40
    assert fitted(text, io.StringIO()) == text
    lines = fitted(text, Terminal()).splitlines()
    assert lines == ["onnxgrad: models/a-b.onnx: a", "  word too wide:", "  " + "x" * 40]
