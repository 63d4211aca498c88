"""The comparison on inputs with NaN and infinite values. It is reported apart: many legal rewrites,
such as x * 0 = 0, change these values, so it never decides the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxgrad.verify.compare import Difference, compare, noise
from onnxgrad.verify.evidence import NonFinite
from onnxgrad.verify.feeds.proof_cases import Results
from onnxgrad.verify.interface import Demands
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session
from onnxgrad.verify.tolerance import in_onnxruntime, is_float

# finite values beside infinite ones are judged by four digits, as wide values are
_DIGITS = 9e-5


@dataclass
class Apart:
    """The case of one proof. `runs`: the original's results, first without optimisations."""

    feeds: Results
    runs: list[Results]
    differences: list[Difference] = field(default_factory=list)
    why: str = ""  # the second model does not run
    held: bool = False

    def repeat(self, session: Session) -> None:
        """Runs the original in another legal way: only elements on which its runs agree count."""
        try:
            self.runs.append(session.run(self.feeds, optional=True))
        except RunFailed:
            self.runs.clear()  # it runs by chance

    def hold(self, session: Session, demands: Demands) -> None:
        """Compares the second model with the original."""
        if not self.runs:
            return
        self.held, names = True, demands.names
        try:
            feeds = names.feeds(self.feeds)
            got = names.results(session.run(feeds, optional=True))
        except RunFailed as error:
            self.why = self.why or error.reason
            return
        first = self.runs[0]
        alive = {name: _agree([run.get(name) for run in self.runs]) for name in first}
        known = {name: mask for name, mask in alive.items() if mask is not None}
        own = noise(self.runs, known)
        paths = {name: demands.on_paths(name) for name in first}
        limits = in_onnxruntime(first, {n: max(own.get(n, 0.0), _DIGITS) for n in first}, paths)
        found = compare(first, got, limits, None, known)
        self.differences += [d for d in found if not d.ok and d.output not in demands.random]

    @property
    def result(self) -> NonFinite | None:
        """The result for the report; None if nothing was compared."""
        if not self.held:
            return None
        return NonFinite(self.differences[0] if self.differences else None, self.why)


def _agree(runs: list[Any]) -> np.ndarray[Any, Any] | None:
    """Returns on which elements of an output all runs have the same kind of value: NaN, one of the
    infinities, or a number. Other values than floats have to be equal. None if they are no arrays
    of one shape.
    """
    first = runs[0]
    if not all(isinstance(v, np.ndarray) and v.shape == first.shape for v in runs):
        return None
    if not is_float(first):
        return np.asarray(np.all([v == first for v in runs], axis=0), bool)
    kinds = [_kinds(v.astype(np.float64)) for v in runs]
    return np.asarray(np.all([k == kinds[0] for k in kinds], axis=0))


def _kinds(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), 0))
