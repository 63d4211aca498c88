"""Whether parallel products had better become one: the static rule of auto."""

from __future__ import annotations

from collections.abc import Sequence

from onnxgrad.ir.types import Dim
from onnxgrad.ir.var import Var


def reason_of_weights(weights: Sequence[Var], provider: str) -> str | None:
    """Why auto leaves products with these weights apart: the file would grow, or on CPU every run
    would join them anew; None when neither is so.

    Weights that are inputs, single rows, merged over separate on onnxruntime 1.31: 1.6 for 2 of
    (512, 64), 1.3 for 16 of (64, 64), 3.7 to 4.3 for 3 of (1024, 1024).
    """
    if any(v.is_constant and v.use_count > 1 for v in weights):
        return "a weight has another reader, so the file would hold it twice"
    if provider != "cuda" and not all(v.is_constant for v in weights):
        return "a weight is not constant: on CPU joining them at each run costs more than it saves"
    return None


def rows(x: Var) -> int | None:
    """How many rows the left operand of a product has over all batch axes, when known."""
    if x.shape is None:
        return None
    count = 1
    for d in x.shape[:-1]:
        if not isinstance(d, int):
            return None
        count *= d
    return count


def reason_not_to_merge(
    merge: str, provider: str, branches: int, m: int | None, k: Dim
) -> str | None:
    """Why a group of products had better stay apart, None when merging is right.

    The rule for `auto` comes from measurements on onnxruntime: on CPU the Split copies each result,
    which only single rows pay back (12 or more branches, or at least 512 columns); on CUDA one
    launch in place of many pays.
    """
    if merge == "never":
        return "merging is switched off"
    if merge == "always" or provider == "cuda":
        return None
    if m is None:
        return "the number of rows is unknown, and on CPU merging pays for a single row only"
    if m > 1:
        return f"{m} rows: on CPU the Split copies more than the merged product saves"
    if branches < 12 and not (isinstance(k, int) and k >= 512):
        return f"{branches} branches of {k} columns: too small to pay on CPU"
    return None
