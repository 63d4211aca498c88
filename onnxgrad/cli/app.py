"""`main` runs one command and returns its exit code, with at most one line of error on stderr.

A command is an entry of `onnxgrad.cli.usage` and a module of `onnxgrad.cli.commands` with
`run(args, out) -> exit code`. The module and everything else that `--help` does not need
(`onnxgrad.cli.command`) is imported when the command is called.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from onnxgrad.cli.arguments import add_options
from onnxgrad.cli.parser import Parser, add_common, behind_the_command, complaint, fitted, wants
from onnxgrad.cli.process import (
    Stopped,
    cause,
    drop,
    importing,
    one_blas_thread,
    open_streams,
    quiet_libraries,
    stoppable,
)
from onnxgrad.cli.usage import COMMANDS, module_of
from onnxgrad.errors import InputError, InternalError, NotProved, OnnxgradError
from onnxgrad.extensions import plugged
from onnxgrad.jobs.declared import from_flags, options_of
from onnxgrad.version import __version__
from onnxgrad.wording import on_the_command_line, printable, printable_lines

PIPE_CLOSED = 141  # the exit code of a program that SIGPIPE ended, as shells report it


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done and proved, 1 the answer is no, 2 bad
    input or usage, 3 an internal error, or 128 plus the number of the signal that ended it.
    """
    words = behind_the_command(sys.argv[1:] if argv is None else argv)
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a captured stream need not be a text file
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # typed as TextIO, which lacks it
    verbose = wants(words, "-v", "--verbose")
    with stoppable(), quiet_libraries(verbose), on_the_command_line(verbose):
        code = _outcome(words, verbose)
    try:
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)
    return code


def _outcome(words: Sequence[str], verbose: bool) -> int:
    """Runs one command and turns its result or error into an exit code."""
    args = None
    try:
        parser = parser_for(words)
        if not words:  # on stderr, because a redirected stdout is for results
            parser.print_help(sys.stderr)
            return InputError.exit_code
        args = _understood(parser, words)
        if args.command == "completion":  # imports little, because shells call it when they start
            import_module("onnxgrad.cli.commands.completion").show(args.shell)
            return 0
        with importing():
            _start_child(args, "cpu")
            carry_out = import_module("onnxgrad.cli.command").carry_out
            _start_child(args, "float64")
            command = import_module(module_of(args.command))
        code: int = carry_out(args, command.run)
        _flush()
        return code
    except SystemExit as done:  # argparse after --help or --version
        return done.code if isinstance(done.code, int) else 0
    except BrokenPipeError:
        drop(sys.stdout)
        return PIPE_CLOSED
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001  # the last boundary: one line and a code for all
        foreseen = _foreseen(cause(error))
        return _ours(error, args, verbose) if foreseen is None else _failed(*foreseen, verbose)


def _start_child(args: argparse.Namespace, kind: str) -> None:
    """Starts a process in which models will run, as a fork that has the modules imported so far."""
    if getattr(args, "no_verify", True) or getattr(args, "provider", "") != "cpu":
        return
    with one_blas_thread():
        import_module("onnxgrad.verify.running.child_process").warm(kind)


def _understood(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Returns the parsed words, with `options` of the command's job, and each option by its
    name.
    """
    args = parser.parse_args(words)
    declared = COMMANDS[args.command].options
    if declared is not None:
        args.options = from_flags(declared, args)
        for option in options_of(declared):
            if option.flag is not None:
                setattr(args, option.name, getattr(args.options, option.name))
    return args


def _foreseen(error: BaseException) -> tuple[str, int] | None:
    """Returns the message and the exit code of an expected error; None for any other."""
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
    """Reports an unexpected error. If onnxruntime refuses the model, the error is about the model,
    else it is an internal error.
    """
    theirs = None
    if args is not None and isinstance(error, Exception):
        theirs = import_module("onnxgrad.verify.blame").blamed(_models(args), error)
    if theirs is not None:
        return _failed(str(theirs), theirs.exit_code, verbose)
    what = str(error) if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
    return _failed(f"internal error: {what}; {_REPORT}", InternalError.exit_code, verbose)


def _models(args: argparse.Namespace) -> list[str]:
    """Returns the models that the arguments name."""
    found = getattr(args, "model", None) or [getattr(args, "a", None), getattr(args, "b", None)]
    return [found] if isinstance(found, str) else [name for name in found if name is not None]


_REPORT = (
    "please report this line with the command, the model and what `onnxgrad doctor` prints (-v "
    "adds a traceback)"
)


def _failed(message: str, code: int, verbose: bool) -> int:
    if verbose:
        print(_traceback(), file=sys.stderr)
    with contextlib.suppress(OSError):  # stderr is closed: the exit code must suffice
        print(fitted(complaint(message), sys.stderr), file=sys.stderr)
    return code


def _traceback() -> str:
    """Returns the traceback of the error being handled, with its message, which may contain any
    text, made safe to print.
    """
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


def parser_for(words: Sequence[str], *, every: bool = False) -> argparse.ArgumentParser:
    """Returns the parser, with the options of the command that `words` call, or of `every` one."""
    parser = Parser(
        prog="onnxgrad", description="Better and differentiated ONNX files, proved by running them."
    )
    parser.add_argument("--version", action="version", version=f"onnxgrad {__version__}")
    called = words[0] if words else "--help"
    if not called.startswith("-") and called not in COMMANDS:
        found = plugged("commands", called)
        COMMANDS.update({} if found is None else {called: found})
    commands = parser.add_subparsers(
        metavar="COMMAND", dest="command", required=True, prog=parser.prog
    )
    # the others stand in the help and in the error about a name that is none
    for name in COMMANDS if every or called not in COMMANDS else [called]:
        command = COMMANDS[name]
        summary = command.summary
        sub = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if every or name == called:
            add_options(sub, command)
            add_common(sub)
    return parser
