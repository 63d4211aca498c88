"""Finding the first rewrite that changed the result."""

from __future__ import annotations

from collections.abc import Callable

from onnxgrad.errors import InternalError


def bisect(total: int, good: Callable[[int], bool]) -> int:
    """The smallest n in 1..total for which `good(n)`, "the first n firings leave the result alone",
    is false.

    Takes log2(total) + 2 calls. Where good is not monotonic (a later firing repairs the result),
    the answer is still a firing whose predecessor is good and which itself is bad. Raises
    InternalError when the ends are not good(0) and not good(total).
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
