"""Weights of an optimised file whose values are also in constants that rewrites computed.

If one of two readers of a weight is folded, or an equal weight becomes the same initializer, a
derivative by the weight of the optimised file is none of the original. The file's metadata names
such weights, so that a later request to differentiate by one, or to replace it, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import TypeAlias

from onnxgrad.errors import NotProved
from onnxgrad.ir.derivations import Derivations, Predicate, Step, operands_of
from onnxgrad.ir.origins import record, results, use_values, weights_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import element_count
from onnxgrad.verify.running.background import Background

Rewriting: TypeAlias = Callable[[Program, Derivations], object]


def note_values_used(
    program: Program,
    read: Collection[str],
    again: Callable[[], Program],
    passes: Rewriting,
    line: Background | None = None,
) -> Callable[[], None]:
    """Returns a function that adds the weights of which other constants were computed, or for which
    another weight stands, to the metadata of a rewritten program, once. To be called within the
    context of `reading`.

    `read` are the weights whose values a rewrite read. A number among them decided the rewrite.
    Which of the others did, or stand for equal ones, is found by a second run of the `passes`,
    which is recorded, on `again()`, a fresh reading of the original. It begins at once on the
    `line`, if there is one.
    """
    kept = {v.name: v for v in weights_of(program) if v.use_count and v.reads is not None}
    used = {n for n in read if n in kept and element_count(kept[n].shape) == 1}
    unclear = (program.stand_ins | {*read}) & kept.keys() - used

    def recorded() -> set[str]:
        fresh = again()
        kept = record(fresh)
        try:
            passes(fresh, kept)
            return used_among(unclear, results(fresh), [h.predicate for h in kept.held])
        except NotProved:  # a rewrite without a record
            return unclear

    more: Callable[[], set[str]] = set
    if unclear:
        more = recorded if line is None else line.call(recorded).result
    return cache(lambda: use_values(program, sorted(used | more())))


def used_among(
    names: Iterable[str], made: Mapping[str, Step], predicates: Collection[Predicate]
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
