"""Bounds chosen by the user, for two models that are not meant to be equal.

No calibrated tolerance fits deliberate rounding, such as float16 against float32 or int8 against
float. Bounds apply element by element (`atol`, `rtol`) or to a measure of a whole output:

    |a - b| <= atol + rtol * |a|         as in numpy.testing.assert_allclose; a is the original
    cosine   <a, b> / (|a| |b|)          at least the bound
    psnr     20 log10(max|a| / rms(a - b)) in dB, at least the bound
    top1     the share of rows (along the last axis) whose largest element is at the same place;
             any of the places counts if a row of the original has several
    worst    max|a - b| / max|a|         at most the bound
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.verify.tolerance import Allowance, is_float
from onnxgrad.wording import option

Array = np.ndarray[Any, Any]
# one number for all outputs of floats, or one per output
PerOutput = float | Mapping[str, float] | None
_METRIC = re.compile(r"(?:(?P<output>.+):)?(?P<metric>\w+)=(?P<least>[^=]+)", re.DOTALL)
_EXACT = 2.0**53
_MOST = {"cosine": 1.0, "psnr": math.inf, "top1": 1.0, "worst": math.inf}


@frozen
class Score:
    """The result of a measure: `off` against `limit`, the place of the difference, both numbers as
    text, and the number of compared elements (top1: rows). The score says nothing if that number is
    0.
    """

    off: float
    limit: float
    at: int
    found: str
    wanted: str
    compared: int


@frozen
class Bound:
    """The user's tolerance for one output. `named`: the user named the output, so the bound also
    holds for integers.
    """

    atol: float | None = None
    rtol: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    named: bool = False

    def judges(self, a: Array) -> bool:
        """True if the bound applies to values of this dtype: floats, or any value of a named
        output.

        Integers that float64 cannot represent have to be equal.
        """
        if is_float(a) or a.dtype.kind == "c":
            return True
        largest = max(int(a.max(initial=0)), -int(a.min(initial=0))) if a.dtype.kind in "biu" else 0
        return self.named and a.dtype.kind in "biu" and largest < _EXACT

    def scores(self, a: Array, b: Array) -> list[Score]:
        """Returns the score of every measure for two arrays of the same shape, in float64 or
        integers. Elements that are not finite are ignored; they are at the same places in both
        arrays.
        """
        found = [_METRICS[name](a, b, least) for name, least in self.metrics]
        if self.atol is not None or self.rtol is not None:
            found.append(_close(a, b, self.atol or 0.0, self.rtol or 0.0))
        return found

    def __str__(self) -> str:
        bounds = [f"{name}={least:g}" for name, least in self.metrics]
        for name in ("atol", "rtol"):
            if getattr(self, name) is not None:
                bounds.append(f"{name}={getattr(self, name):g}")
        return " ".join(bounds)


@frozen
class Bounds:
    """The bounds of a comparison: one for all outputs of floats, and bounds for single outputs."""

    common: Bound | None = None
    own: Mapping[str, Bound] = field(default_factory=dict)

    @staticmethod
    def of(atol: PerOutput, rtol: PerOutput, metrics: str | Iterable[str] | None) -> Bounds:
        """Returns the bounds that the arguments of `verify` describe. Raises InputError for an
        invalid bound.
        """
        texts = [metrics] if isinstance(metrics, str) else list(metrics or ())
        bounds: dict[str | None, dict[str, Any]] = {}
        for name, given in (("atol", atol), ("rtol", rtol)):
            for output, value in _by_output(name, given).items():
                bounds.setdefault(output, {})[name] = value
        for text in texts:
            output, metric = _metric(text)
            own = bounds.setdefault(output, {})
            own["metrics"] = (*own.get("metrics", ()), metric)
        common = bounds.pop(None, None)
        named = {str(name): Bound(**own, named=True) for name, own in bounds.items()}
        return Bounds(None if common is None else Bound(**common), named)

    def check(self, outputs: Collection[str]) -> None:
        """Raises InputError if a bound names an output that does not exist."""
        for name in self.own:
            if name not in outputs:
                raise InputError(
                    f"a bound is given for {name!r}, which is not an output (outputs: "
                    f"{', '.join(outputs)})"
                )

    def bound(self, output: str) -> Bound | None:
        """Returns the user's bound for an output, or None if the proof's own tolerance applies."""
        return self.own.get(output, self.common)

    def over(self, limits: Mapping[str, Allowance]) -> dict[str, Allowance | Bound]:
        """Returns the tolerance of each output: the user's bound, or else the proof's own limit."""
        return {name: self.bound(name) or limit for name, limit in limits.items()}

    def __bool__(self) -> bool:
        return self.common is not None or bool(self.own)

    def __str__(self) -> str:
        all_of_them = [] if self.common is None else [str(self.common)]
        return ", ".join([*all_of_them, *(f"{name}: {own}" for name, own in self.own.items())])


def _by_output(name: str, given: PerOutput) -> dict[str | None, float]:
    if given is None:
        return {}
    found = dict(given) if isinstance(given, Mapping) else {None: given}
    for value in found.values():
        if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise InputError(
                f"{option(f'--{name}', name)} must be a number from 0 on, not {value!r}"
            )
    return {output: float(value) for output, value in found.items()}


def _metric(text: str) -> tuple[str | None, tuple[str, float]]:
    match = _METRIC.fullmatch(text)
    known = " or ".join(f"{name}={'MOST' if name == 'worst' else 'LEAST'}" for name in _MOST)
    where = option("--metric", "metric:")
    if match is None or match["metric"] not in _MOST:
        raise InputError(f"{where} {text[:80]!r}: write {known}, with OUTPUT: before it for one")
    try:
        least = float(match["least"])
    except ValueError:
        least = math.nan
    if not 0 < least <= _MOST[match["metric"]] or math.isinf(least):
        most = f" up to {_MOST[match['metric']]:g}" if _MOST[match["metric"]] < math.inf else ""
        end = "most" if match["metric"] == "worst" else "least"
        raise InputError(f"{where} {text[:80]!r}: the {end} is a number above 0{most}")
    return match["output"], (match["metric"], least)


# ---- the measures --------------------------------------------------------------------------------


def _finite(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns the elements that are finite in both arrays, as float64 vectors."""
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    both = np.isfinite(x) & np.isfinite(y)
    return x[both], y[both]


def _furthest(a: Array, b: Array) -> int:
    """Returns the position of the largest difference among finite elements."""
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    both = np.isfinite(x) & np.isfinite(y)
    gap = np.abs(np.subtract(x, y, where=both, out=np.zeros_like(x)))
    return int(np.argmax(gap)) if gap.size else 0


def _close(a: Array, b: Array, atol: float, rtol: float) -> Score:
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    both = np.isfinite(x) & np.isfinite(y)
    gap = np.abs(np.subtract(x, y, where=both, out=np.zeros_like(x)))
    allowed = atol + rtol * np.abs(np.where(both, x, 0.0))
    # if the allowance is 0, any difference exceeds it
    over = np.where(gap > 0, np.inf, 0.0)
    np.divide(gap, allowed, out=over, where=allowed > 0)
    at = int(np.argmax(over)) if over.size else 0
    if not over.size:
        return Score(0.0, 1.0, at, "0", "", 0)
    # the element whose difference is the largest multiple of its allowance
    return Score(float(over[at]), 1.0, at, f"{gap[at]:.1e}", f"{allowed[at]:.1e}", int(both.sum()))


def _cosine(a: Array, b: Array, least: float) -> Score:
    x, y = _finite(a, b)
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    wanted = f"≥ {least:g}"
    if np.array_equal(x, y):  # a vector of zeros has no direction
        return Score(0.0, 1.0 - least, 0, "cosine 1", wanted, x.size if lengths else 0)
    cosine = float(x @ y) / lengths if lengths else 0.0
    return Score(1.0 - cosine, 1.0 - least, _furthest(a, b), f"cosine {cosine:.6g}", wanted, x.size)


def _psnr(a: Array, b: Array, least: float) -> Score:
    x, y = _finite(a, b)
    peak = float(np.abs(x).max(initial=0.0))
    error = math.sqrt(float(np.mean((x - y) ** 2))) if x.size else 0.0
    limit, wanted = 10.0 ** (-least / 20), f"≥ {least:g} dB"
    if not error:
        return Score(0.0, limit, 0, "psnr inf", wanted, x.size if peak else 0)
    ratio = error / peak if peak else math.inf
    found = f"psnr {-20 * math.log10(ratio):.4g} dB" if peak else "psnr -inf"
    return Score(ratio, limit, _furthest(a, b), found, wanted, x.size)


def _worst(a: Array, b: Array, most: float) -> Score:
    x, y = _finite(a, b)
    largest = float(np.abs(x).max(initial=0.0))
    gap = float(np.abs(x - y).max(initial=0.0))
    off = gap / largest if largest else math.inf if gap else 0.0
    return Score(off, most, _furthest(a, b), f"{off:.1e} of max", f"≤ {most:g}", x.size)


def _top1(a: Array, b: Array, least: float) -> Score:
    width = a.shape[-1] if a.ndim else 1
    x, y = a.reshape(-1, width), b.reshape(-1, width)
    known = ~(np.isnan(x.astype(np.float64)).any(axis=1) if x.size else np.zeros(len(x), bool))
    rows = int(known.sum()) if width > 1 else 0  # rows of one element say nothing
    wanted = f"≥ {least:g}"
    if not rows:
        return Score(0.0, 1.0 - least, 0, "top1 of no rows", wanted, 0)
    chosen = np.argmax(y, axis=1)
    best = x[np.arange(len(x)), chosen] == x.max(axis=1)
    wrong = known & ~best
    share = float(wrong.sum()) / rows
    row = int(np.argmax(wrong)) if wrong.any() else 0
    at = row * width + int(np.argmax(x[row]))
    return Score(share, 1.0 - least, at, f"top1 {1 - share:.6g}", wanted, rows)


_METRICS: dict[str, Callable[[Array, Array, float], Score]] = {
    "cosine": _cosine,
    "psnr": _psnr,
    "worst": _worst,
    "top1": _top1,
}
