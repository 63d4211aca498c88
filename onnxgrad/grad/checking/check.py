"""Numeric proof of a gradient graph: `<g, v>` against central differences of the forward graph in
float64.

For each requested value x several directions v are tried, random ones and the gradient's own: the
gradient graph, run in onnxruntime as deployed, gives g; the forward graph, in the float64 reference
(`verify.reference`), gives (f(x + hv) - f(x - hv)) / 2h. Both are compared on the scale of the
value's own gradient, which may be so small that rounding hides the differences: then the value is
not judged. Elements that lie exactly on a kink (`kinks`), where any step gives the mean of both
slopes, are not moved. A value that is off gets a second look (`rounding`).
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from onnxgrad.errors import InputError, NotProved, OnnxgradError
from onnxgrad.grad.checking.differences import compare, directions
from onnxgrad.grad.checking.line import Line, place
from onnxgrad.grad.checking.probe import Probe, Run, probe_of, runner, values_reaching
from onnxgrad.grad.checking.report import GradientReport, ValueCheck
from onnxgrad.grad.checking.rounding import TOLERANCES, Rounding, coarsest, coarsest_on_the_way
from onnxgrad.grad.checking.vectors import Flat, flat, values_of, zero_deltas
from onnxgrad.grad.checking.zeros import feeds_with_zeros
from onnxgrad.grad.differentiation import Gradient, differentiate
from onnxgrad.grad.targets import Target, find_targets, with_parts
from onnxgrad.grad.wrt import Wrt
from onnxgrad.ir.load import ModelLike, load
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import every_node
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.external_data import TooLarge
from onnxgrad.ir.types import SequenceType, numpy_dtype
from onnxgrad.limits import bounded
from onnxgrad.options import known_keywords, several
from onnxgrad.verify.coverage.counters import BRANCHES
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.feeds.proof_cases import runnable
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.wording import option

# the target itself may be off by this many times the tolerance: rounding also moves what a model
# rounds or picks
_SAME, _LARGEST = 1000, 0.5
# the reference adds up what runs of one count reach
_COUNTS = itertools.count()


@known_keywords
@bounded
def check_gradient(
    model: ModelLike,
    wrt: Wrt = None,
    target: Target = None,
    *,
    seed: int = 0,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    provider: str = "cpu",
    tolerance: float | None = None,
    allow_empty: Collection[str] = (),
    timeout: float | None = None,
    max_memory: int | str | None = None,
    **options: Any,
) -> GradientReport:
    """Check `gradient(model, wrt, target, **options)` numerically in random directions.

    Targets that are no scalars, and parts of values, get a random adjoint. A value at which
    gradients stop is held fixed while what is before it moves. `inputs` are used where given, the
    rest is generated from `seed` and `dims`. That nothing was proved is in the report: no value
    could be judged, or 0 = 0 for all of them, but for those that reach no target or are in
    `allow_empty`. Raises InputError as `gradient` does, `Unsupported` where the float64 reference
    lacks an operator, NotProved where onnxruntime runs the model and refuses the gradient graph,
    and RunFailed or LimitReached where `timeout` (seconds for everything, 300) or `max_memory`
    (half of what there is) does not suffice.

    >>> onnxgrad.check_gradient("models/training/mlp.onnx", "params", "loss").verdict
    'agrees'
    """
    source, target, parts = with_parts(in_memory(model), target)
    program = load(source)
    scalar = all(v.shape == () for v in find_targets(program.main, target, scalar=False))
    dtypes = {v.name: v.dtype for v in program.main.vars()}
    sequences = {v.name for v in program.main.vars() if isinstance(v.type, SequenceType)}
    found = differentiate(
        program, wrt, target, adjoint="ones" if scalar else "input", excluded=parts, **options
    )
    allow_empty = several(allow_empty, "allow_empty")
    refuse_strange(allow_empty, found.adjoints, "gradient of it")
    graph = to_proto(found.program, weights=True)
    names = list(found.adjoints)

    run, where = runner(source, provider)
    feeds = feeds_of(source, run, seed, inputs, dims)
    probe = probe_of(source, wrt, names, found.targets, found.stops)
    dtypes_of = coarsest_on_the_way(found.program, found.adjoints)
    check = _Check(source, found, graph, probe, run, scalar, sequences, seed, dtypes_of, tolerance)
    checks = check.at(feeds, given=bool(inputs))
    for zeros in [] if inputs else feeds_with_zeros(source, feeds, seed):
        checks = worse(checks, check.at(zeros, given=True))
    reaching = values_reaching(source, found.targets, dtypes, found.stops)
    limit = max((c.tolerance for c in checks if c.tolerance is not None), default=1e-4)
    return GradientReport(
        marked(checks, reaching, allow_empty), limit, where, found.notes,
        untaken=branches_not_taken(source, feeds),
    )  # fmt: skip


@dataclass
class _Check:
    """A gradient graph, run by `run`, and the probe whose differences it is held against."""

    source: ModelProto
    found: Gradient
    graph: ModelProto
    probe: Probe
    run: Run
    scalar: bool
    sequences: Collection[str]
    seed: int
    dtypes: Mapping[str, int]
    tolerance: float | None

    def at(self, feeds: dict[str, Any], *, given: bool) -> list[ValueCheck]:
        """Every value on these feeds, or where they were not `given` and a target is not finite on
        them, on others like them.
        """
        found, probe, names = self.found, self.probe, list(self.found.adjoints)
        reference = Float64(probe.model)
        zeros = {
            probe.deltas[n]: still
            for n, still in zero_deltas(self.source, feeds, names, self.sequences).items()
        }

        def unmoved(feeds: Mapping[str, Any]) -> dict[str, Any]:
            held = values_of(self.source, feeds, probe.held)
            return {**feeds, **zeros, **{probe.held[name]: value for name, value in held.items()}}

        feeds, base = where_finite(reference, probe, unmoved, feeds, given=given)
        rng = np.random.default_rng(self.seed)
        weights = {
            t: _adjoint(rng, base[out], self.scalar, found.program, t)
            for t, out in probe.outputs.items()
        }
        given_all = {**feeds, **{found.seeds[t]: weights[t] for t in found.seeds}}
        gradients = self._gradients(feeds, given_all, base)
        onto = {probe.outputs[t]: w for t, w in weights.items()}
        where = place(reference, unmoved(feeds), onto, base)
        checks = []
        look = Rounding(self.graph, given_all, found.adjoints, self.source)
        largest = _largest(gradients.values())
        for name, g in gradients.items():
            values = flat(base[name])
            size = float(np.abs(values).max(initial=0.0))
            lines = [Line(where, probe.deltas[name], v, size) for v in directions(rng, g)]
            check, trials = compare(name, g, values, lines, self._limit(name))
            if trials and any(t.off for t in trials):
                check = look.look(check, trials, g, self.dtypes[name], largest)
            checks.append(check)
        return checks

    def _limit(self, name: str) -> float:
        return TOLERANCES[self.dtypes[name]] if self.tolerance is None else self.tolerance

    def _gradients(
        self, feeds: Mapping[str, Any], given: Mapping[str, Any], base: Mapping[str, Any]
    ) -> dict[str, Flat]:
        """What the gradient graph gives, once its targets are what the probe has."""
        found = self.found
        shown = [t for t in found.targets if any(v.name == t for v in found.program.main.outputs)]
        try:
            results = self.run(self.graph, given, outputs=[*found.adjoints.values(), *shown])
        except RunFailed as error:
            raise _whose_fault(error, lambda: self.run(self.source, feeds)) from error
        rough = TOLERANCES[coarsest(found.program)] if self.tolerance is None else self.tolerance
        for t in shown:
            _same_function(t, results[t], base[self.probe.outputs[t]], rough)
        return {n: flat(results[out]) for n, out in found.adjoints.items()}


def worse(first: Sequence[ValueCheck], second: Sequence[ValueCheck]) -> list[ValueCheck]:
    """Of two checks of each value the one that was judged, of two such the one that is further
    off.
    """
    return [
        max(pair, key=lambda c: (c.judged, c.error, abs(c.difference)))
        for pair in zip(first, second, strict=True)
    ]


def branches_not_taken(model: ModelProto, feeds: Mapping[str, Any]) -> tuple[str, ...]:
    """The branches of every If that did not run on these feeds, in words: differences say nothing
    of what stands there. Those of an If that did not run itself are left out.
    """
    if not any(n.op_type == "If" for n in _all_nodes(model)):
        return ()
    reference, count = Float64(model), ("check", os.getpid(), next(_COUNTS))
    reference.run(feeds, count=count)
    found: dict[str, list[str]] = defaultdict(list)
    for item in reference.covered(count):
        if item.kind == BRANCHES and not item.reached:
            found[item.where].append(item.missing)
    return tuple(f"{words[0]}: {where}" for where, words in found.items() if len(words) == 1)


def _all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    yield from every_node(model.graph.node)
    for function in model.functions:
        yield from every_node(function.node)


def refuse_strange(allow_empty: Collection[str], names: Collection[str], what: str) -> None:
    """Raises InputError for a name that is none of those asked for."""
    for strange in (name for name in allow_empty if name not in names):
        where = option("--allow-empty", "allow_empty:")
        raise InputError(f"{where} {strange}: no {what} was asked for")


def feeds_of(
    source: ModelProto,
    run: Run,
    seed: int,
    inputs: Mapping[str, Any] | None,
    dims: Mapping[str, int] | None,
) -> dict[str, Any]:
    """The inputs where given, the rest generated at sizes at which the model runs."""
    if not inputs:
        dims = runnable(source, dims, seed, lambda feeds: run(source, feeds), count=1)[0]
    return feeds_for(source, seed=seed, dims=dims, given=inputs)


def marked(
    checks: Iterable[ValueCheck], reaching: Collection[str], allow_empty: Collection[str]
) -> tuple[ValueCheck, ...]:
    """The checks, with which values reach no target, and which may be 0 throughout."""
    return tuple(
        replace(c, unreachable=c.name not in reaching, allowed=c.name in allow_empty)
        for c in checks
    )


def in_memory(model: ModelLike) -> ModelProto:
    """The model with its weights. Raises InputError where they pass what one protobuf holds."""
    try:
        return to_proto(load(model), weights=True)
    except TooLarge as error:
        raise InputError(
            "the model's weights pass 2 GB, more than the check by differences holds in memory: "
            f"{option('`onnxgrad grad --no-verify`', '`gradient`')} makes the gradient without it"
        ) from error


def where_finite(
    reference: Float64,
    probe: Probe,
    unmoved: Callable[[Mapping[str, Any]], dict[str, Any]],
    feeds: dict[str, Any],
    *,
    given: bool = False,
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The feeds, or where they were not `given` and some target is not finite on them, others on
    which all are; and what the reference answers there.
    """
    choices = [feeds] if given else [feeds, *_masks_alike(feeds)]

    def finite(results: Mapping[str, Any]) -> bool:
        return all(np.isfinite(flat(results[out])).all() for out in probe.outputs.values())

    answers = ((feeds, reference.run(unmoved(feeds))) for feeds in choices)
    first = next(answers)
    return next((answer for answer in chain([first], answers) if finite(answer[1])), first)


def _largest(gradients: Iterable[Flat]) -> float:
    """The norm of the largest gradient without NaN or infinity."""
    return max((float(np.linalg.norm(g)) for g in gradients if np.isfinite(g).all()), default=0.0)


def _whose_fault(error: RunFailed, again: Callable[[], object]) -> OnnxgradError:
    """What to raise where onnxruntime refused the gradient graph: an InputError where it refuses
    the model as well, when it runs `again`.
    """
    try:
        again()
    except RunFailed as refused:
        if refused.stage in ("load", "run"):
            return InputError(f"the model itself does not run on these inputs: {refused.reason}")
    if error.stage not in ("load", "run"):
        return error  # a limit was reached, which says itself which
    return NotProved(
        "the gradient, our result, does not run in onnxruntime, though the model does: "
        f"{error.reason}; please report it with the model"
    )


def _same_function(target: str, value: Any, expected: Any, limit: float) -> None:
    """Differences of the reference judge a gradient only where onnxruntime computes the same.
    Raises NotProved.
    """
    a, b = np.asarray(value).astype(np.float64), np.asarray(expected).astype(np.float64)
    size = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    if a.shape == b.shape:
        off = float(np.abs((a - b)[np.isfinite(a) & np.isfinite(b)]).max(initial=0.0))
        if off <= min(_SAME * limit, _LARGEST) * size:
            return
        what = f"values {off:.1e} apart, of at most {size:.1e}"
    else:
        what = f"shapes {a.shape} and {b.shape}"
    raise NotProved(
        f"onnxruntime and the float64 reference compute another '{target}' ({what}): differences "
        "of the one say nothing about the gradient of the other"
    )


def _adjoint(
    rng: np.random.Generator, value: Any, scalar: bool, program: Program, target: str
) -> np.ndarray[Any, Any]:
    if scalar:
        return np.ones(())
    dtype = next(v.dtype for v in program.main.vars() if v.name == target)
    drawn: np.ndarray[Any, Any] = rng.standard_normal(np.shape(value))
    return drawn.astype(numpy_dtype(dtype))


def _masks_alike(feeds: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The feeds with every mask all true, and all false: what is masked in whole rows may be
    NaN, and then all is.
    """
    masks = [n for n, v in feeds.items() if isinstance(v, np.ndarray) and v.dtype == np.bool_]
    for value in (True, False) if masks else ():
        yield {n: np.full_like(v, value) if n in masks else v for n, v in feeds.items()}
