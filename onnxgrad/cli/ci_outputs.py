"""What `onnxgrad ci` writes for machines and pages: JUnit, Markdown, a page, annotations."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import check_reports
from onnxgrad.jobs.ci.plan import Plan
from onnxgrad.report.ci import CiReport, annotation_lines, junit
from onnxgrad.report.html.ci import ci_page

_FILES: dict[str, Callable[[CiReport], str]] = {
    "junit": junit,
    "markdown": lambda report: f"{report.to_markdown()}\n",
    "html": ci_page,
}


def check_outputs(args: argparse.Namespace, plan: Plan) -> None:
    """Raise InputError, before long work, for a file that has no place or is taken, by what the
    recipe names too.
    """
    check_reports(
        args,
        read=[plan.recipe.where, str(plan.lock_path), *(job.path for job in plan.jobs)],
        written=[
            ("the recipe's out writes a model", job.output)
            for job in plan.jobs
            if job.output is not None
        ],
    )


def write_outputs(args: argparse.Namespace, report: CiReport, out: Output) -> None:
    """Write what the options ask for; a file appears whole or not at all. Raises InputError."""
    for option, text in _FILES.items():
        name = getattr(args, option)
        if name is not None:
            out.write(f"--{option}", name, text(report))
    said = args.annotations
    if os.environ.get("GITHUB_ACTIONS") == "true" if said is None else said:
        root = Path(os.environ.get("GITHUB_WORKSPACE") or ".").absolute()
        out.commands(annotation_lines(report, root))
