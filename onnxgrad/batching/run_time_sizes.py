"""Sizes that are known when the model runs: the number of rows and expressions of symbols.

Each is computed once, from the shape of an input or of the first value that has the symbol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.batching.layout import Layout, Refused, Size
from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.ops import op
from onnxgrad.ir.size_polynomials import compound, terms
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var

_OF_TWO = {"//": op.Div, "max": op.Max, "min": op.Min}
_INTS = {"max": 12, "min": 12}  # the first opsets in which they accept integers


class RunTimeSizes:
    """The run-time sizes of one program.

    opened: the inputs that hold rows, with the axis of the rows.
    count: the number of rows in the file.
    """

    def __init__(self, opened: Mapping[Var, Layout], inputs: Sequence[Var], count: int = 1) -> None:
        self.opened, self.inputs, self.count = opened, inputs, count
        self.block = inputs[0].block
        self.mapped = False  # whether results may keep the rows on an axis of their own
        self._made: dict[Size, Var] = {}
        self._shapes: dict[Var, Var] = {}
        self._elements: dict[tuple[Var, int], Var] = {}
        self._places: dict[str, tuple[Var, int]] = {}
        self._parts: dict[str, tuple[Var, int]] = {}  # axes that hold the size of every row
        self._invented: dict[tuple[Var, int], str] = {}
        for v in inputs:
            self.learn(v, opened.get(v))

    def again(self) -> RunTimeSizes:
        """Returns the sizes for a nested graph, which computes them by itself; names are shared."""
        made = RunTimeSizes(self.opened, self.inputs, self.count)
        made.mapped, made._invented = self.mapped, self._invented
        return made

    def shape(self, v: Var) -> tuple[Size, ...]:
        """Returns the shape of a value in the file; a size without a formula becomes a new symbol.
        Raises Refused if the rank is not known.
        """
        if v.shape is None:
            raise Refused(f"the rank of '{v.name}' is not known")
        return tuple(self._symbol_of(v, i) if d is None else d for i, d in enumerate(v.shape))

    def _symbol_of(self, v: Var, axis: int) -> str:
        return self._invented.setdefault((v, axis), f"run_time_size_{len(self._invented)}")

    def is_vague(self, sizes: Sequence[Size]) -> bool:
        """Whether a size has no formula of the inputs' sizes."""
        invented = set(self._invented.values())
        return any(not invented.isdisjoint(algebra.symbols(size)) for size in sizes)

    def learn(self, v: Var, layout: Layout | None) -> None:
        """Records that symbols can be read from the shape of a value. If it is mapped, also records
        the row axis; its size is a multiple of the number of rows.
        """
        for axis, size in enumerate(() if v.shape is None else self.shape(v)):
            if isinstance(size, str) and (layout is None or layout.axis != axis):
                self._places.setdefault(size, (v, axis))
            elif isinstance(size, str) and self.mapped and self.count == 1:
                self._parts.setdefault(size, (v, axis))

    def rows(self) -> Var:
        """Returns the number of rows as a vector of one element."""
        source = next(iter(self.opened))
        return self._element(source, self.opened[source].axis)

    def of(self, size: Size) -> Var:
        """Returns a size as a vector of one element. Raises Refused if no value has it."""
        if size in self._places or size in self._parts:
            return self._symbol(str(size))
        if not _is_there(self._made.get(size)):
            self._made[size] = self._computed(size)
        return self._made[size]

    def vector(self, sizes: Sequence[Size | Var]) -> Array | Var:
        """Returns sizes as one vector: an array if all of them are numbers, else a value."""
        parts: list[Any] = []
        for size in sizes:
            if not isinstance(size, int):
                parts.append(size if isinstance(size, Var) else self.of(size))
            elif parts and isinstance(parts[-1], list):
                parts[-1].append(size)
            else:
                parts.append([size])
        made = [p if isinstance(p, Var) else np.array(p, np.int64) for p in parts]
        if not made:
            return np.zeros(0, np.int64)
        return made[0] if len(made) == 1 else op.Concat(*made, axis=0)

    def _element(self, source: Var, axis: int) -> Var:
        if not _is_there(self._elements.get((source, axis))):
            if not _is_there(self._shapes.get(source)):
                self._shapes[source] = op.Shape(source)
            made = op.Gather(self._shapes[source], np.array([axis]), axis=0)
            self._elements[source, axis] = made
        return self._elements[source, axis]

    def _computed(self, size: Size) -> Var:
        """Returns a size that is a sum of products of symbols, quotients, maxima and minima."""
        summands = [self._product(atoms, factor) for atoms, factor in sorted(terms(size).items())]
        made: Var = reduce(op.Add, summands)
        return made

    def _product(self, atoms: Sequence[str], factor: int) -> Any:
        parts: list[Any] = [self._atom(atom) for atom in atoms]
        if factor != 1 or not parts:
            parts.append(np.array([factor], np.int64))
        return reduce(op.Mul, parts)

    def _atom(self, atom: str) -> Var:
        parts = compound(atom)
        if parts is None:
            return self._symbol(atom)
        kind, a, b = parts
        if kind not in _OF_TWO:
            raise Refused(f"the size {atom} is not a sum, product, quotient, maximum or minimum")
        if self.block.opsets.get("", 0) < _INTS.get(kind, 0):
            raise Refused(f"the size {atom} cannot be computed in this opset")
        # Div rounds integers towards zero
        if kind == "//" and (algebra.least(a) is None or (algebra.least(a) or 0) < 0):
            raise Refused(f"the size {atom} may be negative")
        made: Var = _OF_TWO[kind](self._operand(a), self._operand(b))
        return made

    def _operand(self, size: Size) -> Any:
        return np.array([size], np.int64) if isinstance(size, int) else self.of(size)

    def _symbol(self, name: str) -> Var:
        if name in self._places:
            return self._element(*self._places[name])
        if name not in self._parts:
            raise Refused(f"no value before it has the size {name}")
        if not _is_there(self._made.get(name)):  # without rows, the sizes of rows are not known
            rows = op.Add(self.rows(), op.Cast(op.Equal(self.rows(), [0]), to=TensorProto.INT64))
            self._made[name] = op.Div(self._element(*self._parts[name]), rows)
        return self._made[name]


def _is_there(v: Var | None) -> bool:
    """Whether a value exists, and was not removed after an attempt of a rule."""
    return v is not None and v.definition in v.block.bindings
