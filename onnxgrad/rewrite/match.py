"""Matching a pattern against the block: a search over alternatives and operand orders, first answer wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxgrad.ir.block import Binding, Var
from onnxgrad.rewrite.pattern import COMMUTATIVE, Call, Capture, Each, Either, Pattern

Captured = Mapping[str, Any]


def match_binding(pattern: Call, binding: Binding, found: Captured | None = None) -> Iterator[Captured]:
    """Every way in which `binding` is the root of `pattern`, as captured names that extend those `found` before."""
    if binding.op in pattern.ops and binding.domain == pattern.domain:
        yield from _call(pattern, binding, found or {})


def attribute(binding: Binding, name: str) -> Any:
    """An attribute as the operator means it: written, default, or implied (Transpose without perm reverses)."""
    value = binding.attr(name)
    if value is None and name == "perm" and binding.op == "Transpose":
        rank = None if binding.inputs[0] is None else binding.inputs[0].rank
        return None if rank is None else tuple(range(rank - 1, -1, -1))
    return value


def _value(pattern: Pattern, var: Var | None, found: Captured) -> Iterator[Captured]:
    if var is None:
        return
    if isinstance(pattern, Capture):
        answer = _captured(pattern, var, found)
        if answer is not None:
            yield answer
    elif isinstance(pattern, Either):
        for choice in pattern.choices:
            yield from _value(choice, var, found)
    elif isinstance(pattern, Call):
        b = var.definition
        if b is None or b.op not in pattern.ops or b.domain != pattern.domain or b.result(pattern.result) is not var:
            return
        if not pattern.alone or _alone(var):
            yield from _call(pattern, b, found)


def _alone(var: Var) -> bool:
    """Read by one operand slot, in its own block: what a nested block reads may be wanted many times there."""
    user = var.sole_user()
    return user is not None and user.block is var.block


def _captured(pattern: Capture, value: Any, found: Captured) -> Captured | None:
    if pattern.name in found:
        known = found[pattern.name]
        return found if known is value or (not isinstance(value, Var) and known == value) else None
    if pattern.test is None or pattern.test(value):
        return {**found, pattern.name: value}
    return None


def _call(pattern: Call, b: Binding, found: Captured) -> Iterator[Captured]:
    if b.has_refs:
        return  # what the enclosing function's caller decides is not known here
    for name, wanted in pattern.attrs:
        value = attribute(b, name)
        if isinstance(wanted, Capture):
            answer = _captured(wanted, value, found)
            if answer is None:
                return
            found = answer
        elif value != wanted:
            return
    if pattern.label is not None:
        found = {**found, pattern.label: b}
    operands = list(pattern.operands)
    yield from _operands(operands, b.inputs, found)
    if len(operands) == 2 and len(b.inputs) == 2 and b.op in COMMUTATIVE and b.domain == "":
        yield from _operands(operands, [b.inputs[1], b.inputs[0]], found)


def _operands(patterns: Sequence[Pattern | None], inputs: Sequence[Var | None], found: Captured) -> Iterator[Captured]:
    if patterns and isinstance(patterns[-1], Each):
        fixed = len(patterns) - 1
        for answer in _fixed(patterns[:fixed], inputs[:fixed], found):
            gathered = _each(patterns[-1], inputs[fixed:], answer)
            if gathered is not None:
                yield gathered
        return
    # operands beyond the pattern must be omitted in the binding, and the other way round
    width = max(len(patterns), len(inputs))
    padded_patterns = [*patterns, *[None] * (width - len(patterns))]
    padded_inputs = [*inputs, *[None] * (width - len(inputs))]
    yield from _fixed(padded_patterns, padded_inputs, found)


def _fixed(patterns: Sequence[Pattern | None], inputs: Sequence[Var | None], found: Captured) -> Iterator[Captured]:
    if len(inputs) < len(patterns):
        return
    for i, (pattern, var) in enumerate(zip(patterns, inputs, strict=False)):
        if pattern is None or var is None:
            if pattern is not None or var is not None:
                return
        elif isinstance(pattern, Capture):  # one answer at most, so there is nothing to come back to
            answer = _captured(pattern, var, found)
            if answer is None:
                return
            found = answer
        else:
            for answer in _value(pattern, var, found):
                yield from _fixed(patterns[i + 1 :], inputs[i + 1 :], answer)
            return
    yield found


def _each(each: Each, inputs: Sequence[Var | None], found: Captured) -> Captured | None:
    lists: dict[str, list[Any]] = {}
    common = {c.name for c in each.same}
    for var in inputs:
        answer = next(_value(each.pattern, var, found), None)
        if answer is None:
            return None
        found, lists = gather(answer, found, lists, common)
    return {**found, **lists}


def gather(
    answer: Captured, found: Captured, lists: dict[str, list[Any]], common: set[str]
) -> tuple[Captured, dict[str, list[Any]]]:
    """Add one member's captures: those in `common` to what is found for all, the others to their lists."""
    for name, value in answer.items():
        if name not in found:
            if name in common:
                found = {**found, name: value}
            else:
                lists.setdefault(name, []).append(value)
    return found, lists
