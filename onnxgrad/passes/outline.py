"""Turns groups of bindings into local functions (TVM's FuseOps); `inline` is the inverse.

Groups are found by operator kind and by TVM's post-dominator algorithm. A binding joins the first
binding that all its results must pass through (its immediate post-dominator), with everything on
the paths between, if the operator kinds on these paths allow it. So a group has one result, and no
path leaves a group and comes back. (TVM, src/relax/analysis/graph_partitioner.cc: three phases
become two here, because a binding with several results belongs to no group.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Annotated, Any, ClassVar

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import BROADCASTING, ELEMENTWISE, MOVES, REDUCTIONS
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.var import Var
from onnxgrad.options import Range
from onnxgrad.passes.base import Pass, register
from onnxgrad.passes.inline import put_in_place
from onnxgrad.passes.outlined_functions import (
    FUNCTIONS_SINCE,
    File,
    Group,
    call_of,
    define,
    structure,
)
from onnxgrad.passes.outlined_functions import RULE as _RULE
from onnxgrad.rewrite.trace import Trace


class Kind(IntEnum):
    """Kinds of operators. A higher kind fuses less; a path has the highest kind on it."""

    ELEMENTWISE = 0  # one element from the elements at the same place
    BROADCAST = 1  # the same, along axes that some operand repeats
    INJECTIVE = 2  # one element from one element at another place
    REDUCTION = 3  # one element from many
    COMPLEX = 4  # a convolution or product: elementwise work may follow in its output loop
    OPAQUE = 8  # anything else: no loop to share


_INJECTIVE = (*MOVES, "Concat", "Pad", "ReverseSequence", "Trilu")
_COMPLEX = (
    "AveragePool Conv ConvInteger ConvTranspose Gemm GlobalAveragePool GlobalMaxPool LpPool MatMul "
    "MatMulInteger MaxPool"
)
_KINDS: dict[str, Kind] = {
    op: kind
    for kind, ops in (
        (Kind.INJECTIVE, _INJECTIVE),
        (Kind.ELEMENTWISE, ELEMENTWISE),
        (Kind.BROADCAST, (*BROADCASTING, "Expand")),
        (Kind.REDUCTION, (*REDUCTIONS, "ArgMax", "ArgMin")),
        (Kind.COMPLEX, _COMPLEX.split()),
    )
    for op in ops
}


def kind_of(binding: Binding) -> Kind:
    """The kind of a binding. Opaque are calls, bindings with nested graphs, and bindings without
    exactly one result.
    """
    if binding.domain != "" or binding.blocks or sum(v is not None for v in binding.outputs) != 1:
        return Kind.OPAQUE
    return Kind.OPAQUE if binding.outputs[0] is None else _KINDS.get(binding.op, Kind.OPAQUE)


def edge_kind(value: Var, reader: Binding) -> Kind:
    """The kind of `reader` with respect to one operand. A broadcasting operator reads an operand of
    its result's shape element by element.
    """
    kind = kind_of(reader)
    if (
        kind is Kind.BROADCAST
        and value.shape is not None
        and value.shape == reader.out.shape
        and None not in value.shape
    ):
        return Kind.ELEMENTWISE
    return kind


_Device = tuple[str, ...]


def fusion_groups(block: BindingBlock, max_size: int) -> list[list[Binding]]:
    """The groups of `block`, each in the block's order. The block must be in order. Opaque bindings
    belong to no group.
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
        """Finds the nearest binding that every path from `b` passes through, and the kind of these
        paths.
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
        """The nearest common ancestor in the tree, and the highest of `kind` and the kinds of the
        paths up to it.
        """
        while a is not b:
            if a is None or b is None:
                return None, kind
            if self.depth[a] < self.depth[b]:
                a, b = b, a
            kind = max(kind, self.path_kind[a])
            a = self.dominator[a]
        return a, kind

    def root(self, b: Binding) -> Binding:
        """The representative of the group of `b`."""
        path = []
        while b in self.parent:
            path.append(b)
            b = self.parent[b]
        for p in path:
            self.parent[p] = b
        return b

    def visit(self, b: Binding, phase: int) -> None:
        """Joins `b` with its post-dominator if the kinds allow it. Injective bindings join in phase
        1 only.
        """
        sink = self.dominator[b]
        group = self.group_kind[self.root(b)]
        if (
            sink is None
            or group in (Kind.OPAQUE, Kind.REDUCTION)
            or self.root(sink) is self.root(b)
        ):
            return
        # the kinds between b and its post-dominator, whose own kind is checked below
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
        """Adds `b` and all bindings between it and `sink` to the group of `sink`, if every kind on
        the way is allowed.
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
        """Yields every binding on a path from `b` to `sink`, without these two."""
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
    """The device annotations of a binding. Bindings of different devices share no group."""
    marks = tuple(e.value for e in b.node.metadata_props if e.key == "layer_ann")
    return (
        *marks,
        *(c.SerializeToString(deterministic=True).hex() for c in b.node.device_configurations),
    )


@register
@frozen
class Outline(Pass):
    """g(f(x)) = fg(x): bindings that one loop can compute become one local function; a reduction
    ends a group.

    Groups follow operator kinds and dominance (see `fusion_groups`); equal groups share a function.
    `max_size` bounds a group, `min_size` leaves smaller groups alone. Nested graphs are outlined
    like the main graph. Bodies of functions are not, because their values have no types and
    broadcasting is unknown: inline them first. From IR version 10 on, functions and calls can hold
    declared types, names and positions, and `inline` restores the original model.
    """

    name: ClassVar[str] = "outline"
    max_size: Annotated[int, Range(1)] = 256
    min_size: Annotated[int, Range(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_size > self.max_size:
            raise InputError(
                f"pass '{self.name}': min_size {self.min_size} is above max_size {self.max_size}: "
                "no group would be outlined"
            )

    def run(self, program: Program, trace: Trace) -> None:
        """Outlines in the main graph and its nested graphs; one rewrite for each group."""
        if program.ir_version < FUNCTIONS_SINCE:
            trace.missed(
                _RULE,
                program.main.name,
                f"IR version {program.ir_version} has no functions; 8 is the first",
            )
            return
        known: dict[Any, FunctionKey] = {}
        for block in blocks_in(program.main):
            block.schedule()
            before, file = list(block.bindings), File.of(block)
            calls: dict[Binding, list[Binding]] = {}
            for group in fusion_groups(block, self.max_size):
                if len(group) >= self.min_size and not trace.stopped:
                    where = str(group[-1])
                    found = Group.of(group)
                    key = structure(found, file)
                    if key not in known:
                        known[key] = define(found, file)
                    call = call_of(found, known[key][1], file)
                    calls[group[-1]] = [call]
                    trace.fired(_RULE, f"{len(group)} bindings up to {where} as {call.op}")
            if calls:
                put_in_place(block, before, calls)
