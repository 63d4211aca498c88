"""`optimize` as Python has it: the options of the command, and the report with the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, check_room, to_kind_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.jobs.fixed_dims import fixed
from onnxgrad.jobs.optimize import optimize_program
from onnxgrad.jobs.recipe import OPTIONS, Recipe, find
from onnxgrad.jobs.recipe_options import pipeline_of, proof_of
from onnxgrad.limits import limited
from onnxgrad.options import known_keywords, several
from onnxgrad.passes.inline import check_names
from onnxgrad.passes.instruments import PrintAfter
from onnxgrad.passes.pipeline import Pass, Pipeline
from onnxgrad.passes.user_laws import Law
from onnxgrad.report.optimized import Clock, Outcome
from onnxgrad.report.parts import Part
from onnxgrad.report.rendering import Rendered
from onnxgrad.report.tuning import Asked, Tuning
from onnxgrad.rewrite.trace import Firing
from onnxgrad.verify import Report
from onnxgrad.verify.bounds import PerOutput
from onnxgrad.verify.feeds.proof_cases import Inputs

# what `verify` may be: whether the whole model is proved, and each rewrite on its own operands
_PROOFS: dict[Any, tuple[bool, bool]] = {
    True: (True, False),
    False: (False, False),
    "each": (True, True),
    "only each": (False, True),
}


@dataclass(frozen=True)
class OptimizedModel(Rendered):
    """What `optimize(report=True)` gives: the `model`, in the kind that was given, and what became
    of it. `str` of it is what the command prints, `to_dict()` what its `--json` writes.
    """

    model: Any
    outcome: Outcome = field(repr=False)

    @property
    def rewrites(self) -> list[Firing]:
        """Every rewrite in order: its number, pass, law, and the statement that it rewrote."""
        return [] if self.outcome.done is None else self.outcome.done.trace.firings

    @property
    def near_misses(self) -> list[tuple[str, str, str]]:
        """With `explain=True` what was declined: the law, the statement, the reason."""
        return [] if self.outcome.done is None else list(self.outcome.done.trace.declined)

    @property
    def proof(self) -> Report | None:
        """What `verify` found; None where the whole model was not proved."""
        return self.outcome.report

    @property
    def tuning(self) -> Mapping[str, Any] | None:
        """What `tune` decided, in JSON's types, to be given to it again; None without it."""
        return self.outcome.tuning

    def to_dict(self) -> dict[str, Any]:
        """JSON's types."""
        return self.outcome.to_dict()

    def to_html(self) -> str:
        """What `--html` writes: a page to look at, as one file that needs no network."""
        return self.outcome.to_html()

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """As the command shows it."""
        yield from self.outcome.parts(verbose)


@known_keywords
def optimize(
    model: ModelLike,
    *,
    preset: str | None = None,
    passes: str | Sequence[str | Pass | Law] | None = None,
    merge: str | None = None,
    target_opset: int | None = None,
    for_: str | None = None,
    inline: Sequence[str] = (),
    fix_dims: Mapping[str, int] | None = None,
    without: Sequence[str] | None = None,
    print_after: Sequence[str] = (),
    max_rewrites: int | None = None,
    explain: bool = False,
    allow_growth: bool | None = None,
    verify: bool | Literal["each", "only each"] | None = None,
    provider: str | None = None,
    inputs: Inputs | None = None,
    dims: Mapping[str, int] | None = None,
    seeds: Sequence[int] | None = None,
    legs: Sequence[str] | None = None,
    threads: int | None = None,
    allow_empty: Sequence[str] | None = None,
    atol: PerOutput = None,
    rtol: PerOutput = None,
    metric: str | Sequence[str] | None = None,
    coverage: str | float | None = None,
    recipe: str | os.PathLike[str] | None = None,
    tune: Asked = None,
    report: bool = False,
    timeout: float | None = None,
    max_memory: int | str | None = None,
) -> Any:
    """The optimised model, in the kind that was given (what has none to come back as gives a
    ModelProto); with `report=True` an `OptimizedModel`: that, its rewrites and their proof.

    What runs: `preset` ("default") or `passes`, `"a,b{option=value}"` or a list of such, of passes,
    rules and families; first, where calls of the functions `inline` stand, their bodies; not the
    passes `without`. After a pass in `print_after` (`"PASS"`, or `"PASS=DIR"`) that changed
    something the program's text goes to stderr, or into a file of that folder; both may be globs.
    `target_opset` is the opset of the result, whose operators the passes may use (the model's own);
    `for_="onnxruntime"` lets them use that runtime's operators, which no other may know.
    `fix_dims` are sizes of symbolic dimensions for which alone it is written. `merge` is always,
    auto (the default) or never; with "always" the file grows by at most a tenth unless
    `allow_growth`. `max_rewrites` stops after so many; `explain` keeps the near misses.

    `verify` (True) proves the result against the original; "each" proves every rewrite on its own
    operands as well, "only each" nothing else. The proof runs on `provider` ("cpu") with `threads`
    (1) on `inputs`, as `onnxgrad.verify` takes them, or on values generated from `seeds` (0, 1) at
    the sizes `dims` of symbolic dimensions; by both `legs`; outputs `allow_empty` may have nothing
    finite to compare. `atol`, `rtol` and `metric` are bounds in place of the proof's own
    tolerances, as `onnxgrad.verify` takes them; its runs must reach the share `coverage`
    (">= 95%") of what decides.

    `tune` (True, or for so many seconds) measures in onnxruntime, on this provider, threads and
    inputs, which further rewrites pay and which of the preset's do not, and keeps those; a file of
    such decisions (`onnxgrad optimize --tune`), or `report.tuning` of an earlier call, decides the
    same again without measuring.

    `recipe` is a TOML file of options and requirements (`onnxgrad optimize --config`), which
    options given here overrule; None: no recipe. `timeout`: seconds for everything (300);
    `max_memory`: bytes, or such as "4GB", for each process that runs a model (half of what there
    is).

    Raises InputError, RewriteRefuted where the proof fails, NotProved where it proves nothing or
    the result misses what the recipe requires, LimitReached.

    >>> done = onnxgrad.optimize("models/lstmcell.onnx", report=True)
    >>> done.proof.verdict, done.rewrites[0].rule
    ('equal', 'fold_constant')
    """
    inline = several(inline, "optimize: inline")
    said = {
        "preset": preset, "passes": passes, "merge": merge, "without": without,
        "target_opset": target_opset, "for": for_,
        "allow_growth": allow_growth, "verify.run": verify, "verify.provider": provider,
        "verify.dims": dims, "verify.seeds": seeds, "verify.legs": legs, "verify.threads": threads,
        "verify.inputs": inputs, "verify.allow_empty": allow_empty, "verify.timeout": timeout,
        "verify.max_memory": max_memory, "verify.atol": atol, "verify.rtol": rtol,
        "verify.metric": metric, "verify.coverage": coverage,
    }  # fmt: skip
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""
    followed = None if recipe is None else find(os.fspath(recipe))
    chosen = _chosen(said, followed, name)
    with limited(chosen.get("verify.timeout"), chosen.get("verify.max_memory")):
        job = _Job(
            model, name, chosen, followed, pipeline_of(chosen, inline), Tuning.of(tune), fix_dims,
            inline,
        )  # fmt: skip
        done = _optimized(job, max_rewrites, explain, print_after)
    return done if report else done.model


@dataclass(frozen=True)
class _Job:
    """One model, and what is to become of it."""

    model: ModelLike
    name: str
    chosen: Mapping[str, Any]
    recipe: Recipe | None
    pipeline: Pipeline
    tuning: Tuning | None = None
    fix_dims: Mapping[str, int] | None = None
    inline: Sequence[str] = ()

    @property
    def proof(self) -> dict[str, Any]:
        """The options of the proof."""
        return proof_of(self.chosen)

    def on_read(self, program: Program) -> None:
        """Raises InputError for what can be refused before any work."""
        check_room(program, self.model)
        check_names(program, self.inline)
        if self.recipe is not None:
            self.recipe.check_names(self.name, program)


def _chosen(said: Mapping[str, Any], recipe: Recipe | None, name: str) -> dict[str, Any]:
    """The options by the keys of a recipe: what was said, else what the recipe has."""
    found = {} if recipe is None else recipe.of(name)
    if said["preset"] is not None:  # of the two, what is said here alone
        found.pop("passes", None)
    found |= {key: value for key, value in said.items() if value is not None}
    if found.get("verify.run", True) not in _PROOFS:
        known = ", ".join(map(repr, _PROOFS))
        raise InputError(f"verify={found['verify.run']!r}: choose one of {known}")
    return {key: value for key, value in found.items() if key in OPTIONS}


def _optimized(
    job: _Job, limit: int | None, explain: bool, print_after: Sequence[str]
) -> OptimizedModel:
    """Rewrite, prove, and hold the result against the recipe."""
    chosen = job.chosen
    prove, each = _PROOFS[chosen.get("verify.run", True)]
    clock = Clock()
    model, pipeline, decisions = settled(job.model), job.pipeline, None  # a stream is read once
    if job.fix_dims:
        model = fixed(model, job.fix_dims)
    if job.tuning is not None:
        clock.switch("tune")
        pipeline, decisions = job.tuning.decide(model, pipeline, job.proof)
    done = optimize_program(
        model,
        pipeline,
        prove=prove,
        each=each,
        limit=limit,
        explain=explain,
        proof=job.proof,
        on_stage=clock.switch,
        on_read=job.on_read,
        on_fired=PrintAfter.of(print_after, job.pipeline),
        allow_growth=chosen.get("allow_growth", False),
    )
    if job.recipe is not None:
        job.recipe.check(job.name, done.program, done.report)
    outcome = Outcome(job.name, None, job.name or "the model", explain)
    outcome.came_of(done)
    outcome.written, outcome.tuning = True, decisions
    clock.switch("done")
    outcome.seconds = clock.spent
    return OptimizedModel(to_kind_of(done.program, job.model), outcome)
