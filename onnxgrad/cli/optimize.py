"""`onnxgrad optimize`: rewrite models, prove the results, write them."""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from onnxgrad.cli.html_options import write_html
from onnxgrad.cli.limit_options import within_limits
from onnxgrad.cli.models import STDIN, expand, named, shown, source
from onnxgrad.cli.options import proof_options, require_runtime, size_of
from onnxgrad.cli.output import Output
from onnxgrad.cli.recipe_options import with_recipe
from onnxgrad.cli.targets import (
    check_folder,
    check_not_weights,
    check_output,
    files_read,
    target_of,
    write_model,
)
from onnxgrad.cli.tuning_options import keep_decisions, tuning_of
from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.program import Program
from onnxgrad.jobs.fixed_dims import fixed
from onnxgrad.jobs.optimize import Optimized, RewriteRefuted, optimize_program
from onnxgrad.jobs.recipe import Recipe, find
from onnxgrad.passes.inline import Inline, check_names
from onnxgrad.passes.instruments import PrintAfter, leave_out
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.report.html.optimized import optimized
from onnxgrad.report.html.page import page
from onnxgrad.report.optimized import Clock, Outcome, summary
from onnxgrad.report.tuning import Tuning


@dataclass(frozen=True)
class _Job:
    """How one model is treated; without a recipe the same for every model of one call."""

    args: argparse.Namespace
    pipeline: Pipeline
    printing: PrintAfter | None
    proof: dict[str, object]
    out: Output
    recipe: Recipe | None
    tuning: Tuning | None


def run(args: argparse.Namespace, out: Output) -> int:
    """Optimise every model; the worst exit code of them."""
    models = expand(args.model)
    recipe = find(args.config)
    jobs = [_job(args, name, recipe, out) for name in models]
    if recipe is not None:
        _complain(recipe, jobs, models, args, out)
    targets = _targets(args, models)
    _require_runtimes(jobs)
    outcomes: list[Outcome] = []
    for job, name, target in zip(jobs, models, targets, strict=True):
        outcome = _one(job, name, target, last=len(models) == 1)
        outcomes.append(outcome)
        if len(models) > 1 and outcome.error is not None:
            out.complain(str(outcome.error))
    code = max(o.exit_code for o in outcomes)
    write_html(args, functools.partial(_page, outcomes), out)
    out.json({"models": [o.to_dict() for o in outcomes], "exit_code": code})
    if len(models) > 1:
        out.show(summary(outcomes))
    elif outcomes[0].error is not None:
        raise outcomes[0].error
    return code


def _page(outcomes: list[Outcome]) -> str:
    title = outcomes[0].title if len(outcomes) == 1 else f"{len(outcomes)} models"
    return page(title, [optimized(o) for o in outcomes])


def _complain(
    recipe: Recipe, jobs: list[_Job], models: list[str], args: argparse.Namespace, out: Output
) -> None:
    """Say what a recipe does that one might not expect: no proof by a folder's own, settings for
    no model.
    """
    if args.config is None and not args.no_verify and any(job.args.no_verify for job in jobs):
        out.complain(
            f"{recipe.where} of this folder turns the proof off: [tool.onnxgrad.verify] run = false"
        )
    left = dict.fromkeys(name for model in models for name in recipe.left_to_ci(model))
    if left:
        out.note(f"{recipe.where}: {', '.join(left)}: only `onnxgrad ci` holds what is required")
    for pattern in recipe.unmet(models):
        out.complain(f'{recipe.where}: models."{pattern}" means none of the models given')


def _require_runtimes(jobs: list[_Job]) -> None:
    """Raises InputError where models will be run and onnxruntime, or a provider asked for, is
    missing.
    """
    running = [job.args for job in jobs if not job.args.no_verify or job.args.verify == "each"]
    for provider in dict.fromkeys(args.provider for args in running):
        try:
            require_runtime(provider)
        except InputError as error:
            raise InputError(f"{error}; or skip the proof with --no-verify") from error


def _job(args: argparse.Namespace, name: str, recipe: Recipe | None, out: Output) -> _Job:
    own = args if recipe is None else with_recipe(args, recipe, name, args.words)
    pipeline = Pipeline.of(
        own.preset,
        own.passes,
        merge=own.merge,
        provider=own.provider,
        target_opset=own.target_opset,
        for_=own.for_,
    )
    named = {p.name for p in pipeline.passes}
    pipeline = Pipeline((*pipeline.passes, *(p for p in args.own_passes if p.name not in named)))
    if own.inline:
        pipeline = Pipeline((Inline(names=" ".join(own.inline)), *pipeline.passes))
    pipeline = leave_out(pipeline, own.without)
    printing = PrintAfter.of(own.print_after, pipeline, out.aside)
    proof = dict(proof_options(own))
    return _Job(own, pipeline, printing, proof, out, recipe, tuning_of(args))


def _targets(args: argparse.Namespace, models: list[str]) -> list[Path | None]:
    """Where each model goes; None for stdout and for --dry-run."""
    if args.out_dir is not None:
        folder = Path(args.out_dir)
        if STDIN in models:
            raise InputError("a model from stdin has no name to use in --out-dir: use -o OUT")
        targets = [folder / Path(name).name for name in models]
        if len(set(targets)) < len(targets):
            same = next(t.name for t in targets if targets.count(t) > 1)
            raise InputError(
                f"two of the models are called {same}: optimise them into different folders"
            )
        _make_folder(folder, args.dry_run)
        if args.dry_run:
            return [None] * len(targets)
        for target in targets:
            check_output(target, models)
        return [*targets]
    if len(models) > 1 and not args.dry_run:
        raise InputError(f"{len(models)} models need --out-dir DIR (or --dry-run)")
    if args.output is None and not args.dry_run:
        raise InputError(
            "say where to write: -o OUT or --out-dir DIR, or look first with --dry-run"
        )
    return (
        [None] * len(models)
        if args.dry_run
        else [target_of(args.output, [*models, *files_read(args)])]
    )


def _make_folder(folder: Path, dry_run: bool) -> None:
    if dry_run:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out-dir {folder}: cannot be made: {error.strerror or error}"
        ) from error
    check_folder(folder, folder)


def _one(job: _Job, name: str, target: Path | None, *, last: bool) -> Outcome:
    """Read, rewrite, prove and write one model. An error of ours is in the outcome."""
    outcome = Outcome(name, None if target is None else str(target), shown(name), job.args.explain)
    clock = Clock()
    try:
        with within_limits(job.args, extra=0 if job.tuning is None else job.tuning.seconds):
            done = _rewrite(job, name, target, outcome, clock)
            clock.switch("write")
            if job.recipe is not None:
                job.recipe.check(name, done.program, done.report)
            if not job.args.dry_run:
                write_model(done.program, target, job.out)
                outcome.written = True
            keep_decisions(job.args, target, outcome.tuning, job.out)
    except OnnxgradError as error:
        outcome.error = named(error, name)
        if isinstance(error, RewriteRefuted):
            if error.done is not None:
                outcome.came_of(error.done)
            outcome.report = error.report
    clock.switch("done")
    outcome.seconds = clock.spent
    for note in outcome.done.trace.notes if outcome.done is not None else ():
        job.out.note(note)
    if last:
        job.out.show(*outcome.parts(job.out.verbose))
    return outcome


def _check_names(job: _Job, name: str, program: Program) -> None:
    """Raises InputError for names that mean nothing in the model, before it is rewritten."""
    check_names(program, job.args.inline)
    if job.recipe is not None:
        job.recipe.check_names(name, program)


def _rewrite(
    job: _Job, name: str, target: Path | None, outcome: Outcome, clock: Clock
) -> Optimized:
    args, steps = job.args, len(job.pipeline.passes)
    opened = source(name)
    with job.out.progress("stdin" if name == STDIN else Path(name).name, steps) as advance:
        ran = 0

        def on_stage(stage: str) -> None:
            nonlocal ran
            clock.switch(stage)
            waiting = {
                "prove": "running both models",
                "bisect": "looking for the rewrite to blame",
            }.get(stage)
            advance(waiting or stage, None if waiting else ran)
            ran += 1

        check_not_weights(target, opened)
        model: Path | bytes | ModelProto = opened
        if args.fix_dim:
            model = fixed(opened, dict(size_of(text, "--fix-dim") for text in args.fix_dim))
        pipeline = job.pipeline
        if job.tuning is not None:
            clock.switch("tune")
            pipeline, outcome.tuning = job.tuning.decide(
                model, pipeline, job.proof, lambda what, part: advance(what, part * steps)
            )
        done = optimize_program(
            model,
            pipeline,
            prove=not args.no_verify,
            each=args.verify == "each",
            limit=args.max_rewrites,
            explain=args.explain,
            proof=job.proof,
            on_stage=on_stage,
            on_read=functools.partial(_check_names, job, name),
            on_fired=job.printing,
            allow_growth=args.allow_growth,
        )
    outcome.came_of(done)
    return done
