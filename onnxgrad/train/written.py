"""What a command line says of an object: `adamw{lr=1e-3,weight_decay=0.1}`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from onnxgrad.errors import InputError
from onnxgrad.options import from_text, kinds_of
from onnxgrad.wording import perhaps

T = TypeVar("T")

_WRITTEN = re.compile(r"\s*([^\s{}]+)\s*(?:\{([^{}]*)\})?\s*")
_OPTION = re.compile(r"\s*(\w+)\s*=\s*([^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*)\s*(?:,|$)")


def made(text: str, classes: Mapping[str, type[T]], what: str) -> T:
    """The object of one of these dataclasses that `NAME{option=value,option=value}` says.

    Lists are written `[1,2,3]`. Raises InputError for text that cannot be read, an unknown name or
    option, one that is lacking, and what the class refuses.
    """
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise InputError(
            f"cannot read the {what} '{text}': write NAME or NAME{{option=value,option=value}}"
        )
    name, written = found[1], found[2] or ""
    if name not in classes:
        raise InputError(
            f"unknown {what} '{name}'{perhaps(name, classes)}: choose from "
            f"{', '.join(sorted(classes))}"
        )
    return built(name, classes[name], written)


def built(name: str, cls: type[T], written: str) -> T:
    """The object that the options say. Errors as `made`."""
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]  # every class here is a dataclass
    kinds = kinds_of(cls)
    given: dict[str, Any] = {}
    for key, value in _options(name, written):
        if key not in known:
            raise InputError(
                f"{name} has no option '{key}'{perhaps(key, known)}; it has {', '.join(known)}"
            )
        given[key] = from_text(kinds[key], value)
    lacking = [
        k
        for k, f in known.items()
        if f.default is MISSING and f.default_factory is MISSING and k not in given
    ]
    if lacking:
        raise InputError(f"{name} needs the option {lacking[0]}: write {name}{{{lacking[0]}=...}}")
    try:
        return cls(**given)
    except TypeError as error:
        raise InputError(f"{name}: {error}") from None


def _options(name: str, text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while text[position:].strip():
        found = _OPTION.match(text, position)
        if found is None:
            raise InputError(
                f"cannot read the options of {name} at '{text[position:]}': write option=value"
            )
        yield found[1], found[2].strip()
        position = found.end()
