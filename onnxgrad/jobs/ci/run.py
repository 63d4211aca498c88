"""The driver of `ci`: optimises and proves every model of a recipe, checks requirements, and
compares the results with the lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from onnxgrad.errors import InputError
from onnxgrad.extensions import plugged
from onnxgrad.frozen import frozen
from onnxgrad.ir.storage.places import check_output, make_folder
from onnxgrad.ir.storage.protection import protecting
from onnxgrad.jobs.ci import lock as locks
from onnxgrad.jobs.ci.accepted import Leftover, leftovers
from onnxgrad.jobs.ci.declarations import CiOptions
from onnxgrad.jobs.ci.lock import Lock, settled
from onnxgrad.jobs.ci.outcome import CiReport, ModelOutcome
from onnxgrad.jobs.ci.plan import How, Plan, plan_of, recipe_from
from onnxgrad.jobs.ci.work import Bounding, Job, Setup, files_of, ready, withdraw
from onnxgrad.jobs.ci.workers import each
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.jobs.recipe import OF_CI, find
from onnxgrad.limits import limited
from onnxgrad.passes.base import Pass
from onnxgrad.wording import option

T = TypeVar("T")
Watch = Callable[[ModelOutcome, int], None]


@contextmanager
def _unwatched(plan: Plan) -> Iterator[Watch]:
    yield lambda outcome, done: None


@frozen
class CiHooks:
    """Functions by which the caller takes part in `ci`; by default none.

    `accept` sees the plan before any work, and raises to refuse. `working` is a context around the
    work; it receives the plan and returns a function that receives each outcome and the number of
    finished models. `refused` receives the outcomes of refused models after their older results
    were removed, and `wrote` the path of each written file, the lock last. `limits` bounds the work
    in this process by seconds and memory. `passes` are those of the plugins, if they were loaded.
    """

    accept: Callable[[Plan], None] = lambda plan: None
    working: Callable[[Plan], AbstractContextManager[Watch]] = _unwatched
    refused: Callable[[ModelOutcome], None] = lambda outcome: None
    wrote: Callable[[Path], None] = lambda path: None
    limits: Bounding = limited
    passes: tuple[Pass, ...] | None = None


def ci(options: CiOptions, hooks: CiHooks | None = None) -> CiReport:
    """Processes the models of a recipe and writes the results that pass; an update writes these
    models into the lock. Raises InputError for everything that can be refused before the work;
    errors of a model are in the report.
    """
    hooks = hooks or CiHooks()
    began = time.monotonic()
    plan = _plan(options, hooks)
    lock = [] if options.update else [str(plan.lock_path)]
    with protecting([*lock, *(name for job in plan.jobs for name in files_of(job))]):
        _check_places(plan, options, hooks)
        return _carried_out(plan, options, hooks, began)


def _carried_out(plan: Plan, options: CiOptions, hooks: CiHooks, began: float) -> CiReport:
    outcomes = _outcomes(plan, options, hooks)
    report = CiReport(
        plan.recipe.where,
        tuple(outcomes),
        str(plan.lock_path),
        locked=plan.lock is not None,
        updating=options.update,
        updated=options.update and any(o.ok for o in outcomes),
        gone=plan.gone,
        renamed=_renamed(plan, outcomes),
        leftovers=tuple(_leftovers(plan, options)),
        seconds=time.monotonic() - began,
    )
    for outcome in outcomes:
        for name in filter(None, (outcome.output, outcome.recorded)):
            hooks.wrote(Path(plan.recipe.where).parent / name)
    if report.updated:
        locks.write(plan.lock_path, _new_lock(plan, outcomes))
        hooks.wrote(plan.lock_path)
    return report


def _new_lock(plan: Plan, outcomes: list[ModelOutcome]) -> Lock:
    """Returns the lock with the models that passed; of others it keeps what it knew."""
    old = plan.lock or Lock()
    passed = [o for o in outcomes if o.ok and o.result]
    kept = {*old.models} - {*plan.gone} - {o.name for o in passed}

    def joined(known: Mapping[str, T], new: Mapping[str, T]) -> dict[str, T]:
        return {**{name: value for name, value in known.items() if name in kept}, **new}

    results = {o.name: settled(o.result, old.models.get(o.name)) for o in passed if o.result}
    return Lock(
        joined(old.models, results),
        joined(old.digests, {o.name: o.digest for o in passed}),
        recipe_from(plan.lock_path, Path(plan.recipe.where)),
        inputs=joined(old.inputs, {o.name: o.input for o in passed if o.input}),
        accepted=joined(old.accepted, {o.name: o.accepted for o in passed if o.accepted}),
    )


def _leftovers(plan: Plan, options: CiOptions) -> list[Leftover]:
    folder = Path(os.path.abspath(plan.recipe.where)).parent
    return leftovers(plan.lock, plan.gone, folder, plan.outputs, options.prune)


def _plan(options: CiOptions, hooks: CiHooks) -> Plan:
    """Returns the plan. Raises InputError for everything that can be refused before the work."""
    if options.dask is not None and options.jobs > 1:
        jobs, dask = option("--jobs", "jobs"), option("--dask", "dask")
        raise InputError(f"{jobs} does not apply with {dask}: the cluster has its own workers")
    recipe = find(None if options.recipe is None else os.fspath(options.recipe))
    if recipe is None:
        raise InputError(
            "there is no onnxgrad.toml here and no [tool.onnxgrad] in a pyproject.toml: write one, "
            'such as [ci] models = ["*.onnx"], or name it: '
            f"{option('onnxgrad ci CONFIG', 'ci(recipe)')}"
        )
    mine = {key: getattr(options, o.name) for key, o in OF_CI.items() if o.name in options.given}
    mine = {key: value for key, value in mine.items() if value is not None}
    recipe = replace(recipe, ci={**recipe.ci, **mine})
    setup = Setup(*(tuple(map(os.path.abspath, f)) for f in (options.plugins, options.custom_ops)))
    ready(setup, hooks.passes)
    if options.record and not options.update:
        record, update = option("--record", "record"), option("--update", "update=True")
        raise InputError(f"{record} needs {update}: samples come from accepted results")
    how = How(options.update, options.record, options.all, tuple(options.only))
    plan = plan_of(recipe, how, setup=setup)
    if options.recipe is None:
        more = {"lock": options.update, "verify.expect": options.record}
        written = {"out", *(key for key, does in more.items() if does)}
        _check_below(plan, written - mine.keys())
    return plan


def _check_places(plan: Plan, options: CiOptions, hooks: CiHooks) -> None:
    """Raises InputError for a file that cannot be written, and for a provider that is missing."""
    if options.update:
        check_output(plan.lock_path)
    for job in plan.jobs:
        sample = job.gates.expect if job.recording else None
        for key, place in (("out", job.output), ("verify.expect", sample)):
            if place is not None:
                make_folder(Path(place).parent, f"{plan.recipe.where}: {key}:")
                check_output(Path(place))
    hooks.accept(plan)
    running = [job.options for job in plan.jobs if job.runs]
    for provider in dict.fromkeys(o.provider for o in running):
        require_runtime(provider)


def _check_below(plan: Plan, keys: set[str]) -> None:
    """Raises InputError if a recipe that was found automatically writes outside of its folder,
    because it may come from a stranger, like the models.
    """
    where = plan.recipe.where
    folder = Path(where).absolute().parent.resolve()
    written = [("out", job.output) for job in plan.jobs if job.output is not None]
    written += [("verify.expect", j.gates.expect) for j in plan.jobs if j.gates.expect is not None]
    for key, place in [*written, ("lock", str(plan.lock_path))]:
        if key in keys and not Path(place).resolve().is_relative_to(folder):
            again = option(f"onnxgrad ci {where}", f"ci({where!r})")
            raise InputError(
                f"{where}: {key}: {place} lies outside of {folder}, and this recipe was not named: "
                f"write below its folder, or name it: {again}"
            )


def _outcomes(plan: Plan, options: CiOptions, hooks: CiHooks) -> list[ModelOutcome]:
    """Returns one outcome per job, in order. Jobs after the first failure are skipped, unless
    `keep_going`.
    """
    found: dict[int, ModelOutcome] = {}
    going = options.keep_going
    working = (
        each(plan.jobs, options.jobs, keep_going=going, limits=hooks.limits)
        if options.dask is None
        else plugged("workers", "dask")(options.dask, plan.jobs, keep_going=going)
    )
    with hooks.working(plan) as watch, closing(working):
        for index, outcome in working:
            found[index] = outcome
            watch(outcome, len(found))
            if going:
                _refuse(plan.jobs[index], outcome, hooks)
    failed = min((index for index, o in found.items() if not o.ok), default=None)
    if failed is not None and not going:
        found = {index: o for index, o in found.items() if index <= failed}
        _refuse(plan.jobs[failed], found[failed], hooks)
    return [
        found.get(index) or ModelOutcome(job.name, "skipped", variant=job.variant)
        for index, job in enumerate(plan.jobs)
    ]


def _refuse(job: Job, outcome: ModelOutcome, hooks: CiHooks) -> None:
    """Removes the older result of a refused model."""
    if not outcome.ok:
        withdraw(job, outcome)
        hooks.refused(outcome)


def _renamed(plan: Plan, outcomes: list[ModelOutcome]) -> dict[str, str]:
    """Returns the new names of models that are gone: those of models with the same bytes."""
    if plan.lock is None:
        return {}
    new = {o.digest: o.name for o in outcomes if o.digest and o.name not in plan.lock.models}
    digests = {name: plan.lock.digests.get(name, "") for name in plan.gone}
    return {name: new[digest] for name, digest in digests.items() if digest in new}
