"""The layout of `--help`: lines wrapped between words at any width, examples at the end."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

_NARROW = 70  # below this number of columns, the help of an option stands below the option
# a word of a command, or an option with its value
_WORD = re.compile(r"(?:-[\w-]+ (?=[^\s|-]))?(?:'[^']*'|\S)+")


class Help(argparse.HelpFormatter):
    """argparse's formatter, without cutting words. Indented lines, such as commands and their
    descriptions, keep their line breaks.
    """

    def __init__(self, prog: str) -> None:
        narrow = shutil.get_terminal_size().columns < _NARROW
        super().__init__(prog, max_help_position=8 if narrow else 24)

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        """Returns the required arguments; the options are listed below."""
        either = [g for g in groups if g.required]
        apart = [a for g in either for a in g._group_actions]
        words = [self._prog, "[options]"]
        words += [self._said(a) for a in actions if a.required and a.option_strings]
        words += [f"({' | '.join(map(self._said, g._group_actions))})" for g in either]
        words += [self._said(a) for a in actions if not a.option_strings and a not in apart]
        lines = _joined(words, self._width - len("usage: "), indent="  ")
        return "usage: " + "\n       ".join(lines) + "\n\n"

    def _said(self, action: argparse.Action) -> str:
        value = self._format_args(action, action.dest.upper())
        return f"{action.option_strings[0]} {value}" if action.option_strings else value

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for block in re.split(r"\n(?=\s)", text):
            lines += [""] * block.startswith("\n")
            block = block.lstrip("\n")
            deep = indent + " " * (len(block) - len(block.lstrip(" ")))
            words = " ".join(block.split())
            if words.startswith("onnxgrad "):
                lines += [deep + line for line in command_lines(words, width - len(deep))]
            else:
                lines += [deep + line for line in _wrapped(words, width - len(deep))]
        return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)


def command_lines(command: str, width: int) -> list[str]:
    r"""Returns a command as lines of this width, if its words allow it, joined by backslashes.

    >>> print(*command_lines("onnxgrad grad model.onnx -o 'my file'", 26), sep="\n")
    onnxgrad grad model.onnx \
      -o 'my file'
    """
    lines = _joined(_WORD.findall(command), width - 2, indent="  ")
    return [*(f"{line} \\" for line in lines[:-1]), *lines[-1:]]


def _joined(words: Iterable[str], width: int, indent: str) -> list[str]:
    """Returns lines, each with as many words as fit."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{indent}{word}" if lines else word)
    return lines


def examples_text(examples: Iterable[tuple[str, str]]) -> str:
    """Returns the end of a --help: commands with their descriptions."""
    return "examples:\n" + "\n".join(
        f"  onnxgrad {command}\n      {what}" for command, what in examples
    )
