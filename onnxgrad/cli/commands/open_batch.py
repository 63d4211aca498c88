"""`onnxgrad open-batch` and `vmap`: make a batch or another dimension dynamic, or add an axis of
rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from onnxgrad.cli.models import naming, source
from onnxgrad.cli.models import shown as shown_model
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, writer
from onnxgrad.errors import NotProved
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.open_batch import SizedModel, open_batch, open_sizes, vmap
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.report.parts import Part, cell, heading
from onnxgrad.report.proof import proof_lines
from onnxgrad.transform.open_batch import Opened
from onnxgrad.verify import Report
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Opens the batch, proves every row, and writes the model."""
    target = target_of(args.output)
    if args.verify:
        require_runtime(args.options.provider)
    model = source(args.model)
    hooks = Hooks(write=writer(target, out), limits=bounding_us)
    mapping = args.command == "vmap"
    with naming(args.model), out.progress(args.command, 1) as advance:
        if not mapping and args.options.open is not None:
            advance("at the sizes of the model", None)
            return _sized(args, out, open_sizes(model, args.options, hooks))
        advance("every row against the model", None)
        found = (vmap if mapping else open_batch)(model, args.options, hooks)
    opened, report = found.opened, found.report
    out.show(heading(shown_model(args.model)), *_lines(opened, out.verbose))
    out.json(
        {
            "model": args.model,
            "output": args.output,
            **_rows_of(opened),
            "proof": None if report is None else report.to_dict(),
        }
    )
    return _proved(args, out, report)


def _rows_of(opened: Opened) -> dict[str, object]:
    return {
        "inputs": opened.inputs,
        "outputs": {name: vars_of(rows) for name, rows in opened.outputs.items()},
        "in_place": opened.in_place,
        "shifted": opened.shifted,
        "scanned": opened.scanned,
        "warnings": list(opened.warnings),
        "notes": list(opened.notes),
    }


def _proved(args: argparse.Namespace, out: Output, report: Report | None) -> int:
    if report is not None:
        out.show(*proof_lines(report, out.verbose))
        if not report.ok:
            raise NotProved(f"{args.model}: {report.summary}; nothing was written")
    return 0


def _sized(args: argparse.Namespace, out: Output, found: SizedModel) -> int:
    opened, main = found.opened, found.program.main
    shown: list[Part] = [
        *(cell(f"input {v.name}: {v.type or '?'}") for v in main.inputs if v.initializer is None),
        *(cell(f"output {v.name}: {v.type or '?'}") for v in main.outputs),
        f"numbers in the file that follow the sizes: {len(opened.numbers)}",
        *(cell(f"  {text}", "dim") for text in opened.numbers if out.verbose),
        *(() if found.rows is None else _nodes(found.rows, out.verbose)),
        *(cell(f"note: {text}", "dim") for text in found.notes),
    ]
    out.show(heading(shown_model(args.model)), *shown)
    out.json(
        {
            "model": args.model,
            "output": args.output,
            "sizes": dict(opened.sizes),
            "multiples_of": dict(opened.steps),
            "at_least": dict(opened.least),
            "at_most": dict(opened.most),
            "numbers": list(opened.numbers),
            **({} if found.rows is None else {"batch": _rows_of(found.rows)}),
            "notes": list(found.notes),
            "proof": None if found.report is None else found.report.to_dict(),
        }
    )
    return _proved(args, out, found.report)


def vars_of(rows: object) -> dict[str, object]:
    """Returns the fields of a small record, for JSON."""
    return {name: getattr(rows, name) for name in ("axis", "outer", "size", "own")}


def _lines(opened: Opened, verbose: bool) -> Iterator[Part]:
    main = opened.program.main
    for v in (*main.inputs, *main.outputs):
        if v.initializer is None:
            rows = v.name in opened.inputs or opened.outputs.get(v.name) is not None
            kind = "output" if v.name in opened.outputs else "input"
            yield cell(f"{kind} {v.name}: {v.type or '?'}", "" if rows else "dim")
    yield from _nodes(opened, verbose)
    yield from (cell(f"warning: {text}", "yellow") for text in opened.warnings)
    yield from (cell(f"note: {text}", "dim") for text in opened.notes)


def _nodes(opened: Opened, verbose: bool) -> Iterator[Part]:
    """Yields the number of nodes that work on the batch, by the way they do it."""
    shifted, scanned = sum(opened.shifted.values()), sum(opened.scanned.values())
    yield (
        f"{counted(opened.in_place, 'node')} with the batch in place, {shifted} with an axis of "
        f"its own, {scanned} once per row"
    )
    for reason, count in opened.scanned.items():
        yield cell(f"  once per row, as slow as single runs: {count} x {reason}", "yellow")
    for reason, count in opened.shifted.items() if verbose else ():
        yield cell(f"  own axis: {count} x {reason}", "dim")
