"""Numeric proof of a gradient graph: `<g, v>` against central differences of the forward graph in float64.

For each requested value x a random direction v is tried: the gradient graph, run in onnxruntime as deployed, gives g;
the forward graph, in the float64 reference (`verify.reference`), gives (f(x + hv) - f(x - hv)) / 2h, extrapolated from
two steps. Where the two steps disagree the function has a kink nearby and the value is not judged. Elements that lie
exactly on one (`grad.check_kinks`), where any step gives the mean of both slopes, are not moved.

A value that is off gets a second look: the gradient graph itself in float64 has to agree ten times better, and
onnxruntime with that up to what rounding at every step does, which random rounding shows (Parker, Monte Carlo
arithmetic, 1997).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from onnxgrad.errors import InputError, NotProved, OnnxgradError, Unsupported
from onnxgrad.grad.check_kinks import between_slopes, smooth_elements
from onnxgrad.grad.check_line import SHRINK, STEP, Line
from onnxgrad.grad.check_report import GradientReport, ValueCheck
from onnxgrad.grad.check_values import Flat, Mask, flat, moved_by, zero_deltas
from onnxgrad.grad.differentiation import Gradient, differentiate
from onnxgrad.grad.reach import values_reaching
from onnxgrad.grad.request import Target, Wrt, find_targets, hoist_requested
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import ModelLike, load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import SequenceType, numpy_dtype
from onnxgrad.ir.weights import TooLarge
from onnxgrad.limits import bounded
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.feeds.proof_cases import runnable
from onnxgrad.verify.reference.in_child import Float64
from onnxgrad.verify.running.process import RunFailed
from onnxgrad.verify.running.run import run

# relative to the value's own gradient, by the coarsest float type on the way
TOLERANCES: dict[int, float] = {
    TensorProto.DOUBLE: 1e-6,
    TensorProto.FLOAT: 1e-4,
    TensorProto.FLOAT16: 5e-2,
    TensorProto.BFLOAT16: 3e-1,
}
# a gradient this much smaller than the model's largest is judged on the scale of that one: it may be a true zero
_FLOOR = 1e-3
# the target itself may be off by this many times the tolerance: rounding also moves what a model rounds or picks
_SAME, _LARGEST = 1000, 0.5
# how many times the largest effect of some trials of random rounding onnxruntime may be off
_NOISES, _TRIALS = 10, 3
_UNITS: dict[int, float] = {
    TensorProto.DOUBLE: 2.0**-53,
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
}
_AGREE = 0.1


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

    Targets that are no scalars get a random adjoint. `inputs` are used where given, the rest is generated from `seed`
    and `dims`. That nothing was proved is in the report: no value could be judged, or 0 = 0 for all of them, but for
    those that reach no target or are in `allow_empty`. Raises InputError as `gradient` does, `Unsupported` where the
    float64 reference lacks an operator, NotProved where onnxruntime runs the model and refuses the gradient graph, and
    RunFailed or LimitReached where `timeout` (seconds for everything, 300) or `max_memory` (half of what there is) does
    not suffice.
    """
    try:
        source = to_proto(load(model), weights=True)
    except TooLarge as error:
        raise InputError(
            "the model's weights pass 2 GB, more than the check by differences holds in memory: `onnxgrad grad "
            "--no-verify` writes the gradient without it"
        ) from error
    program = load(source)
    targets = find_targets(program.main, target, scalar=False)
    scalar = all(v.shape == () for v in targets)
    dtypes = {v.name: v.dtype for v in program.main.vars()}
    sequences = {v.name for v in program.main.vars() if isinstance(v.type, SequenceType)}
    found = differentiate(program, wrt, target, seed="ones" if scalar else "input", **options)
    strange = [name for name in allow_empty if name not in found.adjoints]
    if strange:
        raise InputError(f"--allow-empty {strange[0]}: no gradient of it was asked for")
    reaching = values_reaching(source, found.targets, dtypes)
    graph = to_proto(found.program, weights=True)
    if not inputs:

        def attempt(feeds: dict[str, Any]) -> dict[str, Any]:
            return run(source, feeds, provider=provider)

        dims = runnable(source, dims, seed, attempt, count=1)[0]
    feeds = feeds_for(source, seed=seed, dims=dims, given=inputs)

    names = list(found.adjoints)
    probe, deltas, moved = _probe(source, wrt, names, found.targets)
    rng = np.random.default_rng(seed)
    reference = Float64(probe)
    zeros = {deltas[n]: still for n, still in zero_deltas(source, feeds, names, sequences).items()}
    base = reference.run({**feeds, **zeros})
    for other in () if inputs else _masks_alike(feeds):  # what is masked in whole rows may be NaN, and then all is
        if all(np.isfinite(flat(base[moved[t]])).all() for t in found.targets):
            break
        tried = reference.run({**other, **zeros})
        if all(np.isfinite(flat(tried[moved[t]])).all() for t in found.targets):
            feeds, base = other, tried
    weights = {t: _adjoint(rng, base[moved[t]], scalar, found.program, t) for t in found.targets}
    given = {**feeds, **{found.seeds[t]: weights[t] for t in found.seeds}}
    shown = [t for t in found.targets if any(v.name == t for v in found.program.main.outputs)]
    try:
        results = run(graph, given, provider=provider, outputs=[*found.adjoints.values(), *shown])
    except RunFailed as error:
        raise _whose_fault(error, source, feeds, provider) from error
    arrays = {n: flat(results[found.adjoints[n]]) for n in names}
    scale = max((float(np.linalg.norm(a)) for a in arrays.values() if np.isfinite(a).all()), default=0.0)
    limit = TOLERANCES[_coarsest(found.program)] if tolerance is None else tolerance
    for t in shown:
        _same_function(t, results[t], base[moved[t]], limit)
    checks, directions = [], {}
    for name in names:
        directions[name] = direction = np.asarray(rng.standard_normal(arrays[name].shape))
        onto = {moved[t]: w for t, w in weights.items()}
        at = Line(reference, {**feeds, **zeros}, deltas[name], direction, onto, _size(base[name]))
        check = _check(name, arrays[name], at, scale, limit)
        if check.judged and check.error > limit and np.isfinite(arrays[name]).all():
            check, directions[name] = _beside_kinks(check, arrays[name], flat(base[name]), at, scale, limit)
        checks.append(check)
    sizes = {n: max(float(np.linalg.norm(arrays[n])), _FLOOR * scale, 1e-300) for n in names}
    checks = _second_look(checks, directions, sizes, graph, given, found, limit)
    checks = [replace(c, unreachable=c.name not in reaching, allowed=c.name in allow_empty) for c in checks]
    return GradientReport(tuple(checks), limit, provider, found.notes)


def _whose_fault(error: RunFailed, source: ModelProto, feeds: Mapping[str, Any], provider: str) -> OnnxgradError:
    """What to raise where onnxruntime refused the gradient graph: an InputError where it refuses the model as well."""
    try:
        run(source, feeds, provider=provider)
    except RunFailed as refused:
        if refused.stage in ("load", "run"):
            return InputError(f"the model itself does not run on these inputs: {refused.reason}")
    if error.stage not in ("load", "run"):
        return error  # a limit was reached, which says itself which
    return NotProved(
        f"the gradient, our result, does not run in onnxruntime, though the model does: {error.reason}; please report "
        "it with the model"
    )


def _same_function(target: str, value: Any, expected: Any, limit: float) -> None:
    """Differences of the reference judge a gradient only where onnxruntime computes the same. Raises NotProved."""
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
        f"onnxruntime and the float64 reference compute another '{target}' ({what}): differences of the one say "
        "nothing about the gradient of the other"
    )


class _Rounding:
    """The gradient graph in float64, and what rounding at every step does to it."""

    def __init__(self, graph: ModelProto, given: Mapping[str, Any], adjoints: Mapping[str, str], unit: float) -> None:
        reference = Float64(graph)
        self.adjoints = adjoints
        wanted = list(adjoints.values())
        self.exact = reference.run(given, outputs=wanted)
        self.rounded = [
            reference.run(given, outputs=wanted, jitter=unit, everywhere=True, seed=i) for i in range(_TRIALS)
        ]

    def judge(self, check: ValueCheck, direction: np.ndarray[Any, Any], size: float, limit: float) -> ValueCheck:
        """The check with float64's error where onnxruntime's is rounding; unchanged where it is not."""

        def along(values: Mapping[str, Any]) -> float:
            return float(np.sum(flat(values[self.adjoints[check.name]]) * direction))

        exact = along(self.exact)
        noise = max(abs(along(r) - exact) for r in self.rounded)
        error = abs(exact - check.difference) / size
        if not error <= limit / 10 or not abs(check.gradient - exact) <= _NOISES * noise + limit * size:
            return check
        return replace(check, error=error, why=f"in float64; rounding in onnxruntime moves it by {check.error:.0e}")


def _second_look(
    checks: list[ValueCheck], directions: Mapping[str, np.ndarray[Any, Any]], sizes: Mapping[str, float],
    graph: ModelProto, given: Mapping[str, Any], found: Gradient, limit: float,
) -> list[ValueCheck]:  # fmt: skip
    """The checks, those that are off judged by float64; as they are where the reference cannot run the gradient."""
    doubtful = [c for c in checks if c.judged and c.error > limit]
    if not doubtful:
        return checks
    try:
        leg = _Rounding(graph, given, found.adjoints, _UNITS[_coarsest(found.program)])
    except Unsupported:
        return checks
    return [leg.judge(c, directions[c.name], sizes[c.name], limit) if c in doubtful else c for c in checks]


def _check(name: str, g: np.ndarray[Any, Any], at: Line, scale: float, limit: float) -> ValueCheck:
    got = float(np.sum(g * at.direction))
    if not np.isfinite(g).all():
        difference = at.central(STEP * max(1.0, at.size))
        both = not np.isfinite(difference)
        what = "all NaN" if np.isnan(g).all() else "NaN" if np.isnan(g).any() else "infinite"
        why = f"the gradient is {what}" + (" and the differences are not finite: nothing to compare" if both else "")
        return ValueCheck(name, got, difference, float("inf"), not both, why)
    against = max(float(np.linalg.norm(g)), _FLOOR * scale, 1e-300)
    h = STEP * max(1.0, at.size)
    for part in SHRINK:
        small, large = at.central(h * part), at.central(2 * h * part)
        difference = (4 * small - large) / 3
        if not np.isfinite(difference):
            return ValueCheck(name, got, difference, 0.0, False, "the differences are not finite: nothing to compare")
        if abs(small - large) <= _AGREE * limit * max(against, abs(difference)):
            break
    else:
        return ValueCheck(name, got, difference, 0.0, False, f"a kink within {h * SHRINK[-1]:.0e}")
    if got == 0.0 and difference == 0.0:
        return ValueCheck(name, got, difference, 0.0, True)
    error = abs(got - difference) / max(against, _FLOOR * abs(difference))
    return ValueCheck(name, got, difference, error if np.isfinite(error) else float("inf"), True)


def _beside_kinks(
    check: ValueCheck, g: np.ndarray[Any, Any], values: Flat, at: Line, scale: float, limit: float
) -> tuple[ValueCheck, Flat]:
    """A check that is off, made again where only elements move that are on no kink; and the direction of the move.

    As it was when none is on a kink; not judged when all are.
    """
    least = _AGREE * limit * max(float(np.linalg.norm(g)), _FLOOR * scale, abs(check.difference))

    def has_kink(elements: Mask) -> bool:
        return at.moving(elements).has_kink(least)

    if not has_kink(np.ones(g.shape, bool)):
        return check, at.direction
    smooth = smooth_elements(values, has_kink)
    if smooth is None:
        return replace(check, error=0.0, judged=False, why="elements are on kinks, at too many values"), at.direction
    kept = g.size - int(smooth.sum())
    why = f"a kink at the value of {kept} of {g.size} elements"
    if not between_slopes(g, at, ~smooth):
        return replace(check, why=f"{why}, and the gradient there is no slope beside it"), at.direction
    beside = at.moving(smooth)
    again = _check(check.name, np.where(smooth, g, 0.0), beside, scale, limit)
    if kept == g.size or (again.judged and again.error > limit and has_kink(smooth)):
        return replace(again, error=0.0, judged=False, why=why), beside.direction
    return replace(again, why=f"{why}, not moved" if again.judged else again.why), beside.direction


def _probe(
    source: ModelProto, wrt: Wrt, names: Sequence[str], targets: Sequence[str]
) -> tuple[ModelProto, dict[str, str], dict[str, str]]:
    """The model with `x + delta` for each named value; the names of the deltas, and of the outputs for the targets."""
    program = load(source)
    hoist_requested(program, wrt)
    block = program.main
    values = {v.name: v for v in block.vars()}
    deltas: dict[str, str] = {}
    outputs = {t: t for t in targets}
    with emitting(block):
        for name in names:
            v = values[name]
            delta = block.add_input(program.names.fresh(f"{name}_delta"), v.type)
            users = list(v.users)
            moved = moved_by(v, delta)
            for user in users:
                for i, operand in enumerate(user.inputs):
                    if operand is v:
                        block.set_operand(user, i, moved)
            deltas[name] = delta.name
            if any(v in nested.outputs for b in block.walk() for nested in b.blocks.values()):
                raise InputError(f"'{name}' is returned by a nested graph: it cannot be moved to take differences")
            if name in targets:
                outputs[name] = moved.name
    proto = to_proto(program)
    del proto.graph.output[:]
    for name in dict.fromkeys([*outputs.values(), *names]):
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return proto, deltas, outputs


def _adjoint(rng: np.random.Generator, value: Any, scalar: bool, program: Program, target: str) -> np.ndarray[Any, Any]:
    if scalar:
        return np.ones(())
    dtype = next(v.dtype for v in program.main.vars() if v.name == target)
    drawn: np.ndarray[Any, Any] = rng.standard_normal(np.shape(value))
    return drawn.astype(numpy_dtype(dtype))


def _masks_alike(feeds: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The feeds with every mask all true, and all false."""
    masks = [n for n, v in feeds.items() if isinstance(v, np.ndarray) and v.dtype == np.bool_]
    for value in (True, False) if masks else ():
        yield {n: np.full_like(v, value) if n in masks else v for n, v in feeds.items()}


def _size(value: Any) -> float:
    return float(np.abs(flat(value)).max(initial=0.0))


def _coarsest(program: Program) -> int:
    """The coarsest float type among the model's values."""
    dtypes = {v.dtype for v in program.main.vars()} & set(TOLERANCES)
    return max(dtypes, key=TOLERANCES.__getitem__, default=TensorProto.FLOAT)
