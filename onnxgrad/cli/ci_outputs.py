"""What `onnxgrad ci` writes for machines and pages: JUnit, Markdown, a page, annotations."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from onnxgrad.cli.models import STDIN
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import check_output, check_reports
from onnxgrad.errors import InputError
from onnxgrad.pipeline.ci.plan import Plan
from onnxgrad.report.ci import CiReport
from onnxgrad.report.ci_annotations import annotation_lines
from onnxgrad.report.ci_junit import junit

_FILES: dict[str, Callable[[CiReport], str]] = {
    "junit": junit,
    "markdown": lambda report: f"{report.to_markdown()}\n",
    "html": CiReport.to_html,
}


def check_outputs(args: argparse.Namespace, plan: Plan) -> None:
    """Raise InputError, before long work, for a file that has no place or is taken, by what the
    recipe names too.
    """
    check_reports(args)
    taken = [plan.recipe.where, str(plan.lock_path), *(job.path for job in plan.jobs)]
    results = {os.path.realpath(job.output) for job in plan.jobs if job.output is not None}
    for option in ("json", *_FILES):
        name = getattr(args, option)
        if name is None or (option == "json" and name == STDIN):
            continue
        try:
            check_output(Path(name), taken)
        except InputError as error:
            raise InputError(f"--{option} {error}") from error
        if os.path.realpath(name) in results:
            raise InputError(f"--{option} {name}: is where the recipe's out writes a model")


def write_outputs(args: argparse.Namespace, report: CiReport, out: Output) -> None:
    """Write what the options ask for; a file appears whole or not at all. Raises InputError."""
    for option, text in _FILES.items():
        name = getattr(args, option)
        if name is not None:
            out.write(f"--{option}", name, text(report))
    if args.annotations:
        root = Path(os.environ.get("GITHUB_WORKSPACE") or ".").absolute()
        for line in annotation_lines(report, root):
            out.aside(line)
