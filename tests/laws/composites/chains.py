"""The numbers that the chains of these tests read, and what is made of a chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.rewriting import Done, apply, model_of

NUMBERS = """<int64[1] ax = {-1}, int64[1] mid = {1}, float zero = {0}, float half = {0.5}, float one = {1}, float two = {2},
    float three = {3}, float six = {6}, float sixth = {0.16666667}, float r2 = {1.4142135}, float rough = {1.414}, float r05 = {0.70710677},
    float k = {0.044715}, float s = {0.7978845608}, float eps = {0.00001}, float minus = {-0.5}>"""


def raised(text: str, constants: Mapping[str, Any] | None = None, *, opset: int = 23) -> Done:
    """What `raise-composites` makes of a graph."""
    return apply(model_of(text, constants, opset=opset), "raise-composites", "remove-unused")
