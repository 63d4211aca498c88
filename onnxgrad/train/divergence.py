"""Finds the first value of a graph that is NaN or infinite."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onnxgrad.errors import NotProved
from onnxgrad.ir.load import load_own
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_bytes
from onnxgrad.ir.types import FLOAT_DTYPES, Array
from onnxgrad.train.engines.session import checked, not_finite
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.step import TrainingStep
from onnxgrad.verify.running.session import run


class Diverged(NotProved):
    """The loss, or the norm of its gradients, is NaN or infinite (exit code 1)."""


def what_ends(manifest: Manifest, loss: float, metrics: Mapping[str, Array]) -> str | None:
    """Returns why a step ends training: its loss is not finite, or without loss scaling the norm of
    its gradients; else None.
    """
    if not np.isfinite(loss):
        return f"the loss is {loss}"
    norm = norm_of(manifest, metrics)
    if norm is None or np.isfinite(norm) or manifest.loss_scaling is not None:
        return None
    return f"the loss is {loss}, but the norm of its gradients is {norm}"


def norm_of(manifest: Manifest, metrics: Mapping[str, Array]) -> float | None:
    """Returns the norm of all gradients if the step returns it, else None."""
    norm = None if manifest.gradient_norm is None else metrics.get(manifest.gradient_norm)
    return None if norm is None else float(norm)


def divisor_of(manifest: Manifest, metrics: Mapping[str, Array]) -> float | None:
    """Returns the number of labels that count in a batch, or the sum of their weights; None if the
    loss is no mean over labels.
    """
    found = None if manifest.divisor is None else metrics.get(manifest.divisor)
    return None if found is None else float(found)


def counting(manifest: Manifest, feeds: Mapping[str, Array]) -> bool:
    """Whether each array of labels has one that is not ignored, among those with a score."""
    labels = [f for f in manifest.of_role("batch") if f.ignored is not None and f.name in feeds]
    read = (np.atleast_1d(feeds[f.name])[..., f.unread or 0 :] != f.ignored for f in labels)
    return all(bool(array.any()) for array in read)


def diverged(
    task: TrainingStep,
    number: int,
    what: str,
    batch: Mapping[str, Array],
    weights: Mapping[str, Array],
) -> Diverged:
    """Returns the end of training in one line: `what` happened, and where the data has its first
    value that is not finite, or else which value of the model that is.
    """
    rows, feeds = getattr(batch, "rows", None), checked(batch, task.manifest.of_role("batch"))
    narrow = (task.manifest.options or {}).get("autocast")
    places = (not_finite(name, a, rows) for name, a in feeds.items())
    where = next(filter(None, places), "")
    if not where and (first := first_not_finite(task.evaluation, {**feeds, **weights})):
        where = f"the first value that is not finite is '{first}'"
    if not where:
        where = "all values of the model are finite"
        where += f" in float32: a product overflows in {narrow}" if narrow else ""
    if not counting(task.manifest, feeds):
        where += "; all labels of the batch are ignored"
    return Diverged(f"step {number}: {what}; {where}. The parameters are those before this step")


def first_not_finite(program: Program, feeds: Mapping[str, Array]) -> str | None:
    """Returns the name of the first value, in the graph's order, that is not finite on these feeds,
    or None.

    Inputs are checked first, then results whose operands are finite. Infinite constants of the
    model are ignored.
    """
    for name, array in feeds.items():
        if not _finite(array):
            return name
    seen = load_own(program)
    block = seen.main
    block.schedule()
    results = [
        v for b in block.bindings for v in b.outputs if v is not None and v.dtype in FLOAT_DTYPES
    ]
    for v in results:
        if not v.returned and not v.is_constant:
            block.add_output(v)
    values = run(to_bytes(seen), feeds)
    return next((v.name for v in results if v.name in values and not _finite(values[v.name])), None)


def _finite(value: object) -> bool:
    array = np.asarray(value)
    return array.dtype.kind in "biuSUO" or bool(np.isfinite(array.astype(np.float64)).all())
