"""Checks options against their declarations: the types, choices and ranges of dataclass fields, in
one place for Python and for text such as `NAME{option=value}`.

A field declares `bool`, `int`, `float`, `str`, `Literal[...]`, a tuple or sequence of them, or any
of them `| None`; `Annotated[int, Range(1)]` bounds a number. The class checks other types itself.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import functools
import inspect
import math
import os
import sys
import types
import typing
import weakref
from abc import ABCMeta
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.vocabulary import PROVIDERS
from onnxgrad.wording import perhaps

F = TypeVar("F", bound=Callable[..., Any])
_WORDS = {"true": True, "false": False, "none": None, "inf": math.inf}
_SHOWN = 80  # characters of a value in a message
_SEQUENCES = (list, tuple, Sequence, Collection, Iterable)
_KINDS: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_CALLED = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def providers_of(text: str) -> list[str]:
    """Returns the providers that the text names, separated by commas. A proof runs on each;
    rewrites are chosen and latency is measured for the first. Raises InputError.
    """
    names = text.split(",") if isinstance(text, str) else []
    if not names or len({*names}) < len(names) or not PROVIDERS.keys() >= {*names}:
        raise InputError(
            f"unknown provider {repr(text)[:80]}: choose one of {', '.join(PROVIDERS)}, or several "
            "with commas between them"
        )
    return names


_ENDLESS = 2**63 - 1  # the largest integer of ONNX is no limit that matters to a reader


@frozen
class Range:
    """The least and the largest allowed value of a number; with `above`, the least is excluded.
    `words` describe the range in messages, `unit` that of the number.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    words: str = ""
    unit: str = ""

    def __str__(self) -> str:
        if self.low == -math.inf and not self.words:
            return f"at most {self.high:g}"
        least = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        both = f"{least} and at most" if self.above else f"from {self.low:g} to"
        return self.words or (f"{both} {self.high:g}" if self.high < _ENDLESS else least)

    def check(self, value: Any, where: str) -> Any:
        """Returns the number. Raises InputError if it is out of range."""
        if value is None or not isinstance(value, (int, float)):
            return value  # another type of a union
        if not self.low <= value <= self.high or (self.above and value == self.low):
            beyond = not self.words and value > self.high
            most = "finite" if value == math.inf else f"at most {self.high:g}"
            raise _wrong(where, most if beyond and self.high >= _ENDLESS else str(self), value)
        return value


class Named:
    """One name, or any collection of names."""

    def check(self, value: Any, where: str) -> tuple[str, ...]:
        """Returns the names. Raises InputError for anything else."""
        return several(value, where)


def check_fields(made: Any, owner: str, defaults: bool = True) -> None:
    """Converts each field of a dataclass to its declared type, called from `__post_init__`. With
    `defaults=False`, fields that have their default are skipped. Raises InputError that names
    `owner` and the field.
    """
    kinds = kinds_of(type(made))
    for f in fields(made):
        value = getattr(made, f.name)
        if f.init and (defaults or value is not f.default):
            value = checked(kinds[f.name], value, f"{owner}: {f.name}")
            object.__setattr__(made, f.name, value)


def kinds_of(cls: Any) -> Mapping[str, Any]:
    """Returns the declared type of each field; Any if an annotation uses a name that its module
    lacks.
    """
    if cls not in _KINDS:
        found: dict[str, Any] = {}
        for owner in reversed(cls.__mro__):
            for name, annotation in inspect.get_annotations(owner).items():
                found[name] = resolved(annotation, owner.__module__)
        _KINDS[cls] = {f.name: found.get(f.name, Any) for f in fields(cls)}
    return _KINDS[cls]


def resolved(annotation: Any, module: str) -> Any:
    """Returns the type that an annotation of the module names; Any for names that exist only under
    TYPE_CHECKING.
    """
    if not isinstance(annotation, str):
        return annotation
    try:
        found = eval(annotation, {}, _Names(module))
    except (TypeError, SyntaxError, AttributeError, KeyError):
        return Any
    return resolved(found, module) if isinstance(found, str) else found


class _Names(dict[str, Any]):
    """The names of a module, of Python, and the public ones. Every other name is Any."""

    def __init__(self, module: str) -> None:
        super().__init__(vars(sys.modules[module]))
        self.module = module

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        return resolved(found, self.module) if isinstance(found, str) else found

    def __missing__(self, name: str) -> Any:
        if name in sys.modules:
            return sys.modules[name]
        places = (builtins, collections.abc, typing, sys.modules.get("onnxgrad.surface"))
        return next((getattr(place, name) for place in places if hasattr(place, name)), Any)


def checked(kind: Any, value: Any, where: str) -> Any:
    """Returns `value` in the type `kind`. Raises InputError if it has another type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _within(args, value, where)
    if origin in (Union, types.UnionType):
        return _one_of(args, value, where)
    if origin is Literal:
        if not any(type(value) is type(word) and value == word for word in args):
            near = perhaps(value, map(str, args)) if isinstance(value, str) else ""
            raise _wrong(where, described(kind), value, near)
        return value
    if origin in _SEQUENCES:
        return _each(kind, value, where)
    if origin in (Mapping, dict):
        return _entries(args, value, where)
    if kind in _CALLED:
        return _plain(kind, value, where)
    if origin is os.PathLike and not isinstance(value, os.PathLike):
        raise _wrong(where, "a path", value)
    return value


def from_text(kind: Any, text: str) -> Any:
    """Returns the value of a text for the type `kind`: a number, `true`, `[1,2]`, `none`, or a
    word. The class checks it.
    """
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    plain = str in parts and not (text == "none" and type(None) in parts)
    return text if plain or text in words else literal(text)


def literal(text: str) -> Any:
    """Returns a number, a list of numbers, true, false, none, or the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def described(kind: Any) -> str:
    """Returns the values of a type in words; empty for a type that has no form as text."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(args)
    if origin in (Union, types.UnionType):
        return " or ".join(described(a) or getattr(a, "__name__", str(a)) for a in args)
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in _SEQUENCES:
        return "a list"
    if origin in (Mapping, dict):
        return "a table"
    if origin is os.PathLike:
        return "a path"
    if kind is type(None):
        return "none"
    return _CALLED.get(kind, "")


def _annotated(args: Sequence[Any]) -> str:
    named = [str(mark.what) for mark in args[1:] if hasattr(mark, "what")]
    bounds = "".join(f", {bound}" for bound in args[1:] if isinstance(bound, Range))
    return named[0] if named else f"{described(args[0])}{bounds}"


def several(names: Any, where: str) -> tuple[str, ...]:
    """Returns names as a tuple, from one text or any collection of texts. Raises InputError."""
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, Iterable) or isinstance(names, (bytes, bytearray)):
        raise _wrong(where, "names", names)
    found = tuple(names)
    for name in found:
        if not isinstance(name, str):
            raise _wrong(where, "names", name)
    return found


def _one_of(kinds: Sequence[Any], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    wrong: InputError | None = None
    for kind in kinds:
        if kind is not type(None):
            try:
                return checked(kind, value, where)
            except InputError as error:
                wrong = wrong or error
    several_kinds = [kind for kind in kinds if kind is not type(None)]
    if len(several_kinds) > 1:
        raise _wrong(where, " or ".join(filter(None, map(described, several_kinds))), value)
    raise wrong or _wrong(where, "none", value)


def _each(kind: Any, value: Any, where: str) -> Any:
    """Returns the elements of a list or tuple. Text is refused, although Python iterates over its
    letters.
    """
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Collection):
        raise _wrong(where, "a list", value)
    fixed = origin is tuple and not (len(args) == 2 and args[1] is ...)
    if fixed and len(value) != len(args):
        raise _wrong(where, f"{len(args)} values", value)
    each = args if fixed else (args[0],) * len(value)
    found = tuple(checked(k, v, where) for k, v in zip(each, value, strict=True))
    return found if origin is tuple else value  # the caller's list is returned as it is


def _entries(args: Sequence[Any], value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(where, "a table", value)
    return {
        checked(args[0], k, f"{where}: name"): checked(args[1], v, f"{where}: {k!r:.80}")
        for k, v in value.items()
    }


def _plain(kind: Any, value: Any, where: str) -> Any:
    # also numpy's bool, without importing numpy
    flag = isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")
    if kind is bool and flag:
        return bool(value)
    if kind is str and isinstance(value, str):
        return value
    number = isinstance(value, Real) and not flag and value == value
    if kind is float and number:
        return float(value)
    if kind is int and number and (isinstance(value, Integral) or float(value).is_integer()):
        return int(value)
    raise _wrong(where, _CALLED[kind], value)


def _within(args: Sequence[Any], value: Any, where: str) -> Any:
    kind, *bounds = args
    unit = next((mark.unit for mark in bounds if isinstance(mark, Range)), "")
    if unit and not isinstance(value, Real):
        raise _wrong(where, f"a number of {unit}", value)
    value = checked(kind, value, where)
    for bound in bounds:
        value = bound.check(value, where) if hasattr(bound, "check") else value
    return value


def _wrong(where: str, wanted: str, value: Any, hint: str = "") -> InputError:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return InputError(f"{where} must be {wanted}, not {shown}{hint}")


def known_keywords(function: F) -> F:
    """Decorates a public function: an unknown keyword, or an argument of another type than
    annotated, raises InputError that names it.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    known = callable_by(parameters)
    places = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rested = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")

    @functools.cache
    def kinds() -> dict[str, Any]:
        given = {p.name: Any if p.annotation is p.empty else p.annotation for p in parameters}
        return {name: resolved(kind, function.__module__) for name, kind in given.items()}

    @functools.wraps(function)
    def checking(*args: Any, **options: Any) -> Any:
        for name in options:
            if name not in known and not open_ended:
                raise unknown_keyword(called(function), name, known)
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            raise InputError(f"{called(function)}: {error}") from None
        rest = [rested] * len(args)
        for name, value in (*zip([*places, *rest], args), *options.items()):
            check_argument(kinds().get(name, Any), value, f"{function.__name__}: {name}")
        return function(*args, **options)

    return cast(F, checking)


def callable_by(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """Returns the names of the parameters that a caller may set by name, without `self`."""
    return [p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY and p.name != "self"]


def called(function: Callable[..., Any]) -> str:
    """Returns the name by which a function is called; for `__init__`, the name of its class."""
    return function.__qualname__.removesuffix(".__init__").rpartition(".")[2]


def check_argument(kind: Any, value: Any, where: str) -> None:
    """Raises InputError if an argument of a function has none of the annotated types, which may be
    classes and functions. One text is accepted as a list of names.
    """
    if kind is str and type(value) is str:
        return
    kinds = [k for k in _parts(kind) if k is not type(None)]
    if (value is None and len(kinds) < len(_parts(kind))) or any(_fits(k, value) for k in kinds):
        return
    for several_of in (k for k in kinds if get_origin(k) in (*_SEQUENCES, Mapping, dict)):
        if isinstance(
            value, Mapping if get_origin(several_of) in (Mapping, dict) else (list, tuple)
        ):
            checked(several_of, value, where)  # its error names the element
    raise _wrong(where, " or ".join(dict.fromkeys(map(_called, kinds))), value)


def _called(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if described(kind) or not isinstance(origin, type):
        return described(kind) or "something else"
    if getattr(origin, "__name__", "") == "Callable":
        return "a function"
    hint = ", which onnxgrad.load returns" if origin.__name__ == "Program" else ""
    return f"{'an' if origin.__name__[0] in 'AEIOU' else 'a'} {origin.__name__}{hint}"


def _parts(kind: Any) -> list[Any]:
    if get_origin(kind) in (Union, types.UnionType):
        return [part for each in get_args(kind) for part in _parts(each)]
    return [kind.__bound__ or Any] if isinstance(kind, TypeVar) else [kind]


def _fits(kind: Any, value: Any) -> bool:
    origin, args = get_origin(kind) or kind, get_args(kind)
    if origin in _SEQUENCES and isinstance(value, str):
        return bool(args) and str in _parts(args[0])
    if getattr(origin, "__name__", "") == "Callable":
        return callable(value)
    if isinstance(origin, type) and origin not in (*_CALLED, *_SEQUENCES, Mapping, dict, Annotated):
        try:
            return isinstance(value, origin)
        except TypeError:  # a protocol: the call decides
            return True
    try:
        checked(kind, value, "")
    except InputError:
        return False
    return True


class Declared(ABCMeta):
    """The metaclass of dataclasses whose fields are options: an unknown option raises
    InputError.
    """

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Makes an object. Raises InputError for a keyword that is not a field."""
        if options and is_dataclass(cls):
            known = [f.name for f in fields(cls) if f.init]
            for name in options:
                if name not in known:
                    raise unknown_keyword(cls.__name__, name, known)
        return super().__call__(*args, **options)


def unknown_keyword(owner: str, name: str, known: Iterable[str]) -> InputError:
    """Returns the error for a keyword that does not exist."""
    names = list(known)
    listed = ", ".join(names) or "none"
    return InputError(f"{owner} has no option '{name}'{perhaps(name, names, 3)}; it has {listed}")


# types of numbers that several declarations share; the largest value is that of float64
_LEAST, _MOST = math.ulp(0.0), 1.7976931348623157e308
Finite = Annotated[float, Range(-_MOST, _MOST, words="a finite number")]
NonNegative = Annotated[float, Range(0, _MOST, words="a finite number, at least 0")]
Positive = Annotated[float, Range(_LEAST, _MOST, words="a finite number above 0")]
Share = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
