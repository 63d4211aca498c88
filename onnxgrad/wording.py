"""Parts of messages: options as the user writes them, on the command line, in a recipe or in
Python; suggestions for unknown names; names from files made safe to print.
"""

from __future__ import annotations

import difflib
import html
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_DIGITS = 17  # of a float64
_SHOWN = 0.1  # the share of a difference that printing may lose
# for the whole process: threads of a command name options as it does, and with -v list all names
_shell = _verbose = False
# for one thread: others may work for another user
_recipe: ContextVar[bool] = ContextVar("onnxgrad_recipe", default=False)
_ROWS = 40  # lines of a text in a notebook
_WIDEST = 400  # characters of a line there
_FLAG = re.compile(r"--[a-z-]+")
_KEYS = {
    "--timeout": "verify.timeout",
    "--max-memory": "verify.max_memory",
    "--no-verify": "verify.run = false",
    "--allow-empty": "verify.allow_empty",
    "--coverage": "verify.coverage",
    "--excuse": "verify.excuse",
    "--input": "verify.inputs",
    "--seed": "verify.seeds",
    "--dim": "verify.dims",
    "--fix-dim": "fix_dim",
    "--allow-growth": "allow_growth = true",
    "--without": "without",
    "--passes": "passes",
    "--preset": "preset =",
    "--target-opset": "target_opset",
    "--metric": "verify.metric",
    "--bind": "bind",
    "--set": "set",
    "--rename": "rename",
    "--rename-node": "rename_node",
    "--rename-dim": "rename_dim",
    "--add-output": "add_output",
    "--drop-output": "drop_output",
    "--rebasable": "rebasable = true",
    "--before": "before",
    "--after": "after",
    "--map": "map",
    "--keep-output": "keep_output",
    "--weights": "lift =",
    "--open": "open",
    "--follow": "follow",
    "--extend": "extend",
    "--reference": "reference",
    "--along": "along",
    "--symbol": "symbol",
    "--allow-same": "allow_same",
}
# packages of each optional part, named as the extras in pyproject.toml; no index has these extras
_PACKAGES = {
    "cpu": "onnxruntime",
    "gpu": "'onnxruntime-gpu[cuda,cudnn]'",
    "train": "safetensors",
    "plot": "matplotlib",
    "tensorboard": "tensorboardX",
    "mpi": "mpi4py mpich",
    "dask": "distributed",
}
NO_ONNXRUNTIME = (
    f"onnxruntime is not installed: pip install {_PACKAGES['cpu']} (or {_PACKAGES['gpu']})"
)
# invisible characters that Python calls printable: Unicode's Default_Ignorable_Code_Point
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# lines that build servers obey: `::error ...::`, `##[error]`, `##vso[...]`, `##teamcity[...]`
_COMMAND = re.compile(
    "::(?=(?:error|warning|notice|debug|group|endgroup|echo|set-output|set-env|save-state|"
    r"add-path|add-mask|stop-commands|add-matcher|remove-matcher|internal-[\w-]*)(?![\w.-]))"
    r"|##(?=(?:vso|teamcity)?\[)",
    re.IGNORECASE,
)


def install(extra: str) -> str:
    """Returns the command that installs one of our extras."""
    return f"pip install {_PACKAGES[extra]}"


@contextmanager
def on_the_command_line(verbose: bool = False) -> Iterator[None]:
    """Messages inside this context name options as on the command line, and list all names if
    `verbose`.
    """
    global _shell, _verbose
    before = _shell, _verbose
    _shell, _verbose = True, verbose
    try:
        yield
    finally:
        _shell, _verbose = before


@contextmanager
def in_a_recipe() -> Iterator[None]:
    """Messages inside this context name options as in a recipe."""
    token = _recipe.set(True)
    try:
        yield
    finally:
        _recipe.reset(token)


def option(shell: str, python: str) -> str:
    """Returns an option as the user writes it: `--no-verify` on the command line, `verify.run =
    false` in a recipe, `verify=False` in Python.
    """
    if _recipe.get():
        return _FLAG.sub(lambda flag: _KEYS.get(flag[0], flag[0]), shell)
    return shell if _shell else python


def input_option(name: str) -> str:
    """Returns the option that sets the value of an input."""
    if _recipe.get():
        return f'verify.inputs = ["{name}=FILE"]'
    return option(f"--input {name}=FILE", f"inputs={{{name!r}: array}}")


def dim_option(*names: str) -> str:
    """Returns the option that sets sizes of symbolic dimensions."""
    if _recipe.get():
        return f"verify.dims = {{ {', '.join(f'{name} = SIZE' for name in names)} }}"
    shell = " ".join(f"--dim {name}=SIZE" for name in names)
    return option(shell, f"dims={{{', '.join(f'{name!r}: size' for name in names)}}}")


def printable(text: str) -> str:
    """Returns `text` as one line that is safe to print: letters of every script stay; newlines,
    controls, bidi marks and invisible characters are escaped as in Python, and so is the beginning
    of a command to a build server.

    Names of models and files pass through here before they reach a terminal, a report or a page.

    >>> print(printable("naïve\\n::error::x\\u202e"))
    naïve\\n\\x3a:error::x\\u202e
    """
    if not text.isprintable() or _UNSEEN.search(text):
        text = "".join(map(_visible, text))
    if "::" in text or "##" in text:
        text = _COMMAND.sub(lambda found: f"\\x{ord(found[0][0]):02x}{found[0][1:]}", text)
    return text


def printable_lines(text: str) -> str:
    """Returns a text of several lines, each `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def escaped(text: str) -> str:
    """Returns text for HTML without markup or control characters."""
    return html.escape(printable_lines(text))


def text_html(text: str) -> str:
    """Returns HTML of a text for a notebook, or of the beginning of a long text."""
    lines = text.splitlines()
    shown = [line if len(line) <= _WIDEST else f"{line[:_WIDEST]}..." for line in lines[:_ROWS]]
    if len(lines) > _ROWS:
        shown.append(f"... and {len(lines) - _ROWS:,} more lines")
    return f'<pre class="onnxgrad">{escaped(chr(10).join(shown))}</pre>'


def printable_json(data: Any, indent: int | None = 2, *, allow_nan: bool = False) -> str:
    """Returns JSON that is safe in a terminal: characters that `printable` escapes are escaped as
    in JSON, so that reading the text returns the same data.
    """
    text = json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=allow_nan)
    lines = (line if printable(line) == line else _json_line(line) for line in text.split("\n"))
    return "\n".join(lines)


def _json_line(line: str) -> str:
    shown = "".join(c if _visible(c) == c else json.dumps(c)[1:-1] for c in line)
    return _COMMAND.sub(lambda found: f"\\u{ord(found[0][0]):04x}{found[0][1:]}", shown)


def _visible(character: str) -> str:
    if _UNSEEN.match(character):
        return character.encode("ascii", "backslashreplace").decode()
    return character if character.isprintable() else repr(character)[1:-1]


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Returns known names that `name` may stand for, the nearest first: equal but for case,
    beginning with it, or different in a few letters.
    """
    names = list(dict.fromkeys(known))
    if len(alike := [other for other in names if other.lower() == name.lower()]) == 1:
        return alike
    longer = [other for other in names if other.startswith(name)] if name else []
    if 1 <= len(longer) <= most:
        return longer
    by_case = {other.lower(): other for other in reversed(names)}
    found = difflib.get_close_matches(name.lower(), by_case, most + _SPARE)
    return [by_case[other] for other in found if _is_near(name.lower(), other)][:most]


_SPARE = 2  # further candidates, if the nearest by common letters are not near
_LONG = 100  # letters of names of which only the common letters are compared


def _is_near(a: str, b: str) -> bool:
    """Whether two names differ in at most a third of their letters, a common beginning such as `--`
    or `verify.` left out. Swapped neighbours are one difference.
    """
    start = 0
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            break
        start = i + 1 if x in "-./:" else start
    a, b = a[start:], b[start:]
    size = max(len(a), len(b))
    if size > _LONG:
        return True
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        earlier, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (x != y)))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                row[j] = min(row[j], earlier[j - 2] + 1)
    return row[-1] <= max(1, size // 3)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Returns `did you mean 'x'?` if a known name is near, else `otherwise`."""
    near = nearest(name, known)
    return f"did you mean '{near[0]}'?" if near else otherwise


def perhaps(name: str, known: Iterable[str], most: int = 1) -> str:
    """Returns ` (did you mean 'x' or 'y'?)` with up to `most` names, or an empty text."""
    near = [f"'{found}'" for found in nearest(name, known, most)]
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def one_line(message: object, most: int | None = None) -> str:
    """Returns the text of a message or an error in one line of at most `most` characters."""
    return " ".join(str(message).split())[:most]


def shape_text(shape: Iterable[object]) -> str:
    """Returns a shape as messages have it: `[N, 8]`; a size that is not known is `?`."""
    return f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def counted(count: int, what: str, several: str = "") -> str:
    """Returns a number of things: `1 value`, `2,000 values`; `several` is an irregular plural."""
    return f"{count:,} {what if count == 1 else several or f'{what}s'}"


def first_of(names: Sequence[str], most: int) -> str:
    """Returns the first names and the number of the others: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def some_of(names: Sequence[str], most: int) -> str:
    """Returns the first names and the number of the others; all names with -v."""
    return first_of(names, len(names) if _verbose else most)


_FEW_NAMES = 12


def what_there_is(names: Iterable[str]) -> str:
    """Returns the end of a message about a name or glob that matches nothing: `; there are a,
    b`.
    """
    return f"; there are {first_of(list(names), _FEW_NAMES) or 'none'}"


def known_names(name: str, known: Collection[str]) -> str:
    """Returns the end of a message about an unknown name: the nearest names, else all if they are
    few, else some, of those that contain the letters of the name or pattern if there are any.
    """
    if len(known) <= _FEW_NAMES:
        return perhaps(name, known, 3) or what_there_is(known)
    core = name.strip("*").lower()
    alike = [other for other in known if core and core in other.lower()] or [*known]
    some = ", ".join(f"'{other}'" for other in alike[:3])
    return perhaps(name, known, 3) or f" (there are {len(known):,}, such as {some})"


def told_apart(a: float, b: float, digits: int = 6) -> tuple[str, str]:
    """Returns both numbers with as few digits, at least `digits`, as show their difference.

    >>> told_apart(0.5, 0.50000012)
    ('0.5', '0.50000012')
    """
    for more in range(digits, _DIGITS):
        shown = f"{a:.{more}g}", f"{b:.{more}g}"
        off = abs(float(shown[0]) - float(shown[1]) - (a - b))
        if a == b or not off > _SHOWN * abs(a - b):
            return shown
    return f"{a:.{_DIGITS}g}", f"{b:.{_DIGITS}g}"
