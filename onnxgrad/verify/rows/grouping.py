"""The rows of inputs and outputs: runs of a model with a fixed batch, stacked into one and split
again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.ir.types import Array
from onnxgrad.verify.feeds.dims import evaluate
from onnxgrad.verify.values import Value


@frozen
class Rows:
    """The axis of the rows of an output: `axis` contains outer x rows x inner positions, and `size`
    is its size in one row (None: all rows share the value). `own`: a single row lacks the axis.
    Sizes may be formulas of symbols.
    """

    axis: int | None
    outer: int | str = 1
    size: int | str = 1
    own: bool = False

    def stacked(self, groups: Sequence[Array], dims: Mapping[str, int] | None = None) -> Array:
        """Returns the results of runs as one array; `dims`: the sizes of symbols."""
        if self.axis is None:
            return groups[0]
        if self.own:
            return np.stack(groups, self.axis)
        parts = [self._split(g, 1, dims) for g in groups]
        joined = np.concatenate(parts, self.axis + 1)
        return self._merged(joined)

    def take(
        self, array: Array, places: Sequence[int], count: int, dims: Mapping[str, int] | None = None
    ) -> Array:
        """Returns some rows of an array with `count` rows."""
        if self.axis is None:
            return array
        parts = self._split(array, count, dims)
        return self._merged(np.take(parts, places, self.axis + 1))

    def row(
        self, array: Array, index: int, count: int, dims: Mapping[str, int] | None = None
    ) -> Array:
        """Returns one row of an array with `count` rows, in the shape outer x inner on its axis."""
        if self.axis is None:
            return array
        found: Array = np.take(self._split(array, count, dims), index, self.axis + 1)
        return found

    def _merged(self, array: Array) -> Array:
        """Returns outer, rows and inner as one axis."""
        axis = self.axis or 0
        size = math.prod(array.shape[axis : axis + 3])
        found: Array = array.reshape(*array.shape[:axis], size, *array.shape[axis + 3 :])
        return found

    def _split(self, array: Array, count: int, dims: Mapping[str, int] | None) -> Array:
        """Returns the axis of the rows as three: outer, rows, inner."""
        axis = self.axis or 0
        outer = evaluate(self.outer, dims or {})
        inner = array.shape[axis] // max(outer * count, 1)
        found: Array = array.reshape(
            *array.shape[:axis], outer, count, inner, *array.shape[axis + 1 :]
        )
        return found


@frozen
class Grouping:
    """The axes of the rows of inputs, the rows of outputs, and the number of rows in one run of the
    original.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, Rows]
    count: int = 1
    own: bool = False

    def rows_in(self, feeds: Mapping[str, Value]) -> int:
        """Returns the number of rows of stacked feeds."""
        name, axis = next((n, a) for n, a in self.inputs.items() if n in feeds)
        return int(np.asarray(feeds[name]).shape[axis])

    def feeds(self, groups: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
        """Returns the feeds of runs as one; shared inputs are those of the first run."""
        join = np.stack if self.own else np.concatenate
        return {
            name: join([np.asarray(g[name]) for g in groups], self.inputs[name])
            if name in self.inputs
            else value
            for name, value in groups[0].items()
        }

    def some(self, feeds: Mapping[str, Value], places: Sequence[int]) -> dict[str, Value]:
        """Returns some rows of stacked feeds."""
        return {
            name: np.take(np.asarray(value), places, self.inputs[name])
            if name in self.inputs
            else value
            for name, value in feeds.items()
        }

    def apart(self, feeds: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Returns stacked feeds as feeds of the original; the last row repeats to fill the last
        feeds.
        """
        rows = self.rows_in(feeds)
        if self.own:
            return [
                {
                    name: np.take(np.asarray(v), i, self.inputs[name]) if name in self.inputs else v
                    for name, v in feeds.items()
                }
                for i in range(rows)
            ]
        starts = range(0, rows, self.count)
        return [
            self.some(feeds, [min(i, rows - 1) for i in range(start, start + self.count)])
            for start in starts
        ]

    def results(
        self, groups: Sequence[Mapping[str, Value]], rows: int, dims: Mapping[str, int]
    ) -> dict[str, Value]:
        """Returns the first `rows` rows of results of the original, as one."""
        found: dict[str, Value] = {}
        for name, where in self.outputs.items():
            stacked = where.stacked([np.asarray(g[name]) for g in groups], dims)
            total = len(groups) * self.count
            found[name] = (
                stacked if rows == total else where.take(stacked, range(rows), total, dims)
            )
        return found

    def of_result(self, name: str, value: Value, dims: Mapping[str, int]) -> list[Array]:
        """Returns the rows of one output of the original."""
        where, array = self.outputs[name], np.asarray(value)
        if where.own:
            return [array]
        return [where.row(array, i, self.count, dims) for i in range(self.count)]
