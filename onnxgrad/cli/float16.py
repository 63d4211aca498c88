"""`onnxgrad float16`: weights and computations in float16, proved within a bound."""

from __future__ import annotations

import argparse

from onnxgrad.cli.limit_options import within_limits
from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import proof_options, require_runtime
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import files_read, target_of, write_model
from onnxgrad.cli.verify import number_of
from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.passes.float16 import Float16
from onnxgrad.report.float16 import bounds, converted, names_of, staying
from onnxgrad.report.optimized import Outcome
from onnxgrad.vocabulary import FLOAT16_RTOL


def run(args: argparse.Namespace, out: Output) -> int:
    """Convert, prove and write one model."""
    target = target_of(args.output, [args.model, *files_read(args)])
    proof = proof_options(args) | bounds(_rtol(args.rtol), args.metric)
    if not args.no_verify:
        require_runtime(args.provider)
    outcome = Outcome(args.model, None if target is None else str(target), shown(args.model))
    try:
        with within_limits(args), out.progress("float16", 1) as advance:
            advance("running both models", None)
            wanted = None if args.no_verify else proof
            halving = Float16(names_of(args.keep), args.io, (), names_of(args.convert))
            done = converted(source(args.model), outcome, halving, wanted)
            write_model(done.program, target, out)
            outcome.written = True
    except OnnxgradError as error:
        raise named(error, args.model) from error
    out.json(outcome.to_dict())
    *told, last = outcome.parts(out.verbose)
    out.show(*told[:2], *staying(outcome, out.verbose), *told[2:], last)
    return 0


def _rtol(given: list[str]) -> dict[str, float] | float:
    """One number for all outputs, or one by name. Raises InputError."""
    found = [number_of("rtol", text) for text in given]
    common = [value for name, value in found if not name]
    if common and len(found) > 1:
        raise InputError("--rtol: one number for all outputs, or one for each that is named")
    return common[0] if common else dict(found) if found else FLOAT16_RTOL
