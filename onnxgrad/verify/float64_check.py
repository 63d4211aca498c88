"""The float64 check: both models in the float64 reference, within one time budget."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import TypeVar

from onnx import ModelProto, TensorProto

from onnxgrad.errors import NodeFailed, OnnxgradError, Unsupported
from onnxgrad.ir.protobufs import every_node, weight_elements
from onnxgrad.limits import LimitReached, current, size_text
from onnxgrad.verify.compare import Difference, base_name, noise
from onnxgrad.verify.coverage.counters import Goal, Item, Reach
from onnxgrad.verify.feeds.proof_cases import Results
from onnxgrad.verify.interface import Demands
from onnxgrad.verify.onnxruntime_check import as_computed
from onnxgrad.verify.output_dependencies import roundings
from onnxgrad.verify.proof_model import ProofModel
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.reference.moved_constants import Roundings
from onnxgrad.verify.report import Check
from onnxgrad.verify.running.child_process import pooled
from onnxgrad.verify.running.session import courtesy
from onnxgrad.verify.tolerance import (
    CAP,
    EXACT,
    EXACT_LIMIT,
    ROUNDED,
    ROUNDED_FACTOR,
    Allowance,
    for_condition,
    for_rounding,
    in_float64,
    rounded,
    widened,
)
from onnxgrad.verify.trials import Found, Trial
from onnxgrad.wording import option

_R = TypeVar("_R")
_JITTER = 2.0**-51
_GRACE = 2.0  # seconds beyond the budget that one node may take
PERTURBED_RUNS = 3
_LAST_BITS = 2.0**-22  # the relative error of a float32 sum of hundreds of terms
QUANTISES = frozenset({
    "QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "MatMulInteger",
    "ConvInteger", "QGemm", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM",
})  # fmt: skip
_ROUND = ("Round", "Floor", "Ceil", "Cast", "CastLike", "ArgMax", "ArgMin", "TopK")
_UNROUNDED = "without rounding"
_counts = itertools.count(1)  # the number of a proof in this process, for its coverage counters


class Oracle:
    """The float64 results of both models. A method returns None if there are none; then `why` is
    the reason.
    """

    def __init__(
        self,
        original: ProofModel,
        candidate: ProofModel,
        budget: float,
        demands: Demands | None = None,
    ) -> None:
        self.demands = demands or Demands()
        self.subjects = {"original": original, "candidate": candidate}
        self.budget = budget
        self.left = budget
        self.why = ""
        self.failed = False  # whether a node failed in the last run
        self.cut = False  # whether the last optional run had no time
        self._longest = 0.0  # seconds of the runs that count
        self._optional = False
        self._made: dict[str, Float64] = {}
        self._count = next(_counts)
        pooled("float64")  # the child starts while onnxruntime loads the original

    def hold(self, candidate: ProofModel) -> None:
        """Sets the candidate."""
        if self.subjects["candidate"] is not candidate:
            self.subjects["candidate"] = candidate
            self._made.pop("candidate", None)
            self.__dict__.pop("roundings", None)

    @cached_property
    def roundings(self) -> tuple[Roundings, Roundings]:
        """The constants of each model that the other does not have."""
        return roundings(self.subjects["original"], self.subjects["candidate"])

    def original(self, feeds: Results, jitter: float = 0.0, seed: int = 0) -> Results | None:
        """Returns the original's outputs. `jitter` simulates another order of summation, chosen by
        `seed`.
        """
        return self._run("original", feeds, jitter, seed)

    def without_rounding(self, feeds: Results) -> tuple[Results | None, Results | None]:
        """Returns both models' outputs if operators that quantise clip but do not round."""
        names = self.demands.names
        candidate = self._run("candidate", names.feeds(feeds), steps=False)
        original = self._run("original", feeds, steps=False)
        return original, None if candidate is None else names.results(candidate)

    def rounded(self, feeds: Results, seed: int) -> Results | None:
        """Returns the original's outputs if every result is rounded differently, as in float32."""
        return self._run("original", feeds, _LAST_BITS, seed, everywhere=True)

    def candidate(self, feeds: Results) -> Results | None:
        """Returns the candidate's outputs, under the original's names."""
        names = self.demands.names
        results = self._run("candidate", names.feeds(feeds))
        return None if results is None else names.results(results)

    def optional(self, which: str, feeds: Results, *, short: bool = True) -> Results | None:
        """Returns the outputs of a model in an optional case. A failure leaves no reason behind. If
        `short`, a run is `cut` that takes too long beside those that count.
        """
        why, self._optional, self.cut = self.why, short, False
        try:
            found = (self.original if which == "original" else self.candidate)(feeds)
        finally:
            self._optional = False
        if self.left > 0:
            self.why = why
        return found

    def moved(self, which: str, feeds: Results, constants: Roundings, seed: int) -> Results | None:
        """Returns the outputs of a model, under the original's names, if these constants are
        rounded differently.
        """
        names = self.demands.names
        if which == "original":
            return self._run(which, feeds, seed=seed, constants=constants)
        results = self._run(which, names.feeds(feeds), seed=seed, constants=constants)
        return None if results is None else names.results(results)

    def _run(
        self,
        which: str,
        feeds: Results,
        jitter: float = 0.0,
        seed: int = 0,
        *,
        everywhere: bool = False,
        steps: bool = True,
        constants: Roundings | None = None,
    ) -> Results | None:
        counts = not jitter and steps and constants is None
        most = min(self.left, courtesy(self._longest)) if self._optional else self.left
        return self._within_budget(
            which,
            lambda model: model.run(
                feeds, seconds=most, jitter=jitter, seed=seed, patience=self.left - most + _GRACE,
                count=(os.getpid(), self._count) if counts else None,
                everywhere=everywhere, steps=steps, rounded=constants,
            ),
        )  # fmt: skip

    def prepare(self, which: str = "original") -> None:
        """Compiles a model before its feeds are known. A failure shows at its first run."""
        self._within_budget(which, lambda model: model.prepare(self.left))
        self.why = "" if self.left > 0 else self.why

    def _within_budget(self, which: str, run: Callable[[Float64], _R]) -> _R | None:
        """Returns what `run` makes of a model's evaluator; None after an error, or without time."""
        if self.left <= 0:
            return None
        started, self.failed = time.monotonic(), False
        most = courtesy(self._longest)
        try:
            return run(self._evaluator(which))
        except LimitReached:
            raise
        except OnnxgradError as error:
            self.failed = isinstance(error, NodeFailed)
            self.why = f"the {which}: {error}"
            return None
        finally:
            taken = time.monotonic() - started
            self.left -= taken
            if self._optional:
                self.cut |= taken >= most
            else:
                self._longest = max(self._longest, taken)
            if self.left <= 0:
                self.why = f"over its budget of {self.budget:g} s"

    def covered(self, which: str) -> list[Item]:
        """Returns the coverage items that the runs of a model reached, as `Reference.covered`; none
        if the model did not run.
        """
        if which in self._made and self.left > 0:
            with contextlib.suppress(Unsupported):
                return self._made[which].covered((os.getpid(), self._count))
        return []

    def mark(self, then: str) -> None:
        """Saves what the runs of both models reached, or returns to it, as `Reference.mark`."""
        for made in self._made.values() if self.left > 0 else ():
            with contextlib.suppress(Unsupported):
                made.mark((os.getpid(), self._count), then)

    def goals(self, which: str) -> list[Goal]:
        """Returns values that would reach more of a model, as `Reference.goals`."""
        if which in self._made and self.left > 0:
            with contextlib.suppress(Unsupported):
                return self._made[which].goals((os.getpid(), self._count))
        return []

    def reached(self, which: str) -> list[Reach]:
        """Returns the parts of a model's constants that runs read, as `Reference.reached`."""
        if which in self._made and self.left > 0:
            with contextlib.suppress(Unsupported):
                return self._made[which].reached((os.getpid(), self._count))
        return []

    def _evaluator(self, which: str) -> Float64:
        if which not in self._made:
            subject = self.subjects[which]
            # both models at once, each as in the file (up to 8 bytes an element) and in float64
            needed = 4 * 8 * weight_elements(subject.proto.graph)
            memory = current().memory
            if needed > memory:
                raise Unsupported(
                    f"the weights would need {size_text(needed)} in float64, more than "
                    f"{size_text(memory)} ({option('--max-memory', 'max_memory=')})"
                )
            self._made[which] = Float64(subject.source)
        return self._made[which]


def quantises(model: ModelProto) -> bool:
    """True if a model rounds floats to integers and computes with them."""
    return any(
        node.op_type in QUANTISES or node.op_type.startswith("QLinear")
        for node in every_node(model.graph.node)
    )


def widen_by_rounding(oracle: Oracle, trials: Sequence[Trial]) -> None:
    """Adds to the noise the effect of other float32 rounding on a model that quantises.

    The integers of such a model are exact, so repeated runs agree. But where a float is rounded to
    an integer, one bit of the float changes the integer by a full step, as it may in any equivalent
    model.
    """
    if not quantises(oracle.subjects["original"].proto):
        return
    for trial in trials:
        for seed in range(PERTURBED_RUNS if trial.exact is not None else 0):
            moved = oracle.rounded(trial.feeds, seed)
            if moved is None:
                return
            trial.widen(as_computed(trial.with_parts(moved), trial.expected))


def float64_check(
    oracle: Oracle,
    trials: Sequence[Trial],
    found: Found,
    computed: Mapping[str, Collection[int]],
) -> Check:
    """Compares the candidate's float64 results with the original's, for as many cases as the budget
    allows, from small sizes on: what other roundings do at these is allowed at the others, too.

    `computed`: by output, the float types of recomputed weights on its paths. The tolerance of an
    output without any is EXACT.
    """
    types = {dtype for of_output in computed.values() for dtype in of_output}
    most = rounded(types)
    count = 0
    others = _OtherRoundings(oracle)
    for trial in sorted(trials, key=lambda trial: math.prod(trial.case.dims.values())):
        if trial.exact is None:
            continue
        got = trial.answer or oracle.candidate(trial.feeds)
        if got is None and oracle.failed:  # the original runs, so the candidate is at fault
            return _failed(oracle, found, count + 1)
        if got is None:
            break
        differences = _judged(oracle, trial, got, others, computed, found)
        if oracle.left <= 0 and _undecided(differences):
            oracle.why = f"over its budget of {oracle.budget:g} s"
            break
        found.add("float64", differences, trial.exact)
        count += 1
    if most and count and oracle.demands.bounds.common is None:
        names = ", ".join(sorted(TensorProto.DataType.Name(dtype).lower() for dtype in types))
        found.notes.append(
            f"weights were recomputed and rounded to their dtype ({names}), so the float64 check "
            f"allows {most:g} of the largest value, or {ROUNDED_FACTOR:g} times the effect of "
            "another rounding"
        )
    return found.check("float64", count, oracle.why if count < len(trials) else "")


def _judged(
    oracle: Oracle,
    trial: Trial,
    got: Results,
    others: _OtherRoundings,
    computed: Mapping[str, Collection[int]],
    found: Found,
) -> list[Difference]:
    """Returns the differences of one case, with tolerances as wide as other roundings explain."""
    exact, (limits, near) = trial.exact or {}, tolerances(oracle, trial, computed)
    limits = for_rounding(limits, others.most)
    differences = trial.judge(exact, got, oracle.demands.allows(limits), near)
    again = [partial(others.widen, seed) for seed in range(PERTURBED_RUNS)]
    for widen in (*again, partial(_for_condition, oracle, found)):
        if all(difference.ok for difference in differences):
            break
        wider = widen(trial, got, limits)
        if wider is not None:
            limits = wider
            differences = trial.judge(exact, got, oracle.demands.allows(wider), near)
    return differences


def tolerances(
    oracle: Oracle, trial: Trial, computed: Mapping[str, Collection[int]]
) -> tuple[dict[str, Allowance], dict[str, float]]:
    """Returns the tolerances of a case before other roundings widen them, and distances to ties."""
    exact = trial.exact or {}
    paths = {name: oracle.demands.on_paths(name) for name in exact}
    new = {name: computed.get(base_name(name, computed), ()) for name in exact}
    near = {name: max(rounded(new[name]), EXACT) for name in exact}
    return in_float64(exact, new, paths), near


def _undecided(differences: Sequence[Difference]) -> bool:
    """Whether rounding may explain all that differs; without time, no runs show whether it does."""
    off = [d.rel for d in differences if not d.ok]
    return bool(off) and max(off) <= CAP["float64"]


def without_rounding(oracle: Oracle, trials: Sequence[Trial], found: Found) -> Check | None:
    """Compares both models without rounding to integers, because rounding can hide a small change
    of a factor. Applies if the original computes on integers and both models have the same
    operators that round. Returns None if a model does not run that way.
    """
    models = [subject.proto for subject in oracle.subjects.values()]
    if not _on_integers(models[0]) or len({_rounding(m) for m in models}) > 1:
        return None
    count = 0
    for trial in trials:
        original, candidate = oracle.without_rounding(trial.feeds)
        if original is None or candidate is None:
            return None
        limits = {name: Allowance(ROUNDED[TensorProto.FLOAT]) for name in original}
        differences = trial.judge(trial.with_parts(original), candidate, limits, {})
        found.add(_UNROUNDED, [d for d in differences if not d.part], original)
        count += 1
    return found.check(_UNROUNDED, count) if count else None


def _on_integers(model: ModelProto) -> bool:
    """True if integers of the file are operands, and no float of it is quantized at run time."""
    weights = {t.name for t in model.graph.initializer}
    nodes = list(every_node(model.graph.node))
    return any("QLinear" in n.op_type or "QGemm" in n.op_type for n in nodes) and not any(
        n.op_type == "QuantizeLinear" and n.input[0] in weights for n in nodes
    )


def _rounding(model: ModelProto) -> int:
    """Returns the number of operators that may round to integers, without those that quantise."""
    return sum(n.op_type in _ROUND for n in every_node(model.graph.node))


def _failed(oracle: Oracle, found: Found, count: int) -> Check:
    """Returns the result of the check if a node of the candidate fails on operands that the
    original's nodes accept.
    """
    reason = f"{oracle.demands.of} does not run in float64: {oracle.why.partition(': ')[2]}"
    found.add("float64", [Difference("(model)", None, None, None, math.inf, 0.0, reason)])
    return found.check("float64", count)


class _OtherRoundings:
    """The effect of constants that only one of the models has, such as 1 / sqrt(2) beside Gelu, or
    a folded weight: each may be the rounding of another number.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.most: dict[str, float] = {}  # the largest moves in the cases so far
        self._moved: list[dict[str, float]] = []  # of each model, in this case

    def widen(
        self, seed: int, trial: Trial, got: Results, limits: Mapping[str, Allowance]
    ) -> dict[str, Allowance] | None:
        """Runs both models with these constants moved, once more for each `seed`: mostly the first
        explains the difference. Returns None if there are none, or if the budget does not allow the
        runs.
        """
        if not seed:
            self._moved = [{}, {}]
        for which, constants, usual, moved in zip(
            self.oracle.subjects,
            self.oracle.roundings,
            (trial.exact or {}, trial.with_parts(got)),
            self._moved,
        ):
            run = self.oracle.moved(which, trial.feeds, constants, seed) if constants else usual
            if run is None:
                return None
            for name, value in noise([usual, trial.with_parts(run)], trial.alive).items():
                moved[name] = max(value, moved.get(name, 0.0))
        for name in dict.fromkeys(n for moved in self._moved for n in moved):
            both = sum(moved.get(name, 0.0) for moved in self._moved)
            self.most[name] = max(both, self.most.get(name, 0.0))
        return for_rounding(limits, self.most) if any(self.oracle.roundings) else None


def _for_condition(
    oracle: Oracle,
    found: Found,
    trial: Trial,
    got: Results,
    limits: Mapping[str, Allowance],
) -> dict[str, Allowance] | None:
    """Reruns the original with the last bits of every sum perturbed. The effect is rounding, not a
    change; a large effect is noted. Returns None if the budget does not allow the runs.
    """
    expected = trial.exact or {}
    runs = [expected]
    for seed in range(PERTURBED_RUNS):
        perturbed = oracle.original(trial.feeds, _JITTER, seed)
        if perturbed is None:
            return None
        perturbed = trial.with_parts(perturbed)
        runs.append(perturbed)
        widened(trial.ranges, expected, perturbed)
    own = noise(runs, trial.alive)
    parts = {part.name for part in trial.parts}
    for name in (name for name in limits if name not in parts):
        moved = own.get(name, 0.0)
        if moved > EXACT_LIMIT:
            found.notes.append(
                f"one bit of rounding moves {name!r} of the original by {moved:.1e} even in float64"
            )
    return for_condition(limits, own)
