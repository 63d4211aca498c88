"""Lists of names in options: names separated by commas, of which a known name may contain some."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Sequence
from fnmatch import fnmatchcase

from onnxgrad.errors import InputError
from onnxgrad.options import several
from onnxgrad.wording import known_names, option

# a comma within brackets belongs to a glob
COMMA = re.compile(r",(?![^\[]*\])")


def with_commas(words: Sequence[str], known: Container[str]) -> tuple[str, ...]:
    """Returns names of which a flag has split some at their own commas: neighbouring words, of
    which one is not known, become one name if together they are.
    """
    found: list[str] = []
    at = 0
    while at < len(words):
        ends = range(len(words), at + 1, -1)
        joined = (n for n in ends if ",".join(words[at:n]) in known)
        end = next((n for n in joined if any(w not in known for w in words[at:n])), at + 1)
        found.append(",".join(words[at:end]))
        at = end
    return tuple(found)


def names_among(given: str | Sequence[str], known: Container[str], where: str) -> tuple[str, ...]:
    """Returns the names of an option: each text is a known name, or several separated by commas, of
    which a known name may contain some. Raises InputError.
    """
    parts: list[str] = []
    for name in several(given, where):
        words = [name] if name in known else map(str.strip, COMMA.split(name))
        parts += filter(None, words)
    return with_commas(parts, known)


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern means a name: it is the name, which may contain brackets, or a glob."""
    return name == pattern or fnmatchcase(name, pattern)


def matching(
    known: Collection[str],
    given: str | Sequence[str],
    flag: str,
    missing: str,
    globs: Collection[str] | None = None,
) -> list[str]:
    """Returns the known names that the names and globs of an option mean, in the order of the
    option, without repetitions; globs are of the names `globs` (default: all that are known).
    Raises InputError, with the words `missing`, if one of them matches nothing.
    """
    found: dict[str, None] = {}
    for name in names_among(given, known, flag):
        among = known if globs is None else globs
        met = [name] if name in known else [n for n in among if fnmatchcase(n, name)]
        if not met:
            where = option(f"--{flag} {name}", f"{flag.replace('-', '_')}={name!r}")
            raise InputError(f"{where}: {missing} of this name{known_names(name, known)}")
        found |= dict.fromkeys(met)
    return list(found)
