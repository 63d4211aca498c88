"""The completion scripts, in the shells that are installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxgrad.cli.commands.completion import SHELLS
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.help import TOPICS
from onnxgrad.vocabulary import PASSES, PRESETS
from tests.cli.conftest import Result

Run = Callable[..., Result]
# what is typed, the cursor at its end, and what must be offered: all of it, or (..., some of it)
CASES: dict[str, tuple[object, ...]] = {
    "onnxgrad opt": ("optimize",),
    "onnxgrad ": (..., *COMMANDS),
    "onnxgrad optimize --pre": ("--preset",),
    "onnxgrad optimize m.onnx --preset tr": ("training-safe",),
    "onnxgrad optimize m.onnx --preset=tr": ("training-safe",),
    "onnxgrad optimize --passes fold-c": ("fold-constant",),
    "onnxgrad optimize --passes default,fold-c": ("default,fold-constant",),
    "onnxgrad grad m.onnx --adjoint ": ("auto", "input", "ones"),
    "onnxgrad -v passes can": ("canonical",),
    "onnxgrad help gra": ("grad", "gradients"),
    "onnxgrad fit --loss cross": ("cross_entropy",),
    "onnxgrad completion ": ("bash", "fish", "zsh"),
    "onnxgrad inspect mod": ("model.onnx",),
    "onnxgrad grad model.onnx -o mod": ("model.onnx",),
}


def script(run: Run, shell: str) -> str:
    done = run("completion", shell)
    assert (done.code, done.err) == (0, "")
    return done.out


def shell(name: str, program: str, folder: Path) -> list[str]:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    bare = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[name]
    (folder / "model.onnx").touch()
    done = subprocess.run(
        [name, *bare, "-c", program], capture_output=True, text=True, timeout=30, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def fits(found: list[str], wanted: tuple[object, ...]) -> bool:
    if wanted[0] is ...:
        return {*found} >= {*wanted[1:]}
    return sorted(found) == [*wanted]


def test_bash(run: Run, tmp_path: Path) -> None:
    """COMP_WORDS as bash makes them, with = a word of its own; no reply means files."""
    asked = []
    for typed in CASES:
        words = typed.replace("=", " = ").split(" ")
        listed = " ".join(f"'{word}'" for word in words)
        asked.append(
            f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _onnxgrad; "
            f'[[ ${{#COMPREPLY[@]}} == 0 ]] && COMPREPLY=($(compgen -f -- "{words[-1]}"));'
            ' echo "${COMPREPLY[*]}"'
        )
    found = shell("bash", "\n".join([script(run, "bash"), *asked]), tmp_path)
    for line, (typed, wanted) in zip(found, CASES.items(), strict=True):
        assert fits(line.split(), wanted), (typed, line)


def test_fish(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c.fish").write_text(script(run, "fish"))
    asked = [f"complete -C {typed!r}; echo ---" for typed in CASES]
    found = "\n".join(shell("fish", "\n".join(["source c.fish", *asked]), tmp_path)).split("---")
    for lines, (typed, wanted) in zip(found, CASES.items()):
        offered = [line.split("\t")[0].removeprefix("--preset=") for line in lines.split("\n")]
        if "," not in typed:  # fish has no lists with commas
            assert fits([word for word in offered if word], wanted), (typed, lines)


def test_zsh(run: Run, tmp_path: Path) -> None:
    """With stand-ins for what zsh completes with, which print what they are given."""
    (tmp_path / "_onnxgrad").write_text(script(run, "zsh"))
    stand_ins = """
compdef() { :; }
compset() { PREFIX=${PREFIX##${~2}}; }
compadd() { shift; print -l -- ${(M)@:#${PREFIX}*}; }
_describe() { [[ $1 == -o ]] && shift; local -a all; all=(${(P)2}); compadd -- ${all%%:*}; }
_files() { print -l -- ${PREFIX}*(N); }
_message() { :; }
source ./_onnxgrad
"""
    asked = []
    for typed in CASES:
        words = typed.split(" ")
        listed = " ".join(f"'{word}'" for word in words)
        asked.append(
            f"words=({listed}); CURRENT={len(words)}; PREFIX='{words[-1]}'; _onnxgrad; echo ---"
        )
    found = "\n".join(shell("zsh", "\n".join([stand_ins, *asked]), tmp_path)).split("---")
    for lines, (typed, wanted) in zip(found, CASES.items()):
        assert fits([w for w in lines.split() if w], wanted) or "," in typed, (typed, lines)


def test_every_command_option_and_choice_is_there(run: Run) -> None:
    for name in SHELLS:
        text = script(run, name)
        assert all(word in text for word in (*COMMANDS, *PASSES, *PRESETS, *TOPICS))
        dashes = "-l " if name == "fish" else "--"
        assert all(f"{dashes}{option}" in text for option in ("jvp", "dry-run", "checkpoint"))


def test_an_unknown_shell(run: Run) -> None:
    done = run("completion", "fihs")
    assert done.code == 2 and "'fihs' (did you mean 'fish'?)" in done.err
