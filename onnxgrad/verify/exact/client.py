"""Exact evaluation in a child process: two whole models for `verify --exact`, and the windows of
rewrites for `optimize --exact`.

Exact evaluation keeps every tensor four times in 64 bits and loops over rationals in Python, so a
model that is cheap in onnxruntime may take long or need much memory. A child that is out of time or
memory is an answer, "not decided", and leaves the verdict of the runs as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.limits import current
from onnxgrad.verify.exact.window import Decision, Window
from onnxgrad.verify.proof_model import Model, sendable, source_of
from onnxgrad.verify.running.child_process import Refused, RunFailed, held

_SECONDS = 60.0
_GRACE = 10.0  # one operator may take longer, before the child is killed
_SHARE = 0.5  # of the time that is left for all work


def decide_models(a: Model, b: Model, names: Mapping[str, str]) -> Decision:
    """Returns the decision about two models. `names`: inputs and outputs of `a` that have another
    name in `b`. Time and memory that run out leave it undecided.
    """
    try:
        models = [sendable(source_of(model)[1]) for model in (a, b)]
    except InputError as error:
        return Decision("sampled", stopped_by=str(error))
    return _decided("algebra.decide", _seconds(), *models, dict(names))


def decide_window(window: Window, seconds: float) -> Decision:
    """Returns the decision about the window of a rewrite, after at most about `seconds`."""
    try:
        models = [sendable(source_of(model)[1]) for model in (window.old, window.new)]
    except InputError as error:
        return Decision("sampled", stopped_by=str(error))
    witnesses = {name: m.SerializeToString() for name, m in window.witnesses.items()}
    seconds = min(seconds, _seconds())
    return _decided("algebra.window", seconds, *models, window.claims, witnesses, window.made)


def _seconds() -> float:
    return min(_SECONDS, _SHARE * current().left())


def _decided(verb: str, seconds: float, *arguments: Any) -> Decision:
    try:
        with held("float64") as child:
            return Decision(*child.ask(seconds + _GRACE, verb, *arguments, seconds))
    except Refused as refused:
        memory = refused.kind == "MemoryError"
        why = "exact evaluation needs more memory" if memory else refused.words[:200]
        return Decision("sampled", stopped_by=why)
    except RunFailed as error:
        return Decision("sampled", stopped_by=error.reason)
