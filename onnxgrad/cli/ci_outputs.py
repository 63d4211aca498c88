"""What `onnxgrad ci` writes for machines and pages: JUnit, Markdown, a page, annotations."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import check_output
from onnxgrad.errors import InputError
from onnxgrad.ir.files import write_whole
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
    """Raise InputError, before long work, for a file that has no place or is taken."""
    taken = [plan.recipe.where, str(plan.lock_path), *(job.path for job in plan.jobs)]
    results = {os.path.realpath(job.output) for job in plan.jobs if job.output is not None}
    seen = {} if args.json is None else {os.path.realpath(args.json): "--json"}
    for option in _FILES:
        name = getattr(args, option)
        if name is None:
            continue
        if not name:
            raise InputError(f"--{option}: the name of the file is empty")
        try:
            check_output(Path(name), taken)
        except InputError as error:
            raise InputError(f"--{option} {error}") from error
        place = os.path.realpath(name)
        if place in results:
            raise InputError(f"--{option} {name}: is where the recipe's out writes a model")
        if place in seen and place != os.devnull:
            raise InputError(f"--{option} {name}: is where {seen[place]} writes")
        seen[place] = f"--{option}"


def write_outputs(args: argparse.Namespace, report: CiReport, out: Output) -> None:
    """Write what the options ask for; a file appears whole or not at all. Raises InputError."""
    for option, text in _FILES.items():
        name = getattr(args, option)
        if name is None:
            continue
        try:
            write_whole(Path(name), text(report).encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise InputError(
                f"--{option} {name}: cannot be written: {error.strerror or error}"
            ) from error
    if args.annotations:
        root = Path(os.environ.get("GITHUB_WORKSPACE") or ".").absolute()
        for line in annotation_lines(report, root):
            out.aside(line)
