"""Runs a model at sizes that its original does not have, and checks the declared shapes
of results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import ModelProto, ValueInfoProto

from onnxgrad.errors import InputError
from onnxgrad.verify.compare import Difference
from onnxgrad.verify.feeds.dims import dim_plans, evaluate, shape_of, tensor_types
from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.feeds.proof_cases import Results
from onnxgrad.verify.proof_model import Model, proof_model
from onnxgrad.verify.report import Case, Check, Report
from onnxgrad.verify.request import Settings
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.wording import shape_text

_STAGE = "other sizes"
_SHAPES = "only shapes: there are no numbers to compare with"


def at_other_sizes(
    report: Report, opened: Model, plans: Sequence[Mapping[str, int]], *,
    dims: Mapping[str, int] | None, seed: int, provider: str,
) -> Report:  # fmt: skip
    """Adds runs at `plans` to the report of a proof. Every output must have its declared shape, and
    a plan at which the model does not run is not proved.
    """
    found = proof_model(opened)
    model = found.proto
    session, feeder = Settings(provider, 1).open(found.source, optimize=True), Feeder(model)
    cases, worst = list[Case](), None
    unproved = list(report.unproved)
    for plan in plans:
        sizes = dim_plans(model, {**(dims or {}), **plan})[0]
        shown = ", ".join(f"{n}={size}" for n, size in plan.items())
        try:
            results = session.run(feeder.feeds(seed=seed, dims=sizes))
        except (RunFailed, InputError) as error:
            reason = error.reason if isinstance(error, RunFailed) else str(error)
            unproved.append(f"it does not run at {shown}: {reason}")
            continue
        cases.append(Case(plan, seed))
        worst = worst or _shapes(model, results, sizes, shown)
    check = Check(_STAGE, bool(cases), _SHAPES if cases else "no run", len(cases), worst)
    differences = report.differences if worst is None else (*report.differences, worst)
    return replace(
        report,
        ok=report.ok and worst is None and not unproved,
        differences=differences,
        checks={**report.checks, _STAGE: check},
        unproved=tuple(unproved),
        cases=(*report.cases, *cases),
    )


def _shapes(
    model: ModelProto, results: Results, sizes: Mapping[str, int], shown: str
) -> Difference | None:
    """Returns the first output whose shape is not the declared one."""
    for value in model.graph.output:
        got = np.asarray(results[value.name]).shape
        wanted = _declared(value, sizes)
        if wanted is not None and tuple(got) != wanted:
            reason = f"shape {shape_text(got)} in place of {shape_text(wanted)} at {shown}"
            return Difference(value.name, None, None, None, math.inf, 0.0, reason, check=_STAGE)
    return None


def _declared(value: ValueInfoProto, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    for kind in tensor_types(value.type):
        shape = shape_of(value.name, kind)
        try:
            return None if shape is None else tuple(evaluate(d, sizes) for d in shape)
        except InputError:  # a size that depends on values
            return None
    return None
