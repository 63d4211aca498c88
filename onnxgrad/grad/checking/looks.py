"""One look at derivatives in float64: all values move along one joint line, and each alone only if
the slopes along it differ, so that the wrong one can be named.

The graph runs in float64, as the differences do, so that it is held to a tenth of the tolerance.
Elements of large derivatives move less than others, so that small ones count as much.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.grad.checking.differences import NO_SIZE, Trial, on_one_scale, verdict
from onnxgrad.grad.checking.line import STEP, UNIT, JointLine, Line, Place, Slope, place
from onnxgrad.grad.checking.probe import Probe, Run
from onnxgrad.grad.checking.report import ValueCheck
from onnxgrad.grad.checking.rounding import constants_shifted
from onnxgrad.grad.checking.vectors import (
    Flat,
    Vector,
    flat,
    flat_shape,
    largest_of,
    norm,
    total,
    values_of,
)
from onnxgrad.grad.derivatives.derivative import Derivative
from onnxgrad.grad.differentiation import Gradient
from onnxgrad.ir.storage.lazy_arrays import (
    LazyArray,
    drawn,
    elementwise,
    finite_sizes,
    lowered,
)
from onnxgrad.ir.storage.shared_weights import Files
from onnxgrad.ir.storage.stored_arrays import StoredArray
from onnxgrad.verify.reference.client import Float64

# elements, and values, whose derivative is larger than this part of the largest one move less: the
# first part with which rounding does not hide the differences
_PARTS_OF_LARGEST = (1e-3, 1e-2, 1e-1)
_ROOM = 8  # times the least rounding
_FEW = 4  # values that move alone because a kink is on the joint line
_PART_OF_TOLERANCE = 0.1
# random roundings of the graph in float64, and how much more than the largest of them may be off
_TRIALS, _NOISES, _CONSTANTS = 3, 10, 2
# numbers of the model beyond which a derivative may well leave the range of its type
LARGEST = {"float64": 1e150, "float32": 1e19, "float16": 2.5e2}


@frozen
class Directional:
    """Derivatives of all values, each along a direction.

    weights: of the probe's targets. moves: the direction of each value. slopes: the derivative of
    the weighted sum along it, as the graph computes it. sizes: the scale of the comparison.
    gradients: of the weighted sum, if these are known.
    """

    weights: Mapping[str, Flat]
    moves: Mapping[str, Vector]
    slopes: Mapping[str, float]
    sizes: Mapping[str, float]
    gradients: Mapping[str, Vector] = field(default_factory=dict)

    def balanced(self, part: float) -> Directional:
        """Returns the derivatives along directions in which elements of large gradients move less:
        those above `part` of the largest one of their value, and of all values.
        """
        moves = {n: self.moves[n] * _parts(g, part) for n, g in self.gradients.items()}
        found = along_gradients(self.weights, self.gradients, {**self.moves, **moves})
        sizes = found.sizes if moves else self.sizes
        slopes = found.slopes if moves else self.slopes
        each = flat(_parts(np.array(list(sizes.values())), part))
        parts = dict(zip(sizes, each.tolist(), strict=True))
        return Directional(
            self.weights,
            {n: parts[n] * v for n, v in found.moves.items()},
            {n: parts[n] * s for n, s in slopes.items()},
            {n: parts[n] * s for n, s in sizes.items()},
            self.gradients,
        )


def along_gradients(
    weights: Mapping[str, Flat], gradients: Mapping[str, Vector], moves: Mapping[str, Vector]
) -> Directional:
    """Returns the derivatives along `moves` by the gradients."""
    products = {n: g * moves[n] for n, g in gradients.items()}
    return Directional(
        weights,
        moves,
        {n: total(p) for n, p in products.items()},
        {n: norm(p) for n, p in products.items()},
        gradients,
    )


def _parts(g: Vector, part: float) -> Vector:
    """Returns factors that bring large elements to `part` of the largest one, or to the smallest
    one that is not 0.
    """
    largest, least = 0.0, np.inf
    for block in (b for _, _, b in g.blocks()) if isinstance(g, LazyArray) else [g]:
        sizes = finite_sizes(block)
        largest = max(largest, float(sizes.max(initial=0.0)))
        least = min(least, float(sizes[sizes > 0].min(initial=np.inf)))
    floor = max(part * largest, least)
    return elementwise(lowered, g, floor) if isinstance(g, LazyArray) else lowered(g, floor)


@frozen
class Motion:
    """A run of a derivative's graph by `run` at the feeds. Each value moves along its direction in
    `moves`; `weights` are those of the targets, by target.
    """

    run: Run
    feeds: Mapping[str, Any]
    weights: Mapping[str, Flat]
    moves: Mapping[str, Vector]


@dataclass
class Checked(ABC):
    """A graph of derivatives and the model `forward` whose differences it is compared with.

    source: the model from which the graph was formed. files: where the weights of all these lie.
    """

    source: ModelProto
    files: Files
    forward: ModelProto
    found: Gradient | Derivative

    graph: ModelProto = field(init=False)
    probe: Probe = field(init=False)
    run: Run = field(init=False)
    dtypes: dict[str, int] = field(init=False)
    # the weights among the values that lie in a file
    stored: dict[str, StoredArray] = field(init=False)

    @property
    @abstractmethod
    def limits(self) -> Mapping[str, float]:
        """The error allowed for each value."""

    @abstractmethod
    def still(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the feeds of the probe with nothing moved."""

    @abstractmethod
    def weights(self, rng: np.random.Generator, base: Mapping[str, Any]) -> dict[str, Flat]:
        """Draws the weight of each target, of the shape of its value in `base`."""

    @abstractmethod
    def derivatives(self, motion: Motion) -> Directional:
        """Returns the derivatives along the directions of a motion."""

    def at_rest(
        self, reference: Float64, feeds: Mapping[str, Any], seconds: float | None = None
    ) -> dict[str, Any]:
        """Returns the values and the targets with nothing moved, by the reference of the probe. The
        weights among them stay in their file.
        """
        outputs = [v.name for v in self.probe.model.graph.output if v.name not in self.stored]
        found = reference.run(self.still(feeds), outputs=outputs, seconds=seconds)
        return {**found, **self.stored}

    def along(
        self,
        run: Run,
        feeds: Mapping[str, Any],
        base: Mapping[str, Any],
        seed: int,
        moves: Mapping[str, Vector] | None = None,
        names: Collection[str] | None = None,
    ) -> Directional:
        """Returns the derivatives at the feeds, computed by `run`, along `moves` or along random
        directions of the values `names` (None: all). base: the results of the probe, or others of
        the same shapes.
        """
        rng = np.random.default_rng(seed)
        weights = self.weights(rng, base)
        moves = moves or {
            n: self._direction(rng, n, base[n])
            for n in (self.found.values if names is None else names)
        }
        return self.derivatives(Motion(run, feeds, weights, moves))

    def _direction(self, rng: np.random.Generator, name: str, value: Any) -> Vector:
        """Draws the direction of a value; a lazy one if its gradient stays in a file as well."""
        if name in self.stored and self.found.kind == "gradient":
            return drawn(rng, "standard_normal", like=self.stored[name])
        return np.asarray(rng.standard_normal(flat_shape(value)))

    def onto(self, weights: Mapping[str, Flat]) -> dict[str, Flat]:
        """Returns the weights of the probe's targets."""
        return {self.probe.outputs[t]: w for t, w in weights.items()}


@dataclass
class Look:
    """The derivatives at one place, and the differences there.

    exact: runs the graph in float64. zeros: the values to judge if they are not 0 here. words: what
    is special about the place. wrong, right: the checks found, the latter of `zeros` alone.
    """

    check: Checked
    feeds: Mapping[str, Any]
    base: Mapping[str, Any]
    cheap: Place
    found: Directional
    exact: Float64
    seed: int
    zeros: frozenset[str]
    words: str
    wrong: dict[str, ValueCheck] = field(default_factory=dict)
    right: dict[str, ValueCheck] = field(default_factory=dict)

    @cached_property
    def at(self) -> Place:
        """The place with its noise, and with the values that runs of one moved value share."""
        found = place(self.cheap.reference, self.cheap.feeds, self.cheap.weights, self.base)
        return replace(found, until=self.cheap.until)

    def _line(self, name: str, at: Place) -> Line:
        size = largest_of(self.base[name])
        return Line(at, self.check.probe.deltas[name], self.found.moves[name], size)

    def nan(self, run: Run, dtype: str) -> None:
        """Reports values whose derivative by `run` is NaN or infinite although differences are
        finite, and all numbers of the model are far within the range of the dtype.
        """
        found = self.found if dtype == "float64" else self._again(run)
        endless = [n for n in _endless(found) if n not in self.wrong]
        if TensorProto.FLOAT16 in self.check.dtypes.values():
            dtype = "float16"  # where the graph casts to it, also in float64
        if not endless or not _largest(self.check, self.feeds) < LARGEST[dtype]:
            return
        for name in endless:
            line = self._line(name, self.cheap)
            slope = line.central(line.step)
            if np.isfinite(slope):
                kind = "NaN" if np.isnan(found.sizes[name]) else "infinite"
                why = f"the derivative is {kind} {self.words}"
                self.wrong[name] = ValueCheck(
                    name, found.slopes[name], slope, float("inf"), True, why,
                    tolerance=self.check.limits[name],
                )  # fmt: skip

    # ---- the joint line --------------------------------------------------------------------------

    def joint(self) -> None:
        """Compares all values along one line, and each alone if they differ there."""
        names = [n for n in self.found.slopes if n not in {*_endless(self.found), *self.wrong}]
        if not names:
            return
        limit = max(self.check.limits[n] for n in names)
        for part in _PARTS_OF_LARGEST:
            found = self.found.balanced(part)
            least = _ROOM * self.cheap.noise / STEP / (_PART_OF_TOLERANCE * limit)
            if _length(found.sizes[n] for n in names) > least:
                self.found = found
                break
        deltas = self.check.probe.deltas
        moves = {deltas[n]: self.found.moves[n] for n in names}
        trial = self._trial(
            lambda at: JointLine(at, moves),
            lambda found: sum(found.slopes[n] for n in names),
            _length(self.found.sizes[n] for n in names),
            limit,
        )
        if trial.off or (trial.kinked and 1 < len(names) <= _FEW):
            for name in names:
                self._alone(name)
        for name in self.zeros - self.wrong.keys() - self.right.keys():
            if trial.shown and self.found.sizes.get(name, 0.0) > 0:
                self._alone(name)

    def _trial(
        self,
        line: Callable[[Place], Line],
        total: Callable[[Directional], float],
        size: float,
        limit: float,
    ) -> Trial:
        """Returns the trial: by one difference, or if that does not agree, by as many as needed. A
        trial that is off is allowed the rounding in float64, and that of the constants that the
        graph adds to the model.
        """
        limit, size, got = _PART_OF_TOLERANCE * limit, max(size, NO_SIZE), total(self.found)
        quick = line(self.cheap)
        rounding = quick.rounding(quick.step)
        slope = quick.central(quick.step)
        trial = Trial(quick, got, Slope(slope, rounding, rounding, quick.step), size, limit)
        if got == 0.0 == slope or (trial.error <= limit / 2 and rounding <= limit * size / 2):
            return trial
        if self.cheap.late:  # neither right nor wrong
            return replace(trial, slope=replace(trial.slope, doubt=float("inf")), limit=0.0)
        careful = line(self.at)
        (trial,) = on_one_scale(
            [Trial(careful, got, careful.slope(limit * size, limit), size, limit)]
        )
        if not trial.off:
            return trial
        more = max(
            _NOISES * max(abs(total(one) - got) for one in self._rounded),
            _CONSTANTS * max((abs(total(one) - got) for one in self._shifted), default=0.0),
        )
        return replace(trial, limit=trial.limit + more / trial.size)

    def _alone(self, name: str) -> None:
        """Judges one value: whether it is wrong, or right and one of `zeros`."""
        trial = self._trial(
            partial(self._line, name),
            lambda found: found.slopes[name],
            self.found.sizes[name],
            self.check.limits[name],
        )
        check = replace(verdict(name, [trial], trial.limit), why=self.words)
        if trial.off:
            self.wrong[name] = check
        elif name in self.zeros and trial.shown and trial.error <= trial.limit and not check.zero:
            self.right[name] = check

    # ---- rounding in float64 ---------------------------------------------------------------------

    @property
    def _rounded(self) -> list[Directional]:
        options: Any = {"jitter": UNIT, "everywhere": True}
        return [
            self._again(lambda m, f, outputs=None, apart=None, seed=seed: self.exact.run(
                f, outputs=outputs, apart=apart, seed=seed, **options
            ))
            for seed in range(_TRIALS)
        ]  # fmt: skip

    @property
    def _shifted(self) -> list[Directional]:
        check, found = self.check, []
        for seed in range(_TRIALS):
            shifted = constants_shifted(check.graph, check.source, seed, check.files)
            if shifted is not None:
                model = Float64(check.files.runnable(shifted))
                found.append(self._again(
                    lambda m, f, outputs=None, apart=None, by=model: by.run(
                        f, outputs=outputs, apart=apart
                    )
                ))  # fmt: skip
        return found

    def _again(self, run: Run) -> Directional:
        """Returns the derivatives by another run, along the same directions."""
        return self.check.along(run, self.feeds, self.base, self.seed, self.found.moves)


def _length(sizes: Iterable[float]) -> float:
    return float(np.sqrt(sum(size * size for size in sizes)))


def _endless(found: Directional) -> list[str]:
    return [n for n, slope in found.slopes.items() if not np.isfinite(slope + found.sizes[n])]


def _largest(check: Checked, feeds: Mapping[str, Any]) -> float:
    """Returns the largest magnitude among the inputs and the numbers of the model's main graph;
    infinite if one of them is not finite.
    """
    names = [name for node in check.source.graph.node for name in node.output if name]
    found = values_of(check.source, check.files, feeds, names)
    largest = 0.0
    for value in (*feeds.values(), *found.values()):
        if value is None or (isinstance(value, np.ndarray) and value.dtype.kind != "f"):
            continue
        size = float(np.abs(flat(value)).max(initial=0.0))
        largest = max(largest, size if np.isfinite(size) else float("inf"))
    return largest
