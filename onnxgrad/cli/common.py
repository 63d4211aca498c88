"""What commands share: the parser, options, and checks that come before long work."""

from __future__ import annotations

import argparse
import glob
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import onnx

from onnxgrad.cli.limit_options import add_limits, seconds
from onnxgrad.cli.output import stdout_for_data
from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.files import is_stream, place_of
from onnxgrad.ir.load import MOST_BYTES, proto_of
from onnxgrad.ir.preflight.model import check_model
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import save, to_bytes
from onnxgrad.ir.weights import sources
from onnxgrad.verify import open_session
from onnxgrad.verify.proof import LEGS
from onnxgrad.verify.running.pool import pooled
from onnxgrad.verify.running.session import MOST_THREADS, PROVIDERS

STDIN = "-"
_DIGITS = 18  # of a number on the command line: Python refuses to read those of thousands, int64 those of 20


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line, like every other error."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def wants(words: Sequence[str], short: str, long: str) -> bool:
    """Whether a flag is among the words: needed when the words cannot be parsed."""
    return any(w == long or (w.startswith(short) and not w.startswith("--")) for w in words)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options that every command has."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", help="write the result as JSON; - is stdout, in place of the tables")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: auto")
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    group.add_argument("-v", "--verbose", action="store_true", help="print more; a traceback with errors")


def add_running(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Options of every command that runs models."""
    group = parser.add_argument_group(title)
    group.add_argument("--provider", choices=tuple(PROVIDERS), default="cpu", help="where to run (default: cpu)")
    group.add_argument(
        "--input", action="append", metavar="[NAME=]FILE",
        help=".npz, .npy or .pb with values to run on, or a folder of input_*.pb; default: generated values",
    )  # fmt: skip
    group.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="fix a symbolic dimension")
    add_limits(group)
    group.add_argument("--threads", type=_threads, default=1, metavar="N", help="of onnxruntime (default: 1)")
    return group


def running_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the options of `add_running` say, by the names that `verify` uses. Raises InputError for a bad --dim."""
    options: dict[str, Any] = {"provider": args.provider, "threads": args.threads}
    if args.input:
        options["inputs"] = args.input
    if args.dim:
        options["dims"] = dict(_dim(text) for text in args.dim)
    return options


def add_proof(parser: argparse.ArgumentParser) -> None:
    """Options of every command that proves something by running models."""
    group = add_running(parser, "proof")
    group.add_argument("--seed", action="append", type=_natural, metavar="N", help="of generated values; may repeat")
    group.add_argument(
        "--leg", action="append", choices=LEGS, help="prove this way only (default: both, each with its own tolerance)"
    )
    add_allow_empty(group, "this output may be NaN, infinite or empty throughout: without it, nothing proved is exit 1")


def add_allow_empty(group: argparse._ArgumentGroup, text: str) -> None:
    """The option of every proof that says where nothing to compare is all right."""
    group.add_argument("--allow-empty", action="append", default=[], metavar="NAME", help=text)


def proof_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `verify.verify` that the options of `add_proof` say. Raises InputError for a bad --dim."""
    options = running_options(args)
    if args.seed is not None:
        options["seeds"] = args.seed
    if args.leg:
        options["legs"] = args.leg
    if args.allow_empty:
        options["allow_empty"] = args.allow_empty
    return options


def _dim(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name or not size.isdecimal() or len(size) > _DIGITS:
        raise InputError(f"--dim {text[:80]}: write NAME=SIZE with a whole number, such as --dim batch=4")
    return name, int(size)


def _natural(text: str) -> int:
    """For argparse: 0, 1, 2, ..."""
    if not text.isdecimal() or len(text) > _DIGITS:
        raise argparse.ArgumentTypeError(f"a whole number of at most {_DIGITS} digits is wanted, not {text[:40]!r}")
    return int(text)


def _threads(text: str) -> int:
    count = _natural(text)
    if not 1 <= count <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"a number from 1 to {MOST_THREADS} is wanted, not {count}")
    return count


natural, positive = _natural, seconds


def require_runtime(provider: str) -> None:
    """Raise InputError now, not after long work, when onnxruntime or the provider is missing or does not start."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Add(x, x) }'
    pooled("float64")  # starts while we wait for the other
    open_session(onnx.parser.parse_model(text), provider=provider)


# ---- models in -----------------------------------------------------------------------------------------------------


def expand(patterns: Iterable[str]) -> list[str]:
    """The models meant by arguments: globs that the shell left alone are expanded. Raises InputError for no match."""
    found: list[str] = []
    for pattern in patterns:
        if pattern == STDIN or os.path.exists(pattern) or not glob.has_magic(pattern):
            found.append(pattern)
            continue
        matches = sorted(glob.glob(pattern, recursive=True))
        if not matches:
            raise InputError(f"{pattern}: no file matches")
        found += matches
    if len(found) != len(set(found)):
        twice = next(name for name in found if found.count(name) > 1)
        raise InputError(f"{twice}: given twice")
    return found


def source(name: str) -> Path | bytes:
    """What `load` reads for a command-line name; `-` is all of stdin."""
    return _stdin() if name == STDIN else Path(name)


def read(name: str) -> tuple[onnx.ModelProto, Path | None]:
    """A parsed model without its external data, and its folder. Raises InputError for what is no ONNX model."""
    if name != STDIN:
        return proto_of(Path(name))
    data = _stdin()
    try:
        proto = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError, whose module differs between versions
        raise InputError("stdin: not an ONNX model, or a truncated one") from error
    check_model(proto, "stdin")
    return proto, None


def model_of(name: str) -> Path | onnx.ModelProto:
    """What public functions take for a command-line name: the file itself, since its weights may lie beside it."""
    return read(name)[0] if name == STDIN else Path(name)


def shown(name: str) -> str:
    """What a report calls the model of a command-line name."""
    return "stdin" if name == STDIN else name


def _stdin() -> bytes:
    """All of stdin, but not more than a model can have."""
    if sys.stdin is None:
        raise InputError("stdin: is closed")
    return sys.stdin.buffer.read(MOST_BYTES)


def named(error: OnnxgradError, name: str) -> OnnxgradError:
    """The error with the model's name in front, where its words do not have it."""
    if shown(name) not in str(error):
        error.args = (f"{shown(name)}: {error}", *error.args[1:])
    return error


# ---- files out -----------------------------------------------------------------------------------------------------


def target_of(output: str, models: Iterable[str]) -> Path | None:
    """Where -o says that the model goes, None for stdout. Raises InputError when it cannot go there."""
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


def write_model(program: Program, target: Path | None) -> None:
    """Write a model to a file, or to stdout in one piece. Raises InputError."""
    if target is not None:
        save(program, target)
        return
    data, stdout = to_bytes(program), stdout_for_data("-o -")
    stdout.write(data)
    stdout.flush()


def check_json(args: argparse.Namespace) -> None:
    """Raise InputError, before long work, when --json names no place for a file, or one that the command uses."""
    if args.json in (None, STDIN):
        return
    if not args.json:
        raise InputError("--json: the name of the file is empty")
    path, output = Path(args.json), getattr(args, "output", None)
    try:
        check_output(path, files_read(args))
        if output and output != STDIN and os.path.realpath(output) == os.path.realpath(path) and not is_stream(path):
            raise InputError(f"{path}: is where -o writes the model")
    except InputError as error:
        raise InputError(f"--json {error}") from error


def files_read(args: argparse.Namespace) -> list[str]:
    """Every file that the arguments name for reading; what is none is left to who reads it."""
    named: list[str] = []
    for option in ("model", "a", "b", "config", "rules", "input"):
        value = getattr(args, option, None)
        named += [] if value is None else [value] if isinstance(value, str) else value
    named += [name.partition("=")[2] for name in named if "=" in name]
    named += [found for name in named if glob.has_magic(name) for found in glob.glob(name, recursive=True)]
    return named


def check_output(path: Path, models: Iterable[str]) -> None:
    """Raise InputError when `path` cannot be written, or is a model that is read; `-` among those is stdin."""
    try:
        stream = is_stream(path)
        if path.exists():
            _refuse_taken(path, models)
        if not stream:
            check_folder(place_of(path).parent, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def _refuse_taken(path: Path, models: Iterable[str]) -> None:
    for name in models:
        # a terminal or /dev/null can be both, and /dev/stdin can be the model that is read
        if name != STDIN and os.path.exists(name) and path.samefile(name) and not stat.S_ISCHR(path.stat().st_mode):
            raise InputError(f"{path}: output and input are the same file; the input is never changed")
    try:
        ours = os.path.samestat(os.fstat(sys.stdout.fileno()), path.stat())
    except (AttributeError, OSError, ValueError):  # stdout is closed, or no file
        return
    if ours and not stat.S_ISCHR(path.stat().st_mode):
        raise InputError(f"{path}: is stdout, where the tables go; for a model on stdout write -o -")


def check_not_weights(path: Path, proto: onnx.ModelProto, folder: Path | None) -> None:
    """Raise InputError when a model reads its weights from `path`."""
    if path.resolve() in sources(proto, folder):
        raise InputError(f"{path}: the model reads its weights from this file; choose another output")


def check_folder(folder: Path, what: Path) -> None:
    """Raise InputError when no file can be made in `folder`, or when it does not exist."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise InputError(f"{what}: cannot be written: {folder}: {error.strerror or error}") from error
