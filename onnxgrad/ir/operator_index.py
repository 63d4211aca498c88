"""An index of a block's bindings by operator, built at most once between two changes. A pass whose
operators do not occur costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock

Operator = tuple[str, str]  # domain and name


@dataclass(slots=True)
class Index:
    """The bindings of `BindingBlock.walk` by operator, each with its position, and the state of the
    block when the index was built.
    """

    edits: int
    orders: list[tuple[BindingBlock, dict[Binding, None]]]
    found: dict[Operator, list[tuple[int, Binding]]]

    @property
    def is_current(self) -> bool:
        """Whether no binding was added, removed or moved since the index was built."""
        block, _ = self.orders[0]
        return self.edits == block.program.edits and all(
            block.bindings is order for block, order in self.orders
        )


def bindings_of(block: BindingBlock, operators: Iterable[Operator]) -> list[Binding]:
    """The bindings of these operators in `block` and its nested blocks, in the order of `walk`."""
    index = _current(block)
    found = [index.found[key] for key in operators if key in index.found]
    if len(found) == 1:
        return [b for _, b in found[0]]
    return [b for _, b in sorted(entry for entries in found for entry in entries)]


def blocks_in(block: BindingBlock) -> list[BindingBlock]:
    """`block` and the blocks nested in it, outer ones first."""
    return [found for found, _ in _current(block).orders]


def _current(block: BindingBlock) -> Index:
    if isinstance(block.index, Index) and block.index.is_current:
        return block.index
    found: defaultdict[Operator, list[tuple[int, Binding]]] = defaultdict(list)
    orders = [(block, block.bindings)]
    for entry in enumerate(block.walk()):
        b = entry[1]
        found[b.domain, b.op].append(entry)
        if b.blocks:
            orders += [(nested, nested.bindings) for nested in b.blocks.values()]
    block.index = index = Index(block.program.edits, orders, found)
    return index
