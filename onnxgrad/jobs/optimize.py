"""The driver of `optimize`: rewrites a model, proves the result or names the first bad rewrite,
checks the recipe, and lets the caller write.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onnxgrad.errors import NotProved, OnnxgradError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import ModelLike, load, proto_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.lint.table import lint, lint_report, refuse
from onnxgrad.jobs.outcome import Change, Clock, Outcome
from onnxgrad.jobs.proving import runnable, with_bound
from onnxgrad.jobs.recipe import Recipe, find
from onnxgrad.jobs.rewriting import RewriteRefuted, optimize_program
from onnxgrad.limits import SECONDS
from onnxgrad.passes.base import Pass
from onnxgrad.passes.convert_opset import BindDefaults
from onnxgrad.passes.inline import Inline, check_names
from onnxgrad.passes.instruments import PrintAfter, leave_out
from onnxgrad.passes.pipeline import Pipeline, parse_passes, with_rules
from onnxgrad.passes.strip_metadata import StripMetadata
from onnxgrad.verify import verify
from onnxgrad.wording import counted, option

if TYPE_CHECKING:
    from onnxgrad.jobs.rebasing.changes import Followed
    from onnxgrad.jobs.tuning.record import Tuning


@frozen
class Job:
    """The work on a model, after its options have been read into passes, recipe and decisions."""

    options: OptimizeOptions
    hooks: Hooks
    recipe: Recipe | None
    name: str
    pipeline: Pipeline
    printing: PrintAfter | None
    tuning: Tuning | None

    @staticmethod
    def of(
        options: OptimizeOptions, hooks: Hooks, recipe: Recipe | None = None, name: str = ""
    ) -> Job:
        """Returns the work for these options. Raises InputError for a pass that does not exist, and
        for decisions that cannot be read.
        """
        pipeline = pipeline_of(options, hooks.plugins)
        printing = PrintAfter.of(options.print_after, pipeline, hooks.show)
        return Job(options, hooks, recipe, name, pipeline, printing, _tuning(options.tune))

    def run(self, model: ModelLike, outcome: Outcome) -> Outcome:
        """Fills in the outcome. Errors of onnxgrad are stored in it, not raised."""
        clock, options = Clock(), self.options
        more = self.hooks.seconds + (0 if self.tuning is None else self.tuning.seconds)
        seconds = (options.timeout or SECONDS) + more if more else options.timeout
        try:
            with self.hooks.limits(seconds, options.max_memory):
                outcome.adopt(self._rewritten(model, outcome, clock))
                self._finish(outcome, clock)
        except OnnxgradError as error:
            outcome.error = error
            if isinstance(error, RewriteRefuted):
                if error.done is not None:
                    outcome.adopt(error.done)
                outcome.report = error.report
            elif options.exact:
                from onnxgrad.rewrite.exact_record import RewriteNotExact  # `exact` has imported it

                if isinstance(error, RewriteNotExact):
                    outcome.exact = error.report
        if outcome.report is not None:
            outcome.lints += lint_report(
                outcome.report, self.options.lint, self.options.allow_empty
            )
        clock.switch("done")
        outcome.seconds = clock.spent
        return outcome

    def _rewritten(self, model: ModelLike, outcome: Outcome, clock: Clock) -> Outcome:
        options, hooks, pipeline = self.options, self.hooks, self.pipeline
        proof = options.proof()
        model = settled(model)  # a stream is read once
        if options.proves and any(p.name == "float16" for p in pipeline.passes):
            from onnxgrad.jobs.float16 import with_large  # rarely needed

            proof = with_bound(proof)
            pipeline = with_large(pipeline, model, proof)
        if options.fix_dims:
            from onnxgrad.jobs.surgery.fixed_dims import fixed  # rarely needed

            model = fixed(model, options.fix_dims)
        if options.preset == "inference" and options.passes is None and _trains(model):
            options = options.having(before={**(options.before or {}), "mode": "inference"})
        model = self._changed_before(model, options, outcome)
        if self.tuning is not None:
            clock.switch("tune")
            pipeline, outcome.tuning = self.tuning.decide(model, pipeline, proof, hooks.on_choice)

        def on_stage(stage: str) -> None:
            clock.switch(stage)
            hooks.on_stage(stage)

        done = optimize_program(
            model,
            pipeline,
            prove=options.proves,
            each=options.each,
            exact=options.exact,
            limit=options.max_rewrites,
            explain=options.explain,
            proof=proof,
            on_stage=on_stage,
            on_read=partial(self._check, outcome) if outcome.given is None else None,
            on_fired=self.printing,
            allow_growth=options.allow_growth,
            ahead=hooks.ahead,
            rebasable=options.rebasable,
        )
        if outcome.followed is not None and done.record is not None:
            done.record = outcome.followed.through(done.record, load(model))
        if not options.bind_defaults and options.passes is None:
            hint = hint_of_defaults(model, pipeline, done)
            done.trace.notes |= dict.fromkeys(hint)
        return done

    def _changed_before(
        self, model: ModelLike, options: OptimizeOptions, outcome: Outcome
    ) -> ModelLike:
        """Returns the model for the passes, whose constants are followed if a record is kept."""
        followed = outcome.followed = _followed(model, options)
        changed = None if followed is None else followed.given
        if options.join or options.before or options.lift is not False:
            from onnxgrad.jobs.around_passes import changed_before  # rarely needed

            outcome.given = load(model)
            self._check(outcome, outcome.given)
            model = changed = changed_before(changed or outcome.given, options, outcome)
        return model if followed is None or changed is None else followed.changed(changed)

    def _change_after(self, outcome: Outcome) -> None:
        options = self.options
        asked = (options.after, options.metadata, options.float16, options.lift, outcome.followed)
        if any(change not in (None, False) for change in asked):
            from onnxgrad.jobs.around_passes import changed_after  # rarely needed

            changed_after(options, outcome)

    def _check(self, outcome: Outcome, program: Program) -> None:
        """Lints the model before any rewrite. Raises InputError for names that do not exist in the
        model, and Refused for a lint of the level error.
        """
        outcome.lints = lint(program, self.options.lint)
        self.hooks.on_read(program)
        check_names(program, self.options.inline)
        if self.recipe is not None:
            self.recipe.check_names(self.name, program)
        refuse(outcome.lints)

    def _finish(self, outcome: Outcome, clock: Clock) -> None:
        clock.switch("prove")
        if outcome.report is not None:
            refuse(lint_report(outcome.report, self.options.lint, self.options.allow_empty))
        self._change_after(outcome)
        if outcome.record is not None:
            outcome.record = outcome.record.identifying(to_proto(outcome.program))
        if self.options.proves:
            run_elsewhere(self.options, outcome)
        if self.recipe is not None:
            self.recipe.check(self.name, outcome)
        self.hooks.accept(outcome)
        if self.hooks.write is not None:
            clock.switch("write")
            outcome.written = self.hooks.write(outcome.program)


def optimize(
    model: ModelLike,
    options: OptimizeOptions,
    hooks: Hooks | None = None,
    outcome: Outcome | None = None,
) -> Outcome:
    """Rewrites a model, proves the result and passes it to the hooks, with the recipe of the
    options. Raises InputError for invalid options; errors of the work are stored in the outcome.
    """
    outcome = outcome or Outcome(explain=options.explain)
    recipe = None if options.recipe is None else find(os.fspath(options.recipe))
    if recipe is not None:
        options = recipe.options(outcome.model, options)
    return Job.of(options, hooks or Hooks(), recipe, outcome.model).run(model, outcome)


def _followed(model: ModelLike, options: OptimizeOptions) -> Followed | None:
    """Returns the constants of a model that changes around the passes, if a record is kept."""
    changes = (options.join, options.before, options.after, options.lift or None)
    if not options.rebasable or all(change is None for change in changes):
        return None
    from onnxgrad.jobs.rebasing.changes import Followed  # rarely needed

    return Followed(model)


def _tuning(given: Any) -> Tuning | None:
    """Returns the meaning of `tune`. Raises InputError."""
    if given is None or given is False:
        return None
    from onnxgrad.jobs.tuning.record import Tuning  # rarely needed

    return Tuning.of(given)


def _trains(model: ModelLike) -> bool:
    """Whether a BatchNormalization or a Dropout of the model is in training mode."""
    from onnxgrad.transform.inference_mode import in_training_mode  # for one preset

    return bool(in_training_mode(proto_of(model)[0]))


def run_elsewhere(options: OptimizeOptions, outcome: Outcome) -> None:
    """Compares the result with itself in each other runtime of the options, and records it. Raises
    NotProved if they differ, or nothing is proved.
    """
    proof = {k: v for k, v in options.proof().items() if k in _OF_A_RUN}
    for runtime in options.against:
        with runnable(outcome.program) as model:
            report = verify(model, against=runtime, **proof)
        if not report:
            raise NotProved(f"{report.summary}; nothing was written")
        outcome.changes.append(Change("other runtime", (runtime,), report.summary))


def hint_of_defaults(model: ModelLike, pipeline: Pipeline, done: Outcome) -> list[str]:
    """Returns a note if binding the inputs with an initializer would make the result smaller."""
    program = done.program
    number = sum(v.overridable for v in program.main.inputs)
    if not number:
        return []
    passes = (BindDefaults(), *pipeline.passes)
    with contextlib.suppress(OnnxgradError):
        bound = optimize_program(model, Pipeline(passes), prove=False, allow_growth=True).program
        nodes, fewer = (sum(1 for _ in p.main.walk()) for p in (program, bound))
        if fewer < nodes:
            return [
                f"callers may override {counted(number, 'input')} with an initializer, which no "
                f"pass folds: {option('--bind-defaults', 'bind_defaults=True')} makes constants of "
                f"such inputs, which leaves {fewer} of {counted(nodes, 'node')}"
            ]
    return []


# options of the proof that hold for one model in another runtime
_OF_A_RUN = frozenset(
    {"inputs", "dims", "seeds", "threads", "allow_empty", "excuse", "atol", "rtol", "metric"}
)


def pipeline_of(options: OptimizeOptions, plugins: Sequence[Pass]) -> Pipeline:
    """Returns the passes to run: those of the options, then `plugins` and `infer-shapes`. Raises
    InputError.
    """
    made = Pipeline.of(
        options.preset,
        options.passes,
        merge=options.merge,
        provider=options.provider,
        target_opset=options.target_opset,
        for_=options.for_,
    )
    names = {p.name for p in made.passes}
    first: list[Pass] = []
    if options.bind_defaults or options.passes is None:
        first.append(BindDefaults(overridable=options.bind_defaults))
    if options.inline:
        first.append(Inline(names=" ".join(options.inline)))
    last = [p for p in plugins if p.name not in names]
    if options.infer_shapes and "infer-shapes" not in names:
        last += parse_passes("infer-shapes")
    if options.strip_metadata is not None:
        last.append(StripMetadata(keys=options.strip_metadata))
    passes = with_rules(made.passes, last)
    return leave_out(Pipeline((*first, *passes)), options.without)
