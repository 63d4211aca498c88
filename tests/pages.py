"""Runs what stands in a page of Markdown: its Python and its commands, in order, as one session.

- A block of Python is executed; one whose first line is `# NAME.py` is written to that file instead, for commands and for
  later blocks that import it, as are blocks of TOML, YAML or JSON that begin with `# NAME`.
- In a block of shell a line that begins with `$ ` is a command; what follows is what it prints, with `...` for anything,
  and with times and rounding errors as this machine has them. A command prints whatever it likes where nothing follows.
- `# exit code N` behind a command is how it ends, else 0.
- Python that imports onnxscript, scipy or torch runs where that is installed.
"""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from onnxgrad import temporary_rules
from onnxgrad.cli.app import main

FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"\A# ([\w.-]+\.(?:py|toml|yaml|yml|json))\b[^\n]*\n")
# braces outside of quotes, which bash and zsh expand to several words
EXPANDED = re.compile(r"""(?:'[^']*'|"[^"]*"|[^'"{])*\{[^{}'"]*(?:,|\.\.)[^{}'"]*\}""")
EXIT_CODE = re.compile(r"\s+# exit code (\d+)$")
# what the machine decides: rounding errors and where the worst of them is, times, sizes in memory
OF_THE_MACHINE = [
    (re.compile(r"\S+\[[\d, ]*\]: \S+ → \S+"), "PLACE"),
    (re.compile(r"\b\d+(\.\d+)?e[+-]\d+"), "ERROR"),
    (re.compile(r"\b\d[\d,.]* (ms|s)\b"), "TIME"),
    (re.compile("─+"), "RULE"),
]


@dataclass(frozen=True)
class Command:
    """A command of a page, what it prints there, and its exit code."""

    words: tuple[str, ...]
    output: str
    code: int


def commands(block: str) -> Iterator[Command]:
    """The commands of one block of shell."""
    line, output = "", []
    for text in [*block.splitlines(), "$ "]:
        if not text.startswith("$ "):
            output.append(text)
            continue
        if line:
            code = EXIT_CODE.search(line)
            assert not EXPANDED.match(line), f"quote the braces: {line}"
            words = tuple(shlex.split(line[: code.start()] if code else line))
            yield Command(words, "\n".join(output), int(code[1]) if code else 0)
        line, output = text[2:], []


def same_text(shown: str, printed: str) -> bool:
    """Whether a command printed what its page shows."""
    for pattern, word in OF_THE_MACHINE:
        shown, printed = pattern.sub(word, shown), pattern.sub(word, printed)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(f"{shown}\n", f"{printed}\n", flags)


def run_command(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command of a page and compare its exit code, and what it prints, with the page."""
    assert command.words[0] == "onnxgrad", command
    capsys.readouterr()
    with temporary_rules():  # as in a process of its own
        code = main(command.words[1:])
    printed = "".join(capsys.readouterr())
    assert code == command.code, (command, printed)
    assert not command.output or same_text(command.output, printed), (command, printed)


def _imports_are_there(block: str) -> bool:
    asked = re.search(r"^(?:from|import) (onnxscript|scipy|torch)\b", block, re.MULTILINE)
    return not asked or importlib.util.find_spec(asked[1]) is not None


def run_page(text: str, name: str, capsys: pytest.CaptureFixture[str]) -> int:
    """Run a page in the current folder; how many blocks and commands ran."""
    names: dict[str, object] = {"__name__": name}
    count = 0
    for language, block in FENCED.findall(text):
        if named := NAMED.match(block):
            Path(named[1]).write_text(block, encoding="utf-8")
        elif language == "python" and _imports_are_there(block):
            exec(compile(block, name, "exec"), names)
            count += 1
        elif language == "sh":
            for command in commands(block):
                run_command(command, capsys)
                count += 1
    return count
