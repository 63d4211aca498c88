"""Arrays in float64 of which no process holds all elements: they are computed block by block."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.frozen import frozen

Array: TypeAlias = "np.ndarray[Any, Any]"
_BLOCK = 1 << 19  # elements that are computed at once
_TINY = 1e-300


@frozen(kw_only=True)
class LazyArray(ABC):
    """An array that is computed by blocks. `transposed`: a matrix whose blocks are columns. Another
    process may compute it as well.
    """

    shape: tuple[int, ...]
    transposed: bool = False

    __array_ufunc__ = None  # numpy leaves its operators with such an array to this class

    @abstractmethod
    def blocks(self) -> Iterator[tuple[int, int, Array]]:
        """Yields the first and the last place of some rows, and these in float64; of columns if it
        is transposed. The next block may overwrite them. The blocks of arrays of one shape have the
        same places.
        """

    @property
    def lying(self) -> tuple[int, ...]:
        """The shape of the blocks together, as rows."""
        return self.shape[::-1] if self.transposed else self.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> LazyArray:
        """The transpose of a matrix."""
        return replace(self, shape=self.shape[::-1], transposed=not self.transposed)

    def wide(self) -> Array:
        """Returns the array in float64."""
        made = np.empty(self.shape or (1,))
        by_rows = made.T if self.transposed else made
        for start, end, block in self.blocks():
            by_rows[start:end] = block.T if self.transposed else block
        return made.reshape(self.shape)

    def rows(self, positions: Array) -> Array:
        """Returns these rows along the first axis in float64."""
        made = np.empty((*positions.shape, *self.shape[1:]))
        for start, end, block in self.blocks():
            if self.transposed:
                made[..., start:end] = block[positions]
            else:
                inside = (positions >= start) & (positions < end)
                made[inside] = block[positions[inside] - start]
        return made

    def __mul__(self, other: Any) -> LazyArray:
        return elementwise(np.multiply, self, other)

    def __rmul__(self, other: Any) -> LazyArray:
        return elementwise(np.multiply, other, self)

    def __add__(self, other: Any) -> LazyArray:
        return elementwise(np.add, self, other)

    def __radd__(self, other: Any) -> LazyArray:
        return elementwise(np.add, other, self)

    def __sub__(self, other: Any) -> LazyArray:
        return elementwise(np.subtract, self, other)

    def __rsub__(self, other: Any) -> LazyArray:
        return elementwise(np.subtract, other, self)

    def __truediv__(self, other: Any) -> LazyArray:
        return elementwise(np.divide, self, other)


def spans(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the first and the last row of each block of an array of this shape."""
    count, *others = shape or (1,)
    step = max(1, min(count, _BLOCK // max(math.prod(others), 1)))
    return [(start, min(count, start + step)) for start in range(0, count, step)]


@frozen(kw_only=True)
class Elementwise(LazyArray):
    """A function of the elements of lazy arrays of one shape, arrays of this shape, and numbers.
    Another process can compute it if the function is one of a module.
    """

    function: Callable[..., Array]
    operands: tuple[Any, ...]

    @property
    def T(self) -> LazyArray:
        """The transpose of a matrix."""
        return elementwise(self.function, *(v.T if _is_array(v) else v for v in self.operands))

    def blocks(self) -> Iterator[tuple[int, int, Array]]:
        """Yields blocks as `LazyArray.blocks`."""
        lazy = [v.blocks() for v in self.operands if isinstance(v, LazyArray)]
        for found in zip(*lazy, strict=True):
            (start, end, _), blocks = found[0], iter(found)
            at = (slice(None), slice(start, end)) if self.transposed else slice(start, end)
            values = (
                next(blocks)[2] if isinstance(v, LazyArray) else v[at] if _is_array(v) else v
                for v in self.operands
            )
            yield start, end, self.function(*values)

    def rows(self, positions: Array) -> Array:
        """Returns these rows along the first axis in float64."""
        return self.function(*(_rows(v, positions) for v in self.operands))


def elementwise(function: Callable[..., Array], *operands: Any) -> LazyArray:
    """Returns a function of the elements of arrays, one of which is lazy. Raises ValueError for
    arrays of several shapes.
    """
    first = next(v for v in operands if isinstance(v, LazyArray))
    if any(v.shape != first.shape for v in operands if _is_array(v)):
        raise ValueError("the arrays have several shapes")
    return Elementwise(
        shape=first.shape, transposed=first.transposed, function=function, operands=operands
    )


def _rows(value: Any, positions: Array) -> Any:
    if isinstance(value, LazyArray):
        return value.rows(positions)
    return value[positions] if _is_array(value) else value


def _is_array(value: Any) -> bool:
    return isinstance(value, LazyArray) or (isinstance(value, np.ndarray) and value.ndim > 0)


@frozen(kw_only=True)
class Drawn(LazyArray):
    """Random numbers. `draw`: the method of numpy's generator. `states`: of the generator before
    each block.
    """

    draw: str
    arguments: tuple[float, ...]
    states: tuple[Any, ...]

    def blocks(self) -> Iterator[tuple[int, int, Array]]:
        """Yields blocks as `LazyArray.blocks`."""
        for number, (start, end) in enumerate(self._spans):
            block = self._block(number)
            yield start, end, block.T if self.transposed else block

    def rows(self, positions: Array) -> Array:
        """Returns these rows along the first axis; draws only the blocks that have some."""
        if self.transposed:
            return super().rows(positions)
        made = np.empty((*positions.shape, *self.shape[1:]))
        for number, (start, end) in enumerate(self._spans):
            inside = (positions >= start) & (positions < end)
            if inside.any():
                made[inside] = self._block(number)[positions[inside] - start]
        return made

    @property
    def _spans(self) -> list[tuple[int, int]]:
        return spans(self.lying)

    def _block(self, number: int) -> Array:
        rng = np.random.default_rng()
        rng.bit_generator.state = self.states[number]
        start, end = self._spans[number]
        return _draw(rng, self.draw, self.arguments, (end - start, *self.lying[1:]))


def _draw(
    rng: np.random.Generator, draw: str, arguments: Sequence[float], shape: Sequence[int]
) -> Array:
    return np.asarray(getattr(rng, draw)(*arguments, tuple(shape)))


def drawn(rng: np.random.Generator, draw: str, *arguments: float, like: LazyArray) -> LazyArray:
    """Returns the random numbers that `rng.draw(*arguments, like.shape)` would return for an array
    that is not transposed, and leaves `rng` as after that call.
    """
    lying, states = like.lying, []
    for start, end in spans(lying):
        states.append(rng.bit_generator.state)
        _draw(rng, draw, arguments, (end - start, *lying[1:]))
    return Drawn(
        shape=like.shape, transposed=like.transposed, draw=draw, arguments=arguments,
        states=tuple(states),
    )  # fmt: skip


def finite_sizes(block: Array) -> Array:
    """Returns the magnitudes of the elements; 0 for those that are not finite."""
    return np.where(np.isfinite(block), np.abs(block), 0.0)


def lowered(block: Array, floor: float) -> Array:
    """Returns factors that bring elements larger than `floor` to it."""
    sizes = finite_sizes(block)
    return np.where(sizes > floor, floor / np.maximum(sizes, _TINY), 1.0)
