"""Small changes of Python source: each site is one expression or guard and its replacement."""

from __future__ import annotations

import ast
import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
# their arguments set how much is kept or shown, not the result
_IGNORED_CALLS = {
    "lru_cache",
    "cache",
    "field",
    "dataclass",
    "TypeVar",
    "NewType",
    "cast",
    "isinstance",
    "range_of",
}


@dataclass(frozen=True)
class Site:
    """One possible change: characters `start`..`end` of `path` become `after`."""

    path: str
    function: str  # qualified name of the innermost function, "" at module level
    line: int
    kind: str
    start: int
    end: int
    before: str
    after: str
    nth: int = 0  # the index among equal changes of its line, from the left

    def apply(self, source: str) -> str:
        """Returns the source with this change."""
        return source[: self.start] + self.after + source[self.end :]


def sites(source: str, path: str) -> list[Site]:
    """Returns every possible change of a file, in text order."""
    tree = ast.parse(source)
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    lines = source.splitlines(keepends=True)

    def place(line: int, column: int) -> int:  # ast counts bytes, we count characters
        return offsets[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found = []
    for node, function in _walk(tree, ""):
        start = place(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        end = place(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        for kind, new in _changes(node):
            after = (
                f"({ast.unparse(new)})"
                if isinstance(node, (ast.BinOp, ast.BoolOp, ast.Compare))
                else ast.unparse(new)
            )
            found.append(
                Site(path, function, node.lineno, kind, start, end, source[start:end], after)  # type: ignore[attr-defined]
            )
    counts: Counter[tuple[object, ...]] = Counter()
    numbered = []
    for site in sorted(set(found), key=lambda s: (s.start, s.end, s.kind, s.after)):
        equal = (site.line, site.kind, site.before, site.after)
        numbered.append(replace(site, nth=counts[equal]))
        counts[equal] += 1
    return numbered


def _walk(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    """Yields the nodes that may change, with the function around them: no annotations, texts or
    errors.
    """
    for name, child in _children(node):
        if name in ("annotation", "returns", "decorator_list", "type_params") or isinstance(
            child, (ast.JoinedStr, ast.Raise)
        ):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Call) and _called(child) in _IGNORED_CALLS:
            continue
        inner = function
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            inner = f"{function}.{child.name}" if function else child.name
        elif isinstance(child, ast.If):
            yield child.test, function
            if len(child.body) == 1 and isinstance(child.body[0], _ENDS) and not child.orelse:
                yield _Guard(child.test), function
        elif isinstance(child, ast.expr):
            yield child, function
        yield from _walk(child, inner)


class _Guard(ast.expr):
    """Returns the test of an `if` whose body only leaves the function or loop."""

    _fields = ("test",)

    def __init__(self, test: ast.expr) -> None:
        super().__init__()
        self.test = test
        ast.copy_location(self, test)


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield name, child


def _called(call: ast.Call) -> str:
    return (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )


def _compared(node: ast.Compare) -> ast.AST | None:
    new = copy.deepcopy(node)
    other = _COMPARED.get(type(node.ops[0]))
    if other is None:
        return None
    new.ops[0] = other()
    return new


def _computed(node: ast.BinOp) -> ast.AST | None:
    other = _COMPUTED.get(type(node.op))
    texts = [
        s
        for s in (node.left, node.right)
        if isinstance(s, ast.Constant) and isinstance(s.value, str)
    ]
    if other is None or texts:
        return None
    new = copy.deepcopy(node)
    new.op = other()
    return new


def _joined(node: ast.BoolOp) -> ast.AST:
    new = copy.deepcopy(node)
    new.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return new


def _another(node: ast.Constant) -> ast.AST | None:
    value = node.value
    if isinstance(value, (str, bytes, type(None), type(...))):
        return None
    if isinstance(value, bool):
        return ast.Constant(not value)
    # doubling suits large and small floats, but does not change 0
    return ast.Constant(value + 1 if isinstance(value, int) or value == 0 else value * 2)


def _swapped(node: ast.Call) -> ast.AST | None:
    first = node.args[:2]
    if (
        len(first) < 2
        or any(isinstance(a, ast.Starred) for a in first)
        or ast.dump(first[0]) == ast.dump(first[1])
    ):
        return None
    new = copy.deepcopy(node)
    new.args[:2] = new.args[1::-1]
    return new


# kind of change -> its replacement, or None if it does not apply
_CHANGES: dict[type[ast.AST], tuple[str, Callable[[Any], ast.AST | None]]] = {
    _Guard: ("dropped guard", lambda node: ast.Constant(False)),
    ast.Compare: ("comparison", _compared),
    ast.BinOp: ("operator", _computed),
    ast.BoolOp: ("and/or", _joined),
    ast.UnaryOp: (
        "not",
        lambda node: copy.deepcopy(node.operand) if isinstance(node.op, ast.Not) else None,
    ),
    ast.Constant: ("constant", _another),
    ast.Call: ("swapped arguments", _swapped),
}


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yields kinds of change with their replacements."""
    kind, change = _CHANGES.get(type(node), ("", lambda node: None))
    new = change(node)
    if new is not None:
        yield kind, new


def choose(root: Path, folders: list[str], count: int, seed: int) -> list[Site]:
    """Returns `count` random sites of all files below `folders`. The same sources and seed give the
    same sites.
    """
    every = []
    for path in sorted(p for folder in folders for p in (root / folder).rglob("*.py")):
        every += sites(path.read_text(encoding="utf-8"), str(path.relative_to(root)))
    return random.Random(seed).sample(every, min(count, len(every)))
