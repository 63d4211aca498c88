"""Bounds of the user's own for a check by differences, as `verify` takes them for outputs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.checking.report import GradientReport, ValueCheck
from onnxgrad.verify.bounds import Bound, Bounds
from onnxgrad.wording import option

_OF_ONE = ("worst", "psnr")  # measures that mean something of a single slope


def bounded(report: GradientReport, bounds: Bounds, known: Collection[str]) -> GradientReport:
    """The report with the slope of each value that was judged held to the bounds: the derivative
    for the second model, the difference for the original.

    `known`: the values of which a bound may be given. Raises InputError for another, and for a
    measure that needs more than one number.
    """
    if not bounds:
        return report
    bounds.check(known)
    for bound in filter(None, (bounds.common, *bounds.own.values())):
        for name, _ in bound.metrics:
            if name not in _OF_ONE:
                where = option("--metric", "metric:")
                raise InputError(
                    f"{where} {name} compares many numbers, and a slope is one: use "
                    f"{' or '.join(_OF_ONE)}, or {option('--rtol and --atol', 'rtol and atol')}"
                )
    values = tuple(_held(check, bounds.bound(check.name)) for check in report.values)
    return replace(report, values=values, bounds=str(bounds))


def _held(check: ValueCheck, bound: Bound | None) -> ValueCheck:
    """The check by the measure that it misses most, or comes nearest to missing."""
    if bound is None:
        return check
    difference, gradient = (np.array([slope]) for slope in (check.difference, check.gradient))
    scores = bound.scores(difference, gradient)
    worst = max(scores, key=lambda s: (s.off > s.limit, s.off / s.limit if s.limit else s.off))
    return replace(check, error=worst.off, tolerance=worst.limit)
