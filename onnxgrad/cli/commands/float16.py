"""`onnxgrad float16`: weights and computations in float16, proved within a bound."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import require_runtime
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import files_read, target_of, write_model
from onnxgrad.ir.program import Program
from onnxgrad.jobs.float16 import float16
from onnxgrad.jobs.optimize import Hooks
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.report.optimized import OptimizedModel
from onnxgrad.report.parts import Part, cell, number, table
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted, option

_ROWS = 20


def run(args: argparse.Namespace, out: Output) -> int:
    """Convert, prove and write one model."""
    target = target_of(args.output, [args.model, *files_read(args)])
    if args.verify:
        require_runtime(args.provider)
    outcome = Outcome(args.model, None if target is None else str(target), shown(args.model))

    def write(program: Program) -> bool:
        write_model(program, target, out)
        return True

    with out.progress("float16", 1) as advance:
        advance("running both models", None)
        hooks = Hooks(write=write, limits=bounding_us)
        float16(source(args.model), args.options, hooks, outcome)
    if outcome.error is not None:
        raise named(outcome.error, args.model)
    out.json(OptimizedModel(None, outcome).to_dict())
    *first, last = OptimizedModel(None, outcome).parts(out.verbose)
    out.show(*first[:2], *_staying(outcome, out.verbose), *first[2:], last)
    return 0


def _staying(outcome: Outcome, verbose: bool = False) -> Iterator[Part]:
    """What stays in float32, and which numbers float16 does not have."""
    trace = outcome.trace
    opened = sum(f.rule == "inline_call" for f in trace.firings)
    if opened:
        yield cell(
            f"{counted(opened, 'call')} of functions opened, whose bodies have no types; "
            f"{option('--keep DOMAIN::NAME', 'keep=[NAME]')} leaves one in float32 as it is"
        )
    why = Counter(reason for _, _, reason in trace.declined)
    first = {reason: where for _, where, reason in reversed(list(trace.declined))}
    if why:
        yield ""
        made = table("stays in float32 because", ">nodes", "such as")
        for reason, count in why.most_common(None if verbose else _ROWS):
            made.add_row(cell(reason), number(count), cell(first[reason].split(" = ")[0], "dim"))
        yield made
    if trace.notes:
        yield ""
        made = table("constant", "what float16 does not have of it")
        for note in list(trace.notes)[: None if verbose else _ROWS]:
            name, _, words = note.partition(": ")
            made.add_row(cell(name), cell(words))
        yield made
        if not verbose and len(trace.notes) > _ROWS:
            yield cell(f"and {len(trace.notes) - _ROWS} more (-v)", "dim")
