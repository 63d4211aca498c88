"""One declaration of a job's options, and everything that is derived from it.

A declaration is a frozen dataclass whose fields are `option(...)`. It determines the keywords of
the Python function (`keywords.py`), the flags of the command (`add_flags`, `from_flags`), the
keys of a recipe (`keys_of`), the options of Olive's pass (`config_of`) and the tables in the help
(`table_of`). `onnxgrad.options` checks the type of a field in all of them.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.options import (
    check_fields,
    checked,
    described,
    kinds_of,
    unknown_keyword,
)

D = TypeVar("D", bound="Declaration")
F = TypeVar("F", bound=Callable[..., Any])
DIGITS = 20  # of a number in a flag; Python refuses to parse thousands
_KEY = "option"
_SEQUENCES = (list, tuple, Sequence, Mapping, dict)


REQUIRED: Any = MISSING
# how an option uses the files in its value: `pairs` maps files to read to files to write, `into` is
# a folder, or NAME=FOLDER, in which the job chooses the names
FileUse: TypeAlias = Literal["", "read", "write", "pairs", "into"]


def option(
    default: Any,
    help: str,
    *,
    flag: str | None = "",
    metavar: str = "",
    toml: str | None = "",
    olive: bool = True,
    positional: bool = False,
    once: bool = False,
    file: FileUse = "",
    names: tuple[str, ...] = (),
    implied: str = "",
) -> Any:
    """Declares an option: a dataclass field with its properties in Python, shell, recipe and Olive.

    `flag`, `toml`: its flag, and its key in a recipe, if they differ from its name; None if there
    is none. `olive`: whether Olive's pass has it. `positional`: Python accepts it without its name.
    `once`: the flag is given once although the value may be a list. `file`: whether its values name
    files that are read or written; `names`: globs of the files written in a folder that it names.
    `implied`: the value of the flag without a word.
    """
    doors = {
        "help": help, "flag": flag, "metavar": metavar, "toml": toml, "olive": olive,
        "positional": positional, "once": once, "file": file, "names": names,
        "implied": implied,
    }  # fmt: skip
    return field(default=default, metadata={_KEY: doors})


@frozen
class Option:
    """A declared option; `title` is the heading of its group in `--help`."""

    name: str
    kind: Any
    annotation: str
    default: Any
    title: str
    depth: int  # of its group below the declaration
    help: str
    flag: str | None
    metavar: str
    toml: str | None
    olive: bool
    positional: bool
    once: bool
    file: FileUse
    names: tuple[str, ...]
    implied: str

    @property
    def plain(self) -> tuple[Any, ...]:
        """The types of its values, without None, bounds and readers."""
        return tuple(k for k in _plain(self.kind) if k is not type(None))

    @property
    def marks(self) -> tuple[Any, ...]:
        """The metadata of `Annotated` in its type."""
        return tuple(_marks(self.kind))

    @property
    def repeats(self) -> bool:
        """Whether the flag may repeat, because the value is a list or a table."""
        listed = any(get_origin(k) in _SEQUENCES or k in _SEQUENCES for k in self.plain)
        return not self.once and (listed or any(hasattr(m, "join") for m in self.marks))

    def read(self, text: str) -> Any:
        """Returns the value of a flag's word. Raises InputError that names the flag."""
        flag = str(self.flag)
        for mark in self.marks:
            if hasattr(mark, "read"):
                return mark.read(text, flag)
        if self.repeats:
            (listed,) = [k for k in self.plain if get_origin(k) in _SEQUENCES]
            return checked(get_args(listed)[0], _spoken(get_args(listed)[0], text), flag)
        return checked(self.kind, _spoken(self.kind, text), flag)

    def joined(self, values: Any) -> Any:
        """Returns the value of a flag from its words, one for each time that it was given."""
        for mark in self.marks:
            if hasattr(mark, "join"):
                return mark.join(values, str(self.flag))
        return tuple(values) if self.repeats else values


class Declaration:
    """The base of all declarations. Options of one group share a class, whose `title` is their
    heading in `--help`; `titles` of a job rename groups, `words` replace `<WORD>` in their help.
    """

    job: ClassVar[str] = ""
    title: ClassVar[str] = ""
    titles: ClassVar[Mapping[str, str]] = {}
    words: ClassVar[Mapping[str, str]] = {}
    given: frozenset[str] = frozenset()  # the options that the caller set

    def __post_init__(self) -> None:
        check_fields(self, self.job or type(self).__name__, defaults=False)

    @classmethod
    def from_settings(cls: type[D], given: Mapping[str, Any]) -> D:
        """Returns the options with these values of the caller, which take precedence over a recipe.
        Raises InputError for an unknown option, with the nearest, and for a value of another type.
        """
        known = [o.name for o in options_of(cls)]
        for name in given:
            if name not in known:
                raise unknown_keyword(cls.job, name, known)
        for o in options_of(cls):
            if o.default is REQUIRED and o.name not in given:
                raise InputError(f"{cls.job}: {o.name} is missing")
        made = cls(**given)
        object.__setattr__(made, "given", frozenset(given))
        return made

    def having(self: D, **more: Any) -> D:
        """Returns a copy with more options set by the caller."""
        return type(self).from_settings(
            {**{name: getattr(self, name) for name in self.given}, **more}
        )

    def shared(self, group: type[Declaration]) -> dict[str, Any]:
        """Returns the options of a group that the caller set."""
        return {k: v for k, v in self.settings(group).items() if k in self.given}

    def settings(self, group: type[Declaration] | None = None) -> dict[str, Any]:
        """Returns all options, or those of a group, by name."""
        return {o.name: getattr(self, o.name) for o in options_of(group or type(self))}


def options_of(cls: type[Declaration]) -> tuple[Option, ...]:
    """Returns the options of a declaration: its own, then those of each group."""
    found: tuple[Option, ...] = _options(cls)  # type: ignore[arg-type]  # a class has a hash
    return found


@functools.cache
def _options(cls: Any) -> tuple[Option, ...]:
    kinds, found = kinds_of(cls), {f.name: f for f in fields(cls) if _KEY in f.metadata}
    hints = {c: inspect.get_annotations(c) for c in cls.__mro__}
    owners = {name: next(c for c in reversed(hints) if name in hints[c]) for name in found}
    newest = {name: next(c for c in hints if name in hints[c]) for name in found}
    order = [name for c in cls.__mro__ for name in found if owners[name] is c]
    return tuple(
        _option(cls, found[name], kinds[name], owners[name], newest[name]) for name in order
    )


def _option(cls: type[Declaration], f: Any, kind: Any, owner: type, newest: type) -> Option:
    doors = dict(f.metadata[_KEY])
    for word, text in cls.words.items():
        doors["help"] = doors["help"].replace(f"<{word}>", text)
    if doors["flag"] == "":
        doors["flag"] = f"--{f.name.rstrip('_').replace('_', '-')}"
    if doors["toml"] == "":
        doors["toml"] = f.name.rstrip("_")
    title = cls.titles.get(owner.__name__, vars(owner).get("title", ""))
    depth = cls.__mro__.index(owner)
    return Option(f.name, kind, newest.__annotations__[f.name], f.default, title, depth, **doors)


def _plain(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Annotated:
        yield from _plain(get_args(kind)[0])
    elif get_origin(kind) in (Union, types.UnionType):
        for part in get_args(kind):
            yield from _plain(part)
    else:
        yield kind


def _marks(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Annotated:
        yield from get_args(kind)[1:]
        yield from _marks(get_args(kind)[0])
    elif get_origin(kind) in (Union, types.UnionType):
        for part in get_args(kind):
            yield from _marks(part)


def _spoken(kind: Any, text: str) -> Any:
    """Returns a word as a value of the type if possible, else the word, which the check refuses."""
    plain = list(_plain(kind))
    if int in plain and text.removeprefix("-").isdecimal() and len(text) <= DIGITS:
        return int(text)
    if float in plain:
        try:
            return float(text)
        except ValueError:
            return text
    return text


def files_read(options: Declaration) -> list[str]:
    """Returns the names of the files that a job with these options reads."""
    named = [(o.file, getattr(options, o.name)) for o in options_of(type(options)) if o.file]
    values = [[*v] if use == "pairs" and v else v for use, v in named if use in ("read", "pairs")]
    return [*names_of(values)]


def names_of(value: Any) -> Iterator[str]:
    """Yields the names of files in the value of an option: a path, `[NAME=]FILE`, a list or a
    mapping of them; nothing for other values. A file that has the name with `NAME=` counts, too.
    """
    if isinstance(value, Mapping):
        for each in value.values():
            yield from names_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from names_of(each)
    elif isinstance(value, (str, os.PathLike)) and value:
        name = os.fspath(value)
        if isinstance(name, str):
            yield name
            if "=" in name:
                yield name.partition("=")[2]


# ---- the command line ---------------------------------------------------------------------------


def add_flags(parser: argparse.ArgumentParser, cls: type[Declaration]) -> None:
    """Adds the flags of a declaration to a parser, each group under its title. A flag that is not
    given sets no attribute.
    """
    titles = list(dict.fromkeys(o.title for o in options_of(cls)))
    # of the groups with one title, the widest comes first
    for o in sorted(options_of(cls), key=lambda o: (titles.index(o.title), -o.depth)):
        if o.flag is not None:
            given = {**_argument(o), "dest": o.name, "default": argparse.SUPPRESS}
            group_of(parser, o.title).add_argument(o.flag, help=_shell_help(o), **given)


def _shell_help(o: Option) -> str | None:
    """Returns the help of a flag; that it may repeat concerns the shell alone."""
    text = o.help.replace("%", "%%")
    return f"{text}; may repeat" if text and o.repeats else text or None


def group_of(parser: argparse.ArgumentParser, title: str) -> argparse._ActionsContainer:
    """Returns the group with this title, created at its first use, or the parser without a
    title.
    """
    if not title:
        return parser
    known = {group.title: group for group in parser._action_groups}
    return known.get(title) or parser.add_argument_group(title)


def _argument(o: Option) -> dict[str, Any]:
    """Returns the keywords of `add_argument` for the type."""
    if o.plain == (bool,):
        return {"action": "store_false" if o.default is True else "store_true"}
    keywords: dict[str, Any] = {"action": "append"} if o.repeats else {}
    keywords |= {"nargs": "?", "const": o.implied} if o.implied else {}
    keywords |= {"required": True} if o.default is REQUIRED else {}
    inner = [get_args(k)[0] for k in o.plain if get_origin(k) in _SEQUENCES] or list(o.plain)
    words = tuple(w for k in inner if get_origin(k) is Literal for w in get_args(k))
    if words and all(get_origin(k) is Literal for k in inner):
        return {**keywords, "choices": words, "metavar": o.metavar or None}
    return {**keywords, "type": o.read, "metavar": o.metavar or _METAVARS.get(inner[0], "TEXT")}


_METAVARS: dict[Any, str] = {int: "N", float: "X"}


def reader(kind: Any, flag: str) -> Callable[[str], Any]:
    """Returns a function that reads a word of a flag outside of declarations."""
    return lambda text: checked(kind, _spoken(kind, text), flag)


def from_flags(cls: type[D], args: argparse.Namespace, **more: Any) -> D:
    """Returns the options from the flags of a command and `more`. Raises InputError."""
    values = vars(args)
    flags = (o for o in options_of(cls) if o.flag is not None and o.name in values)
    given = {o.name: o.joined(values[o.name]) for o in flags}
    return cls.from_settings({**given, **more})


# ---- recipes, Olive, help -----------------------------------------------------------------------


def keys_of(*declarations: type[Declaration]) -> dict[str, Option]:
    """Returns the options that a recipe may set, by their keys."""
    return {o.toml: o for cls in declarations for o in options_of(cls) if o.toml is not None}


def config_of(cls: type[Declaration]) -> dict[str, Option]:
    """Returns the options of Olive's pass, by their names in JSON."""
    return {o.name.rstrip("_"): o for o in options_of(cls) if o.olive}


def json_type(kind: Any) -> Any:
    """Returns the type of a value in JSON."""
    for mark in _marks(kind):
        if hasattr(mark, "json"):
            return mark.json
    found = [k for part in _plain(kind) for k in _in_json(part)]
    return functools.reduce(lambda a, b: a | b, dict.fromkeys(found)) if found else Any


def _in_json(kind: Any) -> Iterator[Any]:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        yield from dict.fromkeys(type(word) for word in args)
    elif origin in (Mapping, dict):
        inner = json_type(args[1])
        yield from () if inner is Any else (dict[str, inner],)  # type: ignore[valid-type]  # made at run time
    elif origin in _SEQUENCES:
        yield list[json_type(args[0])]  # type: ignore[misc]  # made at run time
    elif kind in (str, int, float, bool):
        yield kind


def table_of(options: Iterable[Option], key: Callable[[Option], str | None]) -> str:
    """Returns a Markdown table of options: name by `key`, values, default and help."""
    rows = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for o in options:
        default = "" if o.default in (None, (), False, REQUIRED) else f"`{_shown(o.default)}`"
        cells = (f"`{key(o)}`", _values(o), default, o.help)
        rows.append(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |")
    return "\n".join(rows)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _values(o: Option) -> str:
    if any(hasattr(mark, "json") for mark in o.marks):
        return str(next(mark.what for mark in o.marks if hasattr(mark, "json")))
    return described(o.kind).removesuffix(" or none")
