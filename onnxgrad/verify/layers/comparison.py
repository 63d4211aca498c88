"""Compares the values inside two models in pairs. The result shows where the models start to
differ; only the outputs decide the verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.protobufs import copy_of, graphs_of, scheduled
from onnxgrad.ir.storage.external_data import outside
from onnxgrad.ir.storage.numpy_files import ArraysFile
from onnxgrad.limits import LimitReached
from onnxgrad.verify.compare import Difference, base_name, compare, is_non_finite, noise, worst
from onnxgrad.verify.evidence import Layer, Layers
from onnxgrad.verify.interface import Correspondence, Demands
from onnxgrad.verify.layers.pairs import (
    QUANTISES,
    Pair,
    makers_of,
    scale_of,
    stored_pairs,
    value_pairs,
)
from onnxgrad.verify.layers.scopes import standing
from onnxgrad.verify.onnxruntime_check import as_computed
from onnxgrad.verify.output_dependencies import Marks, float_types, gathered
from onnxgrad.verify.proof_model import ProofModel
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.request import Request, Settings
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import open_session
from onnxgrad.verify.tolerance import Allowance, Ranges, in_onnxruntime, is_float, widened
from onnxgrad.verify.trials import Trial
from onnxgrad.verify.values import Feeds, Value
from onnxgrad.wording import counted, option

_FIRST = 16  # values of the first batch
_GROWTH = 4
_BYTES = 1 << 28  # of the values of one batch, once their sizes are known
_QUANTUM = 2.0 / 127  # of the largest value: the error of 8 bits on one path only
_FOLDER = "session.model_external_initializers_file_folder_path"


class Marked:
    """A model that returns values of its main graph, quantised ones as floats if requested."""

    def __init__(self, model: ProofModel, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.makers = makers_of(model.proto)
        self._options = {}
        if isinstance(model.source, Path) and outside(model.proto):
            self._options = {_FOLDER: str(model.source.absolute().parent)}

    def proto(self, names: Iterable[str], floats: Iterable[str] = ()) -> ModelProto:
        """Returns the model with these values as its outputs, and `floats` dequantised, by their
        names.
        """
        made = copy_of(self.model.proto)
        del made.graph.output[:]
        dequantised = {name: f"{name} dequantised" for name in floats}
        for name, new in dequantised.items():
            scale, zero = scale_of(self.makers, name) or ("", "")
            operands = [name, scale, zero] if zero else [name, scale]
            node = NodeProto(op_type="DequantizeLinear", input=operands, output=[new])
            made.graph.node.append(node)
        made.graph.output.extend(ValueInfoProto(name=dequantised.get(n, n)) for n in names)
        return made

    def run(
        self, proto: ModelProto, feeds: Feeds, *, optimize: bool = False, threads: int | None = None
    ) -> list[Value]:
        """Returns its outputs in order. Raises RunFailed."""
        session = open_session(
            proto.SerializeToString(),
            provider=self.settings.provider,
            optimize=optimize or self.settings.runtime is not None,  # as it is deployed there
            threads=threads or self.settings.threads,
            session_options=self._options,
            may_idle=True,
            runtime=self.settings.runtime,
        )
        results = session.run(feeds)
        return [results[v.name] for v in proto.graph.output]

    def in_float64(self, proto: ModelProto, feeds: Feeds, seconds: float) -> list[Value] | None:
        """Returns its outputs in the float64 reference; None if it does not run there."""
        if self._options:
            return None
        try:
            results = Float64(proto).run(feeds, seconds=seconds)
        except LimitReached:
            raise
        except OnnxgradError:
            return None
        return [results[v.name] for v in proto.graph.output]

    def quantised(self, name: str) -> bool:
        """True if a value is quantised with a known scale."""
        return scale_of(self.makers, name) is not None


@dataclass
class Comparison:
    """The comparison of paired values, in batches whose results are dropped before the next batch.

    `stored`: the values of the first model by name, if they are not computed; the noise is then
    that of the second model. `keep` receives each value of the first model.
    """

    pairs: Sequence[Pair]
    first: Marked
    second: Marked
    demands: Demands
    seconds: float  # for the float64 reference
    stored: Mapping[str, Value] | None = None
    keep: ArraysFile | None = None
    _skipped: dict[str, str] = field(default_factory=dict)
    _unsaved: list[str] = field(default_factory=list)
    _others: dict[str, str] = field(default_factory=dict)  # no pairs, as the run shows: why

    def of(self, feeds: Feeds, case: str, unpaired: Sequence[str]) -> Layers:
        """Compares the values on these feeds, which have the first model's names."""
        found: list[Layer] = []
        self._skipped.clear()
        self._others.clear()
        size, at = _FIRST, 0
        while at < len(self.pairs):
            batch = self.pairs[at : at + size]
            try:
                layers, taken = self._batch(batch, feeds)
            except RunFailed as error:
                if len(batch) > 1 and not (error.limit and error.stage != "memory"):
                    size = max(1, len(batch) // 4)
                    continue
                self._skipped[batch[0].name] = error.reason
                if error.limit:
                    break
                layers, taken = [], 0
            found += layers
            at += len(batch)
            fitting = size * _BYTES // max(taken, 1)
            size = max(1, min(_GROWTH * max(size, _FIRST // 4), fitting))
        found = self._standing(found)
        apart = [*unpaired, *self._others]
        return Layers(tuple(found), case, tuple(apart), tuple(self._notes()))

    def _standing(self, found: Sequence[Layer]) -> list[Layer]:
        """Returns the layers without pairs that differ although the values computed from them
        agree: guessed pairs, and those with NaN or infinity on one side, such as a mask of -inf
        beside one of -3e38.
        """
        guesses = {p.name for p in self.pairs if p.is_guess}
        wrong = {layer.name for layer in found if not layer.difference.ok}
        masked = {layer.name for layer in found if is_non_finite(layer.difference)} - guesses
        if self.stored is not None or (guesses | masked).isdisjoint(wrong):
            return [*found]
        nodes = scheduled(list(self.first.model.proto.graph.node))
        kept = standing(nodes, wrong, {layer.name for layer in found} - wrong, guesses, masked)
        gone = sorted(wrong - kept)
        why = "paired by module or counted name alone, before values that agree"
        self._others.update(dict.fromkeys([name for name in gone if name in guesses], why))
        why = "NaN or infinite in one model only, before values that agree"
        self._others.update(dict.fromkeys([name for name in gone if name in masked], why))
        return [layer for layer in found if layer.name not in self._others]

    def _notes(self) -> list[str]:
        inner = sum(len(graphs_of(n)) for n in self.first.model.proto.graph.node)
        functions = len(self.first.model.proto.functions)
        found = [f"{name} was not compared: {why[:200]}" for name, why in self._skipped.items()]
        inside = [counted(inner, "nested graph")] if inner else []
        inside += [counted(functions, "function")] if functions else []
        found += self._unsaved
        found += [
            f"{counted(n, 'value')} {why}: taken for no pairs"
            for why, n in Counter(self._others.values()).items()
        ]
        return found + ([f"not looked at: values inside {' and '.join(inside)}"] if inside else [])

    def _batch(self, batch: Sequence[Pair], feeds: Feeds) -> tuple[list[Layer], int]:
        """Returns the layers of a batch, and the bytes of its values. Raises RunFailed."""
        known = self.stored is not None
        ours, theirs = [p.name for p in batch], [p.other for p in batch]
        mixed = (
            []
            if known
            else [
                p for p in batch if self.first.quantised(p.name) != self.second.quantised(p.other)
            ]
        )
        floats = [p.other for p in mixed if self.second.quantised(p.other)]
        if self.stored is not None:
            given = {p.other: np.asarray(self.stored[p.name]) for p in batch}
            floats = [n for n, v in given.items() if is_float(v) and self.second.quantised(n)]
        b = self.second.proto(theirs, floats)
        quantised = [p.name for p in mixed if self.first.quantised(p.name)]
        a = b if known else self.first.proto(ours, quantised)
        fed = self.demands.names.feeds(feeds)
        got = dict(zip(ours, self.second.run(b, fed)))
        own = got if known else dict(zip(ours, self.first.run(a, feeds)))
        expected = dict(self.stored or {}) if known else own
        expected = {name: expected[name] for name in ours}
        ends = {v.name for v in self.first.model.proto.graph.output}
        unlike = [n for n in ours if n not in ends and not _alike(expected[n], got[n])]
        self._others.update(dict.fromkeys(unlike, "of another shape or kind of type"))
        if self.keep is not None:
            for name, value in expected.items():
                self._unsaved += kept(self.keep, name, value)
        sizes, ranges = self._noise(b if known else a, fed if known else feeds, own)
        limits = self._limits(expected, sizes, a, b, ours)
        compared = {n: v for n, v in expected.items() if n not in self._others}
        wide = _as_wide({n: got[n] for n in compared}, compared)
        differences = compare(compared, wide, limits, ranges)
        by_name: dict[str, list[Difference]] = {}
        for difference in differences:
            by_name.setdefault(base_name(difference.output, expected), []).append(difference)
        layers = [
            Layer(p.name, p.other, p.by, p.operator, d)
            for p in batch
            for d in [worst(by_name.get(p.name, ()))]
            if d is not None
        ]
        return layers, 4 * sum(_size(value) for value in expected.values())

    def _noise(
        self, proto: ModelProto, feeds: Feeds, own: Mapping[str, Value]
    ) -> tuple[dict[str, float], Ranges]:
        """Returns the differences of the model from itself: optimised, with other threads, and in
        float64.
        """
        model = self.second if self.stored is not None else self.first
        runs, ranges = [dict(own)], Ranges()
        threads = 2 if model.settings.threads == 1 else 1
        try:
            runs.append(dict(zip(own, model.run(proto, feeds, optimize=True, threads=threads))))
        except RunFailed as error:
            if error.limit:
                raise
        exact = model.in_float64(proto, feeds, self.seconds)
        if exact is not None:
            runs.append(as_computed(dict(zip(own, exact)), dict(own)))
        for other in runs[1:]:
            widened(ranges, own, other)
        return noise(runs), ranges

    def _limits(
        self,
        expected: Mapping[str, Value],
        sizes: Mapping[str, float],
        a: ModelProto,
        b: ModelProto,
        names: Sequence[str],
    ) -> dict[str, Any]:
        held = [{t.data_type for t in m.graph.initializer} for m in (a, b)]
        types, quantised = (
            [  # weights of a type that the other model has none of were rounded
                dict(zip(names, _by_place(m, float_types(m, held[i] - held[1 - i]))))
                for i, m in enumerate((a, b))
            ],
            [dict(zip(names, _by_place(m, gathered(m, Marks(node=_quantises))))) for m in (a, b)],
        )
        paths = {name: {*types[0][name], *types[1][name]} for name in names}
        limits = in_onnxruntime(expected, sizes, paths)
        for name, limit in limits.items():
            if limit.most and quantised[1][name] and (self.stored or not quantised[0][name]):
                limits[name] = Allowance(max(limit.most, _QUANTUM), math.inf, limit.noise)
        return self.demands.allows(limits)


def _alike(a: Value, b: Value) -> bool:
    """True if two values can be a pair: equal shapes, and both floats or both not."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return type(a) is type(b)
    return a.shape == b.shape and is_float(a) == is_float(b)


def _by_place(model: ModelProto, by_name: Mapping[str, Any]) -> list[Any]:
    return [by_name[v.name] for v in model.graph.output]


def _quantises(node: NodeProto) -> int:
    return int(node.op_type in QUANTISES)


def _as_wide(got: Mapping[str, Value], like: Mapping[str, Value]) -> dict[str, Value]:
    """Returns floats with the dtypes of the values that they are compared with."""
    return {name: _widened(value, like.get(name)) for name, value in got.items()}


def _widened(value: Value, like: Value) -> Value:
    if isinstance(value, list) and isinstance(like, list) and len(value) == len(like):
        return [_widened(v, w) for v, w in zip(value, like)]
    both = isinstance(value, np.ndarray) and isinstance(like, np.ndarray)
    if both and is_float(value) and is_float(like):  # type: ignore[arg-type]  # seen before
        with np.errstate(over="ignore"):
            return value.astype(like.dtype)  # type: ignore[union-attr]  # seen before
    return value


def _size(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return value.nbytes if isinstance(value, np.ndarray) else 0


def interface_names(model: ModelProto, names: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of `names` for inputs and outputs, and those that match nothing in the
    model.
    """
    inner = makers_of(model).keys() - {v.name for v in model.graph.output}
    return {ours: theirs for ours, theirs in names.items() if ours not in inner}


def keep_run(keep: ArraysFile, trial: Trial, model: ModelProto) -> list[str]:
    """Stores the feeds and the outputs of a run. Returns a note on each value that was not
    stored.
    """
    outputs = {v.name: trial.expected.get(v.name) for v in model.graph.output}
    return [note for n, v in (*trial.feeds.items(), *outputs.items()) for note in kept(keep, n, v)]


def kept(keep: ArraysFile, name: str, value: Value) -> list[str]:
    """Stores a value. Returns a note if it was not stored."""
    why = keep.add(name, value) if isinstance(value, np.ndarray) else "it is not a tensor"
    return [f"{name} was not saved: {why}"] if why else []


def inside(
    original: ProofModel,
    candidate: ProofModel,
    trials: Sequence[Trial],
    request: Request,
    demands: Demands,
    *,
    agree: bool,
) -> Layers:
    """Compares the values inside two models on the first case. If the outputs do not `agree`,
    continue with the other cases until a value differs.
    """
    pairs, unpaired = value_pairs(original.proto, candidate.proto, request.map)
    known = makers_of(candidate.proto)
    for ours, theirs in request.map.items():
        if ours in makers_of(original.proto) and theirs not in known:
            raise InputError(
                f"{option('--map', 'map=')} {ours}={theirs}: no node of the second model computes "
                f"{theirs!r}"
            )
    first, second = Marked(original, request.settings), Marked(candidate, request.there)
    for i, trial in enumerate(trials):
        keep = request.keep if i == 0 else None
        work = Comparison(pairs, first, second, demands, request.float64_budget, keep=keep)
        found = work.of(trial.feeds, str(trial.case), unpaired)
        if agree or found.first is not None:
            break
    return found


def stored_inside(
    model: ProofModel,
    stored: Mapping[str, Value],
    trial: Trial,
    request: Request,
    demands: Demands,
) -> Layers:
    """Compares stored values with those that a model computes from the feeds of a case."""
    pairs, unpaired = stored_pairs(stored, model.proto, request.map)
    marked = Marked(model, request.settings)
    work = Comparison(
        pairs,
        marked,
        marked,
        replace(demands, names=Correspondence()),
        request.float64_budget,
        stored,
    )
    return work.of(trial.feeds, str(trial.case), unpaired)
