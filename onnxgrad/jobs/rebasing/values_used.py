"""Weights of an optimised file whose values are also in constants that rewrites computed.

If one of two readers of a weight is folded, or an equal weight becomes the same initializer, a
derivative by the weight of the optimised file is none of the original. The file's metadata names
such weights, so that a later request to differentiate by one, or to replace it, is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from onnxgrad.errors import NotProved
from onnxgrad.ir.derivations import Derivations, Predicate, Step, operands_of
from onnxgrad.ir.origins import record, results, use_values
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES

Rewriting: TypeAlias = Callable[[Program, Derivations], object]


def reads_of(program: Program) -> Counter[str]:
    """Returns how often each floating-point initializer is read, by name."""
    found: Counter[str] = Counter()
    for block in program.blocks():
        for v in block.initializers.values():
            if v.dtype in FLOAT_DTYPES:
                found[v.name] += v.use_count
    return found


def note_values_used(
    program: Program, before: Mapping[str, int], again: Callable[[], Program], passes: Rewriting
) -> None:
    """Adds the weights of which other constants were computed, or for which another weight stands,
    to the metadata of a rewritten program.

    `before` is the result of `reads_of` before the rewrites. Only weights that are read more or
    less often than that, or stand for equal ones, are looked at, by a second run of the `passes`,
    which is recorded, on `again()`, a fresh reading of the original.
    """
    known = {n: count for n, count in reads_of(program).items() if count and n in before}
    changed = {n for n, count in known.items() if count != before[n] or n in program.stand_ins}
    if not changed:
        return
    fresh = again()
    kept = record(fresh)
    try:
        passes(fresh, kept)
        used = _used(changed, results(fresh), [h.predicate for h in kept.held])
    except NotProved:  # a rewrite without a record
        used = changed
    use_values(program, sorted(used))


def _used(
    names: Collection[str], made: Mapping[str, Step], predicates: Collection[Predicate]
) -> set[str]:
    """The weights among `names` on which another constant or a decision depends."""
    steps = [s for n, s in made.items() if not (s.kind == "weight" and s.what == n)]
    for p in predicates:
        steps += [p.step, *([p.value] if isinstance(p.value, Step) else [])]
    seen = set(steps)
    for s in steps:  # grows
        new = [o for o in operands_of(s) if o not in seen]
        seen.update(new)
        steps += new
    return {s.what for s in seen if s.kind == "weight"} & set(names)
