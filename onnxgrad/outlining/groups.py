"""Which bindings of a block form one group: the post-dominator algorithm of TVM's FuseOps.

A binding joins the first binding that all its results must pass through (its immediate
post-dominator), with everything on the paths between, when the operator kinds on these paths allow
it. So a group has one result, and no path leaves a group and comes back. (TVM,
src/relax/analysis/graph_partitioner.cc: three phases become two here, because a binding with
several results belongs to no group.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.outlining.kinds import Kind, edge_kind, kind_of

_Device = tuple[str, ...]


def fusion_groups(block: BindingBlock, max_size: int) -> list[list[Binding]]:
    """The groups of `block`, which must be in order, each in the block's order; opaque bindings
    are in none.
    """
    partition = _Partition(block, max_size)
    for phase in (0, 1):
        for b in block.bindings:
            partition.visit(b, phase)
    groups: dict[Binding, list[Binding]] = {}
    for b in block.bindings:
        if partition.kind[b] is not Kind.OPAQUE:
            groups.setdefault(partition.root(b), []).append(b)
    return list(groups.values())


class _Partition:
    """Union-find over the bindings of one block, and their post-dominator tree."""

    def __init__(self, block: BindingBlock, max_size: int) -> None:
        self.max_size = max_size
        self.kind = {b: kind_of(b) for b in block.bindings}
        self.group_kind = dict(self.kind)
        self.anchored = {b: k is Kind.COMPLEX for b, k in self.kind.items()}
        self.size = dict.fromkeys(block.bindings, 1)
        self.parent: dict[Binding, Binding] = {}
        self.device = {b: _device(b) for b in block.bindings}
        self.dominator: dict[Binding, Binding | None] = {}
        self.path_kind: dict[Binding, Kind] = {}
        self.depth: dict[Binding, int] = {}
        for b in reversed(block.bindings):
            self._dominate(b, block)

    def _dominate(self, b: Binding, block: BindingBlock) -> None:
        """Find the nearest binding that every path from `b` passes, and the kind of the paths up
        to it.
        """
        outs = [v for v in b.outputs if v is not None]
        seen_outside = any(v.returned or any(u.block is not block for u in v.users) for v in outs)
        found: Binding | None = None
        kind = Kind.OPAQUE if seen_outside else Kind.ELEMENTWISE
        if not seen_outside:
            for i, (user, edge) in enumerate((u, edge_kind(v, u)) for v in outs for u in v.users):
                kind = max(kind, edge)
                found, kind = (user, kind) if i == 0 else self._common(found, user, kind)
                if found is None:
                    break
        self.dominator[b] = found
        self.path_kind[b] = kind
        self.depth[b] = 1 if found is None else self.depth[found] + 1

    def _common(
        self, a: Binding | None, b: Binding | None, kind: Kind
    ) -> tuple[Binding | None, Kind]:
        """The nearest common ancestor in the tree, and `kind` joined with the paths up to it."""
        while a is not b:
            if a is None or b is None:
                return None, kind
            if self.depth[a] < self.depth[b]:
                a, b = b, a
            kind = max(kind, self.path_kind[a])
            a = self.dominator[a]
        return a, kind

    def root(self, b: Binding) -> Binding:
        """The binding that stands for the group of `b`."""
        path = []
        while b in self.parent:
            path.append(b)
            b = self.parent[b]
        for p in path:
            self.parent[p] = b
        return b

    def visit(self, b: Binding, phase: int) -> None:
        """Join `b` with its post-dominator where the kinds allow it; injective bindings only
        join in phase 1.
        """
        sink = self.dominator[b]
        group = self.group_kind[self.root(b)]
        if (
            sink is None
            or group in (Kind.OPAQUE, Kind.REDUCTION)
            or self.root(sink) is self.root(b)
        ):
            return
        # the kinds between b and its post-dominator; the post-dominator's own is looked at on the
        # way
        path = self.path_kind[b]
        if group is Kind.COMPLEX:
            if phase == 0 and path is Kind.ELEMENTWISE:
                self._join(b, sink, lambda k, last: k <= Kind.BROADCAST)
        elif group <= Kind.BROADCAST:
            if path <= Kind.INJECTIVE or path is Kind.REDUCTION:
                self._join(
                    b, sink, lambda k, last: k <= Kind.INJECTIVE or (last and k <= Kind.COMPLEX)
                )
        elif phase == 1:
            self._join(b, sink, lambda k, last: k <= Kind.INJECTIVE)

    def _join(self, b: Binding, sink: Binding, allowed: Callable[[Kind, bool], bool]) -> None:
        """Put `b` and all that lies between into the group of `sink`, if every kind met is
        allowed.
        """
        path = [b, *self._between(b, sink)]
        if not all(allowed(self.group_kind[self.root(p)], False) for p in path[1:]):
            return
        if not allowed(self.group_kind[self.root(sink)], True):
            return
        if any(self.device[p] != self.device[sink] for p in path):
            return
        target = self.root(sink)
        joining = dict.fromkeys(r for p in path if (r := self.root(p)) is not target)
        if self.size[target] + sum(self.size[r] for r in joining) > self.max_size:
            return
        for r in joining:
            self.parent[r] = target
            self.size[target] += self.size[r]
            if self.anchored[r]:
                self.anchored[target] = True
                self.group_kind[target] = max(self.group_kind[target], self.group_kind[r])

    def _between(self, b: Binding, sink: Binding) -> Iterator[Binding]:
        """Every binding on a path from `b` to `sink`, both left out."""
        seen = {b, sink}
        work = [b]
        while work:
            for v in work.pop().outputs:
                for user in v.users if v is not None else ():
                    if user not in seen:
                        seen.add(user)
                        work.append(user)
                        yield user


def _device(b: Binding) -> _Device:
    """What says where a binding runs: bindings of different devices share no group."""
    marks = tuple(e.value for e in b.node.metadata_props if e.key == "layer_ann")
    return (
        *marks,
        *(c.SerializeToString(deterministic=True).hex() for c in b.node.device_configurations),
    )
