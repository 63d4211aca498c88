"""The files that a command reads and writes, checked before long work begins."""

from __future__ import annotations

import argparse
import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from onnxgrad.cli.output import Output, stdout_for_data
from onnxgrad.cli.parser import FILES
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.errors import InputError
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import save_all, to_bytes
from onnxgrad.ir.storage.atomic_files import is_stream
from onnxgrad.ir.storage.places import check_output
from onnxgrad.ir.storage.protection import STDIN, Protected, Writes, protecting, refuse
from onnxgrad.jobs.declared import FileUse, names_of, options_of
from onnxgrad.vocabulary import RECORD


def target_of(output: str) -> Path | None:
    """Returns the path that -o names, None for stdout. Raises InputError if the model cannot be
    written there.
    """
    if output == STDIN:
        stdout_for_data("-o -")
        if sys.stdout.isatty():
            raise InputError("-o - writes a binary model: send stdout to a file or a pipe")
        return None
    if not output:
        raise InputError("-o: the name of the output is empty")
    target = Path(output)
    check_output(target)
    return target


def write_model(program: Program, target: Path | None, out: Output) -> None:
    """Writes a model to a file, or to stdout in one piece. Raises InputError."""
    write_models([(program, target)], out)


def write_models(made: Sequence[tuple[Program, Path | None]], out: Output) -> None:
    """Writes several models, all or none. Models for stdout are written in one piece, after the
    files. Raises InputError.
    """
    files = {target: program for program, target in made if target is not None}
    printed = [to_bytes(program) for program, target in made if target is None]

    def to_stdout() -> None:
        for data in printed:
            stdout = stdout_for_data("-o -")
            stdout.write(data)
            stdout.flush()

    if files:
        save_all(files, before=to_stdout)
        out.wrote(*files)
    else:
        to_stdout()


def writer(target: Path | None, out: Output) -> Callable[[Program], bool]:
    """Returns the hook of a job that writes its result to `target`."""

    def write(program: Program) -> bool:
        write_model(program, target, out)
        return True

    return write


class _Use(NamedTuple):
    """The files in the value of one argument."""

    option: str
    use: FileUse
    globs: tuple[str, ...]
    value: Any


def _uses(args: argparse.Namespace) -> Iterator[_Use]:
    """Yields the arguments of a command that name files, -o first, as its rows and its job declare
    them.
    """
    command = COMMANDS[args.command]
    options = () if command.options is None else options_of(command.options)
    found = [
        *((r.names[-1], r.file, r.globs, r.dest) for r in command.rows if r.dest == "output"),
        *((f"--{name}", use, (), name) for name, use in FILES.items()),
        *((r.names[-1], r.file, r.globs, r.dest) for r in command.rows if r.dest != "output"),
        *((str(o.flag), o.file, o.names, o.name) for o in options if o.flag is not None),
    ]
    for option, use, globs, name in found:
        if use and (value := getattr(args, name, None)) is not None:
            yield _Use("-o" if name == "output" else option, use, globs, value)


def protected(args: argparse.Namespace) -> AbstractContextManager[Protected]:
    """Protects every file that the arguments name for reading, and its record (`--rebasable`),
    inside the context.
    """
    names = [name for use in _uses(args) for name in _read_by(use)]
    names += [f"{name}{RECORD}" for name in names]
    names += [
        found
        for name in names
        if glob.has_magic(name) and not os.path.exists(name)
        for found in glob.glob(name, recursive=True)
    ]
    return protecting(names, [g for use in _uses(args) for g in use.globs])


def _read_by(use: _Use) -> Iterator[str]:
    if use.use == "read":
        yield from names_of(use.value)
    elif use.use == "pairs":
        yield from names_of([*use.value])


def check_reports(args: argparse.Namespace, written: Iterable[tuple[str, str]] = ()) -> None:
    """Raises InputError, before long work, if the file of an option has no name, cannot be written,
    is read by the command or is written by another option; for -o, whether it can be written is
    checked elsewhere. `written`: other files that the command writes, with descriptions.
    """
    writes = Writes()
    for what, file in written:
        writes.add(what, file)
    uses = sorted(_uses(args), key=lambda use: use.use == "pairs")
    for use in uses:
        for name in names_of(use.value) if use.globs or use.use == "into" else ():
            writes.add_folder(f"{use.option} writes", Path(name), use.globs)
    for use in uses:
        what = "-o writes the model" if use.option == "-o" else f"{use.option} writes"
        for name in _written_by(use) if use.use in ("write", "pairs") else ():
            _check_written(use.option, name, what, writes)


def _written_by(use: _Use) -> Sequence[str]:
    value = use.value
    if isinstance(value, Mapping):
        return [*value.values()]
    return [*value] if isinstance(value, (list, tuple)) else [os.fspath(value)]


def _check_written(option: str, name: str, what: str, writes: Writes) -> None:
    if name == STDIN and option in ("-o", "--json"):
        return
    if option == "-o":
        if name:
            refuse(Path(name))
            _add(writes, what, name)
        return
    if not name:
        raise InputError(f"{option}: the name of the file is empty")
    try:
        check_output(Path(name))
        _add(writes, what, name)
    except InputError as error:
        raise InputError(f"{option} {error}") from error


def _add(writes: Writes, what: str, name: str) -> None:
    try:
        stream = is_stream(Path(name))
    except (InputError, OSError):  # reported where -o is checked
        stream = False
    if not stream:
        writes.add(what, name)
