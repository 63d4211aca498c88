"""Runs the float64 reference (`evaluate`) in a child process, within limits of time and memory.

A model that is cheap in onnxruntime may be slow in numpy, and a process cannot interrupt its own
numpy call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from onnxgrad.errors import InputError, NodeFailed, OnnxgradError, Unsupported
from onnxgrad.limits import current
from onnxgrad.verify.coverage.counters import Goal, Item, Reach
from onnxgrad.verify.proof_model import TWO_GB, Model, received, sendable, source_of
from onnxgrad.verify.reference.moved_constants import Roundings
from onnxgrad.verify.reference.user_operators import OWN, call_own
from onnxgrad.verify.running.child_process import Child, Refused, RunFailed, held
from onnxgrad.verify.values import Feeds

# seconds for the types of a whole model: real shapes never take longer
_INFERENCE = 10.0
# seconds by which a run may exceed its budget, which it checks between nodes, before it is killed
_GRACE = 2.0


class Float64:
    """A model to evaluate in float64. The child compiles it at its first run, and again if the
    child died.
    """

    def __init__(self, model: Model) -> None:
        digest, self._payload = source_of(model)
        self._own = sorted(OWN)
        self._key = f"{digest} {self._own}"

    def run(
        self,
        feeds: Feeds,
        *,
        outputs: Sequence[str] | None = None,
        seconds: float | None = None,
        jitter: float = 0.0,
        everywhere: bool = False,
        deployed: bool = False,
        seed: int = 0,
        count: object = None,
        moved: tuple[object, str] | None = None,
        steps: bool = True,
        rounded: Roundings | None = None,
        patience: float = _GRACE,
        apart: Path | None = None,
    ) -> dict[str, Any]:
        """Returns the outputs by name, as `Reference.run`. `apart`: a folder; large floats stay
        in files there (`StoredArray`).

        `outputs`: the names of the wanted outputs. `everywhere`: jitter every result that rounds.
        `deployed`: likewise, by the measured errors of onnxruntime. `count`: the coverage counter
        to which the run adds. `moved`: a mark, and the only input in which the runs with that mark
        differ. `steps`, `rounded`: as in `Reference.run`. `patience`: the seconds that one node may
        take beyond `seconds`; then the child is killed, with all it counted.

        Raises InputError for a missing input, NodeFailed if a node fails on its operands,
        Unsupported if the reference cannot run the model for another reason or within `seconds` and
        the memory, and LimitReached after the deadline of all work.
        """
        options = {"seconds": seconds, "jitter": jitter, "seed": seed, "everywhere": everywhere,
                   "deployed": deployed, "count": count, "moved": moved,
                   "steps": steps, "rounded": rounded and _fields_of(rounded),
                   "folder": None if apart is None else str(apart),
                   }  # fmt: skip
        limit = float("inf") if seconds is None else seconds + patience
        wanted = None if outputs is None else list(outputs)
        # the child remembers the inputs that do not move
        only = {moved[1]: feeds[moved[1]]} if moved is not None and moved[1] in feeds else None
        with held("float64") as child:

            def ask(given: Feeds, short: bool) -> Any:
                how = {**options, "short": short}
                return _ask(child, limit, "exact.run", self._key, dict(given), wanted, how)

            found = ask(feeds, False) if only is None else ask(only, True)
            if found is None:  # the child has not compiled it, or has dropped it
                self._open(child, limit)
            if found is None or found is False:
                found = ask(feeds, False)
        return received(found)

    def prepare(self, seconds: float) -> None:
        """Compiles the model in the child before its first run. Raises errors as `run`."""
        with held("float64") as child:
            self._open(child, seconds + _GRACE)

    def _open(self, child: Child, limit: float) -> None:
        _ask(child, limit, "exact.open", self._key, sendable(self._payload), self._own)

    def covered(self, count: object, then: str = "") -> list[Item]:
        """Returns the items that the runs with this `count` reached, as `Reference.covered`; none
        if the child has dropped them. Raises Unsupported.
        """
        with held("float64") as child:
            found = _ask(child, _INFERENCE, "exact.covered", self._key, count, then)
        return [Item(*item) for item in found]

    def mark(self, count: object, then: str) -> None:
        """Calls `Reference.mark`. Raises Unsupported."""
        with held("float64") as child:
            _ask(child, _INFERENCE, "exact.mark", self._key, count, then)

    def goals(self, count: object) -> list[Goal]:
        """Returns `Reference.goals`. Raises Unsupported."""
        with held("float64") as child:
            return [Goal(*g) for g in _ask(child, _INFERENCE, "exact.goals", self._key, count)]

    def reached(self, count: object) -> list[Reach]:
        """Returns `Reference.reached`. Raises Unsupported."""
        with held("float64") as child:
            return [Reach(*r) for r in _ask(child, _INFERENCE, "exact.reached", self._key, count)]


def infer_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with the types that onnx infers. Raises Unsupported if onnx gives up.

    Runs in the child, because onnx computes sizes element by element, in vectors of any length that
    a file declares.
    """
    answer = _inferred(model.SerializeToString())
    if answer is None:
        raise Unsupported("onnx does not infer the types of this model")
    found = onnx.ModelProto()
    found.ParseFromString(answer)
    return found


def typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with the types that onnx infers, or unchanged if it is too large or onnx
    gives up.
    """
    try:
        return infer_types(model) if model.ByteSize() <= TWO_GB else model
    except OnnxgradError:
        return model


@functools.lru_cache(maxsize=4)
def _inferred(model: bytes) -> bytes | None:
    """Cached, because one proof needs the types of a model several times. Returns None if onnx
    gives up.
    """
    try:
        with held("float64") as child:
            return bytes(_ask(child, _INFERENCE, "exact.infer", sendable(model)))
    except (InputError, Unsupported):
        return None


def _called(domain: str, op: str, operands: list[Any], attributes: dict[str, Any]) -> list[Any]:
    """Answers the child's call of a user's operator."""
    return call_own(OWN[domain, op], 0, operands, attributes)


_ERRORS: dict[str, type[OnnxgradError]] = {
    e.__name__: e for e in (InputError, Unsupported, NodeFailed)
}


def _ask(child: Child, timeout: float, verb: str, *arguments: Any) -> Any:
    try:
        return child.ask(timeout, verb, *arguments, called=_called)
    except Refused as refused:
        if refused.kind in _ERRORS:
            raise _ERRORS[refused.kind](refused.words) from None
        if refused.kind == "MemoryError":
            raise Unsupported(str(current().out_of_memory())) from None
        raise Unsupported(f"{refused.kind}: {refused.words[:300]}") from None
    except RunFailed as error:
        raise Unsupported(error.reason) from None


def _fields_of(rounded: Roundings) -> tuple[Any, ...]:
    return rounded.values, rounded.units, dict(rounded.results)
