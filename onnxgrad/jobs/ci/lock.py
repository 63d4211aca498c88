"""The lock: the facts of each model at the last `onnxgrad ci --update`.

It is a JSON file that is committed beside its recipe and named after it. It is validated strictly,
because people edit and merge it by hand.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.storage.atomic_files import text_of, write_whole
from onnxgrad.jobs.ci.inputs import Change, Input
from onnxgrad.jobs.ci.weights import Weight, is_line
from onnxgrad.jobs.requirements import Facts, Latency
from onnxgrad.version import __version__
from onnxgrad.wording import one_line, printable_json

VERSION = 1
_FORMAT = "onnxgrad lock"
_AGAIN = "repair it, or write a new lock with `onnxgrad ci --update`"


@frozen
class Accepted:
    """An accepted result: the `key` of everything that it depends on, its `digest` on disk, and its
    path from the recipe's folder; the last two are empty if it was not written.
    """

    key: str
    digest: str = ""
    output: str = ""


@frozen
class Lock:
    """The facts of each optimised model by its path from the recipe's folder, the `digests` and the
    contents (`inputs`) of the input models, the results that were `accepted`, the path of the
    `recipe` from the lock's folder, and the version of onnxgrad.
    """

    models: Mapping[str, Facts] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    recipe: str = ""
    made_by: str = __version__
    inputs: Mapping[str, Input] = field(default_factory=dict)
    accepted: Mapping[str, Accepted] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the file's text, with the models sorted by name."""
        data = {
            "format": _FORMAT,
            "version": VERSION,
            "onnxgrad": self.made_by,
            "recipe": self.recipe,
            "models": {name: self._entry(name) for name in sorted(self.models)},
        }
        return printable_json(data) + "\n"

    def _entry(self, name: str) -> dict[str, Any]:
        return {
            "sha256": self.digests[name],
            **self.models[name].to_dict(),
            "accepted": asdict(self.accepted[name]),
            "input": self.inputs[name].to_dict(),
        }


def read(path: Path) -> Lock | None:
    """Returns the lock in a file; None if there is no file.

    Raises NewerLock if a newer version wrote the file, InputError if it is damaged.
    """
    try:
        text = text_of(path)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"{path}: cannot be read: {reason}") from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        merged = " (an unfinished merge)" if "<<<<<<<" in text else ""
        raise InputError(f"{path}: not JSON{merged}: {one_line(error)}; {_AGAIN}") from None
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise InputError(f"{path}: is not a lock file of onnxgrad; {_AGAIN}")
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InputError(f"{path}: 'version' is {repr(version)[:80]}; {_AGAIN}")
    if version > VERSION:
        raise NewerLock(
            f"{path}: is of version {version}, this onnxgrad reads up to {VERSION}: install a "
            "newer one"
        )
    whole = _Reader(path, "", data)
    entries = {name: _Reader(path, name, e) for name, e in whole.of("models", dict).items()}
    return Lock(
        {name: entry.facts() for name, entry in entries.items()},
        {name: entry.of("sha256", str) for name, entry in entries.items()},
        whole.of("recipe", str),
        whole.of("onnxgrad", str),
        {name: entry.input() for name, entry in entries.items()},
        {name: entry.accepted() for name, entry in entries.items()},
    )


def check_ours(path: Path) -> None:
    """Raises InputError for a file that was never a lock, even a damaged one."""
    with contextlib.suppress(OSError, UnicodeDecodeError, InputError):
        ours = path.name.endswith(".lock.json") or not path.is_file()  # others are refused later
        if ours or _FORMAT in text_of(path):
            return
    raise InputError(f"{path}: is not a lock file of onnxgrad, and an update replaces no other")


class NewerLock(InputError):
    """The lock was written by a newer version of onnxgrad. An older version does not replace it."""


def write(path: Path, lock: Lock) -> None:
    """Writes the file completely or not at all. Raises InputError."""
    try:
        write_whole(path, lock.to_json().encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


@frozen
class _Reader:
    """One entry; its errors name file, model and key."""

    path: Path
    model: str
    entry: Any

    def of(self, key: str, kind: type, *, optional: bool = False) -> Any:
        """Returns the value of a key, which has this type. Raises InputError."""
        if not isinstance(self.entry, dict):
            raise self._wrong("", "is not an object")
        if key not in self.entry:
            raise self._wrong(key, "is missing")
        value: Any = self.entry[key]
        if value is None and optional:
            return None
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise self._wrong(key, f"cannot be {repr(value)[:80]}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self._wrong(key, f"cannot be {value}")
        return value

    def table(self, key: str, kind: type) -> dict[str, Any]:
        """Returns the object of a key, whose values have this type. Raises InputError."""
        inner = _Reader(self.path, f"{self.model}: {key}", self.of(key, dict))
        return {name: inner.of(name, kind) for name in inner.entry}

    def facts(self) -> Facts:
        latency = self.of("latency", dict, optional=True)
        timed = _Reader(self.path, f"{self.model}: latency", latency)
        return Facts(
            inputs=self.table("inputs", str),
            outputs=self.table("outputs", str),
            opset=self.table("opset", int),
            operators=self.table("operators", int),
            parameters=self.of("parameters", int),
            bytes=self.of("bytes", int),
            worst=self.of("worst", float, optional=True),
            latency=None
            if latency is None
            else Latency(
                timed.of("against", str),
                timed.of("ratio", float),
                timed.of("low", float),
                timed.of("high", float),
                timed.of("clock", str),
            ),
            memory=self.of("memory", int, optional=True),
            memory_on=self.of("memory_on", str, optional=True),
        )

    def input(self) -> Input:
        """Returns the record of the input model. Raises InputError."""
        found = _Reader(self.path, f"{self.model}: input", self.of("input", dict))
        for name, text in found.table("operators", str).items():
            if not text.partition(" ")[0].isdecimal():
                raise found._wrong(name, f"cannot be {text[:80]!r}")
        for name, text in found.table("weights", str).items():
            if not is_line(text):
                raise found._wrong(name, f"cannot be {text[:80]!r}")
        return Input(
            found.of("producer", str),
            found.table("opset", int),
            found.of("graph", str),
            found.of("operators", dict),
            {name: Weight.of(text) for name, text in found.of("weights", dict).items()},
            tuple(map(str, found.of("infinite", list))),
            found.table("inputs", str),
            found.table("outputs", str),
        )

    def accepted(self) -> Accepted:
        """Returns the accepted result. Raises InputError."""
        found = _Reader(self.path, f"{self.model}: accepted", self.of("accepted", dict))
        return Accepted(*(found.of(f.name, str) for f in fields(Accepted)))

    def _wrong(self, key: str, what: str) -> InputError:
        where = ": ".join(filter(None, (str(self.path), self.model, f"'{key}'" if key else "")))
        return InputError(f"{where} {what}; {_AGAIN}")


# noise of measured values: a factor for the worst difference, shares for latency and memory
_WORST, _LATENCY, _MEMORY = 2.0, 0.05, 0.05


def settled(facts: Facts, before: Facts | None) -> Facts:
    """Returns the facts with the measured values of `before` unless they changed by more than the
    noise, so that another machine does not change the lock.
    """
    if before is None:
        return facts
    a, b = facts.memory, before.memory
    if a is None or b is None:
        same_memory = a is None  # not measured this time: the old value stays
    else:
        same_memory = facts.memory_on == before.memory_on and abs(a - b) <= _MEMORY * b
    return replace(
        facts,
        worst=before.worst if _same_worst(facts.worst, before.worst) else facts.worst,
        latency=before.latency if _same_latency(facts.latency, before.latency) else facts.latency,
        memory=before.memory if same_memory else facts.memory,
        memory_on=before.memory_on if same_memory else facts.memory_on,
    )


def _same_worst(a: float | None, b: float | None) -> bool:
    if a is None or b is None or not a or not b:
        return a == b
    return max(a, b) <= _WORST * min(a, b)


def _same_latency(a: Latency | None, b: Latency | None) -> bool:
    if a is None or b is None:
        return a is None  # not measured this time: the old value stays
    meet = a.low <= b.high and b.low <= a.high
    same = (a.against, a.clock) == (b.against, b.clock)
    return same and (meet or abs(a.ratio - b.ratio) <= _LATENCY * b.ratio)


def changes(before: Facts, after: Facts) -> tuple[Change, ...]:
    """Returns everything that changed, the interface first; measured values only if they changed by
    more than the noise.
    """
    old, new = before.to_dict(), settled(after, before).to_dict()
    return tuple(found for key in old for found in _changes(key, old[key], new[key]))


def _changes(key: str, old: Any, new: Any) -> Iterator[Change]:
    if key in ("inputs", "outputs", "opset", "operators"):
        for name in {**old, **new}:
            if old.get(name) != new.get(name):
                yield Change(f"{key}.{name}", old.get(name), new.get(name))
        if list(old) != list(new) and sorted(old) == sorted(new) and key != "operators":
            yield Change(f"order of {key}", ", ".join(old), ", ".join(new))
    elif old != new:
        a, b = (x["ratio"] if key == "latency" and x is not None else x for x in (old, new))
        yield Change(key, a, b)
