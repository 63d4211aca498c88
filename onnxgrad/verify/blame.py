"""The cause of a failure: the model, or the first rewrite that changed the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from onnx import ModelProto, ValueInfoProto

from onnxgrad.errors import InputError, InternalError, OnnxgradError
from onnxgrad.ir.preflight.invalid_models import fault_of
from onnxgrad.ir.preflight.model import check_model
from onnxgrad.limits import LimitReached, limited
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.proof_model import proof_model
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import open_session
from onnxgrad.verify.values import Value

_SECONDS = 30.0
_SHOWN = 600  # characters of the error that the fault caused


def blamed(models: Iterable[str], error: Exception) -> InputError | None:
    """Returns an error that names the fault of one of these models, or None if onnxruntime runs
    them all or is missing. Skips names that are not files.
    """
    for name in models:
        if not Path(name).is_file():
            continue
        try:
            with limited(_SECONDS):
                reason = _fault(Path(name))
        except LimitReached:
            reason = f"onnxruntime does not finish this model within {_SECONDS:g} s"
        except Exception:  # noqa: BLE001  # no runtime or no feeds: report the first error
            return None
        if reason is not None:
            what = (
                str(error)
                if isinstance(error, OnnxgradError)
                else f"{type(error).__name__}: {error}"
            )
            return InputError(f"{name}: {reason}, which caused this error: {what[:_SHOWN]}")
    return None


def _fault(path: Path) -> str | None:
    """Returns why the model is unusable: it does not load, does not run, or declares shapes that it
    does not compute.
    """
    proto = proof_model(path).proto
    try:
        check_model(proto, "the model")
    except InputError as invalid:
        return str(invalid)
    reason = fault_of(proto)
    if reason is not None:
        return f"this is not a valid ONNX model ({reason})"
    try:
        session = open_session(path, optimize=False)
        found = session.run(feeds_for(proto, seed=0))
    except RunFailed as refused:
        if refused.limit:
            return f"onnxruntime does not finish this model ({refused.reason})"
        return (
            f"onnxruntime does not {'load' if refused.stage == 'load' else 'run'} this model "
            f"({refused.reason})"
        )
    return next(_lies(proto, found), None)


def _lies(proto: ModelProto, found: dict[str, Value]) -> Iterator[str]:
    for value in proto.graph.output:
        array = found.get(value.name)
        declared = _sizes(value)
        if not isinstance(array, np.ndarray) or declared is None:
            continue
        if len(declared) != array.ndim or any(
            d is not None and d != n for d, n in zip(declared, array.shape)
        ):
            shown = ", ".join("?" if d is None else str(d) for d in declared)
            yield (
                f"output '{value.name}' is declared of shape [{shown}] and has "
                f"{list(array.shape)} when it runs"
            )


def _sizes(value: ValueInfoProto) -> list[int | None] | None:
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim
    ]


def bisect(total: int, good: Callable[[int], bool]) -> int:
    """Returns the smallest n in 1..total for which `good(n)` is false, where `good(n)` says whether
    the result is unchanged after the first n rewrites.

    Calls `good` log2(total) + 2 times. If `good` is not monotonic (a later rewrite repairs the
    result), the answer is still a bad rewrite after a good one. Raises InternalError unless good(0)
    is true and good(total) is false.
    """
    if total < 1 or good(total):
        raise InternalError(
            f"bisect: the result after all {total} rewrites is good, so there is nothing to find"
        )
    if not good(0):
        raise InternalError(
            "bisect: the result differs before any rewrite, so no rewrite is to blame"
        )
    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return high
