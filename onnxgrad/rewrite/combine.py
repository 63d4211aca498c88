"""Families: any number of parallel branches that share an operand, rewritten together.

Branches are found by one pattern and put into buckets by a key. Members that depend on another member are left for
a later group; that is decided on the graph as it is now, because every group rewritten before changed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.rewrite.engine import answer_of, call_arguments, fault_of, replacements, substitute
from onnxgrad.rewrite.match import heads, match_binding, value_of
from onnxgrad.rewrite.pattern import Pattern
from onnxgrad.rewrite.trace import Decline, Trace, decline


@dataclass(frozen=True)
class Branch:
    """One member of a family: its root binding and what the pattern captured there."""

    root: Binding
    captured: Mapping[Any, Any]

    def __getitem__(self, name: str | Pattern) -> Any:
        return self.captured[name] if isinstance(name, str) else value_of(name, self.captured)


@dataclass(frozen=True)
class Family:
    """A law over parallel branches: how one looks, which belong together (`by`), what replaces a whole group.

    `accepts` may refuse a group, before anything is built.
    """

    name: str
    pattern: Pattern
    by: Callable[..., Hashable | Decline | None]
    build: Callable[[list[Branch]], Any]
    accepts: Callable[[list[Branch]], bool] | None = None


def combine(
    pattern: Pattern, *, by: Callable[..., Hashable | Decline | None]
) -> Callable[[Callable[[list[Branch]], Any]], Family]:
    """Make a family of a function that receives a group's branches and returns one replacement per branch.

    `by` receives the captures by name (and `root`) and returns the group's key; None leaves the branch out, and so
    does `decline("why")`, which says why. The function may decline too.
    """
    return lambda build: Family(build.__name__, pattern, by, build)


def apply_family(block: BindingBlock, family: Family, trace: Trace, min_branches: int = 2) -> list[Binding]:
    """Rewrite every group of at least `min_branches` in `block` and its nested blocks; what was emitted."""
    counts = trace.of(family.name)
    started = time.perf_counter()
    emitted: list[Binding] = []
    buckets: dict[tuple[BindingBlock, Hashable], list[Binding]] = {}
    ops = heads(family.pattern)
    for b in list(block.walk()):
        if ops is not None and (b.domain, b.op) not in ops:
            continue
        counts.tried += 1
        key = _key(family, b)
        if isinstance(key, Decline):
            trace.missed(family.name, str(b), key.reason)
        elif key is not None:
            counts.matched += 1
            buckets.setdefault((b.block, key), []).append(b)
    for key, members in buckets.items():
        left = members
        while len(left) >= min_branches and not trace.stopped:
            group, left = _independent(_still(family, left, key[1]))
            if len(group) < min_branches:
                if len(left) >= len(members):
                    break
                continue
            emitted += _rewrite(family, group, trace)
    counts.seconds += time.perf_counter() - started
    return emitted


def _key(family: Family, b: Binding) -> Hashable | Decline | None:
    captured = next(match_binding(family.pattern, b), None)
    return None if captured is None else family.by(**call_arguments(family.by, {**captured, "root": b}))


def _still(family: Family, members: Sequence[Binding], key: Hashable) -> list[Branch]:
    """The members that are still there and still belong to the group after earlier rewrites."""
    branches = []
    for b in members:
        if b.is_live and _key(family, b) == key:
            captured = next(match_binding(family.pattern, b), None)
            if captured is not None:
                branches.append(Branch(b, captured))
    return branches


def _independent(branches: Sequence[Branch]) -> tuple[list[Branch], list[Binding]]:
    """A largest prefix-greedy set of branches none of which depends on another, and the roots left over."""
    roots = {branch.root for branch in branches}
    dependencies = {branch.root: _ancestors_among(branch.root, roots) for branch in branches}
    group: list[Branch] = []
    taken: set[Binding] = set()
    left: list[Binding] = []
    for branch in branches:
        root = branch.root
        if dependencies[root] & taken or any(root in dependencies[other] for other in taken):
            left.append(root)
        else:
            group.append(branch)
            taken.add(root)
    return group, left


def _ancestors_among(root: Binding, wanted: set[Binding]) -> set[Binding]:
    """Those of `wanted` that `root` depends on.

    An operand that every one of `wanted` reads cannot depend on any of them, so the search does not go there.
    """
    shared = set.intersection(*({v for v in b.inputs if v is not None} for b in wanted))
    found: set[Binding] = set()
    seen: set[Var] = set(shared)
    work = [v for v in root.inputs if v is not None]
    while work:
        v = work.pop()
        b = v.definition
        if v in seen or b is None or b.block is not root.block:
            continue
        seen.add(v)
        if b in wanted:
            found.add(b)
        work.extend(b.reads())
    return found


def _rewrite(family: Family, group: list[Branch], trace: Trace) -> list[Binding]:
    roots = [branch.root for branch in group]
    block = roots[0].block
    with emitting(block, sources=roots, made_by=family.name) as emitter:
        refused = family.accepts is not None and not family.accepts(group)
        answer = decline("refused by the check") if refused else answer_of(family.build, group)
    where = f"{len(group)} branches: {', '.join(r.out.name for r in roots)}"
    if answer is None or isinstance(answer, Decline):
        emitter.discard()
        if isinstance(answer, Decline):
            trace.missed(family.name, where, answer.reason)
        return []
    fault = fault_of(family.build)
    if not isinstance(answer, Sequence) or len(answer) != len(group):
        raise fault(f"{family.name} must return one value for each of {len(group)} branches, not {str(answer)[:60]}")
    pairs = {branch[family.pattern]: new for branch, new in zip(group, answer, strict=True)}
    mapping = replacements(pairs, {}, family.name, fault)
    if not mapping:
        emitter.discard()
        return []
    trace.of(family.name).applied += 1
    trace.fired(family.name, where)
    substitute(mapping, family.name, fault)
    emitter.discard()  # what was emitted and then not used
    return [b for b in emitter.emitted if b.is_live]
