"""`onnxgrad doctor`: shows the installed versions and the providers that run on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError
from onnxgrad.report.parts import Part, cell, line, table
from onnxgrad.verify import doctor_report
from onnxgrad.version import __version__


def run(args: argparse.Namespace, out: Output) -> int:
    """Returns 0 if models can be proved here. Raises InputError if onnxruntime is missing or does
    not run on the CPU.
    """
    with out.progress("doctor", 1) as advance:
        advance("trying the providers", None)
        report = {"onnxgrad": __version__, **doctor_report()}
    out.json(report)
    out.show(*_tables(report))
    if report["onnxruntime"] is None:
        raise InputError("; ".join(report["problems"]))
    if not report["providers"]["cpu"]["works"]:
        raise InputError(
            f"onnxruntime does not run on the CPU: {report['providers']['cpu']['why']}"
        )
    return 0


def _tables(report: dict[str, Any]) -> Iterator[Part]:
    versions = {name: report[name] for name in ("onnxgrad", "python")} | report["packages"]
    yield table(
        rows=(
            (cell(name, "dim"), cell(version or "not installed", "" if version else "dim"))
            for name, version in versions.items()
        )
    )
    if report["max_ir"] is not None:
        yield cell(
            f"onnxruntime loads models up to IR version {report['max_ir']} and opset "
            f"{report['max_opset']}"
        )
    yield ""
    answers = {True: line("yes", "green"), False: line("no", "yellow")}
    providers = report["providers"].items()
    rows = ((name, answers[p["works"]], cell(p["why"], "dim")) for name, p in providers)
    yield table("provider", "runs", "why not", rows=rows)
    if report["onnxruntime"] is not None:
        yield from (cell(problem, "red") for problem in report["problems"])
