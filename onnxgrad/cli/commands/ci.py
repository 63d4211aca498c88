"""`onnxgrad ci`: optimises and proves every model of a recipe, checks its requirements, compares
the results with the lock, and writes reports.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import check_reports
from onnxgrad.jobs.ci.outcome import CiReport
from onnxgrad.jobs.ci.plan import Plan
from onnxgrad.jobs.ci.run import CiHooks, Watch, ci
from onnxgrad.report.ci import SCHEMA, annotation_lines, ci_parts, refusal
from onnxgrad.verify.running.process_limits import bounding_us

_FILES: dict[str, Callable[[CiReport], str]] = {
    "junit": CiReport.to_junit,
    "markdown": lambda report: f"{report.to_markdown()}\n",
    "html": CiReport.to_html,
}


def run(args: argparse.Namespace, out: Output) -> int:
    """Processes every model, shows and writes the results. Returns the worst exit code."""
    if args.schema:
        out.text(SCHEMA.read_text(encoding="utf-8").rstrip())
        return 0
    given = {"recipe": args.config, "plugins": args.plugin, "custom_ops": args.custom_ops}
    hooks = CiHooks(
        accept=partial(_check_reports, args),
        working=partial(_watched, out),
        refused=lambda outcome: out.complain(refusal(outcome)),
        wrote=out.wrote,
        limits=bounding_us,
        passes=tuple(args.own_passes),
    )
    report = ci(args.options.having(**given), hooks)
    for name in () if args.update else report.gone:
        out.complain(f"{report.gone_text(name)}: run `onnxgrad ci --update`")
    out.json(report.to_dict())
    _write_outputs(args, report, out)
    out.show(*ci_parts(report, out.verbose))
    return report.exit_code


def _check_reports(args: argparse.Namespace, plan: Plan) -> None:
    """Raises InputError for a report whose place the recipe uses."""
    written = [("the recipe's out writes a model", j.output) for j in plan.jobs if j.output]
    lock = [("--update writes the lock", str(plan.lock_path))] if args.update else []
    check_reports(args, [*lock, *written])


@contextmanager
def _watched(out: Output, plan: Plan) -> Iterator[Watch]:
    with out.progress("ci", len(plan.jobs)) as advance:
        advance(plan.jobs[0].name, 0)
        yield lambda outcome, done: advance(f"{outcome.name} {outcome.status}", done)


def _write_outputs(args: argparse.Namespace, report: CiReport, out: Output) -> None:
    """Writes the requested files, each completely or not at all. Raises InputError."""
    for option, text in _FILES.items():
        name = getattr(args, option)
        if name is not None:
            out.write(f"--{option}", name, text(report))
    wanted = args.annotations
    if os.environ.get("GITHUB_ACTIONS") == "true" if wanted is None else wanted:
        root = Path(os.environ.get("GITHUB_WORKSPACE") or ".").absolute()
        out.commands(annotation_lines(report, root))
