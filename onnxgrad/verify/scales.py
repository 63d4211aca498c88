"""The scale of inputs up to which a model with float16 values holds its bounds."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxgrad.ir.protobufs import copy_of
from onnxgrad.verify.compare import Difference, finite_elements, worst
from onnxgrad.verify.evidence import Scales
from onnxgrad.verify.feeds.edge_cases import FULL, Variation
from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.feeds.proof_cases import Results
from onnxgrad.verify.interface import Demands
from onnxgrad.verify.proof_model import ProofModel
from onnxgrad.verify.report import Case
from onnxgrad.verify.request import Settings
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session
from onnxgrad.verify.tolerance import at_tie, in_onnxruntime
from onnxgrad.verify.trials import Found, Trial

LARGEST = 65504.0
# a model that holds at scale 1e6 computes in float32
_LADDER = (*(Variation(reach=10.0**power) for power in range(1, 7)), Variation(reach=math.inf))


@dataclass
class ScaleSearch:
    """The search of one proof. `session` runs the original.

    The whole ranges of recognised kinds of inputs decide the verdict, unless the inputs are the
    user's own (not `usual`). Scales beyond these are reported. On a CPU, onnxruntime computes
    float16 in float32, so a value fails too if it exceeds the largest float16.
    """

    session: Session
    candidate: ProofModel
    settings: Settings
    feeder: Feeder
    trials: Sequence[Trial]
    usual: bool
    demands: Demands
    held: str = ""
    failed: str = ""
    difference: Difference | None = None
    _beyond: set[str] = field(default_factory=set)  # at usual inputs: they mean infinity

    def hold(self, session: Session, found: Found, how: str) -> None:
        """Compares the second model, which runs in `session`, at growing scales until it fails."""
        base = min(self.trials, key=lambda t: math.prod(t.case.dims.values()) or math.inf)
        watched = self._watched()
        self._beyond = {n for n, m in self._maxima(watched, base.feeds).items() if m > LARGEST}
        before = base.feeds
        for step in (*((FULL,) if self.usual else ()), *_LADDER):
            feeds = self.feeder.varied(base.feeds, base.case.dims, step)
            if _same(feeds, base.feeds) or _same(feeds, before):
                continue
            trial = self._trial(base, step, feeds)
            if trial is None:
                continue  # the original refuses it, or has no finite results
            before = feeds
            differences = [*self._judged(session, trial), *self._large(watched, feeds)]
            if step is FULL:
                found.add("onnxruntime", differences, trial.expected, f"{how}, {step}")
            bad = worst(d for d in differences if not d.ok)
            if bad is not None:
                self.failed, self.difference = str(step), bad
                return
            ranges = f"{FULL}, " if self.held.startswith(str(FULL)) and step is not FULL else ""
            self.held = f"{ranges}{step}"

    def _trial(self, base: Trial, step: Variation, feeds: Results) -> Trial | None:
        """Returns the case of a step, or None if the original's own range ends before it."""
        try:
            expected = base.with_parts(self.session.run(feeds, optional=True))
        except RunFailed:
            return None
        for name, value in expected.items():
            now, usual = finite_elements(value), finite_elements(base.expected[name])
            if now[0] * usual[1] < usual[0] * now[1]:
                return None
        case = Case(base.case.dims, base.case.seed, how=str(step))
        return Trial(case, feeds, expected, ties=base.ties, parts=base.parts, excuse=base.excuse)

    def _judged(self, session: Session, trial: Trial) -> list[Difference]:
        names, demands = self.demands.names, self.demands
        try:
            got = names.results(session.run(names.feeds(trial.feeds), optional=True))
        except RunFailed as error:
            return [_broken("(model)", error.reason)]
        paths = {name: demands.on_paths(name) for name in trial.expected}
        own = in_onnxruntime(trial.expected, trial.noise, paths)
        near = {name: at_tie(of) for name, of in paths.items()}
        return trial.judge(trial.expected, got, demands.allows(own), near)

    def _large(self, watched: Session | None, feeds: Results) -> list[Difference]:
        """Returns the float16 values that only these inputs carry beyond the largest float16."""
        maxima = self._maxima(watched, feeds)
        return [
            _broken(name, f"reaches {size:.1e}, beyond the largest float16, {LARGEST:.0f}")
            for name, size in maxima.items()
            if not size <= LARGEST and name not in self._beyond
        ][:1]

    def _watched(self) -> Session | None:
        """Returns a session of the second model that returns the largest magnitude of each of its
        float16 values; None if there is none or it does not load.
        """
        proto, folder = self.candidate.apart()
        made = with_maxima(proto)
        if made is None:
            return None
        with contextlib.suppress(RunFailed):
            return self.settings.open(made, optimize=False, folder=folder)
        return None

    def _maxima(self, watched: Session | None, feeds: Results) -> Mapping[str, float]:
        if watched is not None:
            with contextlib.suppress(RunFailed):
                found = watched.run(self.demands.names.feeds(feeds), optional=True)
                return {n.removesuffix(_SUFFIX): float(np.asarray(v)) for n, v in found.items()}
        return {}

    @property
    def result(self) -> Scales | None:
        """The result for the report; None if no other scale ran."""
        if not (self.held or self.failed):
            return None
        return Scales(self.held or "usual inputs", self.failed, self.difference)


_SUFFIX = " largest"


def with_maxima(model: ModelProto) -> ModelProto | None:
    """Returns the model with the largest magnitude of each float16 value of its main graph as its
    outputs; None if it has no such value.
    """
    try:
        known = onnx.shape_inference.infer_shapes(model).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return None
    values = [
        v.name
        for v in (*known.input, *known.value_info, *known.output)
        if v.type.tensor_type.elem_type == TensorProto.FLOAT16
    ]
    if not values:
        return None
    made = copy_of(model)
    del made.graph.output[:]
    for name in values:
        wide, size, most = (f"{name} {word}" for word in ("wide", "size", "largest"))
        made.graph.node.extend(
            [
                onnx.helper.make_node("Cast", [name], [wide], to=TensorProto.FLOAT),
                NodeProto(op_type="Abs", input=[wide], output=[size]),
                onnx.helper.make_node("ReduceMax", [size], [most], keepdims=0),
            ]
        )
        made.graph.output.append(ValueInfoProto(name=most))
    return made


def _broken(name: str, reason: str) -> Difference:
    return Difference(name, None, None, None, math.inf, 0.0, reason)


def _same(a: Results, b: Results) -> bool:
    return all(v is b[n] or np.array_equal(np.asarray(v), np.asarray(b[n])) for n, v in a.items())
