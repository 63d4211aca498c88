"""Constants that move by half a unit in the last place, as another rounding of them might."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.ir.storage.stored_arrays import StoredArray
from onnxgrad.ir.types import Array


@frozen
class Roundings:
    """The constants of a model that another rounding may change: their magnitudes, sorted, and by
    how much each is rounded, relative to it. `results`: likewise by name, the results of nodes that
    compute constants in each run.
    """

    values: Array
    units: Array
    results: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values.size or self.results)


class MovedConstants:
    """Moves constants up or down, at random; with seed 0 all away from 0. A constant moves once in
    a run, however often nested graphs read it.
    """

    def __init__(self, roundings: Roundings, seed: int) -> None:
        self.roundings = roundings
        self._rng = np.random.default_rng(seed) if seed else None
        self._known: dict[object, Any] = {}

    def each(self, values: Mapping[str, Any], owner: object) -> dict[str, Any]:
        """Returns initializers or attributes by name, moved. `owner` identifies their graph or
        node.
        """
        return {name: self._of((id(owner), name), value) for name, value in values.items()}

    def result(self, name: str, value: Any) -> Any:
        """Returns the result of a node, moved if the node computes a constant."""
        unit = self.roundings.results.get(name)
        if unit is None or not isinstance(value, np.ndarray) or value.dtype != np.float64:
            return value
        return np.asarray(value + self._signs(value) * unit * np.abs(value))

    def _signs(self, value: Array) -> Any:
        return np.sign(value) if self._rng is None else self._rng.choice([-1.0, 1.0], value.shape)

    def _of(self, key: object, value: Any) -> Any:
        if isinstance(value, StoredArray):
            value = value.wide()
        if isinstance(value, float):
            return float(self._once(key, np.asarray(value)))
        if isinstance(value, list) and value and all(isinstance(v, float) for v in value):
            return self._once(key, np.asarray(value)).tolist()
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            return self._once(key, value)
        return value

    def _once(self, key: object, value: Array) -> Array:
        if key not in self._known:
            self._known[key] = self._moved(value)
        return np.asarray(self._known[key])

    def _moved(self, value: Array) -> Array:
        """Returns the value with each rounded element moved by its unit. Elements below the usual
        size move by the unit of that size, because the terms of a sum may have cancelled.
        """
        sizes, known = np.abs(value), self.roundings.values
        if not known.size:
            return value
        at = self._places(sizes)
        rounded = known[at] == sizes
        if not rounded.any():
            return value
        usual = np.sqrt(np.mean(np.square(sizes, where=rounded, out=np.zeros_like(sizes))))
        step = self.roundings.units[at] * np.maximum(sizes, usual)
        return np.asarray(np.where(rounded, value + self._signs(value) * step, value))

    def _places(self, sizes: Array) -> Array:
        """Returns where each size stands, or would stand, among the magnitudes. The sizes are
        searched for in their order, so that each is near the one before: that takes a sixth.
        """
        known, order = self.roundings.values, np.argsort(sizes, axis=None)
        at = np.empty(sizes.size, np.intp)
        at[order] = np.searchsorted(known, sizes.reshape(-1)[order])
        return np.minimum(at, known.size - 1).reshape(sizes.shape)
