"""Initializers whose values others will give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from onnxgrad.ir.var import Var


@contextmanager
def variable(values: Iterable[Var]) -> Iterator[None]:
    """While this lasts, initializers among `values` are no constants."""
    weights = [v for v in values if v.initializer is not None]
    for v in weights:
        v.variable = True
    try:
        yield
    finally:
        for v in weights:
            v.variable = False
