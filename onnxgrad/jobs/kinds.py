"""Kinds of values of options: each can `check` a value, `read` one word of a flag, and `join`
several. Imports only what `--help` needs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.jobs.declared import DIGITS
from onnxgrad.limits import MOST_SECONDS, Interval, read_interval, read_size
from onnxgrad.options import Named, Range, providers_of, several
from onnxgrad.vocabulary import EVERY_READING, LINTS, MOST_THREADS, READINGS, LintLevel
from onnxgrad.wording import did_you_mean

if TYPE_CHECKING:
    from onnxgrad.ir.var import Var
    from onnxgrad.train.losses.base import Loss


class Word:
    """Text, as written on the command line."""

    def read(self, text: str, _: str) -> str:
        return text


class _Listed:
    """One word or a list of words, which becomes a tuple."""

    def check(self, value: Any, where: str) -> tuple[Any, ...]:
        if isinstance(value, str):
            return (value,)
        if not value:
            raise InputError(f"{where} is empty: name at least one, or leave it out")
        return tuple(value)


class Commas(Word):
    """Names separated by commas. Raises InputError if there are none."""

    def join(self, values: Sequence[str], flag: str) -> Any:
        names = tuple(name for text in values for name in text.split(",") if name)
        if not names:
            raise InputError(f"{flag} is empty: name at least one, or leave it out")
        return names


class _Axes(Commas):
    """Names separated by commas, of which some have an axis, as in x=1,y."""

    def check(self, value: Any, where: str) -> Any:
        return value if isinstance(value, Mapping) else several(value, where)


class _Text:
    """Text that is not empty."""

    def check(self, value: Any, where: str) -> Any:
        if value == "":
            raise InputError(f"{where} is empty")
        return value


class _Read:
    """A value, or its text, that a function reads."""

    def __init__(self, reader: Callable[[Any], Any]) -> None:
        self.reader = reader

    def check(self, value: Any, where: str) -> Any:
        try:
            return self.reader(value)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    read = check


class _Table:
    """Pairs of a name and a value."""

    def join(self, values: Sequence[tuple[str, Any]], _: str) -> dict[str, Any]:
        return dict(values)


class _Sizes(_Table):
    """Sizes of symbolic dimensions."""

    def read(self, text: str, flag: str) -> tuple[str, int]:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not size.isdecimal() or len(size) > DIGITS:
            raise InputError(
                f"{flag} {text[:80]}: write NAME=SIZE with a whole number, such as {flag} batch=4"
            )
        return name, int(size)


class _Pairs(_Table):
    """Texts by name. `form` and `example` appear in errors; `empty` allows empty texts."""

    def __init__(self, form: str, example: str, empty: bool = False) -> None:
        self.form, self.example, self.empty = form, example, empty

    def read(self, text: str, flag: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not name or not equals or not (value or self.empty):
            raise InputError(
                f"{flag} {text[:80]}: write {self.form}, such as {flag} {self.example}"
            )
        return name, value


class _Steps:
    """Steps by the name of an input or output, "" for the only one."""

    json = str | dict[str, str]
    what = "steps, such as 'softmax,top-k{k=5}', or a table of them by name"

    def read(self, text: str, flag: str) -> tuple[str, str]:
        name, equals, steps = text.partition("=")
        return (name, steps) if equals and "{" not in name else ("", text)

    def join(self, values: Sequence[tuple[str, str]], flag: str) -> dict[str, str]:
        found = dict(values)
        if len(found) < len(values):
            raise InputError(f"{flag} is given twice for one name: separate its steps by commas")
        return found


class _Lints(_Pairs):
    """Levels of lints."""

    def check(self, value: Any, where: str) -> Any:
        for name in value or ():
            if name not in LINTS:
                hint = did_you_mean(name, LINTS, f"there are {', '.join(LINTS)}")
                raise InputError(f"{where}: no lint '{name}'; {hint}")
        return value


class _Places(_Pairs):
    """Axes of inputs by the name of their size; a name that repeats has more of them."""

    def join(self, values: Sequence[tuple[str, str]], _: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, places in values:
            found[name] = f"{found[name]},{places}" if name in found else places
        return found


class _Extends(_Table):
    """Readings of constants by name; '*' alone stands for all."""

    what = "CONSTANT=READING, '*', a list of them, or a table"

    def check(self, value: Any, where: str) -> dict[str, str]:
        texts = (
            [f"{n}={r}" if r else n for n, r in value.items()]
            if isinstance(value, Mapping)
            else several(value, where)
        )
        return dict(self.read(text, where) for text in texts)

    def read(self, text: str, flag: str) -> tuple[str, str]:
        name, _, reading = text.rpartition("=")
        if text == EVERY_READING:
            return text, ""
        if not name or reading not in READINGS:
            raise InputError(
                f"{flag} {text[:80]}: write CONSTANT=READING with one of {', '.join(READINGS)}, "
                f"or '{EVERY_READING}'"
            )
        return name, reading


def of_known(pairs: Mapping[str, Any] | None, known: Collection[str]) -> dict[str, Any]:
    """Returns the pairs of a flag whose names may contain '=': the name of a pair is the longest of
    the `known` names that the pair begins with.
    """
    found = {}
    for name, value in (pairs or {}).items():
        if name not in known and isinstance(value, str):
            text = f"{name}={value}"
            fits = [other for other in known if text.startswith(f"{other}=")]
            name = max(fits, key=len, default=name)
            value = text[len(name) + 1 :]
        found[name] = value
    return found


class _PerOutput:
    """One number for all outputs, or numbers by output."""

    def check(self, value: Any, where: str) -> Any:
        for number in value.values() if isinstance(value, Mapping) else (value,):
            if number is not None and not 0 <= number < math.inf:
                raise InputError(f"{where} must be a number from 0 on, not {number!r}")
        return value

    def read(self, text: str, flag: str) -> tuple[str, float]:
        output, _, number = text.rpartition("=")
        try:
            return output, float(number)
        except ValueError:
            raise InputError(f"{flag} {text[:80]}: write X or OUTPUT=X, X a number") from None

    def join(self, values: Sequence[tuple[str, float]], flag: str) -> Any:
        common = [value for output, value in values if not output]
        if common and len(values) > 1:
            raise InputError(f"{flag}: write one number for all outputs, or OUTPUT=X for each")
        return common[-1] if common else dict(values)


class _Ranges:
    """Intervals by the names of inputs: pairs of numbers, texts LOW..HIGH, or none."""

    json = dict[str, str]
    what = "intervals by the names of inputs, such as {'x': (-3, 3)}"

    def check(self, value: Any, where: str) -> Any:
        return {name: self._of(given, f"{where} of {name!r}:") for name, given in value.items()}

    def _of(self, given: Any, where: str) -> Interval | None:
        if given is None or given == "none":
            return None
        if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2:
            given = f"{given[0]}..{given[1]}"
        return read_interval(str(given), where)

    def read(self, text: str, flag: str) -> tuple[str, Interval | None]:
        name, _, interval = text.rpartition("=")
        return name, self._of(interval, f"{flag} {name}=")

    def join(self, values: Sequence[tuple[str, Interval | None]], _: str) -> Any:
        return dict(values)


class InputKind(Word):
    """Arrays by input name, files, or a list of either."""

    json = str | list[str]
    what = "files (.npz, .npy, .pb), or in Python arrays by name"

    def check(self, value: Any, where: str) -> Any:
        if value is None or isinstance(value, (str, os.PathLike)):
            return value
        if isinstance(value, Mapping):
            several(value, where)
            return value
        if not isinstance(value, Collection) or isinstance(value, (bytes, bytearray)):
            raise InputError(f"{where} must be {self.what}, not {type(value).__name__}")
        for each in value:
            self.check(each, where)
        return value

    def join(self, values: Sequence[str], _: str) -> list[str]:
        return list(values)


class Instance:
    """An object of the class with this name, which is not imported here."""

    def __init__(self, name: str) -> None:
        self.name, self.what = name, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"

    def check(self, value: Any, where: str) -> Any:
        if all(cls.__name__ != self.name for cls in type(value).__mro__):
            raise InputError(f"{where} must be {self.what}, not {repr(value)[:80]}")
        return value


LossLike: TypeAlias = "str | Annotated[Loss, Instance('Loss')] | Callable[..., Var]"
Text: TypeAlias = Annotated[str, _Text()]
Names: TypeAlias = Annotated[str | Sequence[str], Named(), Word()]
NamesByCommas: TypeAlias = Annotated[str | Sequence[str], Named(), Commas()]
NamesOrAxes: TypeAlias = Annotated[
    str | Sequence[str] | Mapping[str, Annotated[int, Range(0, 63)] | None], _Axes()
]
Providers: TypeAlias = Annotated[str, _Read(lambda names: ",".join(providers_of(names)))]
Seconds: TypeAlias = Annotated[float, Range(0, MOST_SECONDS, above=True, unit="seconds")]
Memory: TypeAlias = Annotated[int | str, _Read(read_size)]
Sizes: TypeAlias = Annotated[Mapping[str, Annotated[int, Range(0)]], _Sizes()]
Ranges: TypeAlias = Annotated[Mapping[str, str | Sequence[float] | None], _Ranges()]
Pairs: TypeAlias = Annotated[Mapping[str, str], _Pairs("NAME=OTHER", "logits=linear")]
Masks: TypeAlias = Annotated[Mapping[str, str], _Pairs("OUTPUT=INPUT", "hidden=attention_mask")]
Labels: TypeAlias = Annotated[Mapping[str, str], _Pairs("OUTPUT=LABELS", "logits=labels")]
Files: TypeAlias = Annotated[Mapping[str, str], _Pairs("NPZ=NPZ", "new.npz=scores.npz")]
StepTexts: TypeAlias = Annotated[str | Mapping[str, str], _Steps()]
Lints: TypeAlias = Annotated[Mapping[str, LintLevel], _Lints("NAME=LEVEL", "nan-weights=error")]
Entries: TypeAlias = Annotated[Mapping[str, str], _Pairs("KEY=VALUE", "author=me", empty=True)]
Places: TypeAlias = Annotated[Mapping[str, str], _Places("NAME=INPUT.AXIS", "seq=ids.1")]
Extends: TypeAlias = Annotated[str | Sequence[str] | Mapping[str, str], _Extends()]
Renames: TypeAlias = Annotated[Mapping[str, str], _Pairs("OLD=NEW", "output_0=logits")]
NewSymbols: TypeAlias = Annotated[Mapping[str, str], _Pairs("OLD=NEW", "batch=N")]
NewNodes: TypeAlias = Annotated[Mapping[str, str], _Pairs("OLD=NEW", "Conv_0=stem")]
Values: TypeAlias = Annotated[Mapping[str, Any], _Pairs("NAME=VALUE|FILE", "W=new.npy")]
Constants: TypeAlias = Annotated[Mapping[str, Any], _Pairs("NAME=VALUE|FILE", "mask=1")]
Provider: TypeAlias = Literal["cpu", "cuda"]
Positive: TypeAlias = Annotated[float, Range(0, above=True)]
Count: TypeAlias = Annotated[int, Range(0, 2**63 - 1)]
Several: TypeAlias = Annotated[int, Range(1, 2**63 - 1)]
Threads: TypeAlias = Annotated[int, Range(1, MOST_THREADS)]
Seed: TypeAlias = Annotated[int, Range(0, 2**63 - 1)]
Seeds: TypeAlias = Annotated[tuple[Seed, ...], _Listed()]
Check: TypeAlias = Literal["float64", "onnxruntime"]
Checks: TypeAlias = Annotated[Check | tuple[Check, ...], _Listed()]
PerOutput: TypeAlias = Annotated[float | Mapping[str, float], _PerOutput()]
