"""The functions that steps call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.derivations import Predicate, Step
from onnxgrad.ir.storage.external_data import narrowed
from onnxgrad.ir.traced_arrays import STATIC
from onnxgrad.laws.constant_values import reason_of_rounding
from onnxgrad.laws.float16.forms import fits_float16, in_half


def same_bytes(a: Any, b: Any) -> bool:
    """Whether two arrays are equal in shape, dtype, and every bit."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and bool(a.tobytes() == b.tobytes())


# the functions that `@predicate` and `@recorded` declare
CALLS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (fits_float16, in_half, reason_of_rounding)
}
# functions that no record calls: of a block of several elements, and of predicates
_OWN: Mapping[str, Callable[..., Any]] = {"in_half": narrowed, "same_bytes": same_bytes}


def fact_of(p: Predicate) -> Step:
    """Returns the step whose truth value a predicate is about."""
    return Step("own", same_bytes.__name__, [p.step, p.value]) if p.same else p.step


def applied(s: Step, known: Mapping[Step, Any], below: Sequence[Step]) -> Any:
    """Returns the value of a step from those of its operands `below`. Raises InputError for a step
    that a record cannot have.
    """
    operands: Sequence[Any] = s.operands
    keywords, kind = s.keywords, s.kind
    direct = [o for o in operands if type(o) is Step]
    if len(below) != len(direct):  # others are in lists
        operands, keywords = substituted(list(operands), known), substituted(keywords, known)
    elif len(direct) == len(operands):
        operands = [known[o] for o in direct]
    else:
        operands = [known[o] if type(o) is Step else o for o in operands]
    if kind == "literal":
        return s.what
    called = kind in ("numpy", "call", "own")
    if called and (function := _function(kind, s.what)) is not None:
        return function(*operands, **keywords)
    if kind == "astype":
        return operands[0].astype(s.what)
    if kind == "getitem":
        return operands[0][operands[1]]
    if kind == "part":
        return operands[0][s.what]
    raise InputError(f"the record has a step '{kind} {s.what}' that does not exist")


def _all(array: Any, *more: Any, **keywords: Any) -> Any:
    """As of numpy, whose function takes twice as long as the method; many facts end in it."""
    return np.asarray(array).all(*more, **keywords)


@cache
def _function(kind: str, name: str) -> Callable[..., Any] | None:
    """The function that a step calls; None if a record may not call it."""
    if kind != "numpy":
        return (CALLS if kind == "call" else _OWN).get(name)
    if name == "all":
        return _all
    found = getattr(np, name, None)
    return found if name in STATIC or isinstance(found, np.ufunc) else None


def substituted(value: Any, known: Mapping[Step, Any]) -> Any:
    """Returns nested operands with these values in place of their steps."""
    kind = type(value)
    if kind is Step:
        return known[value]
    if kind is list or kind is tuple:
        return kind([substituted(v, known) for v in value])
    if kind is dict:
        return {k: substituted(v, known) for k, v in value.items()}
    return value
