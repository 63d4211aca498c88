"""Turns patterns into functions: `outline_as` replaces each match by a call, and `merge-composites`
merges neighbouring calls into one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from onnx import ValueInfoProto, defs

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import canonical
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.topological_order import callees_first
from onnxgrad.ir.types import Array, type_to_proto
from onnxgrad.ir.var import Var
from onnxgrad.options import known_keywords
from onnxgrad.passes.base import Pass, register
from onnxgrad.passes.inline import put_in_place
from onnxgrad.passes.outlined_functions import (
    DOMAIN,
    FUNCTIONS_SINCE,
    KEY,
    File,
    Group,
    call_of,
    define,
    outer,
    structure,
)
from onnxgrad.passes.user_laws import ProgramLaw
from onnxgrad.rewrite.match import match_binding
from onnxgrad.rewrite.pattern import Call, Capture, Pattern, names_in
from onnxgrad.rewrite.trace import Decline, Trace, decline_if

# a constant that the pattern itself contains becomes part of the body up to this many elements
_HELD = 64


@frozen(eq=False)
class OutlinedPattern(ProgramLaw):
    """A pattern whose matches become calls of `domain::name`. `body`: the file keeps the function;
    otherwise the runtime has the operator. `check` may refuse a match.
    """

    name: str
    domain: str
    pattern: Pattern
    body: bool
    check: Callable[[Mapping[str, Any]], bool] | None

    @classmethod
    def apply(cls, laws: Sequence[OutlinedPattern], program: Program, trace: Trace) -> None:
        """Outlines one pattern after the other."""
        for law in laws:
            outline(law, program, trace)

    def proved(self, program: Program) -> None:
        """Removes the bodies of operators that the runtime has."""
        if not self.body:
            leave_out_body(self, program)

    @property
    def summary(self) -> str:
        """The replacement of a match."""
        return f"every match becomes a call of {self.domain}::{self.name}"


@known_keywords
def outline_as(
    name: str,
    pattern: Pattern,
    *,
    body: bool = True,
    check: Callable[[Mapping[str, Any]], bool] | None = None,
) -> OutlinedPattern:
    """Replaces every match of `pattern` by a call of the local function `name` ("Operator" or
    "domain::Operator"). Use the result in a list of passes or at the top level of a plugin.

    The operands of the call are the captures in the pattern's order, then the other values that the
    matched operators read. Captured attributes become attributes of the call. A match is left alone
    if anything else reads a value inside it, or if `check`, called with the captures by name,
    returns false. With `body=False` the function is proved and then left out of the file: the
    runtime must have the operator. Raises InputError if `name` is in a domain of ONNX, or if the
    pattern's root is not an operator.
    """
    domain, _, operator = name.rpartition("::")
    if not operator.isidentifier():
        raise InputError(f"outline_as: '{name}' is not an operator: write domain::Operator")
    if not isinstance(pattern, Pattern) or pattern.heads is None:
        raise InputError(f"outline_as '{name}': the pattern's root is an operator, as in P.Relu(x)")
    domain = domain or DOMAIN
    if canonical(domain) == "" or any(s.domain == domain for s in defs.get_all_schemas()):
        raise InputError(f"outline_as '{name}': the domain is ONNX's own, choose another")
    return OutlinedPattern(operator, domain, pattern, body, check)


def group_at(
    outlined: OutlinedPattern, root: Binding, position: Mapping[Binding, int]
) -> Group | None:
    """The group that ends at `root`; None if the pattern does not match. Raises Decline if the
    match cannot become a function.
    """
    declined: Decline | None = None
    for captured in match_binding(outlined.pattern, root):
        try:
            return _group(outlined, root, captured, position)
        except Decline as reason:
            declined = reason
    if declined is not None:
        raise declined
    return None


def _group(
    outlined: OutlinedPattern,
    root: Binding,
    captured: Mapping[Any, Any],
    position: Mapping[Binding, int],
) -> Group:
    calls = {b: key for key, v in _calls(captured) if (b := v.definition) is not None}
    decline_if(
        any(b not in position or b.blocks for b in calls),
        "part of it stands in another block, or holds one",
    )
    members = sorted(calls, key=position.__getitem__)
    _check_inside(root, members)
    named = {n: captured[n] for n in names_in(outlined.pattern) if n in captured}
    decline_if(outlined.check is not None and not outlined.check(named), "refused by the check")
    read = outer(members)
    first = [v for v in _values(named.values()) if v in set(read)]
    inside = {v: a for v in read if v not in first and (a := _held(v)) is not None}
    operands = dict.fromkeys([*first, *(v for v in read if v not in inside)])
    return Group(
        members, list(operands), outlined.domain, outlined.name, inside, _parameters(calls), True
    )


def _calls(captured: Mapping[Any, Any]) -> Iterator[tuple[Call, Var]]:
    """Yields the operators of the pattern and the values that they matched."""
    for key, value in captured.items():
        if isinstance(key, Call):
            yield from ((key, v) for v in _values([value]))


def _values(found: Any) -> Iterator[Var]:
    for value in found:
        if isinstance(value, Var):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _values(value)


def _check_inside(root: Binding, members: Sequence[Binding]) -> None:
    """Raises Decline if anything outside reads an inner result, or if the root has several
    results.
    """
    own = set(members)
    for b in members:
        results = [v for v in b.outputs if v is not None and v.use_count]
        for v in results if b is not root else [v for v in results if v is not root.out]:
            decline_if(
                b is root or v.returned or not own.issuperset(v.users),
                f"{v.name} is read outside as well",
            )


def _held(v: Var) -> Array | None:
    """The value of a small constant, which becomes part of the body; None for any other value."""
    array = v.const if v.is_constant else None
    return None if array is None or array.size > _HELD else array


def _parameters(calls: Mapping[Binding, Call]) -> dict[tuple[Binding, str], str]:
    return {
        (b, name): wanted.name
        for b, key in calls.items()
        for name, wanted in key.attrs
        if isinstance(wanted, Capture) and b.attr(name) is not None
    }


# the functions of each outlined pattern in a program, by their structure; every round of passes
# adds to them
_Known = dict[tuple[OutlinedPattern, Any], FunctionKey]
_KNOWN: WeakKeyDictionary[Program, _Known] = WeakKeyDictionary()


def outline(outlined: OutlinedPattern, program: Program, trace: Trace) -> None:
    """Replaces every match in the main graph and its nested graphs by a call; one rewrite each.

    Like the pass `outline`, it leaves the bodies of functions alone.
    """
    rule = f"outline_as {outlined.name}"
    if program.ir_version < FUNCTIONS_SINCE:
        trace.missed(rule, program.main.name, f"IR version {program.ir_version} has no functions")
        return
    known = _KNOWN.setdefault(program, {})
    for block in blocks_in(program.main):
        _outline(outlined, block, known, trace, rule)


def _outline(
    outlined: OutlinedPattern, block: BindingBlock, known: _Known, trace: Trace, rule: str
) -> None:
    block.schedule()
    before, file = list(block.bindings), File.of(block)
    calls: dict[Binding, list[Binding]] = {}
    for root in reversed(before):  # from the end, so that the longest part of a chain matches
        if trace.stopped or not root.is_live or root in calls:
            continue
        trace.of(rule).tried += 1
        where = str(root)
        try:
            group = group_at(outlined, root, file.position)
            if group is None:
                continue
            trace.of(rule).matched += 1
            call = call_of(group, _function(outlined, group, file, known), file)
        except Decline as declined:
            trace.missed(rule, where, declined.reason)
            continue
        calls[root] = [call]
        trace.fired(rule, f"{len(group.members)} bindings up to {where}")
    if calls:
        put_in_place(block, before, calls)


def _function(outlined: OutlinedPattern, group: Group, file: File, known: _Known) -> str:
    """The name of the function for a group. Raises Decline if a different function already has the
    name and the file keeps no bodies that would distinguish the two.
    """
    program = group.block.program
    key = (outlined, structure(group, file))
    if key not in known:
        name = _free(program, group.domain, outlined.name)
        decline_if(
            name != outlined.name and not outlined.body,
            "it differs from an earlier match under the same name: capture the attributes "
            "that differ, or write a pattern for each form",
        )
        known[key] = define(group, file, name)
    return known[key][1]


def _free(program: Program, domain: str, name: str) -> str:
    taken = {k[1] for k in program.functions if k[0] == domain}
    return next(n for i in count(1) if (n := name if i == 1 else f"{name}_{i}") not in taken)


def leave_out_body(outlined: OutlinedPattern, program: Program) -> None:
    """Removes the functions after the proof, because the runtime has the operator. Declares the
    types of the calls' results.
    """
    mine = {k for (c, _), k in _KNOWN.get(program, {}).items() if c is outlined}
    for block in program.blocks():
        for b in block.bindings:
            if (b.domain, b.op, "") in mine:
                block.declared[b.out] = ValueInfoProto(
                    name=b.out.name, type=type_to_proto(b.out.type)
                )
                block.touch()
    for key in mine:
        program.functions.pop(key, None)


_RULE = "merge_composites"
_NAME = "region"
# the functions of regions are in the domain of their calls with this suffix
_REGIONS = ".regions"


@register
@frozen
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
        """Merges in the main graph and its nested graphs; one rewrite for each region."""
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
            for b in members:  # several calls share the function, so it keeps no positions
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
            block.schedule()  # a region may come after a reader of its first results


def regions(block: BindingBlock, domain: str) -> list[list[Binding]]:
    """The regions of `block`: calls of local functions of one domain, each joined to a neighbour
    above it unless that makes a cycle. The block must be in order.
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
