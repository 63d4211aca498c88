"""The three tables of batching rules, by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from onnxgrad.batching.layout import Layout
from onnxgrad.batching.site import Site
from onnxgrad.ir.var import Var

# returns the layout of each result, or one layout for all results
InPlace: TypeAlias = Callable[[Site], "Layout | Sequence[Layout | None]"]
Shifted: TypeAlias = Callable[[Site], None]

# returns values in the place of the results, of nodes that rows are followed through
Opened: TypeAlias = Callable[[Site], Sequence[Var | None]]

IN_PLACE: dict[tuple[str, str], InPlace] = {}
SHIFTED: dict[tuple[str, str], Shifted] = {}
OPENED: dict[tuple[str, str], Opened] = {}
_DOMAINS = {"ms": "com.microsoft", "ml": "ai.onnx.ml"}


def names(text: str) -> list[tuple[str, str]]:
    """Returns the keys (domain, name) of operators. `ms:` marks those of com.microsoft, `ml:` those
    of ai.onnx.ml.
    """
    parts = (word.rpartition(":") for word in text.split())
    return [(_DOMAINS.get(domain, domain), name) for domain, _, name in parts]


def in_place(operators: str) -> Callable[[InPlace], InPlace]:
    """Registers a rule for these operators that keeps the node."""

    def register(rule: InPlace) -> InPlace:
        IN_PLACE.update(dict.fromkeys(names(operators), rule))
        return rule

    return register


def shifted(operators: str) -> Callable[[Shifted], Shifted]:
    """Registers a rule for these operators that computes the node with the rows in front."""

    def register(rule: Shifted) -> Shifted:
        SHIFTED.update(dict.fromkeys(names(operators), rule))
        return rule

    return register


def opened(operators: str) -> Callable[[Opened], Opened]:
    """Registers a rule that computes a node by others, for these operators."""

    def register(rule: Opened) -> Opened:
        OPENED.update(dict.fromkeys(names(operators), rule))
        return rule

    return register
