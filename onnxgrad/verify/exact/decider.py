"""Evaluates both sides of a window exactly, at several sizes, and compares the claims."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from onnxgrad.ir import domains
from onnxgrad.verify.exact.cuts import Cuts
from onnxgrad.verify.exact.evaluate import Inputs, Stopped, evaluate, sides_inputs
from onnxgrad.verify.exact.field import Array, Field, Undecided, ZeroDivisor
from onnxgrad.verify.exact.rational import Rationals
from onnxgrad.verify.exact.side import Side
from onnxgrad.verify.exact.sizes import SIZES, plans
from onnxgrad.verify.exact.values import Known, Num, Value
from onnxgrad.verify.exact.window import Decision, Window
from onnxgrad.verify.feeds import dims

_DRAWS = 4  # at each tuple of sizes, as long as the bound is above _BOUND
_BOUND = 2.0**-40
_HIGHEST = 1e-6  # no window with a higher bound is exact
_REDRAWS = 6  # after a zero divisor
_RATIONAL_DRAWS = 12
_MOST_RATIONAL = 20_000  # elements of all inputs and constants of a window in rationals
# operators that follow the order of numbers: rationals decide what a field cannot
_ORDER = frozenset((
    *domains.KINKED, *domains.ROUNDINGS, *domains.COMPARISONS, *domains.LOGICAL, "Max", "Min",
    "PRelu", "Where", "ArgMax", "ArgMin", "TopK", "MaxPool", "ReduceMax", "GlobalMaxPool",
    "ReduceMin", "Mod", "Hardmax", "ReduceL1", "Cast", "Not",
))  # fmt: skip


@dataclass
class _Outcome:
    """The comparison of the claims at one draw. `differs`: where, if they differ."""

    differs: str = ""
    bound: float = 0.0
    functions: tuple[str, ...] = ()
    integers: str = ""
    partial: tuple[str, ...] = ()
    interpreted: bool = True

    @property
    def why(self) -> str:
        """Why a difference refutes nothing."""
        laws = ", ".join(self.functions) or "infinite constants"
        return f"{self.differs}, and the laws of {laws} are not known"

    def decision(self, sizes: tuple[str, ...]) -> Decision | None:
        """Returns the decision that this draw alone makes."""
        if self.differs and (self.functions or not self.interpreted):
            return Decision("sampled", stopped_by=self.why)
        if self.differs:
            return Decision("refuted", stopped_by=self.differs, sizes=sizes)
        return Decision("sampled", stopped_by=self.integers) if self.integers else None


@dataclass
class Decider:
    """The decision about a window. `overrides`: the exact values of new weights, as graphs.
    `symbols`: constants next to a root stand for it, and are noted in `rounded`.
    """

    window: Window
    seed: int
    deadline: float
    overrides: dict[str, ModelProto] = field(default_factory=dict)
    symbols: bool = False
    rounded: dict[str, None] = field(default_factory=dict)

    def decision(self) -> Decision:
        """Returns the decision: in a field, and in rationals where order matters."""
        outcomes, failed = self._outcomes()
        if not outcomes:
            if self._has_order():
                return self._in_rationals(next(plans(self.window)), str(failed))
            raise failed or Undecided("no sizes at which the graph runs")
        sizes, last = outcomes[-1]
        used = tuple(_text(s) for s, _ in outcomes)
        if not last.differs:
            return self._equal([o for _, o in outcomes], used)
        if not last.functions and last.interpreted:
            return Decision("refuted", stopped_by=last.differs, sizes=used)
        why = last.why
        if self._has_order():
            return self._in_rationals(sizes, why)
        return Decision("sampled", stopped_by=why, sizes=used)

    def _outcomes(self) -> tuple[list[tuple[dict[str, int], _Outcome]], Undecided | None]:
        """Returns the outcomes at three tuples of sizes, or up to the first that differs."""
        failed: Undecided | None = None
        found: list[tuple[dict[str, int], _Outcome]] = []
        for sizes in plans(self.window):
            try:
                outcome = self._in_field(sizes)
            except Undecided as error:
                if found:
                    raise
                failed = failed or error
                continue
            found.append((sizes, outcome))
            if outcome.differs or len(found) == len(SIZES) or not sizes:
                break
        return found, failed

    def _equal(self, outcomes: Sequence[_Outcome], used: tuple[str, ...]) -> Decision:
        bound = max(o.bound for o in outcomes)
        integers = next((o.integers for o in outcomes if o.integers), "")
        if bound > _HIGHEST or integers:
            why = integers or "a degree too high for a bound"
            return Decision("sampled", stopped_by=why, sizes=used)
        partial = tuple(dict.fromkeys(p for o in outcomes for p in o.partial))
        return Decision("exact", bound=bound, sizes=used, partial=partial)

    # ---- draws

    def _in_field(self, sizes: Mapping[str, int]) -> _Outcome:
        """Compares the claims in a field, in as many draws as the bound needs. Raises
        Undecided.
        """
        cuts = Cuts()
        found = self._draw_in_field(sizes, 0, cuts)
        if not found.differs and found.bound > _BOUND and cuts.names:
            cuts.cutting = True
            again = self._draw_in_field(sizes, 1, cuts)
            if not again.differs:
                return replace(again, partial=found.partial, integers=found.integers)
            cuts = Cuts()
        for more in range(2, _DRAWS):
            if found.differs or found.bound < _BOUND or time.monotonic() > self.deadline:
                break
            again = self._draw_in_field(sizes, more, cuts)
            found = replace(again, bound=found.bound * again.bound)
        return found

    def _draw_in_field(self, sizes: Mapping[str, int], number: int, cuts: Cuts) -> _Outcome:
        inputs = self._inputs(sizes)
        for attempt in range(4 * _REDRAWS):
            ring = Field((self.seed, sorted(sizes.items()), number, attempt), roots=(2,))
            try:
                return self._compared(ring, inputs, attempt, cuts)
            except ZeroDivisor:
                if attempt >= _REDRAWS:
                    raise Undecided("a divisor that is zero in every draw") from None
            except Stopped as error:
                if not inputs.narrow(error):
                    raise
            except Undecided:
                if inputs.known_booleans or not _booleans(self.window.old):
                    raise
                inputs.known_booleans = True
        raise Undecided("no integers at which the graph runs")

    def _in_rationals(self, sizes: Mapping[str, int], otherwise: str) -> Decision:
        """Compares the claims in rationals, with ties, zeros and both signs."""
        if self._elements(sizes) > _MOST_RATIONAL:
            return Decision("sampled", stopped_by=otherwise)
        possible = list(plans(self.window))[: len(SIZES)] if sizes else [sizes]
        used: dict[str, None] = {}
        partial: dict[str, None] = {}
        done, bound, inputs = 0, 0.0, self._inputs(sizes)
        for attempt in range(8 * _RATIONAL_DRAWS):
            inputs.sizes = possible[attempt % len(possible)]
            try:
                outcome = self._rational_draw(inputs, attempt)
            except Undecided as error:
                if len(possible) == 1 or used:
                    return Decision("sampled", stopped_by=str(error))
                possible.remove(dict(inputs.sizes))
                continue
            if outcome is None:
                continue
            used.setdefault(_text(inputs.sizes))
            stopped = outcome.decision(tuple(used))
            if stopped is not None:
                return stopped
            done, bound = done + 1, max(bound, outcome.bound)
            partial.update(dict.fromkeys(outcome.partial))
            if done == _RATIONAL_DRAWS:
                return Decision("exact", bound=bound / done, sizes=tuple(used),
                                partial=tuple(partial))  # fmt: skip
        return Decision("sampled", stopped_by=otherwise)

    def _rational_draw(self, inputs: Inputs, attempt: int) -> _Outcome | None:
        """Compares the claims at one draw; None: the draw is not valid. Raises Undecided."""
        near = _constants(self.window.old) + _constants(self.window.new)
        try:
            return self._compared(Rationals((self.seed, attempt), near), inputs, attempt)
        except ZeroDivisor:
            return None
        except Stopped as error:
            if not inputs.narrow(error):
                raise
            return None

    def _compared(
        self, ring: Field | Rationals, inputs: Inputs, attempt: int, cuts: Cuts | None = None
    ) -> _Outcome:
        cuts = cuts or Cuts()
        cuts.begin()
        values = {
            i.name: inputs.draw(ring, i.name, i.type, attempt)
            for i in sides_inputs(self.window.old)
        }
        for i in sides_inputs(self.window.new):
            if i.name not in values:
                values[i.name] = inputs.draw(ring, i.name, i.type, attempt)
        has_exp = any(
            n.op_type == "Exp" for m in (self.window.old, self.window.new) for n in m.graph.node
        )
        old, new = (
            Side(ring, has_exp=has_exp, symbols=self.symbols, rounded=self.rounded)
            for _ in range(2)
        )
        names_old = {i.name for i in sides_inputs(self.window.old)}
        names_new = {i.name for i in sides_inputs(self.window.new)}
        expected = evaluate(
            self.window.old, old, {n: values[n] for n in names_old}, {}, self.deadline, cuts.first
        )
        computed = {name: self._witness(new, witness) for name, witness in self.overrides.items()}
        found = evaluate(
            self.window.new,
            new,
            {n: values[n] for n in names_new},
            computed,
            self.deadline,
            cuts.second,
        )
        return _judged(self.window, ring, (old, new), expected, found, cuts)

    def _witness(self, side: Side, witness: ModelProto) -> Value:
        outputs = evaluate(witness, side, {}, {}, self.deadline)
        return next(iter(outputs.values()))

    # ---- the window

    def _inputs(self, sizes: Mapping[str, int]) -> Inputs:
        kinds: dict[str, set[str]] = {}
        equal = {}
        known = {i.name for m in (self.window.old, self.window.new) for i in sides_inputs(m)}
        for p in self.window.premises:
            if p.value not in known or (p.other and p.other not in known):
                raise Undecided(f"a premise on a value inside: {p}")
            kinds.setdefault(p.kind, set()).add(p.value)
            if p.kind == "equal":
                equal[p.other] = p.value
        positive = frozenset(kinds.get("positive", ()))
        return Inputs(sizes, positive, frozenset(kinds.get("ones", ())), equal)

    def _has_order(self) -> bool:
        nodes = [n for m in (self.window.old, self.window.new) for n in m.graph.node]
        return any(n.op_type in _ORDER for n in nodes) and len(nodes) <= 60

    def _elements(self, sizes: Mapping[str, int]) -> float:
        total = 0.0
        for model in (self.window.old, self.window.new):
            total += sum(float(np.prod(t.dims)) for t in model.graph.initializer)
        for i in sides_inputs(self.window.old):
            shape = dims.shape_of(i.name, i.type.tensor_type) or []
            total += float(np.prod([float(dims.evaluate(d, sizes)) for d in shape]))
        return total


def _judged(
    window: Window, ring: Field | Rationals, sides: tuple[Side, Side],
    expected: Mapping[str, Value], found: Mapping[str, Value], cuts: Cuts,
) -> _Outcome:  # fmt: skip
    """Compares the claims of one draw."""
    old, new = sides
    functions = tuple(dict.fromkeys(f.split(" ")[0] for s in sides for f in s.functions))
    infinite = any(isinstance(v, Num) and v.infinite for v in (*expected.values(), *found.values()))
    outcome = _Outcome(functions=functions, partial=_new_partial(old, new))
    outcome.interpreted = not infinite
    elements, degree = cuts.elements, max(old.degree, new.degree, cuts.degree)
    if cuts.differs:
        outcome.differs = f"{cuts.differs} differs"
        return outcome
    for a, b in window.claims:
        if a not in expected or b not in found:
            raise Undecided(f"{a if a not in expected else b} is no output of its side")
        x, y = expected[a], found[b]
        if x.dtype != y.dtype or x.shape != y.shape:
            outcome.differs = f"{b} has another {'dtype' if x.dtype != y.dtype else 'shape'}"
            outcome.functions, outcome.interpreted = (), True
            return outcome
        where = _first_difference(old, x, y)
        if where is not None:
            outcome.differs = f"{b}{list(where)} differs"
            return outcome
        elements += int(np.prod(x.shape))
        for side, v in ((old, x), (new, y)):
            degree = max(degree, side.whole_degree(v) if isinstance(v, Num) else 1)
    outcome.bound = ring.bound(elements, degree)
    if not elements:
        raise Undecided("the claims have no elements")
    outcome.integers = _unlike_integers(old, new)
    return outcome


def _unlike_integers(old: Side, new: Side) -> str:
    """Returns which operators on chosen integers only one side has; empty if none."""
    calls = {name for name, _ in old.calls ^ new.calls}
    if calls:
        names = ", ".join(sorted({name.split(" ")[0] for name in calls}))
        return f"{names} of integers that the caller chooses"
    return "rows of a table that no draw read" if old.tables != new.tables else ""


def _first_difference(side: Side, x: Value, y: Value) -> tuple[int, ...] | None:
    if isinstance(x, Known) and isinstance(y, Known):
        unequal = np.asarray(x.array != y.array)
    else:
        pairs = zip(side.lift(x).parts, side.lift(y).parts, strict=True)
        unequal = np.any([np.asarray(a != b, bool) for a, b in pairs], axis=0)
    if not np.any(unequal):
        return None
    return tuple(int(i) for i in np.argwhere(unequal)[0])


def _new_partial(old: Side, new: Side) -> tuple[str, ...]:
    """Returns the kinds of partial operations of which the new side has an operand more."""
    found = []
    for kind, arrays in new.partial.items():
        before = _set_of(old.partial.get(kind, []))
        if not _set_of(arrays) <= before:
            found.append(kind)
    return tuple(found)


def _set_of(arrays: Sequence[Array]) -> set[Any]:
    return {v for a in arrays for v in a.tolist()}


def small_constants(model: ModelProto) -> list[TensorProto]:
    """Returns the constants of a graph with at most 64 elements."""
    tensors = [t for t in model.graph.initializer if np.prod(t.dims) <= 64]
    for n in model.graph.node:
        for a in n.attribute:
            if a.HasField("t"):
                tensors.append(a.t)
            elif n.op_type == "Constant" and a.name == "value_float":
                tensors.append(numpy_helper.from_array(np.array(a.f, np.float32)))
    return tensors


def _constants(model: ModelProto) -> list[Fraction]:
    """Returns the finite numbers of small constants, at which a graph may change its course."""
    found: dict[Fraction, None] = {}
    for t in small_constants(model):
        array = numpy_helper.to_array(t)
        if array.dtype.kind in "OUS":
            continue
        for v in array.astype(np.float64).reshape(-1)[:64]:
            if np.isfinite(v) and abs(v) < 1e6:
                found.setdefault(Fraction(float(v)))
    for n in model.graph.node:
        for a in n.attribute:
            if a.HasField("f") and np.isfinite(a.f) and abs(a.f) < 1e6:
                found.setdefault(Fraction(float(a.f)))
    return list(found)[:40]


def _booleans(model: ModelProto) -> bool:
    return any(i.type.tensor_type.elem_type == 9 for i in sides_inputs(model))


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
