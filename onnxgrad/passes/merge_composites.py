"""Neighbouring calls of local functions of one domain as one function (TVM's
MergeCompositeFunctions): a region that an accelerator gets at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.topological_order import callees_first
from onnxgrad.ir.var import Var
from onnxgrad.passes.base import Pass, register
from onnxgrad.passes.inline import put_in_place
from onnxgrad.passes.outlined_functions import (
    FUNCTIONS_SINCE,
    KEY,
    File,
    Group,
    call_of,
    define,
    outer,
    structure,
)
from onnxgrad.rewrite.trace import Trace

_RULE = "merge_composites"
_NAME = "region"
# regions stand in a domain of their own, beside that of their calls
_REGIONS = ".regions"


@register
@dataclass(frozen=True)
class MergeComposites(Pass):
    """g(f(x)) = gf(x), f and g calls of one domain: calls that read each other become one local
    function.

    `outline_as` makes the calls. `domain` restricts the pass to the functions of one domain. A call
    without neighbours becomes a function as well. Two calls with another operator between them are
    merged only if no path leaves the region and comes back. Regions are functions of
    `DOMAIN.regions`; `inline` is the way back.
    """

    name: ClassVar[str] = "merge-composites"
    domain: str = ""

    def run(self, program: Program, trace: Trace) -> None:
        """Merge in the main graph and its nested graphs; one rewrite for each region."""
        if program.ir_version < FUNCTIONS_SINCE:
            trace.missed(_RULE, program.main.name, f"IR {program.ir_version} has no functions")
            return
        known: dict[Any, FunctionKey] = {}
        for block in blocks_in(program.main):
            self._merge(block, known, trace)

    def _merge(self, block: BindingBlock, known: dict[Any, FunctionKey], trace: Trace) -> None:
        block.schedule()
        before, file = list(block.bindings), File.of(block)
        calls: dict[Binding, list[Binding]] = {}
        for members in regions(block, self.domain):
            if trace.stopped:
                break
            where = str(members[-1])
            for b in members:  # where it stood is no property of a function that several share
                kept = {e.key: e.value for e in b.node.metadata_props if e.key != KEY}
                b.set_metadata(kept)
            group = Group(
                members,
                outer(members),
                members[0].domain + _REGIONS,
                several=_read_outside(members),
            )
            order = {v: i for i, v in enumerate(v for b in members for v in b.outputs)}
            key = (group.domain, structure(group, file), tuple(order[v] for v in group.results))
            if key not in known:
                known[key] = define(group, file, block.program.names.fresh(_NAME))
            calls[members[-1]] = [call_of(group, known[key][1], file)]
            trace.fired(_RULE, f"{len(members)} calls up to {where}")
        if calls:
            put_in_place(block, before, calls)
            block.schedule()  # a region may stand behind a reader of its first results


def regions(block: BindingBlock, domain: str) -> list[list[Binding]]:
    """The regions of `block`, which must be in order: calls of local functions of one domain, each
    joined to a neighbour above it unless that makes a cycle.
    """
    position = {b: i for i, b in enumerate(block.bindings)}
    root = dict(position)  # of each binding, its region: the position of the first member
    composite = {b for b in position if _is_composite(b, domain)}
    above = {b: list(dict.fromkeys(b.predecessors())) for b in position}
    for b in _in_order(composite, position):
        for p in above[b]:
            if p not in composite or p.domain != b.domain or root[p] == root[b]:
                continue
            if root[b] == position[b] and all(root[q] == root[p] for q in above[b]):
                root[b] = root[p]  # it reads nothing else: no path leaves the region
                continue
            joined = {root[p], root[b]}
            trial = {m: min(joined) if r in joined else r for m, r in root.items()}
            if _is_acyclic(trial, above):
                root = trial
    found: dict[int, list[Binding]] = {}
    for b in _in_order(composite, position):
        found.setdefault(root[b], []).append(b)
    return list(found.values())


def _in_order(composite: set[Binding], position: dict[Binding, int]) -> list[Binding]:
    return sorted(composite, key=position.__getitem__)


def _is_composite(b: Binding, domain: str) -> bool:
    if called(b) is None or b.blocks or b.domain.endswith(_REGIONS):
        return False
    return b.domain == domain if domain else bool(b.domain)


def _is_acyclic(root: dict[Binding, int], above: dict[Binding, list[Binding]]) -> bool:
    """Whether the block has an order in which each region is one binding."""
    reads: dict[int, set[int]] = {r: set() for r in root.values()}
    for b, predecessors in above.items():
        reads[root[b]].update(root[p] for p in predecessors if root[p] != root[b])
    return len(callees_first(reads)) == len(reads)


def _read_outside(members: list[Binding]) -> list[Var]:
    own = set(members)
    values = [v for b in members for v in b.outputs if v is not None]
    read = [v for v in values if v.returned or not own.issuperset(v.users)]
    return read or values[-1:]
