"""`onnxgrad extract`: the part of a model between some of its values, proved."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from onnxgrad.cli.models import naming, source
from onnxgrad.cli.options import require_runtime, show_proved
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, writer
from onnxgrad.ir.load import load
from onnxgrad.jobs.extract import extract
from onnxgrad.jobs.optimize import Hooks
from onnxgrad.report.gradient import nodes
from onnxgrad.report.parts import number
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Cut the part out, prove it equal to that part of the model, write it."""
    target = target_of(args.output, [args.model])
    if args.verify:
        require_runtime("cpu")
    model = source(args.model)
    names = {"inputs": names_of(args.inputs), "outputs": names_of(args.outputs)}
    options = args.options.having(**names)
    hooks = Hooks(write=writer(target, out), limits=bounding_us)
    with naming(args.model), out.progress("extract", 1) as advance:
        advance("the part against the whole", None)
        found = extract(model, options, hooks)
    change = f"{number(nodes(load(model)))} → {counted(nodes(found.program), 'node')}"
    show_proved(found, args, out, {"model": args.model}, change)
    return 0


def names_of(given: Sequence[str] | None) -> list[str] | None:
    """Return the names, split at commas; None if there are none."""
    return [name for text in given or () for name in text.split(",") if name] or None
