"""Numeric proof of products with derivatives (`jvp`, `hessian_vector_product`), of Jacobians, and
of CasADi's derivatives, which take several directions at once.

For each value x a random direction v, and for the targets random weights u: <u, J v>, of the graph
as it runs in onnxruntime, against central differences of <u, f(x + hv)> in float64. Of a Hessian f
is the gradient, which `check_gradient` holds against differences of its own. Where f has a kink
nearby (its slope, for a Hessian, a jump) the value is not judged; 0 = 0 for all proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.grad.casadi import KINDS as SIBLINGS
from onnxgrad.grad.casadi import seed_sizes, sibling
from onnxgrad.grad.checking.check import (
    check_gradient,
    feeds_of,
    in_memory,
    marked,
    refuse_strange,
    where_finite,
)
from onnxgrad.grad.checking.differences import Yardstick, slope
from onnxgrad.grad.checking.directions import middle, side_by_side
from onnxgrad.grad.checking.line import Line
from onnxgrad.grad.checking.probe import Probe, probe_of
from onnxgrad.grad.checking.report import GradientReport, ValueCheck
from onnxgrad.grad.checking.rounding import TOLERANCES, coarsest
from onnxgrad.grad.checking.runner import runner
from onnxgrad.grad.checking.vectors import Flat, flat
from onnxgrad.grad.differentiation import differentiate
from onnxgrad.grad.forward import tangents
from onnxgrad.grad.jacobian import Mode, jacobians
from onnxgrad.grad.products import Kind, Products
from onnxgrad.grad.reach import values_reaching
from onnxgrad.grad.request import Target, Wrt
from onnxgrad.grad.second_order import hessian_products
from onnxgrad.grad.slices import with_parts
from onnxgrad.ir.load import ModelLike, load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.limits import bounded
from onnxgrad.options import several
from onnxgrad.verify.reference.in_child import Float64

KINDS = ("jvp", "hvp", "jacobian", *SIBLINGS)
_DRAWS = 2
_FLOOR = 1e-3  # of the largest product: what is smaller is judged on that scale


@bounded
def check_product(
    model: ModelLike,
    wrt: Wrt = None,
    target: Target = None,
    *,
    of: Kind,
    mode: Mode = "auto",
    batched: bool = False,
    seed: int = 0,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    provider: str = "cpu",
    tolerance: float | None = None,
    allow_empty: Collection[str] = (),
    timeout: float | None = None,
    max_memory: int | str | None = None,
) -> GradientReport:
    """Check what `jvp`, `hessian_vector_product`, `jacobian` or `casadi_derivative` (`of` "jvp",
    "hvp", "jacobian", or "adj" and "fwd") make of a model, numerically in random directions, as
    `check_gradient` does gradients.

    `mode` and `batched` as for `jacobian`, everything else as for `check_gradient`. Errors as
    there.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float[N] y) { y = Tanh (x) }''')
    >>> onnxgrad.check_product(model, of="jacobian").verdict
    'agrees'
    """
    if of not in KINDS:
        raise InputError(f"of={of!r}: choose one of {', '.join(KINDS)}")
    allow_empty = several(allow_empty, "allow_empty")
    common: Any = {"seed": seed, "inputs": inputs, "dims": dims, "provider": provider,
                   "tolerance": tolerance, "allow_empty": allow_empty}  # fmt: skip
    if of == "hvp":  # differences of a wrong gradient would agree with it
        first = check_gradient(model, wrt, target, **common)
        if not first.ok:
            return first
    source, target, _ = with_parts(in_memory(model), target)
    made = _made(load(source), wrt, target, of, mode, batched)
    forward = source
    if of == "hvp":
        gradient = differentiate(load(source), wrt, target, names="{}_grad")
        forward = to_proto(gradient.program, weights=True)
    check = _Check(made, forward, wrt, provider, allow_empty)
    refuse_strange(allow_empty, check.names, "derivative by it")
    if of in SIBLINGS and not inputs:
        dims = {**seed_sizes(load(source)), **(dims or {})}
    feeds = feeds_of(source, check.runs, seed, inputs, dims)
    return check.run(bool(inputs), feeds, np.random.default_rng(seed), tolerance)


def _made(
    program: Program, wrt: Wrt, target: Target, of: Kind, mode: Mode, batched: bool
) -> Products:
    if of == "jvp":
        return tangents(program, wrt, target)
    if of == "hvp":
        return hessian_products(program, wrt, target)
    if of == "adj" or of == "fwd":
        return sibling(program, of, wrt, target)
    return jacobians(program, wrt, target, mode, batched)


@dataclass(frozen=True)
class _Place:
    """Where differences are taken: the feeds, of the probe with nothing moved, and what the
    reference answers there.
    """

    reference: Float64
    feeds: dict[str, Any]
    still: dict[str, Any]
    base: Mapping[str, Any]
    probe: Probe


@dataclass
class _Check:
    """The graph of products, and the model whose differences they are."""

    made: Products
    forward: ModelProto
    wrt: Wrt
    provider: str
    allow_empty: Collection[str] = ()

    def __post_init__(self) -> None:
        self.graph = to_proto(self.made.program, weights=True)
        self.names = list(self.made.tangents or self.made.results)
        self.runs, self.where = runner(self.forward, self.provider)

    def run(
        self,
        given: bool,
        feeds: dict[str, Any],
        rng: np.random.Generator,
        tolerance: float | None,
    ) -> GradientReport:
        """Every value in turn."""
        targets = self.made.targets
        probe = probe_of(self.forward, self.wrt, self.names, targets)
        reference = Float64(probe.model)
        still = {d: np.zeros(()) for d in probe.deltas.values()}
        feeds, base = where_finite(reference, probe, lambda f: {**f, **still}, feeds, given=given)
        sequence = next((n for n in self.names if isinstance(base[n], list)), None)
        if sequence is not None:
            raise InputError(f"'{sequence}' is a sequence: products are checked by tensors alone")
        limit = TOLERANCES[coarsest(self.made.program)] if tolerance is None else tolerance
        types = {v.name: v.dtype for v in load(self.forward).main.vars()}
        reaching = values_reaching(self.forward, targets, types)
        at = _Place(reference, feeds, {**feeds, **still}, base, probe)
        # in a few dimensions two vectors may well be nearly orthogonal, errors with them
        draws = [self._draw(at, rng, limit) for _ in range(_DRAWS)]
        checks = [max(same, key=lambda c: (c.judged, c.error)) for same in zip(*draws, strict=True)]
        values = marked(checks, reaching, self.allow_empty)
        return GradientReport(values, limit, self.where, self.made.notes, self.made.kind)

    def _draw(self, at: _Place, rng: np.random.Generator, limit: float) -> list[ValueCheck]:
        """Every value, moved in a random direction, by random weights of the targets."""
        named = {t: at.probe.outputs[t] for t in self.made.targets}
        weights = {
            t: np.asarray(rng.standard_normal(np.shape(at.base[o]))) for t, o in named.items()
        }
        onto = {named[t]: w for t, w in weights.items()}
        directions: dict[str, Flat] = {
            n: np.asarray(rng.standard_normal(np.shape(at.base[n]))) for n in self.names
        }
        found = self._found(at.feeds, directions, weights)
        sizes = {n: size for n, (_, size) in found.items()}
        largest = max((s for s in sizes.values() if np.isfinite(s)), default=0.0)
        checks = []
        for name, (got, _) in found.items():
            size = float(np.abs(flat(at.base[name])).max(initial=0.0))
            delta = at.probe.deltas[name]
            line = Line(at.reference, at.still, delta, directions[name], onto, size)
            against = max(sizes[name], _FLOOR * largest, 1e-300)
            checks.append(_judged(name, got, against, line, Yardstick(largest, limit)))
        return checks

    def _found(
        self,
        feeds: Mapping[str, Any],
        directions: Mapping[str, Flat],
        weights: Mapping[str, Flat],
    ) -> dict[str, tuple[float, float]]:
        """Value -> <u, J v>, and how large J v is, or what is multiplied by v."""
        if self.made.kind == "adj":
            adjoints = self._adjoints(feeds, weights)
            return {
                n: (float(np.sum(adjoints[n] * v)), _size([adjoints[n]]))
                for n, v in directions.items()
            }
        return {
            n: (sum(float(np.sum(w * p[t])) for t, w in weights.items()), _size(p.values()))
            for n, p in self._products(feeds, directions, weights).items()
        }

    def _adjoints(self, feeds: Mapping[str, Any], weights: Mapping[str, Flat]) -> dict[str, Flat]:
        """Value -> J'u."""
        made = self.made
        seeds = {made.seeds[t]: side_by_side(w) for t, w in weights.items()}
        found = self.runs(
            self.graph, {**feeds, **self._typed(seeds)}, outputs=list(made.results.values())
        )
        return {n: middle(flat(found[out]), np.shape(feeds[n])) for n, out in made.results.items()}

    def _typed(self, feeds: Mapping[str, Flat]) -> dict[str, Any]:
        types = {v.name: v.dtype for v in self.made.program.main.inputs}
        return {name: v.astype(numpy_dtype(types[name])) for name, v in feeds.items()}

    def _products(
        self,
        feeds: Mapping[str, Any],
        directions: Mapping[str, Flat],
        weights: Mapping[str, Flat],
    ) -> dict[str, dict[str, Flat]]:
        """Value -> target -> J v, where only that value moves."""
        made = self.made
        if made.kind == "jacobian":
            found = self.runs(self.graph, feeds, outputs=list(made.results.values()))
            (target,) = made.targets
            return {
                n: {target: _contracted(flat(found[made.results[n]]), v, made.batched)}
                for n, v in directions.items()
            }
        packed = made.kind == "fwd"
        outputs = list(made.results.values())
        by_target = dict(zip(made.targets, outputs, strict=True))
        products = {}
        for name in directions:
            only = {n: v if n == name else 0 * v for n, v in directions.items()}
            moved = {made.tangents[n]: side_by_side(v) if packed else v for n, v in only.items()}
            found = self.runs(self.graph, {**feeds, **self._typed(moved)}, outputs=outputs)
            products[name] = {
                t: middle(flat(found[out]), weights[t].shape) if packed else flat(found[out])
                for t, out in by_target.items()
            }
        return products


def _contracted(matrix: Flat, v: Flat, batched: bool) -> Flat:
    """J v of a Jacobian with the axes of its value last."""
    if not batched:
        return np.asarray(np.tensordot(matrix, v, v.ndim))
    pairs = zip(matrix, v, strict=True)
    made = [np.tensordot(m, one, one.ndim) for m, one in pairs]
    return np.asarray(made) if made else np.zeros(matrix.shape[: matrix.ndim - v.ndim + 1])


def _size(products: Collection[Flat]) -> float:
    return float(np.sqrt(sum(float(np.sum(p * p)) for p in products)))


def _judged(name: str, got: float, against: float, line: Line, by: Yardstick) -> ValueCheck:
    """The slope against differences; not judged where those on both sides differ."""
    if not np.isfinite(got):
        return ValueCheck(name, got, np.nan, float("inf"), True, "the product is not finite")
    check = slope(name, got, against, line, by.limit)
    least = by.limit * max(against, abs(check.difference)) / 10
    if by.is_off(check) and line.has_kink(least):
        return replace(check, error=0.0, judged=False, why="a kink lies at the value")
    return check
