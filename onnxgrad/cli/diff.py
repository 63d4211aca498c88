"""`onnxgrad diff`: what changed between two models."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from onnxgrad.cli.common import STDIN, read
from onnxgrad.cli.limit_options import add_limits, within_limits
from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError
from onnxgrad.report.diff import ModelDiff, compare_models
from onnxgrad.report.parts import cell, change, heading, number, table

_LINES = 12  # of each kind without -v
_TITLES = {
    "model": "model",
    "interface": "inputs and outputs",
    "removed": "nodes removed",
    "added": "nodes added",
    "replaced": "nodes with another operator",
    "rewired": "nodes that read other values",
    "attributes": "attributes",
    "node_metadata": "nodes with other metadata",
    "order": "order",
    "initializers": "initializers",
    "functions": "functions",
    "other": "other",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("a", metavar="A", help="an ONNX file, or - for stdin")
    parser.add_argument("b", metavar="B", help="the other")
    add_limits(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    """0 when the models are the same, 1 when they differ."""
    if args.a == args.b == STDIN:
        raise InputError("both models cannot come from stdin")
    with within_limits(args):
        (a, folder_a), (b, folder_b) = read(args.a), read(args.b)
        found = compare_models(a, b, (folder_a, folder_b))
    out.json({"a": args.a, "b": args.b, **found.to_dict()})
    out.show(*_parts(found, out.verbose))
    return 0 if found.same else 1


def _parts(found: ModelDiff, verbose: bool) -> Iterator[RenderableType]:
    if found.same:
        yield Text("the same", style="green")
        return
    if found.operators:
        made = table("operator", ">A", ">B", ">change")
        for op, (before, after) in sorted(found.operators.items(), key=lambda item: -abs(item[1][0] - item[1][1])):
            made.add_row(cell(op), number(before), number(after), change(before, after))
        yield made
        yield ""
    for kind, title in _TITLES.items():
        lines: list[str] = getattr(found, kind)
        if not lines:
            continue
        yield heading(f"{title} ({number(len(lines))})")
        style = {"removed": "red", "added": "green"}.get(kind, "")
        for line in lines if verbose else lines[:_LINES]:
            yield cell(f"  {line}", style)
        if not verbose and len(lines) > _LINES:
            yield Text(f"  and {len(lines) - _LINES} more (-v)", style="dim")
