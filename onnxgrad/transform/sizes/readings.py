"""Ambiguous numbers: a number that equals an open size in the file may follow it or stay fixed.

Each alternative reading is followed through the model until a node contradicts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onnxgrad.transform.sizes.node import Readings
from onnxgrad.transform.sizes.walk import Stuck

_MOST = 100  # walks through a model


@dataclass
class _Search:
    walk: Callable[[Mapping[str, str]], bool]
    left: int = _MOST
    settled: set[str] = field(default_factory=set)  # nodes for which only the first reading works
    tried: set[frozenset[tuple[str, str]]] = field(default_factory=set)

    def goes(self, picked: Mapping[str, str]) -> bool:
        """Whether these readings lead to no contradiction, alone or with other readings of nodes
        before the contradiction.
        """
        key = frozenset(picked.items())
        if key in self.tried:
            return False
        self.tried.add(key)
        if not self.left:
            return True
        self.left -= 1
        try:
            return self.walk(picked)
        except Stuck as error:
            return not error.certain or any(
                self.goes({**picked, name: text})
                for name, texts in error.doubts.items()
                if name not in picked and name not in self.settled
                for text in [*texts][1:]
            )


def other_reading(
    found: Readings, walk: Callable[[Mapping[str, str]], bool]
) -> tuple[str, str, str] | None:
    """Returns the first node with a second reading that also works at other sizes.

    The result is the node's name and the texts of the likely and of the other reading, or None.
    `walk` follows sizes with the given readings: it returns whether shapes differ, or raises Stuck.
    """
    search = _Search(walk)
    for name, texts in found.offered.items():
        first, *others = texts
        for other in others:
            if search.goes({name: other}):
                return name, first, other
        search.settled.add(name)
    return None
