"""Whether onnxruntime, the float64 reference, the model and its gradient graph compute the same
outputs: otherwise differences of the one say nothing about gradients of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxgrad.errors import InputError, NotProved, OnnxgradError
from onnxgrad.grad.checking.vectors import flat
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.wording import shape_text

# the target itself may be off by this many times the tolerance, because a model that rounds values
# or selects elements amplifies rounding
_SAME, _LARGEST = 1000, 0.5
_IN_FLOAT64 = 0.1  # times the tolerance


def same_function(
    target: str, value: Any, expected: Any, limit: float, rounding: Callable[[], float]
) -> None:
    """Raises NotProved if onnxruntime and the reference compute different values of a target:
    differences of the one then say nothing about gradients of the other. rounding: returns how far
    rounding in onnxruntime may move the target, such as the loss of a label that is certain.
    """
    a, b = flat(value), flat(expected)
    size = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    if a.shape == b.shape:
        off = float(np.abs((a - b)[np.isfinite(a) & np.isfinite(b)]).max(initial=0.0))
        if off <= min(_SAME * limit, _LARGEST) * size or off <= rounding():
            return
        what = f"values {off:.1e} apart, of at most {size:.1e}"
    else:
        what = f"shapes {shape_text(a.shape)} and {shape_text(b.shape)}"
    raise NotProved(
        f"onnxruntime and the float64 reference compute another '{target}' ({what}): differences "
        "of the one say nothing about the gradient of the other"
    )


def same_outputs(
    found: Mapping[str, Any],
    expected: Mapping[str, Any],
    limit: float,
    in_float64: Callable[[Sequence[str]], tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> None:
    """Raises NotProved if outputs that the gradient graph shares with the model are not those of
    the model, unless rounding explains it: in_float64 returns both in float64.
    """
    different = [n for n, value in found.items() if _apart(value, expected[n]) > limit]
    if not different:
        return
    first, second = in_float64(different)
    for name in different:
        off = _apart(first[name], second[name])
        if not off <= _IN_FLOAT64 * limit:
            raise NotProved(
                f"the gradient graph computes another output '{name}' than the model: values "
                f"{off:.1e} of the largest one apart"
            )


def _apart(value: Any, expected: Any) -> float:
    """Returns the largest difference, relative to the largest element; infinite for other shapes
    and other places of NaN.
    """
    if value is None or (isinstance(value, np.ndarray) and value.dtype.kind in "OUS"):
        return 0.0 if np.array_equal(np.asarray(value), np.asarray(expected)) else float("inf")
    a, b = flat(value), flat(expected)
    if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    known = np.isfinite(a) & np.isfinite(b)
    size = float(np.abs(b[known]).max(initial=0.0))
    return float(np.abs((a - b)[known]).max(initial=0.0)) / (size or 1.0)


def whose_fault(error: RunFailed, again: Callable[[], object]) -> OnnxgradError:
    """Returns the error to raise if onnxruntime refused the gradient graph: an InputError if it
    also refuses the model, which `again` runs.
    """
    try:
        again()
    except RunFailed as refused:
        if refused.stage in ("load", "run"):
            return InputError(f"the model itself does not run on these inputs: {refused.reason}")
    if error.stage not in ("load", "run"):
        return error  # a limit was reached, which the error names
    return NotProved(
        "the gradient, our result, does not run in onnxruntime, though the model does: "
        f"{error.reason}; please report it with the model"
    )
