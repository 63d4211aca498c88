"""Which files the globs of a recipe find, and which a file that is not there yet would be among."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from onnxgrad.wording import perhaps


def files(pattern: str, folder: Path) -> list[str]:
    """The files that a glob finds from `folder`, with / between the parts."""
    return [_normal(n) for n in _found(pattern, folder) if (folder / n).is_file()]


def broken_links(pattern: str, folder: Path) -> list[str]:
    """The links to nowhere that a glob finds: models that were not fetched."""
    links = [n for n in _found(pattern, folder) if (folder / n).is_symlink()]
    return [_normal(n) for n in links if not (folder / n).exists()]


def meets(pattern: str, name: str) -> bool:
    """Whether the glob would find a file of this name, / between the parts of both."""
    return _meets(_normal(pattern).split("/"), name.split("/"))


def met_nothing(pattern: str, folder: Path) -> str:
    """What to say of a glob without files, with what may have been meant."""
    if (folder / pattern).is_dir():
        return f"'{pattern}' is a folder: write such as '{pattern.rstrip('/')}/*.onnx'"
    around = files("**/*.onnx", folder)
    what = "no file matches" if glob.has_magic(pattern) else "there is no file"
    return f"{what} '{pattern}' (from the folder of this file){perhaps(pattern, around)}"


def _found(pattern: str, folder: Path) -> list[str]:
    found = glob.glob(pattern, root_dir=folder, recursive=True)
    if not found and (folder / pattern).is_file():  # its own name looks like a glob
        found = [pattern]
    return found


def _normal(name: str) -> str:
    return os.path.normpath(name).replace(os.sep, "/")


def _meets(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """As glob.glob: ** stands for folders, and no wildcard for a name that begins with a dot."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        if _meets(pattern[1:], parts):
            return True
        return bool(parts) and not parts[0].startswith(".") and _meets(pattern, parts[1:])
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatchcase(parts[0], pattern[0]) and _meets(pattern[1:], parts[1:])
