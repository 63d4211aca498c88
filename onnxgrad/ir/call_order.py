"""The order in which functions call each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def callees_first(calls: Mapping[Key, Iterable[Key]]) -> list[Key]:
    """The functions, given what each calls, in an order in which each comes after those; without
    those on a cycle.
    """
    waiting = {key: {c for c in called if c in calls} for key, called in calls.items()}
    callers: dict[Key, list[Key]] = {}
    for key, needed in waiting.items():
        for c in needed:
            callers.setdefault(c, []).append(key)
    order = [key for key, needed in waiting.items() if not needed]
    for key in order:  # grows while it is walked
        for caller in callers.get(key, ()):
            waiting[caller].discard(key)
            if not waiting[caller]:
                order.append(caller)
    return order
