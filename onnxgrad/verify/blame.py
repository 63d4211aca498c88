"""The cause of a failure: the model, or the first rewrite that changed the result."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from onnx import ModelProto, ValueInfoProto

from onnxgrad.errors import InputError, InternalError, OnnxgradError
from onnxgrad.ir.load import ModelLike
from onnxgrad.ir.preflight.invalid_models import fault_of
from onnxgrad.ir.preflight.model import check_model
from onnxgrad.limits import LimitReached, limited
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.proof_model import proof_model
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import open_session
from onnxgrad.verify.values import Value
from onnxgrad.wording import shape_text

_SECONDS = 30.0
# the packages whose functions a job calls
_LIBRARIES = {"onnxgrad", "onnx", "numpy", "google", "ml_dtypes", "onnx_ir", "onnxscript"}


def blamed(models: Iterable[ModelLike], error: Exception) -> InputError | None:
    """Returns an error that names the fault of one of these models in the words of onnx or
    onnxruntime. Returns None if `error` is one that users can meet, or comes from the caller's own
    code, if onnxruntime runs all models, or if it is missing. Skips paths that are not files.
    """
    if not _is_unexpected(error) or _is_the_callers(error):
        return None
    for model in models:
        path = model if isinstance(model, (str, os.PathLike)) else None
        if path is not None and not Path(path).is_file():
            continue
        try:
            with limited(_SECONDS):
                reason = _fault(model)
        except LimitReached:
            reason = f"onnxruntime does not finish this model within {_SECONDS:g} s"
        except Exception:  # noqa: BLE001  # no runtime or no feeds: report the first error
            return None
        if reason is not None:
            return InputError(f"{'the model' if path is None else path}: {reason}")
    return None


def _is_unexpected(error: Exception) -> bool:
    ours = isinstance(error, OnnxgradError) and not isinstance(error, InternalError)
    return not ours and not isinstance(error, (MemoryError, OSError))


def _is_the_callers(error: Exception) -> bool:
    """Whether a function of the caller, such as the check of `reduce`, was running."""
    packages = (
        frame.f_globals.get("__name__", "").partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    return not all(p in _LIBRARIES or p in sys.stdlib_module_names for p in packages)


def _fault(given: ModelLike) -> str | None:
    """Returns why the model is unusable: it does not load, does not run, or declares shapes that it
    does not compute.
    """
    model = proof_model(given)
    proto = model.proto
    try:
        check_model(proto, "the model")
    except InputError as invalid:
        return str(invalid)
    reason = fault_of(proto)
    if reason is not None:
        return f"this is not a valid ONNX model ({reason})"
    try:
        session = open_session(model.source, optimize=False)
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
            yield (
                f"output '{value.name}' is declared of shape {shape_text(declared)} and has "
                f"{shape_text(array.shape)} when it runs"
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
