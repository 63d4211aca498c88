"""`onnxgrad rebase`: puts new weights into an optimised model, with a proof."""

from __future__ import annotations

import argparse

from onnxgrad.cli.models import naming, source
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, write_models
from onnxgrad.errors import InputError
from onnxgrad.ir.storage.places import check_output
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.rebasing.rebase import Rebased, rebase
from onnxgrad.report.parts import cell, heading
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Makes the model, proves it against the original with the new weights, and writes it."""
    target = target_of(args.output)
    if args.verify:
        from onnxgrad.jobs.proving import require_runtime  # imports all of `verify`

        require_runtime(args.options.provider)

    def write(found: Rebased) -> None:
        parts = [(found.program, target)]
        if found.prepare is not None:
            from onnxgrad.jobs.surgery.lift import prepare_path  # imports the proof

            if target is None:
                raise InputError("-o -: the model was split into two: write them with -o FILE")
            check_output(prepare_path(target))
            parts = [(found.prepare, prepare_path(target)), *parts]
        write_models(parts, out)

    with naming(args.model), out.progress("rebase", 1) as advance:
        advance("computing the constants", None)
        hooks = Hooks(limits=bounding_us)
        found = rebase(source(args.model), [*map(source, args.weights)], args.options, hooks, write)
    report, weights = found.report, " and ".join(args.weights)
    out.show(heading(args.model))
    out.show(
        cell(
            f"{counted(found.constants, 'constant')} from {weights}; "
            f"{counted(found.facts, 'fact')} about weights that rewrites rely on: all hold"
        )
    )
    for note in found.notes:
        out.note(note)
    out.json(
        {
            "model": args.model,
            "weights": weights,
            "output": args.output,
            "constants": found.constants,
            "facts": found.facts,
            "notes": [*found.notes],
            "proof": None if report is None else report.to_dict(),
        }
    )
    if report is not None:
        from onnxgrad.report.proof import proof_lines  # imports most of `verify`

        out.show(*proof_lines(report, out.verbose))
    found.proved(args.model)
    return 0
