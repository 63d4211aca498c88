"""Which roots of a pattern over several bindings may change places: those that differ in the
names of captures only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from onnxgrad.rewrite.pattern import Capture, Pattern


def forms(roots: Sequence[Pattern], told_apart: Collection[Pattern]) -> list[Hashable]:
    """One form for each root; equal ones are interchangeable. A root around one of `told_apart`
    is like no other.
    """
    parts = [list(_parts(root)) for root in roots]
    names = Counter(name for found in parts for name in {_name(p) for p in found})
    # a capture that several roots have is the same for all, and so is a pattern that stands in
    # several
    shared = {name for name, times in names.items() if times > 1}
    alike = [_form(root, shared, {}) for root in roots]
    return [
        (i, form) if any(p in told_apart for p in found) else form
        for i, (form, found) in enumerate(zip(alike, parts, strict=True))
    ]


def _name(pattern: Pattern) -> Hashable:
    return pattern.name if isinstance(pattern, Capture) else id(pattern)


def _parts(value: Any) -> Iterator[Pattern]:
    """The patterns inside a pattern, itself included."""
    if isinstance(value, Pattern):
        yield value
        for f in fields(value):
            yield from _parts(getattr(value, f.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts(item)


def _form(value: Any, shared: Collection[Hashable], own: dict[Hashable, int]) -> Hashable:
    """A pattern as nested tuples, in which its own captures are numbers in order of appearance."""
    if isinstance(value, Pattern):
        name = _name(value)
        if name in shared and not isinstance(value, Capture):
            return name
        called = name if name in shared else own.setdefault(name, len(own))
        inside = (
            _form(getattr(value, f.name), shared, own)
            for f in fields(value)
            if f.name not in ("name", "label")
        )
        return (type(value).__name__, called, *inside)
    if isinstance(value, tuple):
        return tuple(_form(item, shared, own) for item in value)
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    return value if isinstance(value, Hashable) else repr(value)
