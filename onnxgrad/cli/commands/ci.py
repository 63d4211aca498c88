"""`onnxgrad ci`: every model of a recipe optimised, proved, held to what is required, and compared
with the lock; and what it writes for machines and pages.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from onnxgrad.cli.ci_dask import each_on
from onnxgrad.cli.ci_workers import each
from onnxgrad.cli.options import require_runtime
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import check_output, check_reports, make_folder
from onnxgrad.errors import InputError
from onnxgrad.jobs.ci import lock as locks
from onnxgrad.jobs.ci.lock import Lock, settled
from onnxgrad.jobs.ci.outcome import ModelOutcome
from onnxgrad.jobs.ci.plan import Plan, plan_of, recipe_from
from onnxgrad.jobs.ci.work import Job, Setup, ready, withdraw
from onnxgrad.jobs.recipe import find
from onnxgrad.report.ci import SCHEMA, CiReport, annotation_lines, junit, refusal
from onnxgrad.report.html.ci import ci_page
from onnxgrad.report.rendering import markdown

_FILES: dict[str, Callable[[CiReport], str]] = {
    "junit": junit,
    "markdown": lambda report: f"{markdown(report.parts(verbose=True))}\n",
    "html": ci_page,
}


def write_outputs(args: argparse.Namespace, report: CiReport, out: Output) -> None:
    """Write the requested files, each completely or not at all. Raises InputError."""
    for option, text in _FILES.items():
        name = getattr(args, option)
        if name is not None:
            out.write(f"--{option}", name, text(report))
    wanted = args.annotations
    if os.environ.get("GITHUB_ACTIONS") == "true" if wanted is None else wanted:
        root = Path(os.environ.get("GITHUB_WORKSPACE") or ".").absolute()
        out.commands(annotation_lines(report, root))


def run(args: argparse.Namespace, out: Output) -> int:
    """Process every model, show and write the results. Returns the worst exit code."""
    if args.schema:
        out.text(SCHEMA.read_text(encoding="utf-8").rstrip())
        return 0
    began = time.monotonic()
    plan = _plan(args, out)
    outcomes = _outcomes(plan, args, out)
    report = CiReport(
        plan.recipe.where,
        tuple(outcomes),
        str(plan.lock_path),
        locked=plan.lock is not None,
        updating=args.update,
        updated=args.update and all(o.ok for o in outcomes),
        gone=plan.gone,
        renamed=_renamed(plan, outcomes),
        seconds=time.monotonic() - began,
    )
    folder = Path(plan.recipe.where).parent
    out.wrote(*(folder / o.output for o in outcomes if o.output is not None))
    if report.updated:
        before = {} if plan.lock is None else plan.lock.models
        results = {o.name: settled(o.result, before.get(o.name)) for o in outcomes if o.result}
        digests = {o.name: o.digest for o in outcomes if o.result}
        where = recipe_from(plan.lock_path, Path(plan.recipe.where))
        locks.write(plan.lock_path, Lock(results, digests, where))
        out.wrote(plan.lock_path)
    for name in () if args.update else report.gone:
        out.complain(f"{report.gone_text(name)}: run `onnxgrad ci --update`")
    out.json(report.to_dict())
    write_outputs(args, report, out)
    out.show(*report.parts(out.verbose))
    return report.exit_code


def _plan(args: argparse.Namespace, out: Output) -> Plan:
    """Return the plan. Raises InputError for everything that can be refused before the work."""
    if args.jobs < 1:
        raise InputError("--jobs: at least 1 is wanted")
    if args.dask is not None and args.jobs > 1:
        raise InputError("--jobs says nothing of --dask: the cluster has its workers")
    recipe = find(args.config)
    if recipe is None:
        raise InputError(
            "there is no onnxgrad.toml here and no [tool.onnxgrad] in a pyproject.toml: write one, "
            'such as [ci] models = ["*.onnx"], or name it: onnxgrad ci CONFIG'
        )
    setup = Setup(*(tuple(map(os.path.abspath, f)) for f in (args.plugin, args.custom_ops)))
    ready(setup, args.own_passes)
    plan = plan_of(recipe, updating=args.update, setup=setup)
    if args.config is None:
        _check_below(plan, args.update)
    if args.update:
        check_output(plan.lock_path, [recipe.where])
    for job in plan.jobs:
        if job.output is not None:
            make_folder(Path(job.output).parent, f"{recipe.where}: out:")
            check_output(Path(job.output), [other.path for other in plan.jobs])
    # what the recipe names counts too
    check_reports(
        args,
        read=[recipe.where, str(plan.lock_path), *(job.path for job in plan.jobs)],
        written=[("the recipe's out writes a model", j.output) for j in plan.jobs if j.output],
    )
    running = [job.options for job in plan.jobs if job.runs]
    for provider in dict.fromkeys(options.provider for options in running):
        require_runtime(provider)
    return plan


def _check_below(plan: Plan, updating: bool) -> None:
    """Raise InputError if a recipe that was found by itself writes outside of its folder: it came
    with the folder, as models do.
    """
    where = plan.recipe.where
    folder = Path(where).absolute().parent.resolve()
    written = [("out", job.output) for job in plan.jobs if job.output is not None]
    written += [("lock", str(plan.lock_path))] if updating else []
    for key, place in written:
        if not Path(place).resolve().is_relative_to(folder):
            raise InputError(
                f"{where}: {key}: {place} lies outside of {folder}, and this recipe was not named: "
                f"write below its folder, or name it: onnxgrad ci {where}"
            )


def _outcomes(plan: Plan, args: argparse.Namespace, out: Output) -> list[ModelOutcome]:
    """One for each job, in their order; those after the first that fails are skipped, unless
    --keep-going.
    """
    found: dict[int, ModelOutcome] = {}
    going: bool = args.keep_going
    working = (
        each(plan.jobs, args.jobs, keep_going=going)
        if args.dask is None
        else each_on(args.dask, plan.jobs, keep_going=going)
    )
    with out.progress("ci", len(plan.jobs)) as advance:
        advance(plan.jobs[0].name, 0)
        try:
            for index, outcome in working:
                found[index] = outcome
                advance(f"{outcome.name} {outcome.status}", len(found))
                if going:
                    _refuse(plan.jobs[index], outcome, out)
        finally:
            working.close()
    failed = min((index for index, o in found.items() if not o.ok), default=None)
    if failed is not None and not going:
        found = {index: o for index, o in found.items() if index <= failed}
        _refuse(plan.jobs[failed], found[failed], out)
    return [
        found.get(index) or ModelOutcome(job.name, "skipped") for index, job in enumerate(plan.jobs)
    ]


def _refuse(job: Job, outcome: ModelOutcome, out: Output) -> None:
    """Print why a model is refused, and remove its older result."""
    if not outcome.ok:
        withdraw(job, outcome)
        out.complain(refusal(outcome))


def _renamed(plan: Plan, outcomes: list[ModelOutcome]) -> dict[str, str]:
    """The new names of models that are gone: those whose model has the same bytes."""
    if plan.lock is None:
        return {}
    new = {o.digest: o.name for o in outcomes if o.digest and o.name not in plan.lock.models}
    digests = {name: plan.lock.digests.get(name, "") for name in plan.gone}
    return {name: new[digest] for name, digest in digests.items() if digest in new}
