"""Results as plain data: their JSON by fields, and the table in which `onnxgrad.report` registers
how they read.

Data knows no rendering: a module of `onnxgrad.report` writes `@renders("parts", Class)` over the
function that shows results of a class, and the methods of `Rendered` look that up.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from onnxgrad.errors import InternalError, OnnxgradError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_KEY = re.compile(r"(\w+)(?:=(\w+))?(\??)(?::(\.\d[fg]))?")
_renderings: dict[tuple[str, type], Callable[..., Any]] = {}


class Plain:
    """A dataclass whose `to_dict` has its fields in JSON's types.

    `json_keys` declares keys and their order if they are not the fields: `key`, `key=attribute`,
    `key?` (null if the value is empty), `key:.3f` (rounded), and `*` for every field.
    """

    __slots__ = ()
    json_keys: ClassVar[str] = "*"

    def to_dict(self) -> dict[str, Any]:
        """Returns the declared keys with values in JSON's types; NaN and infinity are text."""
        found = {}
        for key, name, empty, digits in _keys(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if digits and value is not None:
                value = float(format(value, digits))
            found[key] = None if empty and not value else in_json(value)
        return found


@functools.cache
def _keys(cls: Any) -> list[tuple[str, str, str, str]]:
    """Key, attribute, whether empty is null, and digits, for every key of a class."""
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
    if hasattr(value, "_asdict"):  # a NamedTuple, whose bytes have no form in JSON
        return {k: in_json(v) for k, v in value._asdict().items() if not isinstance(v, bytes)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [in_json(inner) for inner in value]
    if is_dataclass(value):
        return {f.name: in_json(getattr(value, f.name)) for f in fields(value)}
    return str(value) if isinstance(value, OnnxgradError) else value


class Rendered(Plain):
    """A result that can be shown; `str` of it is the text that its command prints."""

    __slots__ = ()

    def parts(self, verbose: bool = False) -> Iterator[Any]:
        """Returns the lines and tables of the text; with `verbose` all of them."""
        return render("parts", self, verbose)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return str(render("text", self.parts()))

    def _repr_html_(self) -> str:
        return str(render("notebook", self.parts()))

    def to_markdown(self) -> str:
        """Returns the verbose text as Markdown, without a newline at the end."""
        return str(render("markdown", self.parts(verbose=True)))

    def to_html(self) -> str:
        """Returns a page as one file that needs no network.

        Raises InputError if the page needs a model that does not load.
        """
        return str(render("page", self))


def renders(form: str, result: type = object) -> Callable[[_Function], _Function]:
    """Registers a function as a form of results: "parts" or "page" of a class of results, "text",
    "notebook" or "markdown" of any parts.
    """

    def register(function: _Function) -> _Function:
        _renderings[form, result] = function
        return function

    return register


def render(form: str, value: Any, *options: Any) -> Any:
    """Returns a form of a value. Raises InternalError if no imported module registered one."""
    for cls in type(value).__mro__:
        if (form, cls) in _renderings:
            return _renderings[form, cls](value, *options)
    raise InternalError(f"no {form} of {type(value).__name__}: import onnxgrad.report first")
