"""`onnxgrad metadata`: shows and changes the metadata of a model."""

from __future__ import annotations

import argparse

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.options import within_limits
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, write_model
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.surgery.metadata import change
from onnxgrad.limits import interval_text
from onnxgrad.report.parts import entries, heading, line
from onnxgrad.verify.feeds.declared_ranges import ranges_of

_SHORT = 200  # characters of a value without -v


def run(args: argparse.Namespace, out: Output) -> int:
    """Lists the metadata, or writes the model with the requested changes and no others."""
    values = args.options.values or {}
    header = args.options.header()
    strip, ranges = args.options.strip, args.options.ranges
    changes = bool(values or args.unset or header or ranges or strip is not None)
    if changes and args.output is None:
        raise InputError("name the changed model with -o: the input file is never changed")
    if args.output is not None and not changes:
        raise InputError(
            "-o without a change: pass --set, --unset, --range, --strip or an option of the header"
        )
    target = target_of(args.output) if changes else None
    notes: tuple[str, ...] = ()
    with naming(args.model), within_limits(args):
        program = load(source(args.model))
        if changes:
            notes = change(program, values, args.unset, header, strip, ranges)
            write_model(program, target, out)
    out.json({"model": args.model, "metadata": program.metadata, **program.header})
    _show(program, args, out)
    if changes:
        out.show(*(line(note) for note in notes), line("every other field is unchanged", "dim"))
    return 0


def _show(program: Program, args: argparse.Namespace, out: Output) -> None:
    header = {f"({name})": str(value) for name, value in program.header.items() if value}
    ranges = {
        f"range of {n}": interval_text(ends) for n, ends in ranges_of(to_proto(program)).items()
    }
    made = entries({**program.metadata, **ranges, **header}, _SHORT, out.verbose)
    out.show(heading(shown(args.model)), made if made.rows else line("no metadata", "dim"))
