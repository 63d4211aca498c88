"""The two tables of batching rules, by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from onnxgrad.transform.batching.layout import Layout
from onnxgrad.transform.batching.site import Site

# returns the layouts of the results, or one for all of them
InPlace: TypeAlias = Callable[[Site], "Layout | Sequence[Layout | None]"]
Shifted: TypeAlias = Callable[[Site], None]

IN_PLACE: dict[tuple[str, str], InPlace] = {}
SHIFTED: dict[tuple[str, str], Shifted] = {}
_OURS = "com.microsoft"


def names(text: str) -> list[tuple[str, str]]:
    """Operators as keys: `ms:Gelu` is one of onnxruntime's."""
    parts = (word.rpartition(":") for word in text.split())
    return [(_OURS if domain == "ms" else domain, name) for domain, _, name in parts]


def in_place(operators: str) -> Callable[[InPlace], InPlace]:
    """Register a rule that keeps the node, for these operators."""

    def register(rule: InPlace) -> InPlace:
        IN_PLACE.update(dict.fromkeys(names(operators), rule))
        return rule

    return register


def shifted(operators: str) -> Callable[[Shifted], Shifted]:
    """Register a rule that computes the node with the rows in front, for these operators."""

    def register(rule: Shifted) -> Shifted:
        SHIFTED.update(dict.fromkeys(names(operators), rule))
        return rule

    return register
