"""The files that a command writes, checked before long work begins."""

from __future__ import annotations

import argparse
import glob
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from onnxgrad.cli.output import Output, stdout_for_data
from onnxgrad.errors import InputError
from onnxgrad.ir.load import read_proto
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import save_all, to_bytes
from onnxgrad.ir.storage import external_data
from onnxgrad.ir.storage.atomic_files import is_stream
from onnxgrad.ir.storage.places import STDIN, check_output, refuse_taken

# arguments that name files to read, and arguments, in addition to -o, that name a file to write
READ = ("model", "a", "b", "config", "recipe", "plugin", "input", "inputs", "feeds", "custom_ops",
         "tune_from", "expect", "original", "data", "validation", "bind", "reference")  # fmt: skip
REPORTS = (
    "json",
    "junit",
    "markdown",
    "html",
    "tune_file",
    "save",
    "log",
    "plot",
    "prepare",
    "lift",
    "split",
)
PAIRS = ("predict",)  # mappings of files to read to files to write


def target_of(output: str, models: Iterable[str]) -> Path | None:
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
    check_output(target, models)
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


def check_reports(
    args: argparse.Namespace,
    *,
    read: Iterable[str] = (),
    written: Iterable[tuple[str, str]] = (),
) -> None:
    """Raises InputError, before long work, if the file of an option has no name or is used by the
    command; for -o only the latter is checked. `read`: files that the command reads in addition to
    those of the arguments; `written`: other files that it writes, with descriptions.
    """
    output: str | None = getattr(args, "output", None)
    files, taken = [*files_read(args), *read], list(written)
    if output not in (None, "", STDIN):
        if os.path.exists(output):
            refuse_taken(Path(output), files)
        taken.append(("-o writes the model", output))
    given = [(name, getattr(args, name, None)) for name in REPORTS]
    reports = [
        (name, file)
        for name, file in given
        for file in (file if isinstance(file, list) else [file])
    ]
    pairs = [(name, file) for name in PAIRS for file in _pairs(args, name).values()]
    for name, file in [*reports, *pairs]:
        # for `ops`, --markdown names no file
        if isinstance(file, str) and not (name == "json" and file == STDIN):
            option = f"--{name.replace('_', '-')}"
            _check_report(option, file, files, taken)
            taken.append((f"{option} writes", file))


def _files(given: str | list[str] | None) -> list[str | None]:
    return [*given] if isinstance(given, list) else [given]


def _pairs(args: argparse.Namespace, name: str) -> Mapping[str, str]:
    return getattr(args, name, None) or {}


def _check_report(
    option: str, name: str, files: Sequence[str], taken: Iterable[tuple[str, str]]
) -> None:
    if not name:
        raise InputError(f"{option}: the name of the file is empty")
    path = Path(name)
    try:
        check_output(path, files)
        for what, other in taken:
            if os.path.realpath(other) == os.path.realpath(path) and not is_stream(path):
                raise InputError(f"{name}: is where {what}")
    except InputError as error:
        raise InputError(f"{option} {error}") from error


def files_read(args: argparse.Namespace) -> list[str]:
    """Returns every file that the arguments name for reading, whether or not it exists."""
    named = [file for name in PAIRS for file in _pairs(args, name)]
    for option in READ:
        value = getattr(args, option, None)
        value = [*map(str, value.values())] if isinstance(value, Mapping) else value
        named += [] if value is None else [value] if isinstance(value, str) else value
    named += [name.partition("=")[2] for name in named if "=" in name]
    named += [
        found for name in named if glob.has_magic(name) for found in glob.glob(name, recursive=True)
    ]
    return named


def check_not_weights(target: Path | None, model: Path | bytes) -> None:
    """Raises InputError if `model` reads its weights from `target`."""
    if target is None or not target.exists() or isinstance(model, bytes):
        return
    external_data.check_not_weights(target, read_proto(model), model.parent)
