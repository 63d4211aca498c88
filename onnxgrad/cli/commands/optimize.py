"""`onnxgrad optimize`: rewrites models, proves the results and writes them."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from onnxgrad.cli.models import expand, named, shown, source
from onnxgrad.cli.options import decisions_file, keep_decisions, tuning_of, write_html
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import check_reports, target_of, write_models
from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.program import Program
from onnxgrad.ir.storage.places import check_output, make_folder
from onnxgrad.ir.storage.protection import STDIN, protecting
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import files_read
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.optimize import Job
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.jobs.recipe import Recipe, find
from onnxgrad.jobs.requirements import left_to_ci
from onnxgrad.report.optimized import optimized_parts, several_lint_lines, summary
from onnxgrad.startup import IS_PROGRAM
from onnxgrad.verify.running.child_process import release
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.vocabulary import RECORD


def run(args: argparse.Namespace, out: Output) -> int:
    """Optimises every model. Returns the worst exit code."""
    models = expand(args.model)
    options = _lifting(args)
    if (tuning := tuning_of(args)) is not None:
        options = options.having(tune=tuning)
    recipe = _recipe(args, options)
    hooks = Hooks(limits=bounding_us, show=out.aside, plugins=args.own_passes, ahead=True)
    jobs = [Job.of(_options(args, options, recipe, name), hooks, recipe, name) for name in models]
    read = [name for job in jobs for name in files_read(job.options)]
    with protecting([*read, *([] if recipe is None else [recipe.where])]):
        check_reports(args)
        return _run(args, out, recipe, jobs)


def _recipe(args: argparse.Namespace, options: OptimizeOptions) -> Recipe | None:
    """Returns the recipe that --config names, or that of this folder. Raises InputError."""
    if not args.no_config:
        return find(None if options.recipe is None else str(options.recipe))
    if options.recipe is not None:
        raise InputError(f"--no-config does not apply with --config {options.recipe}")
    return None


def _run(args: argparse.Namespace, out: Output, recipe: Recipe | None, jobs: list[Job]) -> int:
    models = [job.name for job in jobs]
    if recipe is not None:
        _complain(recipe, jobs, args, out)
    targets = _targets(args, models)
    for target in targets if args.tune else ():
        if (file := decisions_file(args, target)) is not None:
            check_output(file)
    _check_records(jobs, targets, args)
    prepares = [_prepare(job, target, args) for job, target in zip(jobs, targets, strict=True)]
    _require_runtimes(jobs)
    outcomes: list[Outcome] = []
    for job, target, prepare in zip(jobs, targets, prepares, strict=True):
        outcome = _one(job, target, prepare, args, out)
        outcomes.append(outcome)
        if len(models) == 1:
            out.show(*optimized_parts(outcome, out.verbose))
        elif outcome.error is not None:
            out.complain(str(outcome.error))
    code = max(o.exit_code for o in outcomes)
    write_html(args, functools.partial(_page, outcomes), out)
    out.json(lambda: {"models": [o.to_dict() for o in outcomes], "exit_code": code})
    if len(models) > 1:
        out.show(summary(outcomes), *several_lint_lines(outcomes))
    elif outcomes[0].error is not None:
        raise outcomes[0].error
    return code


def _page(outcomes: list[Outcome]) -> str:
    from onnxgrad.report.html.optimized import optimized_page

    return optimized_page(outcomes)


def _options(
    args: argparse.Namespace, options: OptimizeOptions, recipe: Recipe | None, name: str
) -> OptimizeOptions:
    """Returns the options for one model: the flags, then the recipe's."""
    found = options if recipe is None else recipe.options(name, options)
    proves = found.proves and not args.no_verify
    if args.verify == "each":
        return replace(found, verify="each" if proves else "only each")
    return replace(found, verify=proves)


def _complain(recipe: Recipe, jobs: list[Job], args: argparse.Namespace, out: Output) -> None:
    """Warns about a recipe of this folder that turns the proof off, and about settings that match
    no model.
    """
    models = [job.name for job in jobs]
    unproved = any(not job.options.proves for job in jobs)
    if unproved and "recipe" not in args.options.given and not args.no_verify:
        out.complain(
            f"{recipe.where} of this folder turns the proof off: [tool.onnxgrad.verify] run = false"
        )
    left = dict.fromkeys(
        name for model in models for name in left_to_ci(recipe.of(model).get("require", {}))
    )
    if left:
        out.note(f"{recipe.where}: {', '.join(left)}: only `onnxgrad ci` checks these requirements")
    for pattern in recipe.unmet(models):
        out.complain(f'{recipe.where}: models."{pattern}" matches none of the given models')


def _require_runtimes(jobs: list[Job]) -> None:
    """Raises InputError if models will be run and onnxruntime or a requested provider is
    missing.
    """
    running = [job.options.provider for job in jobs if job.options.verify]
    for provider in dict.fromkeys(running):
        try:
            require_runtime(provider)
        except InputError as error:
            raise InputError(f"{error}; or skip the proof with --no-verify") from error


def _targets(args: argparse.Namespace, models: list[str]) -> list[Path | None]:
    """Returns the place of each result; None for stdout and for --dry-run."""
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
    if args.dry_run:
        return [None] * len(models)
    if args.out_dir is not None:
        make_folder(folder, "--out-dir")
        for target in targets:
            check_output(target)
        return [*targets]
    if len(models) > 1:
        raise InputError(_no_place(args, models))
    if args.output is None:
        raise InputError(
            "no output is named: use -o OUT or --out-dir DIR, or --dry-run to write no model"
        )
    return [target_of(args.output)]


def _no_place(args: argparse.Namespace, models: list[str]) -> str:
    """Returns the message about several models without a folder, of which the last may be meant as
    the output.
    """
    last, many = models[-1], f"{len(models)} models need --out-dir DIR (or --dry-run)"
    if len(models) > 2 or args.output is not None:
        return many
    if not os.path.exists(last):
        return f"no output is named: write -o {last}"
    return f"{many}; if {last} is the output of {models[0]}, write -o {last}"


def _one(
    job: Job, target: Path | None, prepare: Path, args: argparse.Namespace, out: Output
) -> Outcome:
    """Reads, rewrites, proves and writes one model. Errors of onnxgrad are stored in the
    outcome.
    """
    name, steps = job.name, len(job.pipeline.passes)
    written = None if target is None else str(target)
    outcome = Outcome(name, written, shown(name), job.options.explain)

    def write(program: Program) -> bool:
        if IS_PROGRAM and args.model == [name]:  # nothing else will run
            release()
        if not args.dry_run:
            first = [] if outcome.prepare is None else [(outcome.prepare, prepare)]
            write_models([*first, (program, target)], out)
            if outcome.record is not None and target is not None:
                out.wrote(outcome.record.save_beside(target))
        keep_decisions(args, target, outcome.tuning, out)
        return not args.dry_run

    try:
        opened = source(name)
        with out.progress("stdin" if name == STDIN else Path(name).name, steps) as advance:
            hooks = replace(
                job.hooks,
                on_stage=_stages(advance),
                on_choice=lambda what, part: advance(what, part * steps),
                write=write,
            )
            replace(job, hooks=hooks).run(opened, outcome)
    except OnnxgradError as error:
        outcome.error = error
    outcome.error = None if outcome.error is None else named(outcome.error, name)
    for note in outcome.trace.notes:
        out.note(note)
    return outcome


def _check_records(jobs: list[Job], targets: list[Path | None], args: argparse.Namespace) -> None:
    """Raises InputError if a record of --rebasable has no place, or cannot be written."""
    for job, target in zip(jobs, targets, strict=True):
        if job.options.rebasable and target is not None:
            check_output(target.with_name(target.name + RECORD))
        elif job.options.rebasable and not args.dry_run:
            raise InputError("--rebasable writes a record beside OUT: use -o FILE, not stdout")


def _lifting(args: argparse.Namespace) -> OptimizeOptions:
    """Returns the options of the flags, with the weights for --lift. Raises InputError."""
    options: OptimizeOptions = args.options
    if args.lift is None:
        if args.weights:
            raise InputError("--weights needs --lift FILE")
        return options
    if args.output is None and not args.dry_run:
        raise InputError(f"--lift {args.lift}: is for one model, with -o OUT")
    return options.having(lift=args.weights or True)


def _prepare(job: Job, target: Path | None, args: argparse.Namespace) -> Path:
    """Returns the place of the preparation, if there is one. Raises InputError if nothing names a
    place, or if the place is taken.
    """
    if args.lift is not None or job.options.lift is False or args.dry_run:
        return Path(args.lift or "")
    if target is None:
        raise InputError("the recipe has 'lift': name the file of the preparation with --lift FILE")
    from onnxgrad.jobs.surgery.lift import prepare_path  # rarely needed

    check_output(prepare_path(target))
    return prepare_path(target)


_WAITING = {"prove": "running both models", "bisect": "searching for the first bad rewrite"}


def _stages(advance: Callable[[str, float | None], None]) -> Callable[[str], None]:
    """Advances the bar by one at each stage, and lets it pulse during long ones."""
    ran = -1

    def on_stage(stage: str) -> None:
        nonlocal ran
        ran += 1
        advance(_WAITING.get(stage, stage), None if stage in _WAITING else ran)

    return on_stage
