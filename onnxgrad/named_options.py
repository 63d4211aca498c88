"""Reads `NAME{option=value,option=value}` for passes, losses, optimisers and schedules.

NAME stands for a dataclass, and the fields of the class declare the options. Options are separated
by commas or semicolons; a list is `[1,2,3]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from inspect import isabstract
from typing import Any, TypeVar, get_origin

from onnxgrad.errors import InputError
from onnxgrad.options import described, from_text, kinds_of
from onnxgrad.wording import perhaps

T = TypeVar("T")

_ITEM = re.compile(r"\s*([^\s{},]+)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")
# a semicolon before anything but an option belongs to the value: it separates globs
_VALUE = r"(?:[^,;\[\]]|;(?!\s*\w+\s*=)|\[[^\]]*\])*"
_OPTION = re.compile(rf"\s*(\w+)\s*=\s*({_VALUE})\s*(?:[,;]|$)")


def read(text: str, classes: Mapping[str, type[T]], what: str) -> T:
    """Returns the object that `NAME{option=value}` describes.

    `classes`: the dataclass of each name. `what`: the kind of object, for messages. Raises
    InputError if the text cannot be read, and as `build` does.
    """
    items = list(split(text, what))
    if len(items) != 1:
        raise InputError(
            f"cannot read the {what} '{text}': write NAME or NAME{{option=value,option=value}}"
        )
    name, options = items[0]
    if name not in classes:
        raise InputError(
            f"unknown {what} '{name}'{perhaps(name, classes)}: choose from "
            f"{', '.join(sorted(classes))}"
        )
    return build(name, classes[name], options or "")


def split(text: str, what: str) -> Iterator[tuple[str, str | None]]:
    """Yields the name and the text of the options (None without braces) of each item of
    `NAME{...},NAME`. Raises InputError at the first place that cannot be read.
    """
    position = 0
    while text[position:].strip():
        found = _ITEM.match(text, position)
        if found is None:
            raise InputError(
                f"cannot read the {what} at '{text[position:]}': write NAME{{option=value}}"
            )
        yield found[1], found[2]
        position = found.end()


def build(name: str, cls: type[T], text: str, common: Mapping[str, Any] | None = None) -> T:
    """Returns an object of the dataclass `cls` from the text of its options.

    `common`: values for the fields of these names that the text leaves out. Raises InputError for
    an unknown or missing option, and for a value that the class refuses.
    """
    own = sorted(fields(cls), key=lambda f: f.kw_only is True)  # type: ignore[arg-type]  # every class is a dataclass
    known = {f.name: f for f in own}
    kinds = kinds_of(cls)
    given = {k: v for k, v in (common or {}).items() if k in known}
    for key, value in _options(name, text):
        if key not in known:
            raise InputError(
                f"{name} has no option '{key}'{perhaps(key, known)}; it has: "
                f"{', '.join(known) or 'none'}"
            )
        if kinds[key] is not Any and not described(kinds[key]):
            raise InputError(f"{name}: {key} cannot be set from text")
        given[key] = from_text(kinds[key], value)
    for key, f in known.items():
        if f.default is MISSING and f.default_factory is MISSING and key not in given:
            raise InputError(f"{name} needs the option {key}: write {name}{{{key}=...}}")
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


def declared(module: Any, base: Any) -> list[Any]:
    """Returns the classes that a module defines below `base`, in order, except for abstract
    ones.
    """
    return [
        cls
        for cls in vars(module).values()
        if isinstance(cls, type)
        and get_origin(cls) is None  # in Python 3.10, list[int] is a type
        and issubclass(cls, base)
        and cls.__module__ == module.__name__
        and not isabstract(cls)
    ]


def name_of(cls: type) -> str:
    """Returns the name of a class as text; classes of other packages are prefixed by their
    module.
    """
    ours = cls.__module__.startswith("onnxgrad.")
    return cls.__name__.lower() if ours else f"{cls.__module__}:{cls.__name__}"
