"""Numbers of arithmetic that equal an open size in the file: a mean by a sum and a Div, the row and
the column of a flattened position.

Such a number follows the size, or stays: the user decides (`extensions.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np

from onnxgrad.batching.layout import Size
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.errors import InputError
from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import BROADCASTING, ELEMENTWISE, MOVES, REDUCTIONS
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.transform.sizes.constants import for_any_size
from onnxgrad.transform.sizes.expressions import Expressions
from onnxgrad.transform.sizes.extensions import Extension, Extensions

_POSITIONS = {"ArgMax": 0, "ArgMin": 0, "TopK": 1}  # the result that holds positions of an axis
_SUMS = frozenset({"ReduceSum", "CumSum"})
# operators that move numbers of their first operand, and those that compute with all operands
_MOVES = frozenset({*MOVES, "Pad", "ReduceMax", "ReduceMin", "Cast"})
_JOINS = frozenset({*BROADCASTING, "Concat"})
_READ = {"Mul": (0, 1), "Add": (0, 1), "Div": (0, 1), "Mod": (1,), "Sub": (1,)}
_WITH_SCORES = frozenset({"Add", "Where", "Cast", "Reshape", "Mul", "Transpose"})
_MOST = 6  # nodes between a product and a Softmax
_NEXT = 3  # sizes beyond the file in a message


@dataclass
class Arithmetic:
    """Reads the numbers of Mul, Div, Mod, Add and Sub whose other operand depends on inputs, and
    the tables that are read by positions.

    positions: values that hold positions of an axis, with its size. unchanged: those of them that
    hold 0 to the size - 1. from_sizes: values that are computed from sizes and constants alone.
    sums: values that are sums along an open axis.
    """

    at: Expressions
    run_time: RunTimeSizes
    extensions: Extensions
    numbers: dict[str, None]
    most: dict[tuple[Size, int, str], None]
    positions: dict[Var, Size] = field(default_factory=dict)
    unchanged: set[Var] = field(default_factory=set)
    from_sizes: set[Var] = field(default_factory=set)
    sums: set[Var] = field(default_factory=set)

    def follow(self, bindings: Sequence[Binding], emitted: Collection[Binding]) -> None:
        """Lets the numbers follow open sizes, if that is the reading in use, except in nodes that
        were emitted for this. Raises InputError if the user chose a reading that a number cannot
        have, Refused if a table has as many rows as an axis has positions and no reading fits.
        """
        lengths = [*dict.fromkeys(self._lengths())]
        sizes = [*dict.fromkeys((*lengths, *self._joined(bindings)))]
        for b in bindings:
            self._learn(b)
            if b.domain or b in emitted:
                self.unchanged.difference_update(v for v in b.outputs if v is not None)
                continue
            self._table(b)
            for k in _READ.get(b.op, ()):
                self._number(b, k, lengths, sizes)

    # ---- values --------------------------------------------------------------------------------

    def _learn(self, b: Binding) -> None:
        made = [v for v in b.outputs if v is not None]
        reads = [v for v in b.reads() if not v.is_constant]
        shape = b.op in ("Shape", "Size") and not b.domain
        if shape or (reads and not b.blocks and b.op != "Range" and self._from_sizes(reads)):
            self.from_sizes.update(made)
        if not b.domain and not b.blocks:
            self._learn_positions(b, made)
            self._learn_sums(b, made)

    def _from_sizes(self, values: Iterable[Var]) -> bool:
        return all(v in self.from_sizes for v in values)

    def _learn_positions(self, b: Binding, made: Sequence[Var]) -> None:
        x, place = b.operand(0), _POSITIONS.get(b.op)
        if place is not None and x is not None and x.shape is not None and place < len(b.outputs):
            axis = int(b.attr("axis", -1 if b.op == "TopK" else 0)) % max(len(x.shape), 1)
            self._holds(b.outputs[place], x.shape[axis])
        elif b.op == "Range" and b.out.shape:
            self._holds(b.out, b.out.shape[0])
            start = b.inputs[0]
            if start is None or start.const is None or start.const.any():
                self.unchanged.discard(b.out)
        for v in self._carried(b):
            if v in self.positions:
                self.positions.update(dict.fromkeys(made, self.positions[v]))
                if v in self.unchanged and b.op in _MOVES:
                    self.unchanged.update(made)
                return

    def _holds(self, v: Var | None, size: Size | None) -> None:
        if v is not None and size is not None and self.at.is_open(size):
            self.positions[v] = size
            self.unchanged.add(v)

    def _table(self, b: Binding) -> None:
        """A table that is read by positions bounds their size. If it has a row for each, it must
        continue.
        """
        x, i = b.operand(0), b.operand(1)
        if b.op not in ("Gather", "GatherElements") or i not in self.unchanged or x is None:
            return
        shape, size = x.shape or (1,), self.at.plain(self.positions[i])
        axis = int(b.attr("axis", 0)) % len(shape)
        rows, number = shape[axis], self.at.at(size)
        if size is None or number is None or not isinstance(rows, int) or rows < number:
            return
        if rows > number:
            self.most[size, rows, f"'{x.name}' has {rows} rows"] = None
        else:
            made, how = for_any_size(x, {axis: size}, self.run_time, self.extensions)
            b.block.set_operand(b, 0, made)
            self.numbers[f"constant '{x.name}' {x.type} {how}"] = None

    def _carried(self, b: Binding) -> list[Var]:
        """Returns the operands whose numbers stand in the result, perhaps changed."""
        if b.op in _JOINS:
            return [v for v in b.inputs if v is not None]
        x = b.operand(0)
        return [x] if x is not None and (b.op in _MOVES or b.op in ELEMENTWISE) else []

    def _learn_sums(self, b: Binding, made: Sequence[Var]) -> None:
        x = b.operand(0)
        moved = b.op in _MOVES and x in self.sums
        if moved or (b.op in _SUMS and x is not None and any(map(self.at.is_open, x.shape or ()))):
            self.sums.update(made)

    # ---- sizes ---------------------------------------------------------------------------------

    def _lengths(self) -> Iterator[Size]:
        """Yields the opened sizes and their product."""
        yield from self.at.opened
        every = algebra.product(self.at.opened)
        if every is not None:
            yield every

    def _joined(self, bindings: Sequence[Binding]) -> Iterator[Size]:
        """Yields the sizes that axes join, and those over which a node reduces."""
        for b in bindings:
            for v in b.outputs:
                for d in (v and v.shape) or ():
                    if d is not None and self.at.is_open(d):
                        yield from self._parts(d)
            x = b.operand(0)
            if b.op in REDUCTIONS and not b.domain and x is not None and x.shape and b.out.shape:
                before = algebra.product(map(self.at.plain, x.shape))
                size = algebra.exactly(before, algebra.product(map(self.at.plain, b.out.shape)))
                if size is not None and self.at.is_open(size):
                    yield size

    def _factors(self, size: Size) -> list[Size]:
        parts = [d for d in self.at.split(size) if d != 1]
        return parts if len(parts) > 1 else [*self.at.parts(size)]

    def _parts(self, size: Size) -> list[Size]:
        """Returns the products of the sizes that an axis joins, from the last on, and the single
        ones.
        """
        parts = self._factors(size)
        ends = [algebra.product(map(self.at.plain, parts[i:])) for i in range(len(parts))]
        found = dict.fromkeys((*ends[::-1], *map(self.at.plain, parts), self.at.plain(size)))
        return [d for d in found if d is not None and self.at.is_open(d)]

    # ---- numbers -------------------------------------------------------------------------------

    def _number(self, b: Binding, k: int, lengths: Sequence[Size], sizes: Sequence[Size]) -> None:
        x, found = b.operand(1 - k), _scalar(b.operand(k))
        if x is None or found is None or x.is_constant or x in self.from_sizes or _scalar(x):
            return
        root, number = found
        axis = self.at.plain(self.positions[x]) if x in self.positions else None
        own = [] if axis is None else self._parts(self.positions[x])
        if number.dtype.kind == "f" and b.op in ("Mul", "Div"):
            counted = x in self.sums or bool(own)
            self._float(b, k, root, number, [*own, *(sizes if counted else lengths)], counted)
        elif number.dtype.kind in "iu" and axis is not None and (k or b.op != "Div"):
            self._integer(b, k, root, int(number), axis, own, sizes)

    def _float(
        self, b: Binding, k: int, root: Var, number: np.generic, sizes: Iterable[Size],
        counted: bool,
    ) -> None:  # fmt: skip
        """A number that is a size, its reciprocal or its logarithm."""
        for size in sizes:
            count = self.at.at(size) or 0
            forms = {"": float(count), "1/": 1 / max(count, 1), "log ": log(max(count, 1))}
            for form, value in forms.items() if count > 1 or (count and counted) else ():
                if value and _equal(number, value, form == "log "):
                    likely = counted or form == "log " or not _reaches_softmax(b)
                    self._read(b, k, root, size, form, likely)
                    return

    def _integer(
        self, b: Binding, k: int, root: Var, number: int, axis: Size, own: Sequence[Size],
        sizes: Sequence[Size],
    ) -> None:  # fmt: skip
        """A number in arithmetic with positions of an axis that joins the sizes `own`."""
        size = next((d for d in (*own, *sizes) if self.at.at(d) == number), None)
        if number < 2 or (size is None and len(own) < 2):
            return
        if size is None:
            words = f"in {_name(b)} is no size of the flattened axis {axis}"
            what = f"constant '{root.name}' {root.type}"
            made = Extension(root.name, what, "same", (), words, str(number), (axis,))
            self._fits(root, made)
            self.extensions.add(made)
        elif self._read(b, k, root, size, "", True) and b.op in ("Div", "Mod"):
            after = size if b.op == "Mod" else algebra.exactly(axis, self.at.plain(size))
            if after is not None and self.at.is_open(after):
                self.positions[b.out] = after

    def _fits(self, root: Var, made: Extension) -> None:
        asked = self.extensions.asked(root)
        if asked and asked not in (made.reading, *made.others):
            raise InputError(f"{made.what} {made.words}: it cannot be read as '{asked}'")

    def _read(self, b: Binding, k: int, root: Var, size: Size, form: str, likely: bool) -> bool:
        """Records the reading of a number that is a size. Returns whether it follows the size."""
        plain = self.at.plain(size) or size
        asked = self.extensions.asked(root)
        follows = asked == "scaled" or (likely and asked != "same")
        number = "" if root.const is None else f"{root.const.reshape(-1)[0]:g}"
        reading, other = ("scaled", "same") if follows else ("same", "scaled")
        mine = [s for s in self.at.opened if s in algebra.symbols(plain)]
        sizes = ({s: self.at.opened[s] + i for s in mine} for i in range(1, _NEXT + 1))
        after = ", ".join(f"{form}{self.at.at(plain, s)}" for s in sizes)
        made = Extension(
            root.name, f"constant '{root.name}' {root.type}", reading, (other,),
            f"in {_name(b)} is {form}{plain}", f"{after}, ..." if follows else number, (plain,),
        )  # fmt: skip
        self._fits(root, made)
        self.extensions.add(made)
        if follows:
            b.block.set_operand(b, k, self._made(b.inputs[k], plain, form))
            self.numbers[f"{number} is {form}{plain}"] = None
        return follows

    def _made(self, old: Var | None, size: Size, form: str) -> Var:
        rank = 0 if old is None else old.rank or 0
        made: Var = op.Reshape(self.run_time.of(size), np.ones(rank, np.int64))
        if old is not None and made.dtype != old.dtype:
            made = op.Cast(made, to=old.dtype)
        if form:
            made = op.Log(made) if form == "log " else op.Reciprocal(made)
        return made


def _scalar(v: Var | None) -> tuple[Var, np.generic] | None:
    """Returns a constant of one element and its number in the dtype of `v`, which may be cast or
    reshaped.
    """
    root = v
    while root is not None and root.const is None:
        d = root.definition
        moves = d is not None and not d.domain and d.op in ("Cast", "Reshape", "Unsqueeze")
        root = d.inputs[0] if d is not None and moves else None
    array = None if root is None else root.const
    if (
        v is None
        or root is None
        or array is None
        or array.size != 1
        or array.dtype.kind not in "fiu"
    ):
        return None
    number = array.reshape(-1)[0]
    kind = numpy_dtype(v.dtype) if v.dtype else number.dtype
    return root, number.astype(kind)


def _equal(number: np.generic, value: float, rounded: bool) -> bool:
    """Whether a number is a value in its dtype, or if `rounded` a neighbour of it."""
    wanted = number.dtype.type(value)
    near = np.nextafter(wanted, [-np.inf, np.inf], dtype=number.dtype) if rounded else []
    return any(number == n for n in (wanted, *near))


def _reaches_softmax(b: Binding) -> bool:
    """Whether a product is the scale of an attention: it reaches a Softmax."""
    left, seen = [b], {b}
    for _ in range(_MOST):
        left = [u for d in left for u in d.out.users if u not in seen]
        seen.update(left)
        if any(u.op == "Softmax" for u in left):
            return True
        left = [u for u in left if u.op in _WITH_SCORES]
    return False


def _name(b: Binding) -> str:
    return f"{b.op} '{b.node.name or b.out.name}'"
