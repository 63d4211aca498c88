"""Whether a random model computes the same after rewriting, and keeps its interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.interface import interface_differences
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session, open_session

Feeds = Mapping[str, np.ndarray[Any, Any]]

# settings: presets, and the passes and options that no preset has
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "always": {"merge": "always"},
    "clean": {"preset": "clean"},
    "inference": {"preset": "inference"},
    "canonical": {"preset": "canonical"},
    "training-safe": {"preset": "training-safe"},
    "scalars": {
        "passes": "backward-fold-scale-axis{scalars=true},forward-fold-scale-axis{scalars=true},"
        "fold-constant,fold-bias"
    },
    "runtime": {"passes": "fold-scale-axis{runtime=true,scalars=true},fold-bias"},
    "newest": {"target_opset": 25},
    "onnxruntime": {"for_": "onnxruntime"},
    "newest, onnxruntime": {"target_opset": 25, "for_": "onnxruntime"},
    "outline": {"passes": "outline"},
    "outline-inline": {"passes": "outline,inline"},
    "inline": {"passes": "inline{names=*},remove-unused-functions"},
    "signs": {"passes": "simplify-arithmetic,simplify-transpose{always=true}"},
    "dense": {"passes": "combine-parallel-dense{share_left=false},combine-parallel-matmul-right"},
}
# float results may differ by this much of the largest one: rounding only, whatever the order
_TOLERANCE = {"float64": 1e-9, "float32": 5e-5, "float16": 3e-2}


@dataclass(frozen=True)
class Failure:
    """What went wrong under a setting, and on which feeds."""

    setting: str
    kind: str
    words: str
    feeds: Feeds


class Judge:
    """A model's results on the feeds on which it runs, for comparison with rewritten models."""

    def __init__(self, model: ModelProto, feeds: Sequence[Feeds]) -> None:
        self.model = model
        self.plain = _opened(model, optimize=False)
        self.cases = [(f, want) for f in feeds if (want := _results(self.plain, f)) is not None]

    def failure(self, setting: str) -> Failure | None:
        """Returns the fault of the rewritten model, or None."""
        empty: Feeds = {}
        try:
            program, trace = load(self.model), Trace(check_measures=True)
            Pipeline.of(**SETTINGS[setting]).run(program, trace)
            after = to_proto(program)
        except Exception as e:  # noqa: BLE001  # whatever it is, it is what we look for
            return Failure(setting, "crash", f"{type(e).__name__}: {e}", self.cases[0][0])
        if trace.slips:
            return Failure(setting, "slip", str(trace.slips[0]), self.cases[0][0])
        changed = interface_differences(self.model, after)
        if changed:
            return Failure(setting, "interface", str(changed[0]), empty)
        for optimize in (False, True):
            found = self._compared(setting, after, optimize)
            if found is None or (found.kind == "load" and self._never_loads(setting, optimize)):
                continue
            if not (optimize and self._own_trouble(found.feeds)):
                return found
        return None

    def _compared(self, setting: str, after: ModelProto, optimize: bool) -> Failure | None:
        how = "optimised" if optimize else "as it is"
        try:
            session = open_session(after, optimize=optimize)
        except RunFailed as e:
            return Failure(setting, "load", f"{how}: {e}", self.cases[0][0])
        for feeds, want in self.cases:
            try:
                got = session.run(feeds)
            except RunFailed as e:
                return Failure(setting, "run", f"{how}: {e}", feeds)
            for name, value in want.items():
                reason = difference(value, got.get(name))
                if reason is not None:
                    return Failure(setting, "results", f"{how}: {name}: {reason}", feeds)
        return None

    def _never_loads(self, setting: str, optimize: bool) -> bool:
        """Nor does the original, once it has the opset and what nothing reads is gone.

        onnxruntime 1.32 dies of optimising a float16 MatMul of a constant matrix and a 3-D
        Transpose that moves the batch, and has PRelu of float64 at the opset alone that brought it.
        """
        program = load(self.model)
        opset = SETTINGS[setting].get("target_opset")
        Pipeline.of(passes="remove-unused", target_opset=opset).run(program)
        try:
            open_session(to_proto(program), optimize=optimize)
        except RunFailed:
            return True
        return False

    def _own_trouble(self, feeds: Feeds) -> bool:
        """Whether onnxruntime's optimiser breaks the original as it breaks the result."""
        optimised = _opened(self.model, optimize=True)
        want, got = _results(self.plain, feeds), _results(optimised, feeds)
        return (
            want is None
            or got is None
            or any(difference(v, got[name]) is not None for name, v in want.items())
        )


def _opened(model: ModelProto, *, optimize: bool) -> Session | None:
    try:
        return open_session(model, optimize=optimize)
    except RunFailed:
        return None


def _results(session: Session | None, feeds: Feeds) -> Mapping[str, Any] | None:
    try:
        return None if session is None else session.run(feeds)
    except RunFailed:
        return None


def difference(want: Any, got: Any) -> str | None:
    """Returns the difference of two results, or None if they are the same."""
    if not isinstance(got, np.ndarray) or want.dtype != got.dtype or want.shape != got.shape:
        return (
            f"{want.dtype}{list(want.shape)} became "
            f"{getattr(got, 'dtype', '?')}{list(getattr(got, 'shape', ()))}"
        )
    if want.dtype.kind != "f":
        return None if np.array_equal(want, got) else "other values"
    with np.errstate(all="ignore"):
        wide, other = want.astype(np.float64), got.astype(np.float64)
        finite = np.isfinite(wide)
        if not np.array_equal(wide[~finite], other[~finite], equal_nan=True):
            return "NaN or infinity elsewhere"
        worst = np.max(np.abs(wide[finite] - other[finite]), initial=0.0)
        largest = np.max(np.abs(wide[finite]), initial=1.0)
    return (
        None
        if worst <= _TOLERANCE[want.dtype.name] * largest
        else f"off by {worst:g} of {largest:g}"
    )
