"""The arguments of a command: options of its job, and flags of the command alone. Imports only what
`--help` needs.
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib import import_module
from typing import Any, cast

from onnxgrad.cli.help_text import examples_text
from onnxgrad.frozen import frozen
from onnxgrad.jobs.declared import Declaration, FileUse, add_flags, group_of


@frozen
class Row:
    """A flag or a positional argument: the arguments of `add_argument`, the `title` of its group,
    and `either`, the name of its mutually exclusive group. `file` and `globs`: as `file` and
    `names` of a declared option.
    """

    names: tuple[str, ...]
    keywords: dict[str, Any]
    title: str = ""
    either: str = ""
    file: FileUse = ""
    globs: tuple[str, ...] = ()

    @property
    def dest(self) -> str:
        """The attribute of the parsed arguments."""
        longest = next((n for n in self.names if n.startswith("--")), self.names[0])
        return str(self.keywords.get("dest", longest.lstrip("-").replace("-", "_")))


@frozen
class Command:
    """`onnxgrad NAME`: its summary, two examples, its own rows, and the declaration of its `job` or
    its name in onnxgrad.jobs. `required` lists exclusive groups in which one argument must be
    given. `module` is the module of `cli.commands` that runs the command, if its name differs, or
    the full name of a plug-in's module; `job` is then a full name, too.
    """

    summary: str
    examples: tuple[tuple[str, str], tuple[str, str]]
    rows: tuple[Row, ...] = ()
    job: type[Declaration] | str = ""
    required: tuple[str, ...] = ()
    text: str = ""
    defaults: tuple[tuple[str, Any], ...] = ()
    module: str = ""

    @property
    def options(self) -> type[Declaration] | None:
        """The declaration of its job, which is imported only now."""
        if not isinstance(self.job, str) or not self.job:
            return self.job or None
        module, _, name = self.job.rpartition(".")
        module = module if "." in self.module else f"onnxgrad.jobs.{module}"
        return cast("type[Declaration]", getattr(import_module(module), name))


def row(
    *names: str,
    title: str = "",
    either: str = "",
    file: FileUse = "",
    globs: tuple[str, ...] = (),
    **keywords: Any,
) -> Row:
    """Returns a row; `keywords` are those of `add_argument`."""
    return Row(names, keywords, title, either, file, globs)


def add_options(parser: argparse.ArgumentParser, command: Command) -> None:
    """Adds the arguments of a command to its parser."""
    either: dict[str, argparse._MutuallyExclusiveGroup] = {}
    if command.options is not None:
        group_of(parser, vars(command.options).get("title", ""))  # the job's own group comes first
    for r in command.rows:
        place: Any = group_of(parser, r.title)
        if r.either:
            place = either.get(r.either) or place.add_mutually_exclusive_group(
                required=r.either in command.required
            )
            either[r.either] = place
        place.add_argument(*r.names, **r.keywords)
    if command.options is not None:
        add_flags(parser, command.options)
    parser.set_defaults(**dict(command.defaults))
    parser.epilog = f"{command.text}{examples_text(command.examples)}"


# arguments that name files to read, files to write, and folders in which files are written
reads, writes, into = (partial(row, file=use) for use in ("read", "write", "into"))
