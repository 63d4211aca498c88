"""The part of a proof that needs only the original: the choice of the cases, and its results.

`optimize` begins this part before it rewrites the model (`Ahead`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from onnx import ModelProto

from onnxgrad.errors import CannotRun
from onnxgrad.interpreter import cores
from onnxgrad.verify.custom_operators.boundaries import unknown_operators
from onnxgrad.verify.declared_shapes import DeclaredShapes
from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.feeds.proof_cases import Results, choose_cases, small
from onnxgrad.verify.float64_check import Oracle, tolerances
from onnxgrad.verify.interface import Demands
from onnxgrad.verify.onnxruntime_check import open_original, stored_fast
from onnxgrad.verify.proof_model import ProofModel, proof_model
from onnxgrad.verify.random_operators import randoms
from onnxgrad.verify.reference.user_operators import unknown_to_onnxruntime
from onnxgrad.verify.report import Check
from onnxgrad.verify.request import EarlyRuns, Request, both_ways, legal_ways
from onnxgrad.verify.running.background import Background, Later
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session
from onnxgrad.verify.trials import Trial
from onnxgrad.wording import option

Computed: TypeAlias = Mapping[str, Collection[int]]
REFERENCE = "reference"  # the stage of a RunFailed that our reference, not onnxruntime, caused


class OriginalRuns:
    """The original's session, its cases and its results on them. `refused`: the sizes with which
    it does not run. `ran`: an onnxruntime check that cannot run.
    """

    def __init__(self, original: ProofModel, request: Request) -> None:
        self.original, self.request = original, request
        self.feeder = Feeder(original.proto)
        self.refused: list[tuple[Mapping[str, int], RunFailed]] = []
        self.session: Session | None = None
        self.line: Background | None = None  # for work of this process while children work
        self._prepared: Later[None] | None = None
        # the feeds that the original accepted first, which are those of a case, and its results
        self._first: tuple[Results, Later[Results | None]] | None = None
        self.ran: dict[str, Check] = {}
        self.trials: list[Trial] = []
        checks, budget = request.checks, request.float64_budget
        self.oracle = Oracle(original, original, budget) if "float64" in checks else None

    def run(self) -> OriginalRuns:
        """Chooses the cases and runs the original on them. Raises errors as `choose`."""
        return self.choose().compute()

    def choose(self) -> OriginalRuns:
        """Opens the original and chooses the cases. Raises errors as `open_original` and
        `choose_cases`, and UnknownOperator.
        """
        request = self.request
        settings = request.settings
        if settings.early is not None and "onnxruntime" in request.checks:
            # alone: the choice of the cases waits for it, and for types that the float64 child
            # infers before it compiles
            settings.early.begin(self.original.source, [(settings, False)])
            if request.inputs is None:
                self.feeder.flow  # noqa: B018  # computed once
            if self.oracle is not None:
                self._prepared = settings.early.float64.call(self.oracle.prepare)
        if "onnxruntime" in request.checks:
            self.session, self.ran = _opened(self.original, request)
        if self.session is None and self._prepared is not None:
            self._prepared.result()  # the choice uses the oracle
        cases = choose_cases(
            self.original.proto,
            request.inputs,
            request.dims,
            request.seeds,
            self._attempt,
            on_refused=lambda plan, error: self.refused.append((plan, error)),
            feeder=self.feeder,
        )
        self.trials = [Trial.of(case, request.excuse) for case in cases]
        if settings.early is not None and self.session is not None:
            feeds = [case.feeds for case in cases]
            ways = legal_ways(settings)
            settings.early.begin(self.original.source, ways, feeds, again=self._again)
        return self

    def compute(self) -> OriginalRuns:
        """Runs the original in float64 on the cases."""
        if self._prepared is not None:
            self._prepared.result()
        if self.oracle is not None:
            for trial in self.trials:
                if self.session is None:
                    trial.exact = trial.expected
                elif self._first is not None and self._first[0] is trial.feeds:
                    trial.exact = self._first[1].result()
                else:
                    trial.exact = self.oracle.original(trial.feeds)
        return self

    def hold(
        self, candidate: ProofModel, demands: Demands, recomputed: Callable[[], Computed]
    ) -> None:
        """Sets the candidate. If early runs are allowed, starts them in onnxruntime on all cases,
        also of the model that computes its shapes. `recomputed`: returns the types of recomputed
        weights by output, of which `settle` asks.
        """
        self._held, self._recomputed = (candidate, demands), recomputed
        if self.line is not None:
            if self.request.inputs is None:
                self.line.call(self.feeder.trace)
            self._recomputed = self.line.call(recomputed).result
        if self.oracle is not None:
            self.oracle.hold(candidate)
            self.oracle.demands = demands
        self.shapes = DeclaredShapes(self.original, candidate, self.request.settings)
        self._run_ahead([trial.feeds for trial in self.trials])

    def settle(self) -> Demands:
        """Returns the demands of `hold`, with the types of recomputed weights."""
        demands = replace(self._held[1], computed=self._recomputed())
        if self.oracle is not None:
            self.oracle.demands = demands
        return demands

    def go_on(self, feeds: Results) -> None:
        """Starts early runs of both models on the feeds of one more case, after `hold`. Small
        models wait: they run at once, and most of their cases are dropped again.
        """
        settings, proto = self.request.settings, self.original.proto
        if settings.early is not None and self.session is not None and not small(proto):
            # `calibrate` runs the original once more on cases that are searched for
            settings.early.begin(self.original.source, legal_ways(settings)[:1], [feeds])
            self._run_ahead([feeds])
        if self.line is not None and self.oracle is not None and not small(proto):
            self.line.call(self._compare_constants)

    def _compare_constants(self) -> None:
        """Finds the constants that may be rounded differently, if the first case will need them."""
        first, oracle = replace(self.trials[0], ties=None), self.oracle
        if oracle is None or first.exact is None or first.answer is None:
            return
        limits, near = tolerances(oracle, first, self._recomputed())
        differences = first.judge(first.exact, first.answer, oracle.demands.allows(limits), near)
        if not all(difference.ok for difference in differences):
            oracle.roundings  # noqa: B018  # computed once

    def _run_ahead(self, list_of_feeds: Sequence[Results]) -> None:
        candidate, demands = self._held
        settings = self.request.settings
        if settings.early is not None and self.session is not None:
            theirs = [demands.names.feeds(feeds) for feeds in list_of_feeds]
            settings.early.begin(candidate.source, both_ways(settings), theirs)
            if not self.request.map:
                settings.early.line.call(self.shapes.run_ahead, list_of_feeds)

    @property
    def _again(self) -> bool:
        """True if onnxruntime stores the optimised original instead of optimising it again."""
        return stored_fast(self.original.proto)

    def _attempt(self, feeds: Results) -> Results:
        """Runs the original, in onnxruntime if that check runs. The run shows whether the model
        accepts the feeds.
        """
        early, oracle = self.request.early, self.oracle
        if self.session is not None:
            results = self.session.run(feeds, timeout=self.session.courtesy)
            if self._first is None and self._prepared is not None and early and oracle:
                self._first = feeds, early.float64.call(oracle.original, feeds)
            return results
        found = oracle.original(feeds) if oracle is not None else None
        if found is None:
            raise RunFailed(REFERENCE, oracle.why if oracle is not None else "")
        return found


class Ahead(contextlib.ExitStack):
    """`OriginalRuns` in the background, and with them the runs in onnxruntime that follow. At the
    end of the context none is left.
    """

    def __init__(self, model: Any, request: Request) -> None:
        super().__init__()
        with contextlib.ExitStack() as threads:
            self.line = line = threads.enter_context(Background("cpu", "float64"))
            both = (threads.enter_context(Background(kind)) for kind in ("cpu", "float64"))
            early = EarlyRuns(*both)
            self.request = replace(request, early=early)
            self._original = line.call(proof_model, model)
            runs = line.call(lambda: OriginalRuns(self.original(), self.request).choose())
            self._chosen, self._runs = runs, line.call(lambda: runs.result().compute())
            self._prepared: Later[None] | None = None
            self.push(threads.pop_all())

    def original(self) -> ProofModel:
        """Waits for the original. Raises errors as `proof_model`."""
        return self._original.result()

    def expect(self, candidate: ProofModel) -> None:
        """Compiles the candidate for the float64 check as soon as the original has run."""

        def prepare() -> None:
            oracle = self._runs.result().oracle
            if oracle is not None:
                oracle.hold(candidate)
                oracle.prepare("candidate")

        self._prepared = self.line.call(prepare)

    def runs(
        self, original: ProofModel, candidate: ProofModel, request: Request
    ) -> OriginalRuns | None:
        """Waits for the runs, and returns them if they are of this original and such a request.
        Meanwhile, after the cases were chosen, the candidate's sessions open. Raises errors as
        `OriginalRuns.run`.
        """
        if original is not self.original() or not request.alike(self.request):
            return None
        settings = self.request.settings
        if settings.early is not None and self._chosen.result().session is not None:
            settings.early.begin(candidate.source, both_ways(settings))
        runs = self._runs.result()
        runs.line = self.line
        if self._prepared is not None:
            self._prepared.result()  # it uses the oracle of the runs
        return runs


def may_run_ahead(model: ModelProto, size: int) -> bool:
    """True if the runs of a model gain time ahead: there is a second core, `size` (the bytes of its
    weights) leaves memory for other work, and no random operator makes the proof replace the model.
    """
    return cores() > 1 and size <= _MOST_BYTES and not randoms(model)


_MOST_BYTES = 1 << 30


def _opened(original: ProofModel, request: Request) -> tuple[Session | None, dict[str, Check]]:
    """Opens the original in onnxruntime. If onnxruntime lacks an operator for which the user
    registered a float64 kernel, returns None and an onnxruntime check that did not run. Raises
    errors as `open_original`, and UnknownOperator if there is no such kernel.
    """
    try:
        return open_original(original, request.settings), {}
    except CannotRun as error:
        own = unknown_to_onnxruntime(original.proto, str(error))
        if not own or "float64" not in request.checks:
            raise unknown_operators(original.proto, error) or error from error
        library = option("--custom-ops", "onnxgrad.custom_ops")
        why = f"it lacks {own}, which a kernel of yours computes; {library} loads a library"
        return None, {"onnxruntime": Check("onnxruntime", False, why)}
