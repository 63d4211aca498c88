"""`main`: find the command, run it, and turn every outcome into an exit code and at most one line
on stderr.

A command is a module `onnxgrad.cli.<name>` with `run(args, out) -> exit code`, one of the same name
in `onnxgrad.cli.usage` with `add_options(parser)` and EXAMPLES, and one line in COMMANDS. What can
be said to it is imported when it is named, what it does only when it is called, as is everything
else that `--help` does not need (`onnxgrad.cli.command`).
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from onnxgrad.cli.help_text import examples_text
from onnxgrad.cli.parser import Parser, add_common, complaint, fitted, wants
from onnxgrad.cli.process import Stopped, drop, importing, open_streams, quiet_libraries, stoppable
from onnxgrad.errors import InputError, InternalError, NotProved, OnnxgradError
from onnxgrad.version import __version__
from onnxgrad.wording import on_the_command_line, printable, printable_lines

COMMANDS = {
    "optimize": "rewrite a model into a smaller equal one, and prove that it is equal",
    "ci": "the models of a recipe optimised, proved, held to what is required and to the lock",
    "grad": "the gradient of a model as a plain ONNX graph, checked against differences",
    "check-grad": "compare a model's gradient with central differences, value by value",
    "train-step": "a training step as a folder of plain ONNX files: loss, gradient and update",
    "fit": "train a model on data, without the framework that made it",
    "verify": "run two models and say whether they compute the same",
    "inspect": "what is in a model: interface, operators, parameters, or the whole block as text",
    "convert-opset": "bring a model to another opset, operator by operator, and prove it equal",
    "float16": "a model's float32 weights and computations in float16, proved within a bound",
    "extract": "the part of a model between some of its values, proved against the whole",
    "metadata": "what a model says about itself: list it, set and unset entries",
    "diff": "what changed between two models",
    "reduce": "the smallest model that still fails a check, by delta debugging",
    "bench": "measure the latency of models in turns, wall and CPU time",
    "place": "mark nodes with devices for onnxruntime, and show what is copied between them",
    "passes": "the passes with their laws and options, and the presets",
    "ops": "how the gradient of each operator is formed",
    "completion": "a script that completes commands, options and values in your shell",
    "doctor": "what is installed here, and which providers really run",
    "help": "the documentation by topic, with examples that run as they stand",
}

PIPE_CLOSED = 141  # what a shell reports for a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done and proved, 1 the answer is no, 2 bad input or usage,
    3 our own error, or 128 and the number of the signal that ended it.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a captured stream need not be a text file
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # typed as TextIO, which lacks it
    verbose = wants(words, "-v", "--verbose")
    with stoppable(), quiet_libraries(verbose), on_the_command_line():
        code = _outcome(words, verbose)
    try:
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)
    return code


def _outcome(words: Sequence[str], verbose: bool) -> int:
    """Run one command and turn whatever comes of it into an exit code."""
    args = None
    try:
        parser = parser_for(words)
        if not words:  # on stderr: who sends stdout somewhere wanted something else
            parser.print_help(sys.stderr)
            return InputError.exit_code
        args = parser.parse_args(words)
        with importing():
            carry_out = import_module("onnxgrad.cli.command").carry_out
            command = import_module(f"onnxgrad.cli.{args.command.replace('-', '_')}")
        code: int = carry_out(args, command.run)
        _flush()
        return code
    except SystemExit as done:  # argparse after --help or --version
        return done.code if isinstance(done.code, int) else 0
    except BrokenPipeError:
        drop(sys.stdout)
        return PIPE_CLOSED
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  # the last boundary: one line and a code for all
        foreseen = _foreseen(error)
        return _ours(error, args, verbose) if foreseen is None else _failed(*foreseen, verbose)


def _foreseen(error: BaseException) -> tuple[str, int] | None:
    """What to say of an end that may come, and the exit code; None for what nobody expected."""
    if isinstance(error, Stopped):
        return error.words, error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 128 + signal.SIGINT
    if isinstance(error, OnnxgradError) and not isinstance(error, InternalError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError):
        text = (
            "not proved: the work needs more memory than this process may have (`ulimit -v`, the "
            "machine's memory)"
        )
        return f"{text}{f': {error}' if str(error) else ''}", NotProved.exit_code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", InputError.exit_code
    return None


def _ours(error: BaseException, args: argparse.Namespace | None, verbose: bool) -> int:
    """What nobody expected: the model's fault where it does not run, else our own."""
    theirs = None
    if args is not None and isinstance(error, Exception):
        theirs = import_module("onnxgrad.cli.command").blamed(_models(args), error)
    if theirs is not None:
        return _failed(str(theirs), theirs.exit_code, verbose)
    what = str(error) if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
    return _failed(f"internal error: {what}; {_REPORT}", InternalError.exit_code, verbose)


def _models(args: argparse.Namespace) -> list[str]:
    """The models that the arguments name."""
    found = getattr(args, "model", None) or [getattr(args, "a", None), getattr(args, "b", None)]
    return [found] if isinstance(found, str) else [name for name in found if name is not None]


_REPORT = (
    "please report this line with the command, the model and what `onnxgrad doctor` prints (-v "
    "adds a traceback)"
)


def _failed(message: str, code: int, verbose: bool) -> int:
    if verbose:
        print(_traceback(), file=sys.stderr)
    with contextlib.suppress(OSError):  # nobody reads it: the exit code is left
        print(fitted(complaint(message), sys.stderr), file=sys.stderr)
    return code


def _traceback() -> str:
    """The error being handled with its frames; its message, which may name anything, on a line."""
    parts = []
    for part in traceback.format_exception(*sys.exc_info()):
        inner = part.strip("\n")
        shown = printable_lines(inner) if part.startswith("  File ") else printable(inner)
        parts.append(part.replace(inner, shown))
    return "".join(parts).rstrip("\n")


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        drop(sys.stdout)
        raise


def parser_for(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with the options of the commands that `words` may call."""
    parser = Parser(
        prog="onnxgrad", description="Better and differentiated ONNX files, proved by running them."
    )
    parser.add_argument("--version", action="version", version=f"onnxgrad {__version__}")
    commands = parser.add_subparsers(
        metavar="COMMAND", dest="command", required=True, prog=parser.prog
    )
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if name in words:
            usage = import_module(f"onnxgrad.cli.usage.{name.replace('-', '_')}")
            usage.add_options(sub)
            add_common(sub)
            sub.epilog = f"{sub.epilog or ''}{examples_text(usage.EXAMPLES)}"
            # the words that the user wrote out win over a recipe
            sub.set_defaults(words=tuple(words))
    return parser
