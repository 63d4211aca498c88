"""The search of `float16 --keep auto` for the nodes that must stay in float32 so that the proof
passes.

Conversions happen one at a time, in the order of the graph, and the model is valid after each.
Bisection finds the first conversion after which the proof fails; its node stays, and the others are
tried again. If the proofs or the time are used up, all nodes after the last good conversion stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.rewriting import RewriteRefuted
from onnxgrad.limits import current
from onnxgrad.passes.float16 import Float16
from onnxgrad.rewrite.trace import Rewrite
from onnxgrad.wording import counted

# proofs for each doubling of the number of conversions: enough for five nodes found singly
_PROOFS = 6
# the last proof must fit into the time that is left, and one may take longer than those before
_RESERVE = 3.0

Made = Callable[[Float16, int | None], Outcome]
Stay = tuple[str, str]


@dataclass
class Float16Search:
    """Searches with `made`, which converts up to a number of bindings, proves the result and raises
    RewriteRefuted. `proofs` counts proofs, at most `limit`; `kept` are the nodes that the search
    keeps, with the reason.
    """

    made: Made
    halving: Float16
    proofs: int = 0
    limit: int = 1
    longest: float = 0.0
    kept: list[Stay] = field(default_factory=list)

    def run(self) -> Outcome:
        """Returns the proved result. Raises RewriteRefuted if the proof fails whatever
        nodes stay.
        """
        found = self._try(None)
        if isinstance(found, Outcome):
            return self._noted(found)
        self.limit = 1 + _PROOFS * len(_rewrites(found)).bit_length()
        low = 0
        while True:
            low, culprit = self._first_bad(low, found)
            if culprit is None:
                return self._noted(self._rest(_rewrites(found)[low:], found, low))
            refuted, at = culprit
            if not at.matched:  # an input or output, which `io` converts
                raise found
            self._keep([(at.matched[0], f"the proof fails with it in float16: {_why(refuted)}")])
            again = self._try(None)
            if isinstance(again, Outcome):
                return self._noted(again)
            found = again

    def _first_bad(
        self, low: int, found: RewriteRefuted
    ) -> tuple[int, tuple[RewriteRefuted, Rewrite] | None]:
        """Returns the number of conversions that pass, and the next one with its refutation, or
        None if no proof is left.
        """
        high, refuted = len(_rewrites(found)), found
        while high - low > 1:
            if not self._has_room():
                return low, None
            middle = (low + high) // 2
            tried = self._try(middle)
            if isinstance(tried, Outcome):
                low = middle
            else:
                high, refuted = middle, tried
        if high <= low or not self._has_room():
            return low, None
        return low, (refuted, _rewrites(refuted)[high - 1])

    def _rest(self, rest: Sequence[Rewrite], found: RewriteRefuted, low: int) -> Outcome:
        """Returns the result with all of these in float32. Raises the refutation if the
        proof fails.
        """
        if low == 0:
            raise found
        why = f"the search ended after {counted(self.proofs, 'proof')}, and all before it passes"
        self._keep([(r.matched[0], why) for r in rest if r.matched])
        last = self._try(None)
        if isinstance(last, RewriteRefuted):
            raise last
        return last

    def _keep(self, stay: Sequence[Stay]) -> None:
        self.kept += stay
        self.halving = replace(self.halving, stay=(*self.halving.stay, *stay))

    def _has_room(self) -> bool:
        """Whether there is room for another proof and the final one."""
        return self.proofs + 1 < self.limit and current().left() > _RESERVE * self.longest

    def _try(self, conversions: int | None) -> Outcome | RewriteRefuted:
        self.proofs += 1
        start = time.monotonic()
        try:
            return self.made(self.halving, conversions)
        except RewriteRefuted as error:
            return error
        finally:
            self.longest = max(self.longest, time.monotonic() - start)

    def _noted(self, done: Outcome) -> Outcome:
        done.search = {
            "proofs": self.proofs,
            "limit": self.limit,
            "kept": [{"node": node, "reason": why} for node, why in self.kept],
        }
        return done


def _why(refuted: RewriteRefuted) -> str:
    """Returns the worst difference, or why nothing is proved."""
    found = refuted.report.worst
    return refuted.report.summary if found is None or found.ok else str(found)


def _rewrites(refuted: RewriteRefuted) -> list[Rewrite]:
    return [] if refuted.done is None else refuted.done.trace.rewrites
