"""The choices of `--tune`: passes to add to the static rule or to remove, orders of folding, and
kinds of parallel products that are merged or not.

Orders of folding seldom matter: 15 of 23 models in models/ have the same result in every order.
Times of the others over that of the static rule (onnxruntime 1.31.1, one thread; differences only):

    unet              forward behind backward 0.91, before it 0.96, scales kept 0.93
    llama             forward 1.09
    t5                forward behind backward 1.16, before it 1.12, scales kept 0.98
    mobilenet_v2.raw  forward before backward 1.00, scales kept 1.02, statistics kept 1.03
    yolox_script      scales kept 0.99, statistics kept 1.03, biases first 0.99
    whisper, lstmcell scales kept 1.05; no constant that grows 1.00
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from onnxgrad.frozen import frozen
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.passes.base import PASSES, Check, FamilyPass, Pass
from onnxgrad.passes.pipeline import Pipeline, parse_passes
from onnxgrad.rewrite.combine import Branch
from onnxgrad.rewrite.trace import Trace


def kind_of(group: Sequence[Branch]) -> str | None:
    """Returns a description of a group of branches: their number, operator and types. None if the
    weights have other readers, because merging would enlarge the file or join them at each run.
    """
    first = group[0].root
    weights = [v for branch in group for v in branch.root.inputs[1:] if v is not None]
    if not all(v.is_constant and v.use_count == 1 for v in weights):
        return None
    sizes = sorted({str(branch.root.inputs[1].type) for branch in group if branch.root.inputs[1]})
    left = first.inputs[0]
    shown = "?" if left is None else str(left.type)
    return f"{len(group)} {first.op} of {shown} by {', '.join(sizes)}"


@frozen
class OfKinds:
    """A check of a `FamilyPass` that admits only groups of these kinds."""

    kinds: frozenset[str]

    def __call__(self, group: list[Branch]) -> bool:
        return kind_of(group) in self.kinds


@frozen(eq=False)
class _Seen:
    """A check that admits no group and records the kinds of all."""

    kinds: dict[str, None] = field(default_factory=dict)

    def __call__(self, group: list[Branch]) -> bool:
        kind = kind_of(group)
        if kind is not None:
            self.kinds[kind] = None
        return False


def merging(pipeline: Pipeline) -> list[FamilyPass]:
    """Returns the passes that merge parallel products by a static rule, which measurement may
    replace.
    """
    return [
        p
        for p in pipeline.passes
        if isinstance(p, FamilyPass) and getattr(p, "merge", "") == "auto"
    ]


def with_kinds(pipeline: Pipeline, chosen: dict[str, frozenset[str]]) -> Pipeline:
    """Returns the pipeline with passes that merge exactly the groups of these kinds."""

    def own(p: Pass) -> Pass:
        if not isinstance(p, FamilyPass) or p.name not in chosen:
            return p
        return _always(p, OfKinds(chosen[p.name]))

    return Pipeline(tuple(own(p) for p in pipeline.passes))


def _always(p: FamilyPass, check: Check) -> FamilyPass:
    """Returns the pass with every group that `check` admits, without its static rule."""
    # passes with a static rule have the field, their common base does not
    return replace(p, merge="always", check=check)  # type: ignore[call-arg]


def kinds_in(model: ModelLike, pipeline: Pipeline) -> dict[str, dict[str, bool]]:
    """Returns the kinds of groups by pass, and whether the static rule merges them."""
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


# passes that may pay, and the pass before which each runs; at the end if the pipeline lacks that
# pass
_OFFERED = (
    ("simplify-arithmetic{exact=false}", "backward-fold-scale-axis"),
    ("simplify-inference", "backward-fold-scale-axis"),
    ("forward-fold-scale-axis", "fold-bias"),
    ("reorder-gather-matmul", "simplify-transpose"),
    ("adjust-matmul-order", "simplify-transpose"),
    ("expand-matmul-of-sum", "simplify-transpose"),
    ("raise-composites", "divide-by-root"),
    ("convert-layout", "flatten-products"),
    ("lower-composites", "flatten-products"),
)
# passes without which the model may be faster
_OPTIONAL = (
    *("flatten-products", "divide-by-root", "raise-composites", "raise-for-onnxruntime"),
    *("combine-parallel-gemm", "simplify-inference", "backward-fold-scale-axis"),
)
# passes that find other work if they run before another pass
_ORDERS = (
    ("forward-fold-scale-axis", "backward-fold-scale-axis"),
    ("fold-bias", "backward-fold-scale-axis"),
)
# folding may enlarge a constant, which each run then reads instead of computing it
_FOLDED, _UNFOLDED = "fold-constant", "fold-constant{max_growth=0}"


EACH = "every kind"


@frozen
class Choice:
    """One decision; `name` describes it and is stored in files of decisions."""

    name: str
    item: str = ""  # a pass to run
    before: str = ""
    moved: bool = False  # only there
    without: str = ""  # a pass to leave out
    merging: str = ""  # a pass that merges parallel products
    kind: str = ""  # one kind of products, or EACH
    merged: bool = False  # whether the kind is merged, in place of the static rule


@frozen
class Choices:
    """All decisions about one model, in their order; `kinds`: see `kinds_in`."""

    pipeline: Pipeline
    all: tuple[Choice, ...]
    kinds: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)

    @staticmethod
    def of(model: ModelLike, pipeline: Pipeline) -> Choices:
        """Returns the decisions to take about `model`, starting from `pipeline`."""
        named = {p.name for p in pipeline.passes}
        found = [Choice(f"without {name}", without=name) for name in _OPTIONAL if name in named]
        for item, before in _OFFERED:
            name = item.partition("{")[0]
            if name in PASSES and not _has(pipeline, item):
                found.append(Choice(f"with {item}", item=item, before=before))
        if _has(pipeline, _FOLDED):
            found.append(Choice(f"with {_UNFOLDED}", item=_UNFOLDED))
        for item, before in _ORDERS:
            if before in named:
                found.append(Choice(f"{item} before {before}", item, before, moved=True))
        kinds = kinds_in(model, pipeline)
        for name, own in kinds.items():
            found += _about_kinds(name, own)
        return Choices(pipeline, tuple(found), kinds)

    def made(self, kept: Iterable[Choice]) -> Pipeline:
        """Returns the pipeline with these decisions."""
        passes = list(self.pipeline.passes)
        kinds = {name: {k for k, on in own.items() if on} for name, own in self.kinds.items()}
        decided: set[str] = set()
        for choice in kept:
            if choice.merging:
                about = set(self.kinds[choice.merging]) if choice.kind == EACH else {choice.kind}
                before = kinds[choice.merging]
                kinds[choice.merging] = before | about if choice.merged else before - about
                decided.add(choice.merging)
            elif choice.without:
                passes = [p for p in passes if p.name != choice.without]
            else:
                passes = _with(passes, choice)
        chosen = {name: frozenset(kinds[name]) for name in decided}
        return with_kinds(Pipeline(tuple(passes)), chosen)


def _about_kinds(name: str, kinds: Mapping[str, bool]) -> list[Choice]:
    """Returns the decision on all kinds at once, which has the largest effect, then one for each
    kind.
    """
    found = []
    for merged in (True, False):
        if len(kinds) > 1 and any(on is not merged for on in kinds.values()):
            words = "merged" if merged else "apart"
            found.append(Choice(f"{name}: {EACH}, {words}", merging=name, kind=EACH, merged=merged))
    for kind, on in kinds.items():
        words = f"{name}: {kind}, {'apart' if on else 'merged'}"
        found.append(Choice(words, merging=name, kind=kind, merged=not on))
    return found


def _has(pipeline: Pipeline, item: str) -> bool:
    (offered,) = parse_passes(item)
    return any(p.name == offered.name and _plain(p) == _plain(offered) for p in pipeline.passes)


def _plain(p: Pass) -> dict[str, Any]:
    """Returns the options of a pass, without those that a pipeline sets for all its passes."""
    return {k: v for k, v in vars(p).items() if k not in ("merge", "provider", "check")}


def _with(passes: list[Pass], choice: Choice) -> list[Pass]:
    """Returns the passes with the chosen one, which replaces passes of its name with other
    options.
    """
    (offered,) = parse_passes(choice.item)
    if choice.moved:
        passes = [p for p in passes if p.name != offered.name]
    elif any(p.name == offered.name for p in passes):
        return [offered if p.name == offered.name else p for p in passes]
    at = next((i for i, p in enumerate(passes) if p.name == choice.before), len(passes))
    return [*passes[:at], offered, *passes[at:]]


def described(pipeline: Pipeline) -> list[str]:
    """Returns each pass with its options, as in a file of decisions."""
    return [
        repr(replace(p, check=None) if isinstance(p, FamilyPass) else p) for p in pipeline.passes
    ]
