"""Numbers that may follow an open size or not, because another number equals the size in the file:
every other reading is followed through the model, until something in it contradicts the reading.
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
    settled: set[str] = field(default_factory=set)  # nodes whose first reading alone goes
    tried: set[frozenset[tuple[str, str]]] = field(default_factory=set)

    def goes(self, picked: Mapping[str, str]) -> bool:
        """Whether nothing contradicts these readings, alone or with others of nodes before the
        contradiction.
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
    """Return the first node whose numbers have another reading with which the model works at other
    sizes too, with the texts of the likely and of the other reading; None if there is none. `walk`
    follows sizes with other readings; it returns whether shapes differ, or raises Stuck.
    """
    search = _Search(walk)
    for name, texts in found.offered.items():
        first, *others = texts
        for other in others:
            if search.goes({name: other}):
                return name, first, other
        search.settled.add(name)
    return None
