"""`onnxgrad open-batch`: a batch of any size in the place of a fixed one, proved row by row."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, writer
from onnxgrad.errors import NotProved
from onnxgrad.jobs.open_batch import open_batch
from onnxgrad.jobs.outcome import Hooks
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.report.parts import Part, cell, heading
from onnxgrad.report.proof import proof_lines
from onnxgrad.transform.open_batch import Opened
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Open the batch, prove every row, write the model."""
    target = target_of(args.output, [args.model])
    if args.verify:
        require_runtime(args.options.provider)
    model = source(args.model)
    hooks = Hooks(write=writer(target, out), limits=bounding_us)
    with naming(args.model), out.progress("open-batch", 1) as advance:
        advance("every row against the model", None)
        found = open_batch(model, args.options, hooks)
    opened, report = found.opened, found.report
    out.show(heading(shown(args.model)), *_lines(opened, out.verbose))
    out.json({
        "model": args.model,
        "output": args.output,
        "inputs": opened.inputs,
        "outputs": {name: vars_of(rows) for name, rows in opened.outputs.items()},
        "in_place": opened.in_place,
        "shifted": opened.shifted,
        "scanned": opened.scanned,
        "warnings": list(opened.warnings),
        "notes": list(opened.notes),
        "proof": None if report is None else report.to_dict(),
    })  # fmt: skip
    if report is not None:
        out.show(*proof_lines(report, out.verbose))
        if not report.ok:
            raise NotProved(f"{args.model}: {report.summary}; nothing was written")
    return 0


def vars_of(rows: object) -> dict[str, object]:
    """The fields of a small record, for JSON."""
    return {name: getattr(rows, name) for name in ("axis", "outer", "size", "own")}


def _lines(opened: Opened, verbose: bool) -> Iterator[Part]:
    main = opened.program.main
    for v in (*main.inputs, *main.outputs):
        if v.initializer is None:
            rows = v.name in opened.inputs or opened.outputs.get(v.name) is not None
            kind = "output" if v.name in opened.outputs else "input"
            yield cell(f"{kind} {v.name}: {v.type or '?'}", "" if rows else "dim")
    shifted, scanned = sum(opened.shifted.values()), sum(opened.scanned.values())
    yield (
        f"{counted(opened.in_place, 'node')} with the batch in place, {shifted} with an axis of "
        f"its own, {scanned} once per row"
    )
    for reason, count in opened.scanned.items():
        yield cell(f"  once per row, as slow as single runs: {count} x {reason}", "yellow")
    for reason, count in opened.shifted.items() if verbose else ():
        yield cell(f"  own axis: {count} x {reason}", "dim")
    yield from (cell(f"warning: {text}", "yellow") for text in opened.warnings)
    yield from (cell(f"note: {text}", "dim") for text in opened.notes)
