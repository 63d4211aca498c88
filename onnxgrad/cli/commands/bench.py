"""`onnxgrad bench`: measures the latency of models in turns."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from onnxgrad.cli.models import expand, shown, source
from onnxgrad.cli.options import write_html
from onnxgrad.cli.output import Output
from onnxgrad.ir.storage.protection import STDIN
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.inspection.latency import measure
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.report.html.models import bench_page
from onnxgrad.report.parts import Table, Text, cell, file_names, table
from onnxgrad.verify.bench import BenchReport, Spread, Timing
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Measures and prints. Returns 1 if a model does not run or exceeds --require."""
    names = expand(args.model)
    require_runtime(args.provider)
    labels = file_names([shown(name) if name == STDIN else Path(name) for name in names])
    models = {label: source(name) for label, name in zip(labels, names, strict=True)}
    with out.progress("bench", args.rounds) as advance:
        advance("first runs", None)
        report = measure(
            models,
            args.options,
            Hooks(limits=bounding_us),
            lambda done: advance(f"round {done + 1} of {args.rounds}", done),
        )
    rows, missed = _table(report), report.missed
    out.show(rows)
    refused = [f"{name} does not run: {why}" for name, why in report.refused.items()]
    for words in (*refused, *missed):
        out.complain(words)
    write_html(args, functools.partial(bench_page, report, rows, args.require, missed), out)
    out.json(report.to_dict())
    return report.exit_code


def _table(report: BenchReport) -> Table:
    threads = counted(report.threads, "thread")
    sizes = "".join(f", {name}={size}" for name, size in report.dims.items())
    return table(
        "model", ">wall ms", ">quartiles", ">CPU ms", ">wall ratio", ">quartiles", ">CPU ratio",
        ">runs", title=f"median time of one run on {report.provider}, {threads}{sizes}, and "
        f"the ratio of the fastest runs to those of {report.timings[0].name}",
        rows=map(_row, report.timings),
    )  # fmt: skip


def _row(t: Timing) -> Sequence[Text | str]:
    style = "green" if t.wall_ratio.high < 1 else "yellow" if t.wall_ratio.low > 1 else ""
    return (
        cell(t.name),
        f"{t.wall.median * 1e3:.3f}",
        _quartiles(t.wall, 1e3),
        f"{t.cpu.median * 1e3:.3f}",
        cell(f"{t.wall_ratio.median:.3f}", style),
        _quartiles(t.wall_ratio, 1),
        f"{t.cpu_ratio.median:.3f}",
        str(t.runs),
    )


def _quartiles(spread: Spread, factor: float) -> str:
    return f"{spread.low * factor:.3f} - {spread.high * factor:.3f}"
