"""The models that arguments name: files, globs and stdin."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.load import MOST_BYTES, parse, proto_of
from onnxgrad.ir.preflight.model import check_model
from onnxgrad.ir.storage.protection import STDIN
from onnxgrad.wording import perhaps


def expand(patterns: Iterable[str]) -> list[str]:
    """Returns the models that the arguments name, with globs expanded. Raises InputError if a glob
    matches nothing.
    """
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
    """Returns the source of a model for `load`; `-` is all of stdin. Raises InputError if there is
    no such file.
    """
    return _stdin() if name == STDIN else _there(name)


def _there(name: str) -> Path:
    path = Path(name)
    if not os.path.lexists(path):
        if "://" in name:
            raise InputError(f"{name}: is a URL: download the file, and name the copy")
        around = path.parent.glob("*") if path.parent.is_dir() else ()
        hint = perhaps(path.name, [other.name for other in around])
        raise InputError(f"{name}: No such file or directory{hint}")
    return path


def read(name: str) -> tuple[onnx.ModelProto, Path | None]:
    """Returns a parsed model without its external data, and its folder. Raises InputError if the
    file is not an ONNX model.
    """
    if name != STDIN:
        return proto_of(_there(name))
    proto = parse(_stdin(), "stdin")
    check_model(proto, "stdin")
    return proto, None


def model_of(name: str) -> Path | onnx.ModelProto:
    """Returns the model of a command-line name for public functions: the path of a file, since its
    weights may lie beside it.
    """
    return read(name)[0] if name == STDIN else _there(name)


def shown(name: str) -> str:
    """Returns the name of the model in reports."""
    return "stdin" if name == STDIN else name


def _stdin() -> bytes:
    """Returns stdin, up to the size that a model can have."""
    if sys.stdin is None:
        raise InputError("stdin: is closed")
    return sys.stdin.buffer.read(MOST_BYTES)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Errors inside this context are prefixed by the name of the model."""
    try:
        yield
    except OnnxgradError as error:
        raise named(error, name) from error


def named(error: OnnxgradError, name: str) -> OnnxgradError:
    """Returns the error prefixed by the model's name, unless its text contains the name."""
    if shown(name) not in str(error):
        error.args = (f"{shown(name)}: {error}", *error.args[1:])
    return error
