"""Results as plain data: JSON from their fields, other forms from a table of functions."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any, ClassVar

from onnxgrad.errors import InternalError, OnnxgradError
from onnxgrad.wording import text_html

_KEY = re.compile(r"(\w+)(?:=([\w.]+))?(\??)(?::(\.\d[fg]))?")


class InNotebooks:
    """Something that a notebook shows as its text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook shows."""
        return text_html(str(self))


class Plain(InNotebooks):
    """A dataclass whose `to_dict` has its fields in JSON's types.

    `json_keys` declares the keys if they are not the fields: `key`, `key=attribute.of.it`, `key?`
    (null if the value is empty), `key:.3f` (rounded), and `*` for every field.
    """

    __slots__ = ()
    json_keys: ClassVar[str] = "*"

    def to_dict(self) -> dict[str, Any]:
        """Returns the declared keys with values in JSON's types; NaN and infinity are text."""
        found = {}
        for key, name, empty, digits in _keys(type(self)):  # type: ignore[arg-type]
            value = attrgetter(name)(self)
            if digits and value is not None:
                value = float(format(value, digits))
            found[key] = None if empty and not value else in_json(value)
        return found


@functools.cache
def _keys(cls: Any) -> list[tuple[str, str, str, str]]:
    """Returns key, attribute, whether empty becomes null, and digits, for every key of a class."""
    found = []
    for word in cls.json_keys.split():
        names = [f.name for f in fields(cls)] if word == "*" else [word]
        for match in map(_KEY.fullmatch, names):
            if match is None:
                raise InternalError(f"{cls.__name__}.json_keys: cannot read {word!r}")
            key, name, empty, digits = match.groups(default="")
            found.append((key, name or key, empty, digits))
    return found


def in_json(value: Any) -> Any:
    """Returns any value of a result in JSON's types."""
    if isinstance(value, Plain):
        return value.to_dict()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): in_json(inner) for key, inner in value.items()}
    if hasattr(value, "_asdict"):  # a NamedTuple; its bytes cannot be represented in JSON
        return {k: in_json(v) for k, v in value._asdict().items() if not isinstance(v, bytes)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [in_json(inner) for inner in value]
    if is_dataclass(value):
        return {f.name: in_json(getattr(value, f.name)) for f in fields(value)}
    return str(value) if isinstance(value, OnnxgradError) else value


# functions that show a result, by form: text, notebook, Markdown, page. `onnxgrad.functions` fills
# the table from `onnxgrad.report`, so that data does not import rendering
FORMS: dict[str, Callable[[Any], str]] = {}


def in_form(form: str, result: Any) -> str:
    """Returns the result in a form. A command imports `onnxgrad.functions` only for this."""
    if form not in FORMS:
        import_module("onnxgrad.functions")
    return FORMS[form](result)


class Rendered(Plain):
    """A result that Python users can look at. Its `str` is the command's text without colour."""

    __slots__ = ()

    def __str__(self) -> str:
        return in_form("text", self)

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook shows."""
        return in_form("notebook", self)

    def to_markdown(self) -> str:
        """Returns the verbose text as Markdown, without a newline at the end."""
        return in_form("markdown", self)


class WithPage(Rendered):
    """A result that has an HTML page."""

    __slots__ = ()

    def to_html(self) -> str:
        """Returns a page with the graphs, as one file that needs no network. Raises InputError if
        the result has no model, or one that does not load.
        """
        return in_form("page", self)
