"""Decides windows: as stored, with exact values of new weights, and with roots as symbols."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from onnx import ModelProto, TensorProto, inliner, numpy_helper

from onnxgrad.verify.exact.decider import Decider, small_constants
from onnxgrad.verify.exact.field import Undecided
from onnxgrad.verify.exact.side import symbol_near, symbol_of
from onnxgrad.verify.exact.values import BITS
from onnxgrad.verify.exact.weights import rounding
from onnxgrad.verify.exact.window import Decision, Window
from onnxgrad.verify.exact.witnesses import guesses, has_floats

_COMBINATIONS = 16  # of guessed witnesses
_STATED = 12  # significant bits of a number that a rule states, and did not compute


def decide(window: Window, *, seed: int = 0, seconds: float = 20.0) -> Decision:
    """Returns whether the claims of a window are the same algebra; see `Decision`."""
    deadline = time.monotonic() + seconds
    try:
        plain = _inlined(window)
        found = Decider(plain, seed, deadline).decision()
        if window.witnesses and not found:
            found = _with_witnesses(plain, seed, deadline, found)
        if window.made and not found:
            found = _with_guesses(plain, seed, deadline, found)
        return found if found else _with_symbols(plain, seed, deadline, found)
    except Undecided as error:
        return Decision("sampled", stopped_by=str(error))
    except MemoryError:
        return Decision("sampled", stopped_by="exact evaluation needs more memory")


def _with_symbols(window: Window, seed: int, deadline: float, first: Decision) -> Decision:
    """Returns the decision about a window in which constants next to a root stand for it. `first`:
    that about the constants as they are stored.
    """
    models = (window.old, window.new)
    numbers = (np.float32(a.f) for m in models for n in m.graph.node for a in n.attribute)
    if not any(symbol_of(t) for m in models for t in small_constants(m)) and not any(
        map(symbol_near, numbers)
    ):
        return first
    decider = Decider(window, seed, deadline, symbols=True)
    try:
        found = decider.decision()
    except Undecided:
        return first
    if not found or not decider.rounded:
        return first
    return replace(found, verdict="rounded", rounded=tuple(decider.rounded))


def _with_witnesses(window: Window, seed: int, deadline: float, first: Decision) -> Decision:
    """Returns the decision about a window whose new weights are what their witnesses compute, and
    are stored rounded. `first`: that about the weights as they are stored.
    """
    found = Decider(window, seed, deadline, dict(_used(window))).decision()
    if not found:
        return first if found.verdict == "sampled" and first.verdict == "refuted" else found
    return _rounded(window, found)


def _used(window: Window) -> Mapping[str, ModelProto]:
    stored = {t.name for t in window.new.graph.initializer}
    return {name: model for name, model in window.witnesses.items() if name in stored}


def _rounded(window: Window, found: Decision) -> Decision:
    """Returns the decision about the stored weights. `found`: that about their exact values."""
    witnesses = _used(window)
    stored = {t.name: t for t in window.new.graph.initializer}
    for name, witness in witnesses.items():
        wrong = rounding(stored[name], witness)
        if wrong:
            return Decision("refuted", stopped_by=wrong, sizes=found.sizes)
    return replace(found, verdict="rounded", rounded=tuple(witnesses))


def _with_guesses(window: Window, seed: int, deadline: float, first: Decision) -> Decision:
    """Returns the decision about a window with computed weights for which the rewrite has no
    witness. `first`: that about the weights as they are stored.

    A guess with which the sides are the same algebra is what the weight should be: then the stored
    weight is its rounding, or wrong. Two weights may share what they should be in other ways, so
    only one is refuted. Without such a guess nothing is refuted.
    """
    lacking = [
        t
        for t in window.new.graph.initializer
        if t.name in window.made and t.name not in window.witnesses and t.data_type in BITS
    ]
    if not lacking:
        return first
    for witnesses in _combinations(window, lacking):
        guessed = replace(window, witnesses={**window.witnesses, **witnesses})
        try:
            found = Decider(guessed, seed, deadline, dict(_used(guessed))).decision()
            judged = _rounded(guessed, found) if found else first
            if judged or (found and len(lacking) == 1):
                return judged
        except Undecided:
            continue
    if first.verdict != "refuted" or (not has_floats(window.old) and all(map(_is_stated, lacking))):
        return first
    return Decision("sampled", stopped_by=f"no witness for constant {lacking[0].name}")


def _combinations(window: Window, lacking: list[TensorProto]) -> Iterator[Mapping[str, ModelProto]]:
    """Yields guessed witnesses of some weights, those that agree with all stored ones first."""
    found = {t.name: guesses(window.old, t) for t in lacking}
    found = {name: every for name, every in found.items() if every}
    every = [dict(zip(found, graphs, strict=True)) for graphs in itertools.islice(
        itertools.product(*found.values()), 4 * _COMBINATIONS)]  # fmt: skip
    every.sort(key=lambda choice: sum(not g.close for g in choice.values()))
    if found:
        for choice in every[:_COMBINATIONS]:
            yield {name: g.witness for name, g in choice.items()}


def _is_stated(tensor: TensorProto) -> bool:
    """Whether the elements are short numbers, such as 2 or 0.75, which a rule states itself."""
    mantissa = np.frexp(numpy_helper.to_array(tensor).astype(np.float64))[0] * 2.0**_STATED
    return bool(np.all(mantissa == np.rint(mantissa)))


def _inlined(window: Window) -> Window:
    def plain(model: ModelProto) -> ModelProto:
        return inliner.inline_local_functions(model) if model.functions else model

    return replace(window, old=plain(window.old), new=plain(window.new))
