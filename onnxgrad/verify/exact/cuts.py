"""Cuts: values that both sides have, which fresh variables replace."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from onnxgrad.verify.exact.side import Side
from onnxgrad.verify.exact.values import Num, Value

_CUT = 1 << 10  # the degree from which on a value of both sides is cut


@dataclass
class Cuts:
    """Values of equal names and numbers on both sides, which fresh variables replace, so that
    degrees stay small. First they are only found; `cutting` replaces them, and compares them.
    """

    cutting: bool = False
    names: dict[str, None] = field(default_factory=dict)
    seen: dict[str, bytes] = field(default_factory=dict)
    differs: str = ""
    elements: int = 0
    degree: int = 1

    def begin(self) -> None:
        """Starts a draw."""
        self.seen, self.differs, self.elements, self.degree = {}, "", 0, 1

    def first(self, side: Side, name: str, value: Value) -> Value:
        """Receives a result of the old side."""
        if not isinstance(value, Num) or not value.is_float or value.infinite:
            return value
        degree = side.whole_degree(value)
        if name in self.names if self.cutting else degree > _CUT:
            self.seen[name] = _digest(value)
        return self._fresh(side, name, value, degree)

    def second(self, side: Side, name: str, value: Value) -> Value:
        """Receives a result of the new side."""
        if name not in self.seen or not isinstance(value, Num):
            return value
        if self.seen[name] == _digest(value):
            self.names.setdefault(name)
        elif self.cutting:
            self.differs = name
        return self._fresh(side, name, value, side.whole_degree(value))

    def _fresh(self, side: Side, name: str, value: Num, degree: int) -> Num:
        if not self.cutting or name not in self.names:
            return value
        self.elements += value.parts[0].size
        self.degree = max(self.degree, degree)
        return Num(side.ring.draw(value.shape, f"cut {name}"), value.dtype, 1, value.image)


def _digest(value: Num) -> bytes:
    digest = hashlib.blake2b(repr((value.shape, value.dtype, value.image)).encode())
    for part in value.parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()
