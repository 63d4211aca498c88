"""Families: any number of parallel branches that share an operand, rewritten together.

One pattern finds the branches, and a key sorts them into buckets. A member that depends on another
member is left for a later group. That is decided on the current graph, because each rewritten group
changed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from onnxgrad.errors import InternalError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.operator_index import bindings_of
from onnxgrad.ir.var import Var
from onnxgrad.options import known_keywords
from onnxgrad.rewrite.attempt import Attempt, call_arguments, check_parameters, replacements
from onnxgrad.rewrite.match import match_binding
from onnxgrad.rewrite.pattern import Captured, Pattern
from onnxgrad.rewrite.slips import guarded, slip
from onnxgrad.rewrite.trace import BranchNames, Decline, Trace, decline
from onnxgrad.rewrite.worklist import Law, Measure
from onnxgrad.wording import first_of

# members of other groups that a near miss names
_NAMED = 5


@frozen
class Branch:
    """One member of a family: its root binding and what the pattern captured there."""

    root: Binding
    captured: Mapping[Any, Any]

    def __getitem__(self, name: str | Pattern) -> Any:
        return self.captured[name] if isinstance(name, str) else self.captured[name.key]


# the group that a branch belongs to; None or a decline leaves it out
Key = Callable[..., Hashable | Decline | None]


@frozen
class Shared:
    """The operand that all branches of a group share. `name` is its capture. `differ` says in words
    how branches that read the operand can still belong to different groups.
    """

    name: str
    differ: str


@frozen(eq=False)
class Family(Law):
    """A rewrite rule over parallel branches: the pattern of one branch, the key of its group
    (`by`), and the replacement of a group.

    `accepts` may refuse a group before anything is built. `shrinks` is the measure that ends
    rewriting if the family may match what it emitted; None if it never does. With `shared`, near
    misses name the branches that `by` separates.
    """

    by: Key
    accepts: Callable[[list[Branch]], bool] | None = None
    shared: Shared | None = None


@known_keywords
def combine(
    pattern: Pattern, *, by: Key, shrinks: Measure | None = None, shared: Shared | None = None
) -> Callable[[Callable[..., Any]], Family]:
    """Makes a family of a function that returns one replacement for each branch of a group.

    The function receives the captures it names, each as a list over the branches. It may also name
    `roots`, the matched bindings, or `group`, the branches. `by` receives the captures by name (and
    `root`) and returns the group's key. None or `decline("why")` leaves the branch out. The
    function may decline too. Without `shrinks`, the family never matches a binding that it emitted.

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
    check_parameters(by, pattern, "root")

    def made(build: Callable[..., Any]) -> Family:
        check_parameters(build, pattern, "roots", "group")
        return Family(build.__name__, pattern, build, shrinks, by, shared=shared)

    return made


def apply_family(
    block: BindingBlock, family: Family, trace: Trace, min_branches: int = 2
) -> list[Binding]:
    """Rewrites every group of at least `min_branches` branches in `block` and its nested blocks.
    Returns the emitted bindings.
    """
    counts = trace.of(family.name)
    counts.law = family.law
    started = time.perf_counter()
    emitted: list[Binding] = []
    buckets = _buckets(block, family, trace)
    if trace.explain:
        _explain_too_few(family, buckets, min_branches, trace)
    fired = len(trace.rewrites)
    for (_, key), members in buckets.items():
        left, alone = members, ""
        while len(left) >= min_branches and not trace.stopped:
            branches = left
            if len(trace.rewrites) > fired:
                branches = _still(family, left, key, trace)
            taken = independent([branch.root for branch in branches])
            group = [branch for branch in branches if branch.root in taken]
            if len(group) < min_branches:
                alone = "each depends on another of them"
                break
            left = [branch for branch in branches if branch.root not in taken]
            alone = "the others of its group depend on it, or it on them"
            emitted += _rewrite(family, group, trace)
        if alone and left and not trace.stopped:
            trace.missed(family.name, _place(left), alone)
    counts.seconds += time.perf_counter() - started
    return emitted


_Buckets = dict[tuple[BindingBlock, Hashable], list[Branch]]


def _buckets(block: BindingBlock, family: Family, trace: Trace) -> _Buckets:
    """The branches in `block` and its nested blocks by their own block and key."""
    found: _Buckets = {}
    counts, ops = trace.of(family.name), family.pattern.heads
    for b in list(block.walk()) if ops is None else bindings_of(block, ops):
        counts.tried += 1
        if family.maker is not None and trace.made.get(b) == family.maker:
            continue
        key, captured = _key(family, b, trace)
        if isinstance(key, Decline):
            trace.missed(family.name, b, key.reason)
        elif key is not None:
            counts.matched += 1
            found.setdefault((b.block, key), []).append(Branch(b, captured))
    return found


def _explain_too_few(family: Family, buckets: _Buckets, min_branches: int, trace: Trace) -> None:
    """Records near misses of branches that form no group. Runs before any rewrite, while values
    keep their names.
    """
    for members in buckets.values():
        if len(members) < min_branches:
            reason = _too_few(family, members, buckets, min_branches)
            if reason is not None:
                trace.missed(family.name, _place(members), reason)


def _too_few(
    family: Family, left: Sequence[Branch], buckets: _Buckets, min_branches: int
) -> str | None:
    """Returns why branches form no group. None if no other branch reads the same operand."""
    if len(left) > 1:
        return f"fewer than {min_branches} branches"
    if family.shared is None:
        return None
    operand, block = left[0][family.shared.name], left[0].root.block
    beside = [
        branch.root.out.name
        for (there, _), members in buckets.items()
        for branch in members
        if there is block and branch[family.shared.name] is operand and branch is not left[0]
    ]
    if not beside:
        return None
    names = first_of(beside, _NAMED)
    return f"{operand.name} is read by {names} too, but {family.shared.differ}"


def _place(group: Sequence[Branch]) -> BranchNames:
    names = ", ".join(branch.root.out.name for branch in group)
    return BranchNames(f"{len(group)} branch{'es' * (len(group) > 1)}: {names}")


def _key(family: Family, b: Binding, trace: Trace) -> tuple[Hashable | Decline | None, Captured]:
    failed = partial(slip, trace, family.name, b, b.block.program, author=family.by)
    captured = next(guarded(match_binding(family.pattern, b), failed), None)
    if captured is None:
        return None, {}
    try:
        return family.by(**call_arguments(family.by, {**captured, "root": b})), captured
    except Decline as declined:
        return declined, captured
    except Exception as error:  # noqa: BLE001  # a rule may be user code
        failed(error)
        return None, {}


def _still(family: Family, members: Sequence[Branch], key: Hashable, trace: Trace) -> list[Branch]:
    """The members that are still there and still belong to the group after earlier rewrites."""
    branches = []
    for b in [member.root for member in members if member.root.is_live]:
        found, captured = _key(family, b, trace)
        if found == key:
            branches.append(Branch(b, captured))
    return branches


def independent(roots: Sequence[Binding]) -> set[Binding]:
    """Returns those of `roots`, taken in order, of which none depends on another."""
    dependencies = {root: _ancestors_among(root, set(roots)) for root in roots}
    taken: set[Binding] = set()
    for root in roots:
        if not dependencies[root] & taken and not any(
            root in dependencies[other] for other in taken
        ):
            taken.add(root)
    return taken


def _ancestors_among(root: Binding, wanted: set[Binding]) -> set[Binding]:
    """Returns those of `wanted` on which `root` depends.

    An operand that all of `wanted` read cannot depend on any of them, so the search skips it.
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

    def build() -> Any:
        if family.accepts is not None and not family.accepts(group):
            return decline("refused by the check")
        return family.build(**call_arguments(family.build, _gathered(group)))

    def mapping(answer: Any) -> Mapping[Var, Var]:
        if not isinstance(answer, Sequence) or len(answer) != len(group):
            what = str(answer)[:60]
            raise InternalError(
                f"it must return one value for each of {len(group)} branches, not {what}"
            )
        pairs = {branch[family.pattern]: new for branch, new in zip(group, answer, strict=True)}
        return replacements(pairs, {})

    block = roots[0].block
    attempt = Attempt(family.name, _place(group), block, roots, family.build, maker=family.maker)
    touched = attempt(trace, build, mapping)
    return [] if touched is None else [b for b in touched.emitted if b.is_live]


def _gathered(group: Sequence[Branch]) -> dict[str, list[Any]]:
    """Returns each capture's values over the branches, the matched bindings as `roots`, and the
    branches as `group`.
    """
    names = dict.fromkeys(
        name for branch in group for name in branch.captured if isinstance(name, str)
    )
    lists = {name: [branch.captured.get(name) for branch in group] for name in names}
    return {**lists, "roots": [branch.root for branch in group], "group": list(group)}
