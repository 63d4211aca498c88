"""Numeric proof of products with derivatives (`jvp`, `hessian_vector_product`), of Jacobians, and
of CasADi's derivatives, which take several directions at once.

Each value x gets random directions v, and the targets get random weights u. <u, J v> of the graph,
run in onnxruntime, is compared with central differences of <u, f(x + hv)> in float64. For a
Hessian, f is the gradient, which `check_gradient` checks first. A value is not judged if f has a
kink nearby (for a Hessian, if its slope has a jump). 0 = 0 for all values proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.extensions import plugged
from onnxgrad.frozen import frozen
from onnxgrad.grad.checking.check import (
    Check,
    Conditions,
    check_gradient,
    where_finite,
)
from onnxgrad.grad.checking.differences import DIRECTIONS, NO_SIZE, Trial, on_one_scale, verdict
from onnxgrad.grad.checking.line import Line, place
from onnxgrad.grad.checking.looks import Directional, Motion
from onnxgrad.grad.checking.report import TOO_SMALL, GradientReport, ValueCheck
from onnxgrad.grad.checking.vectors import Flat, flat, largest_of, middle, side_by_side
from onnxgrad.grad.derivatives.derivative import Derivative, Kind
from onnxgrad.grad.derivatives.hessian import hessians
from onnxgrad.grad.derivatives.jacobian import Mode, jacobians
from onnxgrad.grad.derivatives.vector_products import hessian_products, tangents
from onnxgrad.grad.differentiation import differentiate
from onnxgrad.grad.stops import Stop
from onnxgrad.grad.targets import Target, with_parts
from onnxgrad.grad.wrt import Wrt
from onnxgrad.ir.load import ModelLike
from onnxgrad.ir.storage.shared_weights import opened
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.verify.reference.client import Float64

# below this part of the largest product, onnxruntime's rounding alone may explain an error
_FLOOR = 1e-3


def check_product(
    model: ModelLike,
    wrt: Wrt = None,
    target: Target = None,
    *,
    of: Kind,
    stop: Stop = None,
    mode: Mode = "auto",
    **conditions: Any,
) -> GradientReport:
    """Checks products with a derivative, or a Jacobian, numerically in random directions, as
    `onnxgrad.check_product` describes. conditions: the fields of `Conditions`.
    """
    second = of in ("hvp", "hessian")
    if second:  # differences of a wrong gradient would agree with it
        first = check_gradient(model, wrt, target, stop=stop, **conditions)
        if not first.ok:
            return first
    forming: dict[str, Callable[..., Derivative]] = {
        "jvp": tangents,
        "hvp": hessian_products,
        "hessian": hessians,
        "jacobian": partial(jacobians, mode=mode),
    }
    if stop and of not in forming:
        raise InputError(f"stop: CasADi's derivative '{of}' is of the model without stops")
    with opened(model) as (source, files):
        source, target, _ = with_parts(source, target, files.folder)
        forward = source
        if second:
            gradient = differentiate(files.load(source), wrt, target, stop=stop)
            forward = files.proto(gradient.program)
        form = forming.get(of) or partial(plugged("derivatives", of).formed, kind=of)
        made = form(files.load(source), wrt, target, *((stop,) if of in forming else ()))
        how = Conditions(**conditions)
        return _ProductCheck(source, files, forward, made, wrt, how, made.stops).report()


@frozen
class _Place:
    """The point at which differences are taken.

    feeds: the inputs of the model. still: these and zeros for the probe's deltas. base: the results
    of the reference there.
    """

    reference: Float64
    feeds: dict[str, Any]
    still: dict[str, Any]
    base: Mapping[str, Any]


class _ProductCheck(Check):
    """A graph of products, and the model whose differences it is compared with."""

    found: Derivative

    def at(self, feeds: dict[str, Any], *, given: bool) -> list[ValueCheck]:
        reference = Float64(self.files.runnable(self.probe.model))
        rng = np.random.default_rng(self.how.seed)
        feeds, base = where_finite(self, reference, feeds, given=given)
        sequence = next((n for n in self.found.values if isinstance(base[n], list)), None)
        if sequence is not None:
            raise InputError(f"'{sequence}' is a sequence: products are checked by tensors alone")
        at = _Place(reference, feeds, self.still(feeds), base)
        # in few dimensions, a vector and an error may well be nearly orthogonal
        draws = [self._draw(at, rng) for _ in range(DIRECTIONS)]
        return [
            _judged(name, [trials[name] for trials, _ in draws], max(large for _, large in draws))
            for name in self.found.values
        ]

    def weights(self, rng: np.random.Generator, base: Mapping[str, Any]) -> dict[str, Flat]:
        shapes = {t: np.shape(base[self.probe.outputs[t]]) for t in self.found.targets}
        return {t: np.asarray(rng.standard_normal(shape)) for t, shape in shapes.items()}

    def derivatives(self, motion: Motion) -> Directional:
        found = self._slopes(motion)
        return Directional(
            self.onto(motion.weights),
            motion.moves,
            {n: got for n, (got, _) in found.items()},
            {n: size for n, (_, size) in found.items()},
        )

    def _draw(self, at: _Place, rng: np.random.Generator) -> tuple[dict[str, Trial], float]:
        """Returns a trial for every value, with a random direction and random weights of the
        targets, and the size of the largest product.
        """
        weights = self.weights(rng, at.base)
        where = place(at.reference, at.still, self.onto(weights), at.base)
        moves: dict[str, Flat] = {
            n: np.asarray(rng.standard_normal(np.shape(at.base[n]))) for n in self.found.values
        }
        trials = {}
        found = self._slopes(Motion(self.run, at.feeds, weights, moves))
        for name, (got, size) in found.items():
            largest = largest_of(at.base[name])
            line = Line(where, self.probe.deltas[name], moves[name], largest)
            size, limit = max(size, NO_SIZE) if np.isfinite(size) else NO_SIZE, self.limits[name]
            trials[name] = Trial(line, got, line.slope(limit * size, limit), size, limit)
        sizes = [size for _, size in found.values() if np.isfinite(size)]
        return trials, max(sizes, default=0.0)

    def _slopes(self, motion: Motion) -> dict[str, tuple[float, float]]:
        """Returns for each value <u, J v> and the norm of J v (of J'u for CasADi's adj)."""
        if self.found.kind == "adj":
            adjoints = self._adjoints(motion)
            return {
                n: (float(np.sum(adjoints[n] * v)), _size([adjoints[n]]))
                for n, v in motion.moves.items()
            }
        return {
            n: (sum(float(np.sum(w * p[t])) for t, w in motion.weights.items()), _size(p.values()))
            for n, p in self._products(motion).items()
        }

    def _adjoints(self, motion: Motion) -> dict[str, Flat]:
        """Returns J'u for each value."""
        made, feeds = self.found, motion.feeds
        seeds = {made.seeds[t]: side_by_side(w) for t, w in motion.weights.items()}
        found = motion.run(
            self.graph, {**feeds, **self._typed(seeds)}, outputs=list(made.results.values())
        )
        return {n: middle(flat(found[out]), np.shape(feeds[n])) for n, out in made.results.items()}

    def _typed(self, feeds: Mapping[str, Flat]) -> dict[str, Any]:
        types = {v.name: v.dtype for v in self.found.program.main.inputs}
        return {name: v.astype(numpy_dtype(types[name])) for name, v in feeds.items()}

    def _products(self, motion: Motion) -> dict[str, dict[str, Flat]]:
        """Returns J v by value and target; only that value moves."""
        run, feeds = motion.run, motion.feeds
        directions = {n: flat(v) for n, v in motion.moves.items()}
        made = self.found
        if made.kind == "jacobian":
            found = run(self.graph, feeds, outputs=list(made.results.values()))
            (target,) = made.targets
            return {
                n: {target: np.tensordot(flat(found[made.results[n]]), v, v.ndim)}
                for n, v in directions.items()
            }
        if made.kind == "hessian":
            found = run(self.graph, feeds, outputs=list(made.results.values()))
            rows = list(zip(made.values, made.targets, strict=True))
            return {
                n: {
                    t: np.tensordot(flat(found[made.results[f"{row} by {n}"]]), v, v.ndim)
                    for row, t in rows
                }
                for n, v in directions.items()
            }
        packed = made.kind == "fwd"
        outputs = list(made.results.values())
        by_target = dict(zip(made.targets, outputs, strict=True))
        products = {}
        for name in directions:
            only = {n: v if n == name else 0 * v for n, v in directions.items()}
            moved = {made.tangents[n]: side_by_side(v) if packed else v for n, v in only.items()}
            found = run(self.graph, {**feeds, **self._typed(moved)}, outputs=outputs)
            products[name] = {
                t: middle(flat(found[out]), motion.weights[t].shape) if packed else flat(found[out])
                for t, out in by_target.items()
            }
        return products


def _size(products: Collection[Flat]) -> float:
    return float(np.sqrt(sum(float(np.sum(p * p)) for p in products)))


def _judged(name: str, trials: list[Trial], largest: float) -> ValueCheck:
    """Compares the products with differences. The value is not judged if the slopes on both sides
    differ, or if rounding explains the error.
    """
    if not all(np.isfinite(t.got) for t in trials):
        words = "the product is not finite"
        return ValueCheck(name, trials[0].got, np.nan, float("inf"), True, words)
    trials = on_one_scale(trials)
    check = verdict(name, trials, trials[0].limit)
    if any(t.off for t in trials) and not any(
        replace(t, size=max(t.size, _FLOOR * largest)).off for t in trials
    ):
        return replace(check, error=0.0, judged=False, why=TOO_SMALL)
    if not check.judged and any(t.kinked for t in trials):
        return replace(check, why="a kink lies at the value")
    return check
