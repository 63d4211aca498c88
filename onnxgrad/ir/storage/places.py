"""Checks of the paths of results before the work begins."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import is_stream, place_of, refuse_file
from onnxgrad.ir.storage.protection import refuse


def check_output(path: Path) -> None:
    """Raises InputError if `path` cannot be written, is stdout, or is a file that the job reads."""
    try:
        stream = is_stream(path)
        if path.exists():
            refuse(path)
            _refuse_stdout(path)
        if not stream:
            check_folder(place_of(path).parent, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def _refuse_stdout(path: Path) -> None:
    try:
        ours = os.path.samestat(os.fstat(sys.stdout.fileno()), path.stat())
    except (AttributeError, OSError, ValueError):  # stdout is closed, or no file
        return
    if ours and not stat.S_ISCHR(path.stat().st_mode):
        raise InputError(
            f"{path}: is stdout, where the tables go; for a model on stdout write -o -"
        )


def make_folder(folder: Path, where: str) -> None:
    """Creates a folder for results. Raises InputError, which begins with `where`."""
    refuse_file(folder, f"{where} ")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{where} {folder}: cannot be made: {error.strerror or error}") from error
    check_folder(folder, folder)


def check_folder(folder: Path, what: Path) -> None:
    """Raises InputError if no file can be created in `folder`, or if it does not exist."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise InputError(
            f"{what}: cannot be written: {folder}: {error.strerror or error}"
        ) from error
