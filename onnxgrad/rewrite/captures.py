"""What a match captured: by name, and what a pattern stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnxgrad.rewrite.pattern import Both, Call, Capture, Each, Either, Pattern

# captures by name, and the patterns of operators and alternatives by themselves: what each stands
# for
Captured = Mapping[Any, Any]


def value_of(pattern: Pattern, captured: Captured) -> Any:
    """What a pattern stands for in a match. Raises KeyError for one that is no part of it."""
    return captured[pattern.name if isinstance(pattern, Capture) else pattern]


def heads(pattern: Pattern) -> frozenset[tuple[str, str]] | None:
    """The operators, by domain and name, that may compute what `pattern` describes; None: any."""
    if isinstance(pattern, Call):
        return frozenset((pattern.domain, op) for op in pattern.ops)
    if isinstance(pattern, Both):
        first, second = heads(pattern.first), heads(pattern.second)
        return second if first is None else first if second is None else first & second
    if isinstance(pattern, Either):
        choices = [heads(choice) for choice in pattern.choices]
        known = [choice for choice in choices if choice is not None]
        return frozenset().union(*known) if len(known) == len(choices) else None
    return None


def names_in(pattern: Pattern | None) -> Iterator[str]:
    """The names of a pattern's captures."""
    if isinstance(pattern, Capture):
        yield pattern.name
    elif isinstance(pattern, Each):
        yield from names_in(pattern.pattern)
    elif isinstance(pattern, Either):
        for choice in pattern.choices:
            yield from names_in(choice)
    elif isinstance(pattern, Both):
        yield from (*names_in(pattern.first), *names_in(pattern.second))
    elif isinstance(pattern, Call):
        yield from ([] if pattern.label is None else [pattern.label])
        for inner in (*pattern.operands, *(wanted for _, wanted in pattern.attrs)):
            yield from names_in(inner if isinstance(inner, Pattern) else None)


def gather(
    answer: Captured, found: Captured, lists: dict[Any, list[Any]], common: set[str]
) -> tuple[Captured, dict[Any, list[Any]]]:
    """Add one member's captures: those in `common` to what is found for all, the others to their
    lists.
    """
    for name, value in answer.items():
        if name not in found:
            if name in common:
                found = {**found, name: value}
            else:
                lists.setdefault(name, []).append(value)
    return found, lists
