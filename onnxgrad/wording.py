"""How messages are worded: an option as its reader wrote it, on the command line or in Python; what
was meant by a name that there is not.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_shell = False  # of the whole process: the threads of a command speak as it does


@contextmanager
def on_the_command_line() -> Iterator[None]:
    """Inside, messages name options as the command line has them."""
    global _shell
    before, _shell = _shell, True
    try:
        yield
    finally:
        _shell = before


def option(shell: str, python: str) -> str:
    """The one that the reader knows: `--no-verify` on the command line, `verify=False` in
    Python.
    """
    return shell if _shell else python


def input_option(name: str, value: str = "FILE") -> str:
    """How the value of an input is given."""
    return option(f"--input {name}={value}", f"inputs={{{name!r}: array}}")


def dim_option(*names: str) -> str:
    """How sizes of symbolic dimensions are given."""
    shell = " ".join(f"--dim {name}=SIZE" for name in names)
    return option(shell, f"dims={{{', '.join(f'{name!r}: size' for name in names)}}}")


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that `name` was perhaps meant to be, the nearest first: the same in another
    case, what it begins, what differs by a few letters.
    """
    names = list(dict.fromkeys(known))
    if len(alike := [other for other in names if other.lower() == name.lower()]) == 1:
        return alike
    if name and len(longer := [other for other in names if other.startswith(name)]) == 1:
        return longer
    by_case = {other.lower(): other for other in reversed(names)}
    return [by_case[found] for found in difflib.get_close_matches(name.lower(), by_case, most)]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`did you mean 'x'?` where a known name is near, else what is said `otherwise`."""
    near = nearest(name, known)
    return f"did you mean '{near[0]}'?" if near else otherwise


def perhaps(name: str, known: Iterable[str], most: int = 1) -> str:
    """The same of up to so many names, in brackets for the middle of a sentence."""
    near = [f"'{found}'" for found in nearest(name, known, most)]
    return f" (did you mean {' or '.join(near)}?)" if near else ""
