"""`onnxgrad place`: assigns nodes to devices and shows the values that must be copied between
them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from onnxgrad.cli.models import naming, source
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, writer
from onnxgrad.ir.program import Program
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.plugins.place.driver import OPTION, Copy, Placement, place, settings
from onnxgrad.report.parts import Text, bytes_text, cell, heading, number, table
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Places the nodes, shows the copies, and writes the model."""
    target = None if args.output is None else target_of(args.output)
    versions: list[int] = []

    def on_read(program: Program) -> None:
        versions.append(program.ir_version)

    write = None if args.output is None else writer(target, out)
    with naming(args.model):
        hooks = Hooks(on_read=on_read, write=write, limits=bounding_us)
        placed = place(source(args.model), args.options, hooks)
    version, placement = placed.model.ir_version, placed.placement
    if write is not None and versions[0] != version:
        out.note(
            f"the IR version went from {versions[0]} to {version}, which has the "
            "fields for the marks"
        )
    out.json({"model": args.model, **placement.to_dict()})
    _show(out, placement)
    return 0


def _show(out: Output, placement: Placement) -> None:
    nodes = sorted(placement.by_device.items())
    out.show(table("device", ">nodes", rows=((cell(d), number(n)) for d, n in nodes)), "")
    known = [c.bytes for c in placement.copies if c.bytes is not None]
    total = bytes_text(sum(known)) + (
        "" if len(known) == len(placement.copies) else " and those of open sizes"
    )
    count = len(placement.copies)
    out.show(heading(f"{counted(count, 'copy', 'copies')} between devices, {total}"))
    for title, copies in (
        ("", placement.copies),
        ("graph inputs and outputs elsewhere", placement.interface),
    ):
        if not copies:
            continue
        rows = table("value", "made by", "read by", "from", "to", ">bytes", rows=map(_row, copies))
        out.show(*([heading(title)] if title else []), rows)
    out.show("", heading("session option for onnxruntime"))
    out.text(f"{OPTION} = {settings(placement)}")


def _row(copy: Copy) -> Sequence[Text | str]:
    readers = ", ".join(copy.read_by[:4]) + (" ..." if len(copy.readers) > 4 else "")
    size = f"{copy.count} elements" if copy.bytes is None else bytes_text(copy.bytes)
    words = (copy.value_name, copy.maker or "input", readers or "output", copy.source, copy.target)
    return *map(cell, words), size
