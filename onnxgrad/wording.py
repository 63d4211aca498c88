"""How messages are worded: an option as its reader wrote it, on the command line, in a recipe or in
Python; what was meant by a name that there is not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_DIGITS = 17  # that a float64 has
_SHOWN = 0.1  # of a difference may be lost in what is printed of it
_shell = False  # of the whole process: the threads of a command speak as it does
# of one thread: others may work for another reader
_recipe: ContextVar[bool] = ContextVar("onnxgrad_recipe", default=False)
_FLAG = re.compile(r"--[a-z-]+")
_KEYS = {
    "--timeout": "verify.timeout",
    "--max-memory": "verify.max_memory",
    "--no-verify": "verify.run = false",
    "--allow-empty": "verify.allow_empty",
    "--input": "verify.inputs",
    "--dim": "verify.dims",
    "--allow-growth": "allow_growth = true",
    "--without": "without",
}


@contextmanager
def on_the_command_line() -> Iterator[None]:
    """Inside, messages name options as the command line has them."""
    global _shell
    before, _shell = _shell, True
    try:
        yield
    finally:
        _shell = before


@contextmanager
def in_a_recipe() -> Iterator[None]:
    """Inside, messages name options as a recipe has them."""
    token = _recipe.set(True)
    try:
        yield
    finally:
        _recipe.reset(token)


def option(shell: str, python: str) -> str:
    """The one that the reader knows: `--no-verify` on the command line, `verify.run = false` in a
    recipe, `verify=False` in Python.
    """
    if _recipe.get():
        return _FLAG.sub(lambda flag: _KEYS.get(flag[0], flag[0]), shell)
    return shell if _shell else python


def input_option(name: str, value: str = "FILE") -> str:
    """How the value of an input is given."""
    if _recipe.get():
        return f'verify.inputs = ["{name}={value}"]'
    return option(f"--input {name}={value}", f"inputs={{{name!r}: array}}")


def dim_option(*names: str) -> str:
    """How sizes of symbolic dimensions are given."""
    if _recipe.get():
        return f"verify.dims = {{ {', '.join(f'{name} = SIZE' for name in names)} }}"
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


def counted(count: int, what: str, several: str = "") -> str:
    """A number of things: `1 value`, `2,000 values`; `several` where the plural is no -s."""
    return f"{count:,} {what if count == 1 else several or f'{what}s'}"


def told_apart(a: float, b: float, digits: int = 6) -> tuple[str, str]:
    """Both numbers with as many digits, from `digits` on, as show how far they are apart.

    >>> told_apart(0.5, 0.50000012)
    ('0.5', '0.50000012')
    """
    for more in range(digits, _DIGITS):
        shown = f"{a:.{more}g}", f"{b:.{more}g}"
        off = abs(float(shown[0]) - float(shown[1]) - (a - b))
        if a == b or not off > _SHOWN * abs(a - b):
            return shown
    return f"{a:.{_DIGITS}g}", f"{b:.{_DIGITS}g}"
