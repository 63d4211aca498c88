"""`onnxgrad doctor`: what is installed, and which providers really run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError
from onnxgrad.report.parts import Part, Table, cell, line, table
from onnxgrad.verify import doctor_report
from onnxgrad.version import __version__


def run(args: argparse.Namespace, out: Output) -> int:
    """0 when models can be proved here. Raises InputError where onnxruntime is missing or does
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
    made = Table()
    made.add_row(cell("onnxgrad", "dim"), cell(report["onnxgrad"]))
    made.add_row(cell("python", "dim"), cell(report["python"]))
    for name, version in report["packages"].items():
        made.add_row(cell(name, "dim"), cell(version or "not installed", "" if version else "dim"))
    yield made
    if report["max_ir"] is not None:
        yield cell(
            f"onnxruntime takes models up to IR version {report['max_ir']} and opset "
            f"{report['max_opset']}"
        )
    yield ""
    made = table("provider", "runs", "why not")
    for name, found in report["providers"].items():
        answer = line("yes", "green") if found["works"] else line("no", "yellow")
        made.add_row(name, answer, cell(found["why"], "dim"))
    yield made
    if report["onnxruntime"] is not None:
        for problem in report["problems"]:
            yield cell(problem, "red")
