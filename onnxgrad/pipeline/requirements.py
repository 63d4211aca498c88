"""What a recipe requires of the result: how often operators may stand in it."""

from __future__ import annotations

import difflib
import functools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import onnx

from onnxgrad.errors import InputError
from onnxgrad.ir.domains import full_name
from onnxgrad.ir.program import Program

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    ">": operator.gt,
}  # fmt: skip
_REQUIREMENT = re.compile(r"\s*(<=|>=|==|!=|<|>)\s*([0-9]{1,18})\s*")


def operators_of(program: Program) -> set[str]:
    """The full names of the operators that stand in a program, its nested graphs and its
    functions.
    """
    return {full_name(b.domain, b.op) for block in program.blocks() for b in block.bindings}


def unknown_operator(required: Iterable[str], known: set[str], *, others: bool = False) -> str:
    """What is wrong with the first of the `required` counts of operators that neither a schema has
    nor `known`; else empty. With `others` those of a domain without schemas pass.
    """
    for name in (op.strip() for key in required if key != "nodes" for op in key.split("+")):
        if (
            name in known
            or name in _schemas()
            or (others and name.rpartition("::")[0] not in _domains())
        ):
            continue
        near = difflib.get_close_matches(name, sorted({*known, *_schemas()}), 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return f"require names '{name}', which is no operator of the standard or of the model{hint}"
    return ""


@functools.cache
def _schemas() -> frozenset[str]:
    return frozenset(full_name(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history())


def _domains() -> set[str]:
    return {name.rpartition("::")[0] for name in _schemas()}


def miss(program: Program, name: str, text: Any) -> str | None:
    """What is wrong with a count: of an operator, of several joined by +, or of all nodes."""
    sign, number = requirement(text)
    counts = Counter(
        full_name(b.domain, b.op) for block in program.blocks() for b in block.bindings
    )
    found = counts.total() if name == "nodes" else sum(counts[op.strip()] for op in name.split("+"))
    return None if _COMPARE[sign](found, number) else f"{found} {name}, not {sign} {number}"


def requirement(text: Any) -> tuple[str, int]:
    """The comparison and the number of `"<=164"`, or of a number that must be met. Raises
    InputError.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return "==", text
    match = _REQUIREMENT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InputError(f'cannot read the requirement {text!r}: write a number or such as "<=164"')
    return match[1], int(match[2])
