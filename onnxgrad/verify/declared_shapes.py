"""Compares the declared shapes of inner values with the shapes of runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from onnxgrad.errors import InputError
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.verify.feeds.dims import evaluate, required_inputs, shape_of, symbols_in
from onnxgrad.verify.proof_model import TWO_GB, ProofModel
from onnxgrad.verify.request import Settings
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session, marks
from onnxgrad.verify.trials import Trial
from onnxgrad.verify.values import Feeds
from onnxgrad.wording import counted, shape_text

_NAMED = 3  # values named in one reason
_SHOWN = 200  # characters of a reason


class DeclaredShapes:
    """The shapes that only the candidate declares, and a model that computes them. `open` may be
    called ahead.
    """

    def __init__(self, original: ProofModel, candidate: ProofModel, settings: Settings) -> None:
        self.candidate, self.settings = candidate, settings
        known = {v.name: v.type for v in original.proto.graph.value_info}
        made = {name for node in candidate.proto.graph.node for name in node.output}
        self.new = [
            v
            for v in candidate.proto.graph.value_info
            if v.name in made
            and v.type.tensor_type.HasField("shape")
            and known.get(v.name) != v.type
        ]
        self._session: Session | None = None
        # the shapes of earlier runs, by `marks` of their feeds, which stay alive
        self._known: dict[object, tuple[Feeds, Mapping[str, Any]]] = {}

    def open(self) -> Session | None:
        """Opens the model; None if there is no shape, or over 2 GB of weights in the model. Raises
        errors as `open_session`.
        """
        if self._session is None and self.new:
            given, folder = self.candidate.apart()
            if given.ByteSize() <= TWO_GB:
                model = _with_shapes(given, self.new)
                self._session = self.settings.open(model, optimize=False, folder=folder)
        return self._session

    def run_ahead(self, list_of_feeds: Iterable[Feeds]) -> None:
        """Runs the model on feeds before `contradictions` asks for the shapes. Leaves failures to
        it.
        """
        with contextlib.suppress(RunFailed, InputError):
            session = self.open()
            if session is None:
                return
            for feeds in list_of_feeds:
                self._known[marks(feeds)] = feeds, self._shapes(session, feeds)

    def _shapes(self, session: Session, feeds: Feeds) -> Mapping[str, Any]:
        return session.run(feeds, outputs=[_shape_name(v.name) for v in self.new])

    def contradictions(self, trials: Sequence[Trial]) -> tuple[list[str], list[str]]:
        """Returns contradictions between the runs and the shapes, and notes on why shapes were not
        compared: weights over 2 GB, or a candidate that does not run with shapes as outputs.
        """
        wrong: dict[str, str] = {}
        try:
            session = self.open()
            if session is None:
                return [], _unchecked(len(self.new), "the model passes 2 GB") if self.new else []
            for trial in trials:
                sizes = _sizes(self.candidate.proto.graph, trial.feeds)
                _, found = self._known.get(marks(trial.feeds), (None, None))
                found = found or self._shapes(session, trial.feeds)
                for v in self.new:
                    real = tuple(np.asarray(found[_shape_name(v.name)]).tolist())
                    shape = _declared(v, sizes)
                    if not _fits(shape, real):
                        words = f"is declared {shape_text(shape)} and is {shape_text(real)}"
                        wrong.setdefault(v.name, f"'{v.name}' {words}")
        except (RunFailed, InputError) as error:
            why = getattr(error, "reason", str(error))[:_SHOWN]
            return [], _unchecked(len(self.new), why)
        if not wrong:
            return [], []
        more = counted(len(wrong) - _NAMED, "more value") if len(wrong) > _NAMED else ""
        return [
            f"declared shapes are wrong: {'; '.join([*wrong.values()][:_NAMED])}"
            + (f"; {more}" if more else "")
        ], []


def _unchecked(count: int, why: str) -> list[str]:
    return [f"declared shapes of {counted(count, 'value')} not checked: {why}"]


def _shape_name(name: str) -> str:
    return f"shape of {name}"


def _with_shapes(candidate: ModelProto, values: Iterable[ValueInfoProto]) -> ModelProto:
    """Returns the model with the shapes of these values as its outputs."""
    model = copy_of(candidate)
    domain = next((o.domain for o in model.opset_import if o.domain in ("", "ai.onnx")), "")
    for v in values:
        name = _shape_name(v.name)
        node = model.graph.node.add(op_type="Shape", domain=domain, name=name)
        node.input.append(v.name)
        node.output.append(name)
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, None))
    del model.graph.value_info[:]
    return model


def _sizes(graph: GraphProto, feeds: Mapping[str, Any]) -> dict[str, int]:
    """Returns the size of each symbol in this run, as the shapes of the inputs show it."""
    found: dict[str, int] = {}
    for value in required_inputs(graph):
        shape = shape_of(value.name, value.type.tensor_type) or []
        array = np.shape(feeds[value.name]) if isinstance(feeds[value.name], np.ndarray) else ()
        for d, size in zip(shape, array):
            if isinstance(d, str) and symbols_in(d) == {d}:
                found.setdefault(d, size)
    return found


def _declared(v: ValueInfoProto, sizes: Mapping[str, int]) -> tuple[int | None, ...]:
    """Returns the declared sizes as numbers; None for a symbol that no input has."""
    dims: list[int | None] = []
    for dim in v.type.tensor_type.shape.dim:
        text = dim.dim_param
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value)
        elif text and symbols_in(text) <= sizes.keys():
            dims.append(evaluate(text, sizes))
        else:
            dims.append(None)
    return tuple(dims)


def _fits(shape: tuple[int | None, ...], real: tuple[int, ...]) -> bool:
    return len(shape) == len(real) and all(s in (None, r) for s, r in zip(shape, real, strict=True))
