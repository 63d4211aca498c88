"""`onnxgrad bench`: latency of models, measured in turns."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Sequence
from pathlib import Path

from onnxgrad.cli.models import STDIN, expand, shown, source
from onnxgrad.cli.options import require_runtime, within_limits, write_html
from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError
from onnxgrad.jobs.declarations import BenchOptions
from onnxgrad.report.html.models import bench_page
from onnxgrad.report.parts import Table, Text, cell, file_names, table
from onnxgrad.verify.bench import BenchReport, Spread, Timing, bench
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Measure and print. Returns 1 if a model does not run or exceeds --require."""
    names = expand(args.model)
    if args.require is not None and len(names) < 2:
        raise InputError("--require compares with the first of several models: give two or more")
    require_runtime(args.provider)
    labels = file_names([shown(name) if name == STDIN else Path(name) for name in names])
    models = {label: source(name) for label, name in zip(labels, names, strict=True)}
    # --timeout bounds the work around the requested time of measuring
    with (
        within_limits(args, extra=len(models) * 2 * args.seconds),
        out.progress("bench", args.rounds) as advance,
    ):
        advance("first runs", None)
        report = bench(
            models,
            on_round=lambda done: advance(f"round {done + 1} of {args.rounds}", done),
            **{k: v for k, v in args.options.shared(BenchOptions).items() if k != "require"},
        )
    slow = [t for t in report.timings[1:] if t.wall_ratio.median > (args.require or math.inf)]
    code = 1 if slow or report.refused else 0
    rows, missed = _table(report), [_missed(t, report, args) for t in slow]
    out.show(rows)
    refused = [f"{name} does not run: {why}" for name, why in report.refused.items()]
    for words in (*refused, *missed):
        out.complain(words)
    write_html(args, functools.partial(bench_page, report, rows, args.require, missed), out)
    out.json({**report.to_dict(), "exit_code": code})
    return code


def _missed(slow: Timing, report: BenchReport, args: argparse.Namespace) -> str:
    ratio = slow.wall_ratio.median
    return (
        f"{slow.name} takes {ratio:.3f} times the wall time of {report.timings[0].name} (fastest "
        f"runs of {counted(args.rounds, 'round')}), --require allows {args.require:g}: "
        f"{100 * (ratio / args.require - 1):.3g} % too much"
    )


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
