"""`onnxgrad lift`: what depends on weights alone in a model of its own, proved together."""

from __future__ import annotations

import argparse

from onnxgrad.cli.models import naming, source
from onnxgrad.cli.options import require_runtime, show_proved
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import files_read, target_of, write_model
from onnxgrad.ir.load import load
from onnxgrad.jobs.lift import lift
from onnxgrad.jobs.optimize import Hooks
from onnxgrad.report.gradient import nodes
from onnxgrad.report.parts import cell, number
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Divide the model, prove both parts in a row equal to it, write them."""
    first, second = (target_of(name, files_read(args)) for name in (args.prepare, args.output))
    if args.verify:
        require_runtime(args.provider)
    model = source(args.model)
    with naming(args.model), out.progress("lift", 1) as advance:
        advance("preparation and rest against the model", None)
        found = lift(model, args.options, Hooks(limits=bounding_us))
    before, once = number(nodes(load(model))), counted(nodes(found.prepare), "node")
    change = f"{before} → {counted(nodes(found.program), 'node')}, {once} once at load"
    show_proved(found, args, out, {"model": args.model}, change)
    out.show(*(cell(f"once: {v.typed_name}") for v in found.prepare.main.outputs))
    write_model(found.prepare, first, out)
    write_model(found.program, second, out)
    return 0
