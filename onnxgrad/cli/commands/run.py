"""`onnxgrad run`: runs a model once and shows or saves its outputs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.output import Output
from onnxgrad.jobs.declarations import RunOptions
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.inspection.one_run import run_once
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.report.parts import Text, cell, heading, line, number, table
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.verify.values import Value
from onnxgrad.wording import shape_text


def run(args: argparse.Namespace, out: Output) -> int:
    """Returns 0. Raises InputError or CannotRun."""
    options: RunOptions = args.options
    if options.evaluator == "onnxruntime":
        require_runtime(options.provider)
    with naming(args.model):
        found = run_once(source(args.model), options, Hooks(limits=bounding_us))
    rows = [_row(name, value) for name, value in found.outputs.items()]
    out.show(
        heading(shown(args.model)),
        table("output", "type", ">least", ">largest", ">mean", "not finite", rows=rows),
        line(f"{options.evaluator}: {found.case}", "dim"),
        *(line(f"note: {note}") for note in found.notes),
    )
    keys = ("output", "type", "least", "largest", "mean", "not_finite")
    out.json({
        "model": args.model, "evaluator": options.evaluator, "case": str(found.case),
        "outputs": [dict(zip(keys, map(str, row), strict=True)) for row in rows],
    })  # fmt: skip
    return 0


def _row(name: str, value: Value) -> Sequence[Text | str]:
    if not isinstance(value, np.ndarray):
        kind = "none" if value is None else f"a sequence of {len(value)}"
        return name, kind, "", "", "", ""
    kind = f"{value.dtype.name}{shape_text(value.shape)}"
    if value.dtype.kind not in "biuf" or not value.size:
        return name, kind, "", "", "", ""
    wide = value.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    strange = wide.size - finite.size
    if not finite.size:
        return name, kind, "", "", "", cell(number(strange), "red")
    ends = (f"{x:.6g}" for x in (finite.min(), finite.max(), finite.mean()))
    return name, kind, *ends, cell(number(strange), "red") if strange else ""
