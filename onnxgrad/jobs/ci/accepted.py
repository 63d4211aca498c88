"""Results that a lock accepted: those that need no second run, and those whose model left the
recipe.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.extensions import packages
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import read_proto
from onnxgrad.ir.save import remove
from onnxgrad.ir.storage.atomic_files import hash_file, regular
from onnxgrad.ir.storage.external_data import sources
from onnxgrad.jobs.ci.lock import Lock
from onnxgrad.jobs.surgery.lift import prepare_path
from onnxgrad.jobs.tuning.record import digest
from onnxgrad.limits import current
from onnxgrad.results import Plain
from onnxgrad.verify.running.installed import versions_in
from onnxgrad.verify.running.runtimes import Runtime
from onnxgrad.version import __version__

# packages on which a result depends, beside onnxgrad itself
_PACKAGES = ("onnx", "onnxruntime", "onnxruntime-gpu", "numpy")


def key_of(model: str, settings: Any, files: Collection[str], folder: str) -> str:
    """Returns a digest of everything that a result depends on: the digest of the input `model`, the
    resolved options, the content of further files, and versions. Names of files in the options
    count relative to `folder`. Raises InputError for a file that cannot be read.
    """
    found = hashlib.sha256(model.encode())
    plain = _plain(settings, {os.path.abspath(file) for file in files}, folder)
    found.update(repr((plain, versions())).encode("utf-8", "backslashreplace"))
    try:
        for path, most in (pair for file in files for pair in _with_data(Path(file))):
            content = hashlib.sha256()
            hash_file(content, regular(path, most))
            found.update(content.digest())
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror or error}") from error
    return found.hexdigest()


def versions() -> dict[str, str]:
    """Returns the versions on which a result depends, those of installed plug-ins among them."""
    found = {**packages(), "onnxgrad": __version__}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def versions_elsewhere(runtimes: Iterable[str]) -> dict[str, str]:
    """Returns the version of onnxruntime in each other interpreter among these runtimes; each is
    asked once per process. Raises InputError for one that has none.
    """
    found = {text: Runtime.of(text) for text in runtimes if Runtime.parts(text)[0]}
    return {text: str(versions_in(one)["onnxruntime"]) for text, one in found.items()}


def _plain(value: Any, files: Collection[str], folder: str) -> Any:
    """Returns options as plain data, in which the names of files do not depend on the machine."""
    if isinstance(value, Mapping):
        return [(str(k), _plain(v, files, folder)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(v, files, folder) for v in value]
    if isinstance(value, str) and os.path.abspath(value) in files:
        return os.path.relpath(os.path.abspath(value), folder)
    return value


def _with_data(path: Path) -> Iterator[tuple[Path, int | None]]:
    """Yields a file, or the files of a folder, each with the most bytes that a run reads of it; of
    a model, also those of its weights. Yields nothing if there is no file.
    """
    most = current().memory or None  # a sparse file has terabytes
    if path.is_dir():
        yield from ((p, most) for p in sorted(path.iterdir()) if p.is_file())
    elif path.exists():
        yield path, most
        if path.suffix == ".onnx":
            yield from ((p, None) for p in sorted(sources(read_proto(path), path.parent)))


def digest_of_result(output: Path) -> str:
    """Returns the digest of a result on disk, with its weights and the preparation beside it; empty
    if there is none.
    """
    try:
        parts = [digest(output)]
        if prepare_path(output).exists():
            parts.append(digest(prepare_path(output)))
    except InputError:
        return ""
    return parts[0] if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()


@frozen
class Leftover(Plain):
    """The result of a `model` that left the recipe: its path from the recipe's folder, whether it
    was removed, and why not.
    """

    model: str
    output: str
    removed: bool = False
    why: str = ""

    def __str__(self) -> str:
        what = "was removed" if self.removed else self.why
        return f"{self.output}: the result of {self.model}, which left the recipe; {what}"


def leftovers(
    lock: Lock | None, gone: Collection[str], folder: Path, taken: Collection[str], prune: bool
) -> list[Leftover]:
    """Returns the results of models that are gone, below `folder`, except files that other models
    have `taken`. With `prune`, removes those that are as the lock says.
    """
    found = []
    used = {os.path.realpath(place) for place in taken}
    for name in gone if lock is not None else ():
        accepted = lock.accepted.get(name) if lock is not None else None
        place = folder / accepted.output if accepted is not None and accepted.output else None
        if accepted is None or place is None or not place.is_file():
            continue
        if not place.resolve().is_relative_to(folder.resolve()):
            continue
        if os.path.realpath(place) not in used:
            found.append(_leftover(Leftover(name, accepted.output), place, accepted.digest, prune))
    return found


def _leftover(found: Leftover, place: Path, known: str, prune: bool) -> Leftover:
    if not prune:
        return Leftover(found.model, found.output, why="`onnxgrad ci --prune` removes it")
    if digest_of_result(place) != known:
        why = "it stays, because it is not the file that the lock accepted"
        return Leftover(found.model, found.output, why=why)
    try:
        prepare = prepare_path(place)
        for path in [place, *([prepare] if prepare.exists() else [])]:
            remove(path)
    except InputError as error:
        return Leftover(found.model, found.output, why=str(error))
    return Leftover(found.model, found.output, removed=True)
