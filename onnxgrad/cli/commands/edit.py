"""`onnxgrad edit`: inputs bound to constants, values renamed, outputs dropped, proved."""

from __future__ import annotations

import argparse

from onnxgrad.cli.models import naming, source
from onnxgrad.cli.options import require_runtime, show_proved
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import files_read, target_of, writer
from onnxgrad.ir.load import load
from onnxgrad.jobs.edit import edit
from onnxgrad.jobs.optimize import Hooks
from onnxgrad.report.gradient import nodes
from onnxgrad.report.parts import number
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Change the interface, prove the result equal to the model, write it."""
    target = target_of(args.output, files_read(args))
    if args.verify:
        require_runtime(args.provider)
    model = source(args.model)
    hooks = Hooks(write=writer(target, out), limits=bounding_us)
    with naming(args.model), out.progress("edit", 1) as advance:
        advance("both on the same values", None)
        found = edit(model, args.options, hooks)
    change = f"{number(nodes(load(model)))} → {counted(nodes(found.program), 'node')}"
    show_proved(found, args, out, {"model": args.model}, change)
    return 0
