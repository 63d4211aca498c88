"""Compares two sets of results: first their structure (names, dtypes, shapes, NaN and Inf), then
their numbers.

The difference of floats is max|a - b| over the largest magnitude of the two tensors, so it lies in
[0, 2]. The difference of integers, booleans and strings is the fraction of elements that differ. A
different structure counts as infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.results import Plain
from onnxgrad.verify.bounds import Bound
from onnxgrad.verify.tolerance import Allowance, Range, floor_of, is_float
from onnxgrad.wording import counted, shape_text, told_apart

EQUAL, DIFFERENT, NOT_PROVED = "equal", "different", "not proved"
Limit = float | Allowance | Bound | None


@frozen
class Difference(Plain):
    """The worst difference of one output: an element, or a structural difference (`reason`).
    `compared`: the number of finite elements that were compared under a finite tolerance; for exact
    dtypes, all elements.
    """

    json_keys = (
        "output index a b rel tolerance reason ok answer allowed noise compared excused "
        "found wanted"
    )

    output: str
    index: tuple[int, ...] | None
    a: Any
    b: Any
    rel: float
    tolerance: float
    reason: str = ""
    compared: int = 0
    # for a bound set by the user: the measured and the required score
    found: str = ""
    wanted: str = ""
    check: str = ""  # the check that found it
    # between the tolerance and this limit nothing is proved: the original's own noise is as large
    allowed: float = 0.0
    noise: float = 0.0
    excused: int = 0  # exact elements that are allowed to differ
    part: bool = False  # a part of an output, which is also compared as a whole

    @property
    def ok(self) -> bool:
        return self.rel <= self.tolerance

    @property
    def answer(self) -> str:
        """`equal`, `different`, or `not proved` if the original's own noise could explain the
        difference.
        """
        return EQUAL if self.ok else NOT_PROVED if self.rel <= self.allowed else DIFFERENT

    @property
    def doubt(self) -> str:
        """Why the values are neither equal nor different."""
        by = "by" if math.isfinite(self.rel) else f"({self.reason})"
        size = f" {self.rel:.1e} of its largest value" if math.isfinite(self.rel) else ""
        own = f" by {self.noise:.1e}" if math.isfinite(self.noise) else " as much"
        return f"{self.output} differs {by}{size}, and the original differs from itself{own}"

    def __str__(self) -> str:
        if self.reason:
            return f"{self.output}: {self.reason}"
        at = "" if self.index is None else f"[{', '.join(map(str, self.index))}]"
        size = f"{self.rel:.2e} of max (tolerance {self.tolerance:.2e})"
        if self.found:
            size = f"{self.found} (wanted {self.wanted})"
        a, b = self.values(9)
        return f"{self.output}{at}: {a} -> {b}, {size}"

    def values(self, digits: int) -> tuple[str, str]:
        """Returns both values as text. Floats get `digits` digits, or as many as are needed to tell
        them apart.
        """
        if isinstance(self.a, float) and isinstance(self.b, float):
            return told_apart(self.a, self.b, digits)
        return str(self.a), str(self.b)


def has_finite(value: Any) -> bool:
    """True if a value has anything to compare: a finite element, or one of an exact dtype."""
    return finite_elements(value)[0] > 0


def finite_elements(value: Any) -> tuple[int, int]:
    """Returns the number of elements of a value that are finite or of an exact dtype, and the
    number of all its elements.
    """
    if isinstance(value, (list, dict)):
        parts = value.values() if isinstance(value, dict) else value
        counts = [finite_elements(part) for part in parts]
        return sum(finite for finite, _ in counts), sum(size for _, size in counts)
    array = np.asarray(value)
    return (0, 0) if value is None else (int(_finite(array).sum()), array.size)


def _finite(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    inexact = is_float(array) or array.dtype.kind == "c"
    return np.asarray(np.isfinite(array) if inexact else np.ones(array.shape, bool))


def compare(
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    tolerance: Mapping[str, Limit] | Limit = None,
    ranges: Mapping[str, Range] | None = None,
    alive: Mapping[str, Any] | None = None,
) -> list[Difference]:
    """Returns the worst difference of every output, structural differences included. Elements of
    sequences are named `y[0]`.

    `tolerance`: by output name, one for all, or None for the floor of each dtype; a Bound replaces
    the usual measure by the user's. `ranges`: by exact output, the ranges within which an element
    is excused. `alive`: by output, the mask of the elements to compare.
    """
    found = []
    for name, value in expected.items():
        limit = tolerance.get(name) if isinstance(tolerance, Mapping) else tolerance
        if name not in actual:
            found.append(_broken(name, "is missing from the second model's outputs"))
            continue
        legal, compared = (ranges or {}).get(name), (alive or {}).get(name)
        if compared is None or np.shape(value) != np.shape(compared):
            found.extend(_compare_value(name, value, actual[name], limit, legal))
        else:
            pair = np.asarray(value), np.asarray(actual[name])
            found.append(compare_tensor(name, *pair, limit, legal, compared))
    found.extend(
        _broken(name, "is not an output of the first model")
        for name in actual
        if name not in expected
    )
    return found


def worst(differences: Iterable[Difference]) -> Difference | None:
    """Returns the difference that exceeds its tolerance most, or comes nearest to it."""
    return max(differences, key=_excess, default=None)


def _excess(difference: Difference) -> tuple[int, float, float]:
    ratio = (
        difference.rel / difference.tolerance
        if difference.tolerance
        else (math.inf if difference.rel else 0.0)
    )
    return _RANKS.index(difference.answer), ratio, difference.rel


_RANKS = (EQUAL, NOT_PROVED, DIFFERENT)


def _broken(name: str, reason: str) -> Difference:
    return Difference(name, None, None, None, math.inf, 0.0, reason)


def _compare_value(
    name: str, a: Any, b: Any, limit: Limit, legal: Range | None = None
) -> list[Difference]:
    if isinstance(a, list) or isinstance(b, list):
        if not (isinstance(a, list) and isinstance(b, list)):
            return [_broken(name, f"was a {_kind(a)}, is a {_kind(b)}")]
        if len(a) != len(b):
            return [_broken(name, f"had {counted(len(a), 'element')}, has {len(b)}")]
        found = [
            d
            for i, (x, y) in enumerate(zip(a, b, strict=True))
            for d in _compare_value(f"{name}[{i}]", x, y, limit)
        ]
        return found or [Difference(name, None, None, None, 0.0, 0.0)]
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return [_broken(name, "has other map keys")]
        # maps have no order: onnxruntime sorts the keys
        x, y = ([value[key] for key in a] for value in (a, b))
        return _compare_value(name, np.asarray(x), np.asarray(y), limit)
    if a is None or b is None:
        same = a is None and b is None
        return [
            Difference(name, None, None, None, 0.0, 0.0)
            if same
            else _broken(name, f"was {_kind(a)}, is {_kind(b)}")
        ]
    return [compare_tensor(name, np.asarray(a), np.asarray(b), limit, legal)]


def _kind(value: Any) -> str:
    if value is None:
        return "absent"
    return "sequence" if isinstance(value, list) else "map" if isinstance(value, dict) else "tensor"


def compare_tensor(
    name: str,
    a: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any],
    allowed: Limit,
    legal: Range | None = None,
    alive: np.ndarray[Any, Any] | None = None,
) -> Difference:
    """Compares two tensors of any dtype and shape. `allowed` None means the floor of the dtype.
    `alive`: the mask of the elements to compare.
    """
    bound = allowed if isinstance(allowed, Bound) and allowed.judges(a) else None
    limit = _allowance(allowed, a.dtype)
    if (wrong := _other_structure(name, a, b, limit, bound)) is not None:
        return wrong
    if a.size == 0:
        return Difference(name, None, None, None, 0.0, limit.equal)
    if alive is not None and (is_float(a) or a.dtype.kind == "c"):
        a, b = (np.where(alive, v, np.array(np.nan, v.dtype)) for v in (a, b))
    elif alive is not None:
        b = np.where(alive, b, a)
    compared = int((_finite(a) if alive is None else _finite(a) & alive).sum())
    if a.dtype.kind == "c":
        a, b = _split_complex(a), _split_complex(b)
    if not is_float(a) and bound is None:
        differ = np.asarray(a != b, bool)
        excused = differ & legal.excuses(b) if legal is not None else np.zeros_like(differ)
        left = differ & ~excused
        found = _at(name, a, b, left, float(left.mean()), limit, compared)
        return replace(found, excused=int(excused.sum()))
    x, y = a.astype(np.float64), b.astype(np.float64)
    if (wrong := _other_places(name, x, y, limit)) is not None:
        return wrong
    if bound is not None:
        return _scored(name, x, y, bound)
    finite = np.isfinite(x)
    gap = np.abs(np.subtract(x, y, where=finite, out=np.zeros_like(x)))
    scale = max(
        np.max(np.abs(x), where=finite, initial=0.0), np.max(np.abs(y), where=finite, initial=0.0)
    )
    return _at(name, x, y, gap, float(gap.max() / scale) if scale else 0.0, limit, compared)


def _allowance(limit: Limit, dtype: np.dtype[Any]) -> Allowance:
    if isinstance(limit, Allowance):
        return limit
    return Allowance(limit if isinstance(limit, (int, float)) else floor_of(dtype.name))


def _other_structure(
    name: str,
    a: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any],
    limit: Allowance,
    bound: Bound | None,
) -> Difference | None:
    """Returns a difference in dtype or shape, if there is one. Floats of two widths may be compared
    within a bound.
    """
    if _dtype_name(a) != _dtype_name(b) and not (bound and is_float(a) and is_float(b)):
        return _broken(name, f"dtype was {_dtype_name(a)}, is {_dtype_name(b)}")
    if a.shape == b.shape:
        return None
    # an infinite allowance means that the original's own runs disagree about the shape
    reason = f"shape was {shape_text(a.shape)}, is {shape_text(b.shape)}"
    return Difference(
        name, None, None, None, math.inf, 0.0, reason, allowed=limit.most, noise=limit.noise
    )


def _other_places(
    name: str, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], limit: Allowance
) -> Difference | None:
    """Returns a difference for NaN or infinity at a place where the other array has another value,
    if there is one.
    """
    for what, mask in (
        ("NaN", np.isnan(x) != np.isnan(y)),
        ("infinity", _infinite(x) != _infinite(y)),
    ):
        if mask.any():
            where = _at(name, x, y, mask, math.inf, limit)
            count = f"{int(mask.sum())} of {x.size} elements"
            reason = (
                f"{what} at {list(where.index or ())} on one side only: {where.a} -> {where.b} "
                f"({count})"
            )
            return replace(where, tolerance=0.0, reason=reason)
    return None


def is_non_finite(difference: Difference) -> bool:
    """Whether values differ by a NaN or infinity that only one of them has."""
    return difference.index is not None and math.isinf(difference.rel) and bool(difference.reason)


def _scored(
    name: str, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], bound: Bound
) -> Difference:
    """Returns the score that fails most, or comes nearest to failing. Its `compared` is the
    smallest of all scores.
    """
    scores = bound.scores(x, y)
    found = [
        Difference(
            name, at, x[at].item(), y[at].item(), s.off, s.limit,
            found=s.found, wanted=s.wanted, compared=min(other.compared for other in scores),
        )
        for s in scores
        for at in [tuple(int(i) for i in np.unravel_index(s.at, x.shape))]
    ]  # fmt: skip
    return max(found, key=_excess)


def _dtype_name(array: np.ndarray[Any, Any]) -> str:
    return "string" if array.dtype.kind in "OUS" else array.dtype.name


def _split_complex(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.stack([array.real, array.imag], axis=-1)


def _infinite(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(np.isinf(x), np.sign(x), 0.0)


def _at(
    name: str,
    a: Any,
    b: Any,
    badness: np.ndarray[Any, Any],
    rel: float,
    limit: Allowance,
    compared: int = 0,
) -> Difference:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(badness)), badness.shape))
    x, y = (v.item() if isinstance(v, np.generic) else v for v in (a[index], b[index]))
    return Difference(
        name, index, x, y, rel, limit.equal, compared=compared, allowed=limit.most,
        noise=limit.noise,
    )  # fmt: skip


def noise(
    runs: Sequence[Mapping[str, Any]], alive: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Returns, by output, the largest difference between the first of several legal runs of one
    model and the others, over the elements of `alive`. The difference is inf if the shapes differ.
    """
    found: dict[str, float] = {}
    for other in runs[1:]:
        for difference in compare(runs[0], other, alive=alive):
            name = base_name(difference.output, runs[0])
            found[name] = max(found.get(name, 0.0), difference.rel)
    return found


def base_name(name: str, outputs: Mapping[str, Any]) -> str:
    """Returns the output to which a sequence element `y[0]` belongs."""
    return name if name in outputs else name.split("[", 1)[0]
