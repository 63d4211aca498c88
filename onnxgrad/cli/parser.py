"""The argument parser, its error messages, and the options that all commands share. Imports only
what `--help` needs.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, Literal, NoReturn, TextIO

from onnxgrad.cli.help_text import Help
from onnxgrad.errors import InputError
from onnxgrad.report.parts import LONGEST
from onnxgrad.wording import first_of, one_line, perhaps, printable

_COMMANDS = 3  # named in an error


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are one line with a suggestion."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False, formatter_class=Help)
        self.words: tuple[str, ...] = ()  # those that are parsed, for errors

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: -o/--output") and (extra := self._extra_model()):
            message = _OUTPUT.format(extra)
        more = "" if message.endswith("?)") else f" (see {self.prog} --help)"
        raise InputError(f"{message}{more}")

    def _extra_model(self) -> str:
        """Returns the last model among the words if the command reads fewer models, so that an
        output may be meant, as in `float16 model.onnx out.onnx`; else an empty text.
        """
        pairs = zip(("", *self.words), self.words, strict=False)
        models = [w for before, w in pairs if w.endswith(".onnx") and before[:1] != "-"]
        read = sum(not a.option_strings for a in self._actions)
        return models[-1] if len(models) > read else ""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the arguments. Raises InputError for unexpected words."""
        found, more = self.parse_known_args(args, namespace)
        if more and more[0].endswith(".onnx") and getattr(found, "output", "") is None:
            raise InputError(f"{_OUTPUT.format(more[0])} (see {self.prog} {found.command} --help)")
        if more and len(more[0]) == 2 and more[0][0] == "-":
            hint = f" (see {self.prog} {found.command} --help)"
            hint = " (did you mean '-o'?)" if more[0] == "-O" else hint
            raise InputError(f"unknown option {more[0]}{hint}")
        if more:
            hint = self._expanded(more[0]) or f"see {self.prog} {found.command} --help"
            raise InputError(f"unexpected '{more[0]}' ({hint})")
        return found

    def _expanded(self, word: str) -> str:
        """Returns a hint if a shell may have made `word` and the one before it of the same braces,
        else an empty text.
        """
        before = self.words[self.words.index(word) - 1]
        if not re.match(r"(.{3,})\w+=[^\n]*\n\1\w+=", f"{before}\n{word}"):
            return ""
        return "if it was in braces, the shell expanded them: quote the text, as 'NAME{a=1,b=2}'"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses, but reports an unknown option before the arguments that are missing because
        of it.
        """
        self.words = tuple(args or ())
        for word in args or ():
            if word == "--" or (self._subparsers is not None and word[:1] != "-"):
                break
            self._check_option(word.partition("=")[0])
        return super().parse_known_args(args, namespace)

    def _check_option(self, word: str) -> None:
        known = [o for a in self._actions for o in a.option_strings if o.startswith("--")]
        if word.startswith("--") and " " not in word and word not in known:
            hint = perhaps(word, known, 2) or self._elsewhere(word) or self._related(word, known)
            self.error(f"unknown option {word}{hint}")
        if len(word) > 2 and f"-{word}" in known:  # -output would be parsed as -o utput
            self.error(f"unknown option {word} (did you mean '-{word}'?)")

    def _elsewhere(self, word: str) -> str:
        """Returns which commands have an option that this one lacks, or an empty text."""
        from onnxgrad.cli.usage import COMMANDS  # also needs the declarations of all jobs
        from onnxgrad.jobs.declared import options_of

        found = []
        for name, command in COMMANDS.items():
            rows = {flag for row in command.rows for flag in row.names}
            options = () if command.options is None else options_of(command.options)
            if word in rows | {o.flag for o in options}:
                found.append(name)
        return f": it is an option of {first_of(found, _COMMANDS)}" if found else ""

    def _related(self, word: str, known: Sequence[str]) -> str:
        """Returns the options, or else the command, whose last word is that of an unknown option;
        else where to search.
        """
        from onnxgrad.cli.usage import COMMANDS

        def last(name: str) -> str:
            return name.rpartition("-")[2]

        if found := [f"'{name}'" for name in known if last(name) == last(word)]:
            return f" (did you mean {' or '.join(found)}?)"
        commands = [name for name in COMMANDS if last(name) == last(word)]
        if commands:
            return f": `onnxgrad {commands[0]}` may be meant"
        return f": `onnxgrad help {word.strip('-').replace('-', ' ')}` may find it"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        if action.dest != "command":
            among = f"choose from {', '.join(known)}"
            raise argparse.ArgumentError(
                action, f"invalid choice: '{value}'{perhaps(value, known)}: {among}"
            )
        text = f"unknown command '{value}'{perhaps(value, known)}"
        if value.endswith(".onnx"):
            text = f"'{value}' is not a command: write one first, as in onnxgrad inspect {value}"
        raise argparse.ArgumentError(None, text)


_OUTPUT = "no output is named: write -o {}"


def wants(words: Sequence[str], short: str, long: str) -> bool:
    """Whether a flag is among the words, which may not be parseable."""
    return any(w == long or (w.startswith(short) and not w.startswith("--")) for w in words)


def behind_the_command(words: Sequence[str]) -> list[str]:
    """Returns the words with the switches that all commands share, such as -v, behind the command
    if they are written before it.
    """
    count = next((i for i, word in enumerate(words) if word not in _SWITCHES), 0)
    return [*words[count : count + 1], *words[:count], *words[count + 1 :]]


_SWITCHES = ("-v", "--verbose", "-q", "--quiet")
# how the common options below use files, as `onnxgrad.jobs.declared.FileUse` has it
FILES: dict[str, Literal["read", "write"]] = {"json": "write", "plugin": "read"}


def add_common(parser: argparse.ArgumentParser) -> None:
    """Adds the options that every command has."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json",
        metavar="FILE",
        help="write the result as JSON; - prints it to stdout in place of the tables",
    )
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour the output (default: auto, on terminals)",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    group.add_argument(
        "-v", "--verbose", action="store_true", help="print more, and a traceback after an error"
    )
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file that registers your rewrite rules, passes, gradient rules or kernels; "
        "it runs with your rights",
    )


def complaint(text: str) -> str:
    """Returns an error as one line."""
    line = f"onnxgrad: {printable(one_line(text))}"
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def fitted(text: str, stream: TextIO) -> str:
    """Returns a line wrapped between words if the stream is a terminal."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        text, max(width, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
