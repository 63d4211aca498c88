"""`onnxgrad extract`, `edit`, `join`, `preprocess` and `lift`: cut, change, chain and split models,
with a proof.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.options import show_proved
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, write_models, writer
from onnxgrad.ir.load import load_in_place
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.jobs.surgery.edit import edit
from onnxgrad.jobs.surgery.extract import extract
from onnxgrad.jobs.surgery.join import join
from onnxgrad.jobs.surgery.lift import lift
from onnxgrad.jobs.surgery.preprocess import preprocess
from onnxgrad.report.gradient import nodes
from onnxgrad.report.parts import cell, number
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.wording import counted

# command -> its driver, the compared models in words, the arguments that name its models
_JOBS: dict[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    "extract": (extract, "the part against the model", ("model",)),
    "edit": (edit, "both on the same values", ("model",)),
    "join": (join, "A and then B against the joined model", ("a", "b")),
    "preprocess": (preprocess, "NumPy and the model against the new model", ("model",)),
    "lift": (lift, "preparation and rest against the model", ("model",)),
}


def run(args: argparse.Namespace, out: Output) -> int:
    """Makes the model, proves it against its originals, and writes it."""
    job, stage, arguments = _JOBS[args.command]
    divided = args.command == "lift"
    once = target_of(args.prepare) if divided else None
    target = target_of(args.output)
    if args.verify:
        require_runtime(args.options.provider)
    names = {argument: getattr(args, argument) for argument in arguments}
    models = [source(name) for name in names.values()]
    before: list[int] = []
    hooks = Hooks(
        on_read=lambda program: before.append(nodes(program)),
        # the two files of a split model are written together, after the report
        write=None if divided else writer(target, out),
        limits=bounding_us,
    )
    for name, model in zip(names.values(), models, strict=True) if len(models) > 1 else ():
        with naming(name):  # the driver does not know the name of the model
            load_in_place(model)
    with naming(", ".join(map(shown, names.values()))), out.progress(args.command, 1) as advance:
        advance(stage, None)
        found = job(*models, args.options, hooks)
    change = f"{' + '.join(map(number, before))} → {counted(nodes(found.program), 'node')}"
    if divided:
        change += f", {counted(nodes(found.prepare), 'node')} once at load"
    show_proved(found, args, out, names, change)
    if divided:
        out.show(*(cell(f"once: {v.typed_name}") for v in found.prepare.main.outputs))
        write_models([(found.prepare, once), (found.program, target)], out)
    return 0
