"""`onnxgrad join`: two models in a row as one, proved."""

from __future__ import annotations

import argparse

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.options import require_runtime, show_proved
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import files_read, target_of, writer
from onnxgrad.ir.load import load
from onnxgrad.jobs.join import join
from onnxgrad.jobs.optimize import Hooks
from onnxgrad.report.gradient import nodes
from onnxgrad.report.parts import number
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Chain the models, prove the result equal to A and then B, write it."""
    target = target_of(args.output, files_read(args))
    if args.verify:
        require_runtime(args.provider)
    models = (source(args.a), source(args.b))
    hooks = Hooks(write=writer(target, out), limits=bounding_us)
    for name, model in zip((args.a, args.b), models, strict=True):
        with naming(name):
            load(model)
    with naming(f"{shown(args.a)}, {shown(args.b)}"), out.progress("join", 1) as advance:
        advance("A and then B against the joined model", None)
        found = join(*models, args.options, hooks)
    parts = " + ".join(number(nodes(load(model))) for model in models)
    change = f"{parts} → {counted(nodes(found.program), 'node')}"
    show_proved(found, args, out, {"a": args.a, "b": args.b}, change)
    return 0
