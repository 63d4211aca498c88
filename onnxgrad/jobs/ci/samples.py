"""Stored samples: inputs with the outputs of an accepted result, from which later results may move
only so far.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.ir.program import Program
from onnxgrad.jobs.ci.declarations import Gates
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.proving import runnable
from onnxgrad.jobs.requirements import Held
from onnxgrad.options import providers_of
from onnxgrad.verify import Report, verify


def _checked(program: Program, options: OptimizeOptions, **more: Any) -> Report:
    with runnable(program) as model:
        return verify(
            model,
            provider=providers_of(options.provider)[0],
            threads=options.threads,
            checks=("onnxruntime",),
            **more,
        )


def hold_samples(program: Program, options: OptimizeOptions, gates: Gates) -> list[Held]:
    """Returns whether the outputs of a result are within the bound of the stored ones; an empty
    list without stored samples. Raises InputError for a file that does not fit the model.
    """
    if gates.expect is None:
        return []
    limit = gates.expect_within
    report = _checked(
        program,
        options,
        expect=gates.expect,
        metric=[f"worst={limit!r}"],
        excuse=options.excuse,
        allow_empty=options.allow_empty,
    )
    moved = max((d.rel for d in report.differences), default=0.0)
    worst = "; ".join(report.unproved) if report.worst is None else str(report.worst)
    why = "" if report.ok else f"outputs moved from {Path(gates.expect).name}: {worst}"
    return [Held("expect", f"<= {limit:g}", moved, float(limit), report.ok, why)]


def record(program: Program, options: OptimizeOptions, path: str) -> None:
    """Writes samples of a result: its first inputs of the proof, and its outputs. Raises InputError
    if the file cannot be written, or if a value is not a tensor.
    """
    report = _checked(
        program,
        options,
        save=path,
        inputs=options.inputs,
        dims=options.dims,
        seeds=options.seeds[:1],
        allow_empty=options.allow_empty,
    )
    for note in report.notes:
        if "was not" in note:
            raise InputError(f"verify.expect: {note}")
