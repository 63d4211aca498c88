"""A node whose operands have open sizes: the view on which rules read and change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from onnxgrad.batching.layout import Refused, Size
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements, sizes
from onnxgrad.ir.types import Array, Dim
from onnxgrad.ir.var import Var
from onnxgrad.transform.sizes.expressions import Expressions
from onnxgrad.transform.sizes.extensions import Extensions

Shape: TypeAlias = tuple[Size, ...]
_T = TypeVar("_T")


@dataclass
class Readings:
    """Possible meanings of ambiguous numbers in nodes, as texts. Nodes are named by their first
    result.

    `offered`: the meanings for each node, the likeliest first. `picked`: the meanings to use in
    place of the first. `sizes`: the open sizes and their values in the file, which other axes may
    have by chance.
    """

    picked: Mapping[str, str] = field(default_factory=dict)
    offered: dict[str, dict[str, None]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    follows: dict[str, str] = field(default_factory=dict)  # the reading that a user may ask for
    alone: set[str] = field(default_factory=set)  # nodes that the user must name for that


@dataclass
class Node:
    """A node, the conditions under which it runs, and the numbers in it that follow a size."""

    binding: Binding
    at: Expressions
    run_time: RunTimeSizes
    known: KnownElements
    numbers: dict[str, None]
    remarks: dict[str, None]
    readings: Readings
    extensions: Extensions
    named: bool = False  # whether the user named the node in `follow`
    every: bool = False  # whether the user named all nodes
    conditions: list[tuple[Size, Size]] = field(default_factory=list)
    least: list[tuple[Size, int]] = field(default_factory=list)  # sizes and what they need

    def shape(self, k: int = 0) -> Shape:
        """Returns the shape of operand `k`. Raises Refused if it is not known."""
        v = self.binding.operand(k)
        found = [d for d in (v.shape or ()) if d is not None] if v is not None else []
        if v is None or v.shape is None or len(found) < len(v.shape):
            raise Refused(f"the shape of operand {k} is not known")
        return tuple(found)

    def elements(self, k: int, name: str = "") -> list[Size] | None:
        """Returns the elements of operand `k`, or of the attribute `name` that older opsets have in
        its place; None if both are omitted. Raises Refused if they are not known.
        """
        v = self.binding.operand(k)
        if v is None:
            written = self.binding.attr(name) if name else None
            return None if written is None else [int(i) for i in written]
        known = sizes(v, self.known)
        found = [d for d in known or () if d is not None]
        if known is None or len(found) < len(known):
            raise Refused(f"operand {k}, '{v.name}', is computed from values")
        return found

    def number(self, size: Dim) -> int:
        """Returns the value of a size in the file. Raises Refused if it has no formula."""
        found = self.at.at(size)
        if found is None:
            raise Refused("a size in it has no formula")
        return found

    def vector(self, wanted: Sequence[Size]) -> Var:
        """Returns sizes as a vector that a node can read."""
        plain = [p for d in wanted if (p := self.at.plain(d)) is not None]
        made: Array | Var = self.run_time.vector(plain)
        return made if isinstance(made, Var) else constant(made)

    def read(self, k: int, v: Var) -> None:
        """Replaces operand `k`."""
        self.binding.block.set_operand(self.binding, k, v)

    @property
    def follows(self) -> bool:
        """Whether the user listed the node in `follow`, or all nodes."""
        return self.named or self.every

    def choose(self, meanings: Mapping[str, _T], follows: int = 0, alone: bool = False) -> _T:
        """Returns one of several meanings of numbers, which are keyed by their texts.

        This is the meaning at index `follows` if the user listed the node in `follow` (by its name
        if `alone`), else the picked meaning, else the first.
        """
        texts, name = [*meanings], self.binding.out.name
        listed = self.named if alone else self.follows
        if len(meanings) < 2 or listed:
            return meanings[texts[follows if listed else 0]]
        if alone:
            self.readings.alone.add(name)
        self.readings.offered.setdefault(name, {}).update(dict.fromkeys(meanings))
        self.readings.follows.setdefault(name, texts[follows])
        picked = self.readings.picked.get(name, texts[0])
        return meanings.get(picked, meanings[texts[0]])

    def note(self, before: Sequence[Size], after: Sequence[Size]) -> None:
        """Records the numbers that turned out to be sizes."""
        for old, new in zip(before, after, strict=True):
            if old != new:
                self.numbers[f"{old} is {self.at.plain(new)}"] = None
