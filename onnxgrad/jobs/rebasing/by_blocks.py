"""Steps that are computed block by block, so that no process holds their values: a block is a range
along an axis, and follows from ranges of the operands. All other steps are computed as a whole.

The bytes are those of the whole: elements are moved, or rounded as IEEE 754 says. Sums, products
and functions whose last digit depends on how numpy or onnxruntime walks an array are not here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.ir.derivations import Step, operands_of
from onnxgrad.ir.storage.lazy_arrays import spans
from onnxgrad.ir.types import Array
from onnxgrad.jobs.rebasing.functions import applied, same_bytes
from onnxgrad.laws.constant_values import reason_in_parts
from onnxgrad.laws.float16.forms import fits_in_parts

Shape: TypeAlias = tuple[int, ...]


class Range(NamedTuple):
    """The places from `start` to `end` along an axis."""

    axis: int
    start: int
    end: int

    @property
    def places(self) -> tuple[slice, ...]:
        """Chooses the places of an array."""
        return (slice(None),) * self.axis + (slice(self.start, self.end),)

    def within(self, shape: Shape) -> Shape:
        """Returns the shape of the places of an array of this shape."""
        return (*shape[: self.axis], self.end - self.start, *shape[self.axis + 1 :])


@frozen
class Source:
    """A weight that is read in ranges."""

    shape: Shape
    read: Callable[[Range], Array]


Values: TypeAlias = dict[Step, Any]
# returns the range of an operand; None stands for all of it
Part: TypeAlias = Callable[[Any, Range | None], Any]


def ranges(shape: Shape) -> list[Range | None]:
    """Returns the blocks of an array, whose bytes follow each other; [None] for a single number."""
    axis = next((i for i, length in enumerate(shape) if length != 1), None)
    if axis is None:
        return [None]
    return [Range(axis, *span) for span in spans(shape[axis:]) or [(0, 0)]]


def joined(shape: Shape, blocks: Iterable[Array]) -> Array:
    """Returns the array of these blocks."""
    found = list(blocks)
    whole = len(found) == 1 and found[0].shape == shape
    return found[0] if whole else np.concatenate([b.reshape(-1) for b in found]).reshape(shape)


class Rule(ABC):
    """How a block follows from the operands."""

    def arrays(self, s: Step) -> Sequence[Any]:
        """Returns the operands whose shapes matter."""
        return s.operands[:1]

    @abstractmethod
    def shape(self, s: Step, shapes: Sequence[Shape]) -> Shape:
        """Returns the shape of a step whose operands have these shapes."""

    @abstractmethod
    def block(self, s: Step, shapes: Sequence[Shape], at: Range, part: Part) -> Step | None:
        """Returns the step that computes a range from parts of the operands; None if it needs all
        of an operand.
        """


class _Elementwise(Rule):
    """f(x, y)[k] = f(x[k], y[k]). Operands without the axis, or shorter there, are repeated."""

    def arrays(self, s: Step) -> Sequence[Any]:
        return s.operands

    def shape(self, s: Step, shapes: Sequence[Shape]) -> Shape:
        return np.broadcast_shapes(*shapes)

    def block(self, s: Step, shapes: Sequence[Shape], at: Range, part: Part) -> Step | None:
        whole, operands = self.shape(s, shapes), []
        for x, shape in zip(s.operands, shapes, strict=True):
            axis = at.axis - len(whole) + len(shape)
            repeated = axis < 0 or shape[axis] != whole[at.axis]
            operands.append(part(x, None if repeated else at._replace(axis=axis)))
        return Step("own" if s.kind == "call" else s.kind, s.what, operands)


class _Moved(Rule):
    """A permutation of axes: f applied to the lengths 0, 1, 2 ... returns it."""

    def _order(self, s: Step, rank: int) -> Shape:
        return _of_numpy(s)(np.empty(range(rank)), *s.operands[1:]).shape

    def shape(self, s: Step, shapes: Sequence[Shape]) -> Shape:
        return tuple(shapes[0][i] for i in self._order(s, len(shapes[0])))

    def block(self, s: Step, shapes: Sequence[Shape], at: Range, part: Part) -> Step | None:
        axis = self._order(s, len(shapes[0]))[at.axis]
        return Step(s.kind, s.what, [part(s.operands[0], at._replace(axis=axis)), *s.operands[1:]])


class _Reshaped(Rule):
    """Keeps the order of elements; an axis stays if the axes before it have as many elements."""

    def shape(self, s: Step, shapes: Sequence[Shape]) -> Shape:
        return _of_numpy(s)(np.empty(shapes[0], bool), *s.operands[1:]).shape

    def block(self, s: Step, shapes: Sequence[Shape], at: Range, part: Part) -> Step | None:
        (old,), new = shapes, self.shape(s, shapes)
        before = math.prod(new[: at.axis])
        for axis, length in enumerate(old):
            if length == new[at.axis] and math.prod(old[:axis]) == before:
                operand = part(s.operands[0], at._replace(axis=axis))
                return Step("numpy", "reshape", [operand, at.within(new)])
        return None


class _Joined(Rule):
    """A concatenation: along its own axis, the places of each operand begin behind the others."""

    def arrays(self, s: Step) -> Sequence[Any]:
        operands: Sequence[Any] = s.operands[0]
        return operands

    def _axis(self, s: Step, rank: int) -> int:
        axis = s.keywords.get("axis", s.operands[1] if len(s.operands) > 1 else 0)
        return int(axis) % rank

    def shape(self, s: Step, shapes: Sequence[Shape]) -> Shape:
        axis = self._axis(s, len(shapes[0]))
        return Range(axis, 0, sum(shape[axis] for shape in shapes)).within(shapes[0])

    def block(self, s: Step, shapes: Sequence[Shape], at: Range, part: Part) -> Step | None:
        axis, begin, operands = self._axis(s, len(shapes[0])), 0, []
        for x, shape in zip(s.operands[0], shapes, strict=True):
            length, inside = shape[axis], at
            if axis == at.axis:
                inside = Range(axis, *(min(max(i - begin, 0), length) for i in at[1:]))
            operands.append(part(x, inside))
            begin += length
        return Step(s.kind, s.what, [operands], {"axis": axis})


class _Sliced(Rule):
    """x[index] of slices."""

    def shape(self, s: Step, shapes: Sequence[Shape]) -> Shape:
        chosen: Array = np.empty(shapes[0], bool)[s.operands[1]]
        return chosen.shape

    def block(self, s: Step, shapes: Sequence[Shape], at: Range, part: Part) -> Step | None:
        index = list(s.operands[1])
        if at.axis < len(index):
            start, _, step = index[at.axis].indices(shapes[0][at.axis])
            if step != 1:
                return None
            at = Range(at.axis, start + at.start, start + at.end)
            index[at.axis] = slice(None)
        return Step("getitem", None, [part(s.operands[0], at), tuple(index)])


def _of_numpy(s: Step) -> Callable[..., Array]:
    function: Callable[..., Array] = getattr(np, s.what)
    return function


_ELEMENTWISE, _SLICED = _Elementwise(), _Sliced()
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            "absolute", "add", "divide", "equal", "greater", "greater_equal", "isfinite", "isinf",
            "isnan", "less", "less_equal", "logical_and", "logical_not", "logical_or", "multiply",
            "negative", "not_equal", "sqrt", "square", "subtract", "where", "in_half",
        ),
        _ELEMENTWISE,
    ),
    **dict.fromkeys(("moveaxis", "swapaxes", "transpose"), _Moved()),
    **dict.fromkeys(("expand_dims", "ravel", "reshape", "squeeze"), _Reshaped()),
    "concatenate": _Joined(),
}  # fmt: skip


def rule_of(s: Step) -> Rule | None:
    """Returns how a step is computed block by block; None if it is not."""
    if s.kind == "astype":
        return _ELEMENTWISE
    if s.kind == "getitem":
        index = s.operands[1]
        slices = isinstance(index, tuple) and all(isinstance(i, slice) for i in index)
        return _SLICED if slices else None
    if s.kind not in ("numpy", "call") or s.keywords.keys() - {"axis"}:
        return None
    rule = _RULES.get(s.what)
    return None if s.keywords and not isinstance(rule, _Joined) else rule


# returns the blocks of some arrays side by side
Blocks: TypeAlias = Callable[[], Iterable[tuple[Array, ...]]]


class Reduction(NamedTuple):
    """A function of `arrays`, and of `numbers` further operands, whose value follows from blocks.
    `value` receives the shape of the first array, the blocks, and the numbers.
    """

    arrays: int
    numbers: int
    value: Callable[..., Any]


def _firsts(blocks: Blocks) -> Iterator[Array]:
    return (found[0] for found in blocks())


def _reason(shape: Shape, blocks: Blocks, *more: Any) -> str | None:
    return reason_in_parts(_firsts(blocks), lambda: joined(shape, _firsts(blocks)), *more)


_REDUCTIONS: Mapping[str, Reduction] = {
    "all": Reduction(1, 0, lambda _, blocks: all(a.all() for a in _firsts(blocks))),
    "any": Reduction(1, 0, lambda _, blocks: any(a.any() for a in _firsts(blocks))),
    "same_bytes": Reduction(2, 0, lambda _, blocks: all(same_bytes(*found) for found in blocks())),
    "fits_float16": Reduction(1, 1, lambda _, blocks, m: fits_in_parts(_firsts(blocks), m)),
    "reason_of_rounding": Reduction(1, 2, _reason),
}


def reduction_of(s: Step) -> Reduction | None:
    """Returns how a step follows from blocks of its operands; None if it does not."""
    found = _REDUCTIONS.get(s.what) if s.kind in ("numpy", "call", "own") else None
    fits = found and not s.keywords and len(s.operands) == found.arrays + found.numbers
    return found if fits else None


class Streamed:
    """The steps over weights with a source that are computed block by block, and `reductions` of
    them. `operands`: those of all steps, operands first.
    """

    def __init__(
        self, operands: Mapping[Step, Sequence[Step]], sources: Mapping[str, Source]
    ) -> None:
        self._sources, self._shapes = sources, dict[Step, Shape]()
        self._places = dict[Step, int]()
        self.reductions = dict[Step, Reduction]()
        for s, below in operands.items() if sources else ():
            reduction = reduction_of(s)
            if s.kind == "weight":
                streams = s.what in sources
            else:
                streams = any(o in self._places for o in below) and rule_of(s) is not None
            if streams:
                self._places[s] = len(self._places)
            elif reduction and any(o in self for o in s.operands[: reduction.arrays]):
                self.reductions[s] = reduction

    def __contains__(self, value: Any) -> bool:
        return type(value) is Step and value in self._places

    def reduced(self, s: Step, reduction: Reduction, values: Values) -> Any:
        """Returns the value of a reduction. `values`: those of `below` of its operands."""
        arrays, numbers = s.operands[: reduction.arrays], s.operands[reduction.arrays :]
        shape = self.shape(arrays[0], values)
        return reduction.value(shape, partial(self.blocks, arrays, values), *numbers)

    def below(self, values: Iterable[Any]) -> list[Step]:
        """The other steps from which these are computed."""
        return [s for s in self._all(values) if s not in self._places]

    def _all(self, values: Iterable[Any]) -> dict[Step, None]:
        """These steps, and those below streamed ones, up to others."""
        found, work = dict[Step, None](), [v for v in values if isinstance(v, Step)]
        while work:
            s = work.pop()
            if s not in found:
                found[s] = None
                work += operands_of(s) if s in self._places else []
        return found

    def shape(self, value: Any, values: Values) -> Shape:
        """Returns the shape of a step or an array. `values`: those of `below`."""
        new = (s for s in self._all([value]) if s in self._places and s not in self._shapes)
        for s in sorted(new, key=self._places.__getitem__):
            rule = rule_of(s)
            self._shapes[s] = (
                self._sources[s.what].shape if rule is None
                else rule.shape(s, self._shapes_of(rule.arrays(s), values))
            )  # fmt: skip
        return self._shapes_of([value], values)[0]

    def _shapes_of(self, operands: Sequence[Any], values: Values) -> list[Shape]:
        return [
            self._shapes[x] if x in self else np.shape(values[x] if isinstance(x, Step) else x)
            for x in operands
        ]

    def blocks(self, arrays: Sequence[Any], values: Values) -> Iterator[tuple[Array, ...]]:
        """Yields the blocks of steps and arrays side by side; if they have several shapes, all of
        each. `values`: those of `below`.
        """
        first, *others = [self.shape(x, values) for x in arrays]
        known: dict[Step, Any] = {}
        for at in ranges(first) if all(shape == first for shape in others) else [None]:
            with np.errstate(all="ignore"):
                found = self._block(arrays, at, values, known)
            yield found
            known = {s: value for s, value in known.items() if s.kind != "range"}

    def _block(
        self, arrays: Sequence[Any], at: Range | None, values: Values,
        known: dict[Step, Any],
    ) -> tuple[Array, ...]:  # fmt: skip
        """Computes a range of each array. Adds the values of what it needs to `known`."""
        parts: dict[tuple[Step, Range], Step] = {}
        bodies: dict[Step, Step] = {}
        every = ChainMap(known, values)

        def part(x: Any, at: Range | None) -> Any:
            if x in self:
                return x if at is None else parts.setdefault((x, at), Step("range", at, [x]))
            value = values[x] if isinstance(x, Step) else x
            return value if at is None else np.asarray(value)[at.places]

        wanted = [part(x, at) for x in arrays]
        work = [s for s in wanted if isinstance(s, Step)]
        while work:
            s = work[-1]
            if s in known:
                work.pop()
                continue
            if s not in bodies:
                bodies[s] = self._body(s, part, values)
            body = bodies[s]
            below = operands_of(body)
            missing = [o for o in below if o not in every]
            work += missing
            if not missing:
                known[s] = applied(body, every, below)
        return tuple(np.asarray(known[s] if isinstance(s, Step) else s) for s in wanted)

    def _body(self, s: Step, part: Part, values: Values) -> Step:
        """Returns the step that computes a streamed step, or a range of one."""
        x, at = (s.operands[0], s.what) if s.kind == "range" else (s, None)
        rule = rule_of(x)
        if rule is None:
            source = self._sources[x.what]
            return Step("literal", source.read(at or Range(0, 0, source.shape[0])))
        if at is None:
            return x
        shapes = self._shapes_of(rule.arrays(x), values)
        return rule.block(x, shapes, at, part) or Step("getitem", None, [x, at.places])
