"""Bindings over constants that belong together: those that share a constant pay for each other when
they are folded.

A weight that is cut into pieces and joined in another order is as large as before, though each
piece alone, beside the weight that the other pieces still read, makes the file larger.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.var import Var


def reads_constants(b: Binding, made: Container[Binding | None] = ()) -> bool:
    """Whether it reads nothing but constants and results of `made`."""
    for v in b.inputs:  # no `all`: it is asked of every binding, and most fail at once
        if v is not None and not v.is_constant and v.definition not in made:
            return False
    return True


def groups(block: BindingBlock, foldable: Callable[[Binding], bool]) -> list[list[Binding]]:
    """The bindings that depend on constants only and are `foldable`, in order, grouped by the
    values they share.
    """
    leader: dict[Var, Var] = {}

    def find(v: Var) -> Var:
        while (above := leader.setdefault(v, v)) is not v:
            leader[v] = leader[above]
            v = above
        return v

    made: dict[Binding, None] = {}
    for b in block.bindings:
        if not reads_constants(b, made):
            continue
        values = [v for v in b.inputs if v is not None]
        if not values or not foldable(b):
            continue
        made[b] = None
        for v in values:
            leader[find(v)] = find(b.out)
    found: dict[Var, list[Binding]] = {}
    for b in made:
        found.setdefault(find(b.out), []).append(b)
    return list(found.values())


def growth(group: list[Binding], size: Callable[[Var], int]) -> int:
    """Bytes the file gains when all of `group` is folded: results that others read, less
    constants they do not.
    """
    inside = set(group)
    ends = [
        b.out for b in group if b.out.returned or any(user not in inside for user in b.out.users)
    ]
    read = dict.fromkeys(
        v for b in group for v in b.inputs if v is not None and v.definition not in inside
    )
    dying = [
        v
        for v in read
        if not (v.returned or v.is_input) and all(user in inside for user in v.users)
    ]
    nodes: int = sum(b.node.ByteSize() for b in group)
    return sum(map(size, ends)) - sum(map(size, dying)) - nodes
