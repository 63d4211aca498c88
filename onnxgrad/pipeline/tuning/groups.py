"""Parallel products by kind: one decision for all groups of branches that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.passes.base import Check, FamilyPass, Pass
from onnxgrad.pipeline.pipeline import Pipeline
from onnxgrad.rewrite.combine import Branch
from onnxgrad.rewrite.trace import Trace


def kind_of(group: Sequence[Branch]) -> str | None:
    """How a group of branches looks: how many, of which operator, with which types. None for one
    whose weights are not its own: merging it would make the file larger or join them at each run.
    """
    first = group[0].root
    weights = [v for branch in group for v in branch.root.inputs[1:] if v is not None]
    if not all(v.is_constant and v.use_count == 1 for v in weights):
        return None
    sizes = sorted({str(branch.root.inputs[1].type) for branch in group if branch.root.inputs[1]})
    left = first.inputs[0]
    shown = "?" if left is None else str(left.type)
    return f"{len(group)} {first.op} of {shown} by {', '.join(sizes)}"


@dataclass(frozen=True)
class OfKinds:
    """A check of a `FamilyPass`: only groups of these kinds."""

    kinds: frozenset[str]

    def __call__(self, group: list[Branch]) -> bool:
        return kind_of(group) in self.kinds


@dataclass(frozen=True, eq=False)
class _Seen:
    """A check that admits no group, and remembers the kinds of all."""

    kinds: dict[str, None] = field(default_factory=dict)

    def __call__(self, group: list[Branch]) -> bool:
        kind = kind_of(group)
        if kind is not None:
            self.kinds[kind] = None
        return False


def merging(pipeline: Pipeline) -> list[FamilyPass]:
    """The passes that merge parallel products by a static rule, which measurement may replace."""
    return [
        p
        for p in pipeline.passes
        if isinstance(p, FamilyPass) and getattr(p, "merge", "") == "auto"
    ]


def with_kinds(pipeline: Pipeline, chosen: dict[str, frozenset[str]]) -> Pipeline:
    """The pipeline whose passes, by name, merge just the groups of these kinds."""

    def own(p: Pass) -> Pass:
        if not isinstance(p, FamilyPass) or p.name not in chosen:
            return p
        return _always(p, OfKinds(chosen[p.name]))

    return Pipeline(tuple(own(p) for p in pipeline.passes))


def _always(p: FamilyPass, check: Check) -> FamilyPass:
    """The pass with every group that `check` admits, whatever the static rule says."""
    # those with a static rule have the field; the family of all has not
    return replace(p, merge="always", check=check)  # type: ignore[call-arg]


def kinds_in(model: ModelLike, pipeline: Pipeline) -> dict[str, dict[str, bool]]:
    """By pass, the kinds of groups that there are, and whether the static rule merges them."""
    found: dict[str, dict[str, bool]] = {}
    for p in merging(pipeline):
        seen = _Seen()
        _run(model, pipeline, _always(p, seen))
        if not seen.kinds:
            continue
        found[p.name] = {}
        for kind in seen.kinds:
            trace = _run(model, pipeline, replace(p, check=OfKinds(frozenset({kind}))))
            merged = trace.counts.get(p.family.name)
            found[p.name][kind] = merged is not None and merged.applied > 0
    return found


def _run(model: ModelLike, pipeline: Pipeline, instead: FamilyPass) -> Trace:
    trace = Trace()
    passes = tuple(instead if p.name == instead.name else p for p in pipeline.passes)
    Pipeline(passes).run(load_own(model), trace)
    return trace
