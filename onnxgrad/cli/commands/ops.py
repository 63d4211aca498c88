"""`onnxgrad ops`: prints the table of operators with gradients, from the registry."""

from __future__ import annotations

import argparse

from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError
from onnxgrad.grad.coverage import coverage, page
from onnxgrad.grad.registry import find
from onnxgrad.report.parts import cell, table
from onnxgrad.wording import did_you_mean

_STYLES = {"rule": "green", "body": "green", "zero": "", "no gradient": "dim", "missing": "red"}


def run(args: argparse.Namespace, out: Output) -> int:
    """Returns 0. Raises InputError for an unknown operator."""
    if args.markdown:
        out.text(page().rstrip("\n"))
        return 0
    for name in args.name:
        find(name)  # plug-ins of installed packages are imported by name
    rows = list(coverage())
    known = {r.name for r in rows}
    for name in args.name:
        if name not in known:
            hint = did_you_mean(name, sorted(known), "`onnxgrad ops` lists them")
            raise InputError(f"unknown operator '{name}': {hint}")
    rows = [r for r in rows if not args.name or r.name in args.name]
    cells = (
        (cell(r.name), cell(r.since), cell(r.kind, _STYLES[r.kind]), cell(r.file), cell(r.notes))
        for r in rows
    )
    named = ("name", "since", "gradient", "notes", "file")
    out.json(
        {"operators": [dict(zip(named, (r.name, r.since, r.kind, r.notes, r.file))) for r in rows]}
    )
    out.show(table("operator", ">since", "gradient", "file", "at kinks, and limits", rows=cells))
    return 0
