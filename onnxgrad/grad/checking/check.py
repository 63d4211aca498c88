"""Numeric proof of a gradient graph: `<g, v>` against central differences of the forward graph in
float64.

The check tries several directions v for each requested value x: random ones and the direction of
the gradient. The gradient graph runs in onnxruntime, as deployed, and computes g. The forward graph
runs in the float64 reference (`verify.reference`) and yields (f(x + hv) - f(x - hv)) / 2h. The two
are compared on the scale of the value's own gradient. If that is so small that rounding hides the
differences, the value is not judged. Elements that lie exactly on a kink (`line`) are not moved,
because every step shows the mean of both slopes there. A value that is off gets a second look
(`rounding`).
"""

from __future__ import annotations

import itertools
import os
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.autocast import widened
from onnxgrad.grad.checking.differences import compare, directions
from onnxgrad.grad.checking.further_inputs import FurtherInputs
from onnxgrad.grad.checking.line import Line, place
from onnxgrad.grad.checking.looks import Checked, Directional, Motion, along_gradients
from onnxgrad.grad.checking.probe import Run, probe_of, runner, values_reaching
from onnxgrad.grad.checking.report import GradientReport, ValueCheck
from onnxgrad.grad.checking.rounding import (
    TOLERANCES,
    Rounding,
    coarsest,
    coarsest_on_the_way,
    rounding_of,
)
from onnxgrad.grad.checking.same_outputs import same_function, same_outputs, whose_fault
from onnxgrad.grad.checking.vectors import (
    Flat,
    flat,
    largest_of,
    norm,
    values_of,
    vector,
    zero_deltas,
)
from onnxgrad.grad.checking.zero_reasons import explained
from onnxgrad.grad.checking.zeros import feeds_with_zeros
from onnxgrad.grad.derivatives.derivative import Derivative
from onnxgrad.grad.differentiation import Gradient, differentiate
from onnxgrad.grad.prepare import Adjoint
from onnxgrad.grad.targets import Target, find_targets, with_parts
from onnxgrad.grad.weights.folded import folded_note
from onnxgrad.grad.wrt import Wrt, entries_of
from onnxgrad.ir.domains import RANDOM
from onnxgrad.ir.load import ModelLike
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import model_nodes
from onnxgrad.ir.storage.shared_weights import IN_MEMORY, Files, opened
from onnxgrad.ir.storage.stored_arrays import is_storable, stored
from onnxgrad.ir.types import SequenceType, numpy_dtype
from onnxgrad.limits import current
from onnxgrad.name_lists import names_among
from onnxgrad.verify.coverage.counters import BRANCHES
from onnxgrad.verify.feeds.dims import named_dims, required_inputs, symbols_in
from onnxgrad.verify.feeds.generate import bound_by, feeds_for
from onnxgrad.verify.feeds.proof_cases import Inputs, runnable, sets_of
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.wording import option

# of the seconds that are left, those in which all values are judged
_PART_OF_REST = 0.5
# numbers for counts: the reference sums up what all runs of one count reach
_COUNTS = itertools.count()


@frozen(kw_only=True)
class Conditions:
    """Where and how a derivative is checked: the options of `onnxgrad.check_gradient` except those
    of the gradient itself.
    """

    seed: int = 0
    inputs: Inputs | None = None
    dims: Mapping[str, int] | None = None
    provider: str = "cpu"
    threads: int = 1
    tolerance: float | None = None
    allow_empty: Collection[str] = ()


def check_gradient(
    model: ModelLike,
    wrt: Wrt = None,
    target: Target = None,
    *,
    adjoint: Adjoint = "auto",
    parts: Sequence[Program] = (),
    asked: Wrt | bool = True,
    **options: Any,
) -> GradientReport:
    """Checks a gradient numerically in random directions, as `onnxgrad.check_gradient` describes.

    parts: programs that run one after the other in place of the gradient graph. asked: the user's
    own `wrt`, if `wrt` is a choice among its values (True: `wrt` itself). What it names has to be
    judged.

    options: the fields of `Conditions`, and the other fields of `GradientRequest`.
    """
    known = [f.name for f in fields(Conditions) if f.name in options]
    how = Conditions(**{name: options.pop(name) for name in known})
    with opened(model) as (source, files):
        source, target, chosen = with_parts(source, target, files.folder)
        program = files.load(source)
        if adjoint == "auto":
            found_targets = find_targets(program.main, target, scalar=False)
            adjoint = "ones" if all(v.shape == () for v in found_targets) else "input"
        sequences = {v.name for v in program.main.vars() if isinstance(v.type, SequenceType)}
        found = differentiate(program, wrt, target, adjoint=adjoint, excluded=chosen, **options)
        notes = (*found.notes, *folded_note(files.load(source), found.values))
        found = replace(found, notes=notes)
        check = _GradientCheck(source, files, source, found, wrt, how, found.stops, sequences)
        own = wrt if asked is True else asked or None
        check.named = {*entries_of(own, found.values)}
        if options.get("autocast") and how.provider == "cpu":
            check.graph = files.proto(widened(found.program))
        if parts:
            models = [files.proto(part) for part in parts]
            check.run = partial(_in_turn, check.run, check.graph, models)
            check.shared = []
        return check.report()


def _in_turn(
    run: Run,
    graph: ModelProto,
    parts: Sequence[ModelProto],
    model: ModelProto,
    feeds: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
    apart: Path | None = None,
) -> dict[str, Any]:
    """Runs the parts in place of `graph`; runs any other model unchanged."""
    if model is not graph:
        return run(model, feeds, outputs=outputs, apart=apart)
    values = dict(feeds)
    for part in parts:
        values |= run(part, {v.name: values[v.name] for v in part.graph.input if v.name in values})
    return values if outputs is None else {name: values[name] for name in outputs}


@dataclass
class Check(Checked):
    """The comparison of a graph of derivatives, and its report."""

    wrt: Wrt
    how: Conditions
    stops: Sequence[str] = ()
    sequences: Collection[str] = ()

    def __post_init__(self) -> None:
        found, how = self.found, self.how
        how = self.how = replace(
            how, allow_empty=names_among([*how.allow_empty], found.values, "allow_empty")
        )
        refuse_strange(how.allow_empty, found)
        self.graph = self.files.proto(found.program)
        self.run, self.where = runner(self.files, self.forward, how.provider, how.threads)
        self.probe = probe_of(
            self.files.load(self.forward), self.wrt, found.values, found.targets, self.stops
        )
        self.dtypes = coarsest_on_the_way(found.program, found.results)
        self.stored = {
            t.name: stored(t, self.files.folder)
            for t in self.probe.model.graph.initializer
            if t.name in found.values and self.files.folder is not None and is_storable(t)
        }
        # values that the user asked for by name
        self.named: Collection[str] = ()
        # outputs of the graph that are the model's own, unless their draws differ from run to run
        own = {v.name for v in self.source.graph.output} - {*found.results.values()}
        drawn = RANDOM & {node.op_type for node in model_nodes(self.source)}
        outputs = () if drawn else found.program.main.outputs
        self.shared = [v.name for v in outputs if v.name in own and v.name not in found.targets]

    @abstractmethod
    def at(self, feeds: dict[str, Any], *, given: bool) -> list[ValueCheck]:
        """Returns the check of every value on these feeds. If a target is not finite there and the
        feeds are not `given`, similar feeds are tried.
        """

    def still(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the feeds of the probe with nothing moved."""
        probe, names = self.probe, self.found.values
        zeros = zero_deltas(self.source, self.files, feeds, names, self.sequences)
        held = values_of(self.source, self.files, feeds, probe.held)
        return {
            **feeds,
            **{probe.deltas[name]: zero for name, zero in zeros.items()},
            **{probe.held[name]: value for name, value in held.items()},
        }

    @cached_property
    def limits(self) -> Mapping[str, float]:
        """The error allowed for each value: by the types on its path, else the largest of all."""
        if self.how.tolerance is not None:
            return dict.fromkeys(self.found.values, self.how.tolerance)
        limits = {name: TOLERANCES[dtype] for name, dtype in self.dtypes.items()}
        largest = max(limits.values(), default=0.0)
        return {name: limits.get(name, largest) for name in self.found.values}

    def report(self) -> GradientReport:
        """Returns the check of every value, repeated with zeros as factors of products."""
        found, how, source = self.found, self.how, self.source
        feeds, dims, given = _feeds(source, self.files, self.run, how, found)
        started = time.monotonic()
        checks = self.at(feeds, given=bool(how.inputs))
        for zeros in [] if how.inputs else feeds_with_zeros(source, feeds, how.seed, self.files):
            again = self.at(zeros, given=True)
            checks = [max(pair, key=_further) for pair in zip(checks, again, strict=True)]
        dtypes = {v.name: v.dtype for v in self.files.load(self.forward).main.vars()}
        reaching = values_reaching(self.forward, found.targets, dtypes, self.stops)
        further = FurtherInputs(
            self,
            feeds,
            seed=how.seed,
            dims=dims,
            given=given,
            spent=time.monotonic() - started,
            zeros={c.name for c in checks if c.zero and c.name in reaching},
        )
        elsewhere = further.checks()
        checks = [elsewhere.get(c.name, c) if self.is_right(c) else c for c in checks]
        if found.kind == "gradient":
            checks = explained(self, checks, feeds, reaching, how.seed)
        values = (
            replace(
                c,
                unreachable=c.name not in reaching,
                allowed=c.name in how.allow_empty,
                asked=c.name in self.named,
            )
            for c in checks
        )
        limits = [*self.limits.values(), *(c.tolerance or 0.0 for c in checks)]
        return GradientReport(
            tuple(values),
            max(limits, default=TOLERANCES[TensorProto.FLOAT]),
            self.where,
            found.notes,
            found.kind,
            branches_not_taken(source, feeds, self.files),
            looks=further.looks(),
        )

    def is_right(self, check: ValueCheck) -> bool:
        """Whether nothing speaks against a value."""
        return not check.judged or check.error <= self.limits[check.name]


def _further(check: ValueCheck) -> tuple[bool, float, float]:
    """Returns a sort key for checks of one value: a judged one is greater, then the larger
    error.
    """
    return check.judged, check.error, abs(check.difference)


@dataclass
class _GradientCheck(Check):
    """A gradient graph and the probe whose differences it is compared with."""

    def at(self, feeds: dict[str, Any], *, given: bool) -> list[ValueCheck]:
        found, probe = self.found, self.probe
        reference = Float64(self.files.runnable(probe.model))
        feeds, base = where_finite(self, reference, feeds, given=given)
        rng = np.random.default_rng(self.how.seed)
        weights = self.weights(rng, base)
        given_all = {**feeds, **{found.seeds[t]: weights[t] for t in found.seeds}}
        gradients = self._gradients(reference, feeds, given_all, base)
        where = place(reference, self.still(feeds), self.onto(weights), base)
        checks = []
        look = Rounding(self.graph, given_all, found.results, self.source, self.files)
        norms = (norm(vector(g)) for g in gradients.values())
        largest = max(filter(np.isfinite, norms), default=0.0)
        for name in [*gradients]:
            share = current().left() * _PART_OF_REST / len(gradients)
            where = replace(where, until=time.monotonic() + share)
            g, size = vector(gradients.pop(name)), largest_of(base[name])
            lines = [Line(where, probe.deltas[name], v, size) for v in directions(rng, g)]
            check, trials = compare(name, g, base[name], lines, self.limits[name])
            if trials and any(t.off for t in trials):
                check = look.look(check, trials, g, self.dtypes[name], largest)
            checks.append(check)
        return checks

    def weights(self, rng: np.random.Generator, base: Mapping[str, Any]) -> dict[str, Flat]:
        return {t: _adjoint(rng, base[o], self.found, t) for t, o in self.probe.outputs.items()}

    def derivatives(self, motion: Motion) -> Directional:
        found, weights = self.found, motion.weights
        given = {**motion.feeds, **{found.seeds[t]: weights[t] for t in found.seeds}}
        wanted = {n: found.results[n] for n in motion.moves}
        outputs, apart = list(wanted.values()), self.files.folder
        results = motion.run(self.graph, given, outputs=outputs, apart=apart)
        gradients = {n: vector(results[out]) for n, out in wanted.items()}
        return along_gradients(self.onto(weights), gradients, motion.moves)

    def _in_float64(
        self, given: Mapping[str, Any], feeds: Mapping[str, Any], outputs: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns outputs of the graph, and those of the model."""
        pairs = ((self.graph, given), (self.source, feeds))
        first, second = (Float64(self.files.runnable(m)).run(f, outputs=outputs) for m, f in pairs)
        return first, second

    def _gradients(
        self,
        reference: Float64,
        feeds: Mapping[str, Any],
        given: Mapping[str, Any],
        base: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Returns the gradients, after the targets of the graph proved equal to the probe's."""
        found = self.found
        shown = [t for t in found.targets if any(v.name == t for v in found.program.main.outputs)]
        try:
            wanted = [*found.results.values(), *shown, *self.shared]
            results = self.run(self.graph, given, outputs=wanted, apart=self.files.folder)
            own = self.run(self.source, feeds, outputs=self.shared) if self.shared else {}
        except RunFailed as error:
            raise whose_fault(error, lambda: self.run(self.source, feeds)) from error
        dtype = coarsest(found.program)
        rough = self.how.tolerance or TOLERANCES[dtype]
        for t in shown:
            out = self.probe.outputs[t]
            rounding = partial(rounding_of, reference, self.still(feeds), out, base[out], dtype)
            same_function(t, results[t], base[out], rough, rounding)
        if own:
            both = partial(self._in_float64, given, feeds)
            same_outputs({n: results[n] for n in self.shared}, own, rough, both)
        return {n: results[out] for n, out in found.results.items()}


def branches_not_taken(
    model: ModelProto, feeds: Mapping[str, Any], files: Files = IN_MEMORY
) -> tuple[str, ...]:
    """Describes the branches of every If that did not run on these feeds: differences say nothing
    about their operators. An If that did not run itself is left out.
    """
    if not any(n.op_type == "If" for n in model_nodes(model)):
        return ()
    reference, count = Float64(files.runnable(model)), ("check", os.getpid(), next(_COUNTS))
    reference.run(feeds, count=count)
    found: dict[str, list[str]] = defaultdict(list)
    for item in reference.covered(count):
        if item.kind == BRANCHES and not item.reached:
            found[item.where].append(item.missing)
    return tuple(f"{words[0]}: {where}" for where, words in found.items() if len(words) == 1)


def refuse_strange(names: Collection[str], found: Gradient | Derivative) -> None:
    """Raises InputError for a name with respect to which no derivative was formed."""
    for strange in (name for name in names if name not in found.values):
        where = option("--allow-empty", "allow_empty:")
        what = "gradient of" if found.kind == "gradient" else "derivative by"
        raise InputError(f"{where} {strange}: no {what} it was formed")


def _feeds(
    source: ModelProto, files: Files, run: Run, how: Conditions, found: Gradient | Derivative
) -> tuple[dict[str, Any], dict[str, int], Collection[str]]:
    """Returns feeds with sizes at which the model runs, these sizes, and the inputs that the user
    gave.
    """
    given: Mapping[str, Any] = {}
    dims = dict(how.dims or {})
    if how.inputs:
        given, *more = sets_of(how.inputs, source)
        if more:
            count = len(more) + 1
            raise InputError(f"inputs: a {found.kind} is checked on one set of arrays, not {count}")
        symbols = set().union(*map(symbols_in, named_dims(source.graph)))
        sizes = bound_by(source, given)
        dims = {**{name: n for name, n in sizes.items() if name in symbols}, **dims}
    elif isinstance(found, Derivative) and found.sizes is not None:
        dims = {**found.sizes, **dims}
    if not given or any(v.name not in given for v in required_inputs(source.graph)):
        attempt = partial(run, source)
        dims = runnable(source, dims, how.seed, attempt, count=1, given=given)[0]
    feeds = feeds_for(source, seed=how.seed, dims=dims, given=given)
    return feeds, bound_by(source, feeds) if given else dims, list(given)


def where_finite(
    check: Checked,
    reference: Float64,
    feeds: dict[str, Any],
    *,
    given: bool,
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Returns feeds on which all targets are finite, and the results of the reference there.

    If `feeds` are `given`, or if no similar feeds are better, these are `feeds` themselves.
    """
    choices = [feeds] if given else [feeds, *_masks_alike(feeds)]

    def finite(results: Mapping[str, Any]) -> bool:
        outputs = check.probe.outputs.values()
        return all(np.isfinite(flat(results[out])).all() for out in outputs)

    answers = ((feeds, check.at_rest(reference, feeds)) for feeds in choices)
    first = next(answers)
    return next((answer for answer in chain([first], answers) if finite(answer[1])), first)


def _adjoint(
    rng: np.random.Generator, value: Any, found: Gradient | Derivative, target: str
) -> np.ndarray[Any, Any]:
    if target not in found.seeds:
        return np.ones(())
    dtype = next(v.dtype for v in found.program.main.vars() if v.name == target)
    drawn: np.ndarray[Any, Any] = rng.standard_normal(np.shape(value))
    return drawn.astype(numpy_dtype(dtype))


def _masks_alike(feeds: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the feeds with every mask all true, then all false. A row that is masked entirely may
    be NaN, and then every result is.
    """
    masks = [n for n, v in feeds.items() if isinstance(v, np.ndarray) and v.dtype == np.bool_]
    for value in (True, False) if masks else ():
        yield {n: np.full_like(v, value) if n in masks else v for n, v in feeds.items()}
