"""Families: any number of parallel branches that share an operand, rewritten together.

Branches are found by one pattern and put into buckets by a key. Members that depend on another
member are left for a later group; that is decided on the graph as it is now, because every group
rewritten before changed it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.by_operator import bindings_of
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.attempt import Attempt, call_arguments, fault_of, replacements
from onnxgrad.rewrite.captures import Captured, heads, value_of
from onnxgrad.rewrite.match import match_binding
from onnxgrad.rewrite.pattern import Pattern
from onnxgrad.rewrite.trace import Decline, Trace, decline


@dataclass(frozen=True)
class Branch:
    """One member of a family: its root binding and what the pattern captured there."""

    root: Binding
    captured: Mapping[Any, Any]

    def __getitem__(self, name: str | Pattern) -> Any:
        return self.captured[name] if isinstance(name, str) else value_of(name, self.captured)


# the group that a branch belongs to; None or a decline leaves it out
Key = Callable[..., Hashable | Decline | None]


@dataclass(frozen=True)
class Family:
    """A law over parallel branches: how one looks, which belong together (`by`), what replaces a
    whole group.

    `accepts` may refuse a group, before anything is built.
    """

    name: str
    pattern: Pattern
    by: Key
    build: Callable[..., Any]
    accepts: Callable[[list[Branch]], bool] | None = None


def combine(pattern: Pattern, *, by: Key) -> Callable[[Callable[..., Any]], Family]:
    """Make a family of a function that returns one replacement for each branch of a group.

    The function receives the captures it names, each as a list over the branches, and `roots`, the
    matched bindings, or `group`, the branches. `by` receives the captures by name (and `root`) and
    returns the group's key; None leaves the branch out, and so does `decline("why")`, which says
    why. The function may decline too.

    >>> from onnxgrad import P, capture, combine, op
    >>> x, w = capture("x w")
    >>> @combine(P.Mul(x, w), by=lambda x: x)
    ... def stacked(x, w):
    ...     # x * w1, x * w2, ... of vectors of one size: one product, its rows
    ...     rows = op.Mul(x[0], op.Concat(*[op.Unsqueeze(v, [0]) for v in w], axis=0))
    ...     return [op.Squeeze(r, [0]) for r in op.Split(rows, [1] * len(w), outputs=len(w))]
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[4] x, float[4] a, float[4] b) => (float[4] y, float[4] z) {
    ...   y = Mul (x, a)  z = Mul (x, b) }''')
    >>> found = onnxgrad.optimize(model, passes=[stacked], merge="always")
    >>> [n.op_type for n in found.graph.node].count("Mul")
    1
    """
    return lambda build: Family(build.__name__, pattern, by, build)


def apply_family(
    block: BindingBlock, family: Family, trace: Trace, min_branches: int = 2
) -> list[Binding]:
    """Rewrite every group of at least `min_branches` in `block` and its nested blocks; what was
    emitted.
    """
    counts = trace.of(family.name)
    counts.law = (inspect.getdoc(family.build) or "").split("\n")[0]
    started = time.perf_counter()
    emitted: list[Binding] = []
    buckets: dict[tuple[BindingBlock, Hashable], list[Branch]] = {}
    ops = heads(family.pattern)
    for b in list(block.walk()) if ops is None else bindings_of(block, ops):
        counts.tried += 1
        key, captured = _key(family, b)
        if isinstance(key, Decline):
            trace.missed(family.name, b, key.reason)
        elif key is not None:
            counts.matched += 1
            buckets.setdefault((b.block, key), []).append(Branch(b, captured))
    fired = len(trace.firings)
    for (_, key), members in buckets.items():
        left = members
        while len(left) >= min_branches and not trace.stopped:
            branches = left if len(trace.firings) == fired else _still(family, left, key)
            taken = independent([branch.root for branch in branches])
            group = [branch for branch in branches if branch.root in taken]
            left = [branch for branch in branches if branch.root not in taken]
            if len(group) < min_branches:
                if len(left) >= len(members):
                    break
                continue
            emitted += _rewrite(family, group, trace)
    counts.seconds += time.perf_counter() - started
    return emitted


def _key(family: Family, b: Binding) -> tuple[Hashable | Decline | None, Captured]:
    captured = next(match_binding(family.pattern, b), None)
    if captured is None:
        return None, {}
    try:
        return family.by(**call_arguments(family.by, {**captured, "root": b})), captured
    except Decline as declined:
        return declined, captured


def _still(family: Family, members: Sequence[Branch], key: Hashable) -> list[Branch]:
    """The members that are still there and still belong to the group after earlier rewrites."""
    branches = []
    for b in [member.root for member in members if member.root.is_live]:
        found, captured = _key(family, b)
        if found == key:
            branches.append(Branch(b, captured))
    return branches


def independent(roots: Sequence[Binding]) -> set[Binding]:
    """As many of the first of `roots` as there are such that none depends on another."""
    dependencies = {root: _ancestors_among(root, set(roots)) for root in roots}
    taken: set[Binding] = set()
    for root in roots:
        if not dependencies[root] & taken and not any(
            root in dependencies[other] for other in taken
        ):
            taken.add(root)
    return taken


def _ancestors_among(root: Binding, wanted: set[Binding]) -> set[Binding]:
    """Those of `wanted` that `root` depends on.

    An operand that every one of `wanted` reads cannot depend on any of them, so the search does not
    go there.
    """
    shared = (
        set.intersection(*({v for v in b.inputs if v is not None} for b in wanted))
        if wanted
        else set()
    )
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
    where = f"{len(group)} branches: {', '.join(r.out.name for r in roots)}"
    fault = fault_of(family.build)

    def build() -> Any:
        if family.accepts is not None and not family.accepts(group):
            return decline("refused by the check")
        return family.build(**call_arguments(family.build, _gathered(group)))

    def mapping(answer: Any) -> Mapping[Var, Var]:
        if not isinstance(answer, Sequence) or len(answer) != len(group):
            what = str(answer)[:60]
            raise fault(
                f"{family.name} must return one value for each of {len(group)} branches, not {what}"
            )
        pairs = {branch[family.pattern]: new for branch, new in zip(group, answer, strict=True)}
        return replacements(pairs, {}, family.name, fault)

    touched = Attempt(family.name, where, roots[0].block, roots, fault)(trace, build, mapping)
    return [] if touched is None else [b for b in touched.emitted if b.is_live]


def _gathered(group: Sequence[Branch]) -> dict[str, list[Any]]:
    """Each capture's values over the branches, the branches' bindings as `roots`, and themselves
    as `group`.
    """
    names = dict.fromkeys(
        name for branch in group for name in branch.captured if isinstance(name, str)
    )
    lists = {name: [branch.captured.get(name) for branch in group] for name in names}
    return {**lists, "roots": [branch.root for branch in group], "group": list(group)}
