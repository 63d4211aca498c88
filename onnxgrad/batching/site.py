"""A node whose operands contain rows, as batching rules read and change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxgrad.batching.equal_rows import one_row
from onnxgrad.batching.layout import (
    ALLOWS_ZERO,
    NARROW,
    OWN,
    Layout,
    Refused,
    Size,
    joined,
    known,
    stride,
)
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emit
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import at_least, exactly, multiply, product
from onnxgrad.ir.type_inference.shape_arithmetic import sizes
from onnxgrad.ir.types import Array, Dim, SequenceType, TensorType, Type, is_static
from onnxgrad.ir.var import Var

# a result under its layout: None: shared by all rows
Placed = tuple[Var, Layout | None]


def site_of(v: Var, layouts: dict[Var, Layout | None], sizes_at: RunTimeSizes) -> Site:
    """A node at work on a value: the one that computes it, or an Identity of an input."""
    b = v.definition or op.Identity(v).definition
    if b is None:
        raise InternalError(f"nothing computes {v!r}")
    return Site(b, layouts, sizes_at)


@dataclass
class Site:
    """A node, the layouts of its operands, and the changes of a rule.

    A rule either changes `operands` and `attributes` and returns the layouts of the results, or
    returns new results with `replaced`. The program does not change before it returns.
    """

    binding: Binding
    layouts: dict[Var, Layout | None]
    sizes_at: RunTimeSizes
    operands: list[Var | None] = field(init=False)
    attributes: dict[str, Any] = field(default_factory=dict)
    replaced: list[Placed | None] | None = None  # None for a result that nothing reads
    found: list[Layout | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.operands = list(self.binding.inputs)
        for v in self.operands:
            if v is not None and v.rank is not None:
                self.sizes_at.learn(v, self.layouts.get(v))

    def restart(self) -> None:
        """Discards the changes of a rule."""
        self.operands, self.replaced = list(self.binding.inputs), None
        self.attributes.clear()

    # ---- reading ---------------------------------------------------------------------------------

    @property
    def op(self) -> str:
        """The operator."""
        return self.binding.op

    @property
    def version(self) -> int:
        """The opset version of its domain."""
        return self.binding.version

    def attr(self, name: str, default: Any = None) -> Any:
        """Returns an attribute, by default that of the schema."""
        return self.binding.attr(name, default)

    def operand(self, k: int) -> Var | None:
        """Returns operand `k`, None if omitted."""
        return self.operands[k] if k < len(self.operands) else None

    def at(self, k: int) -> Layout | None:
        """Returns the layout of operand `k`, None if it is shared or omitted."""
        v = self.operand(k)
        return None if v is None else self.layouts.get(v)

    def first(self) -> Layout:
        """Returns the layout of operand 0. Raises Refused if it is shared."""
        found = self.at(0)
        if found is None:
            raise Refused("its first operand is shared by all rows")
        return found

    def batched(self) -> list[int]:
        """Returns the operands that contain rows."""
        return [k for k in range(len(self.operands)) if self.at(k) is not None]

    def present(self) -> list[int]:
        """Returns the operands that are not omitted."""
        return [k for k, v in enumerate(self.operands) if v is not None]

    def only_first(self) -> Layout:
        """Returns the layout of operand 0. Raises Refused if it contains no rows, or another
        operand does.
        """
        more = [k for k in self.batched() if k]
        if more:
            raise Refused(f"operand {more[0]} differs from row to row")
        return self.first()

    @property
    def count(self) -> int:
        """The number of rows in the types of values."""
        return self.sizes_at.count

    def sizes(self, k: int) -> tuple[Size, ...]:
        """Returns the shape of operand `k` in one row."""
        v = self.operand(k)
        if v is None:
            raise Refused(f"operand {k} is missing")
        return self.sizes_of(v)

    def in_file(self, v: Var | None) -> tuple[Size, ...]:
        """Returns the shape of a value with all rows of the file. Raises Refused if it is
        unknown.
        """
        if v is None:
            raise Refused("an operand or a result is omitted")
        return self.sizes_at.shape(v)

    def sizes_of(self, v: Var) -> tuple[Size, ...]:
        """Returns the shape of a value in one row. Raises Refused if it is unknown."""
        shape, layout = self.in_file(v), self.layouts.get(v)
        if layout is None:
            return shape
        if layout.own:
            return shape[1:]
        one = known(exactly(shape[layout.axis], self.count))
        return (*shape[: layout.axis], one, *shape[layout.axis + 1 :])

    def rank(self, k: int) -> int:
        """Returns the rank of operand `k` in one row."""
        v = self.operand(k)
        rank = None if v is None else v.rank
        if rank is None:
            raise Refused(f"the rank of operand {k} is not known")
        layout = self.at(k)
        return rank - 1 if layout is not None and layout.own else rank

    def result(self, k: int = 0) -> tuple[Size, ...]:
        """Returns the shape of a result in the file: in one row, unless the file has several."""
        return self.in_file(self.binding.result(k))

    def axis(self, name: str, default: int, rank: int) -> int:
        """Returns an axis attribute, counted from the front."""
        return int(self.attr(name, default)) % max(rank, 1)

    def ints(self, k: int, name: str = "") -> list[int] | None:
        """Returns the integers of operand `k`, or of the attribute `name` of an older opset; None
        if omitted. Raises Refused if they are computed.
        """
        v = self.operand(k)
        if v is None:
            written = self.attr(name) if name else None
            return None if written is None else [int(i) for i in written]
        if v.const is None:
            raise Refused(f"operand {k} is computed")
        return [int(i) for i in np.ravel(v.const)]

    def inner_axes(self, k: int, rank: int, name: str = "") -> Array | Var | None:
        """Returns the axes of operand `k`, or of an attribute, after an axis for the rows in front;
        None if omitted. Raises Refused if they differ from row to row, or their number is not
        known.
        """
        v = self.operand(k)
        if v is None or v.const is not None:
            axes = self.ints(k, name)
            return None if axes is None else np.array([a % max(rank, 1) + 1 for a in axes])
        count = (v.shape or (None,))[0] if v.rank else 1
        if count == 0:
            return None
        if self.at(k) is not None or not isinstance(count, int):
            raise Refused(f"operand {k} is computed")
        behind: Var = op.Add(op.Mod(v, max(rank, 1)), 1)
        return behind

    def alone(self, *operands: int) -> Layout:
        """Returns the layout of operand 0. Raises Refused if it contains no rows, or another
        operand than those named does.
        """
        more = [k for k in self.batched() if k not in (0, *operands)]
        if more:
            raise Refused(f"operand {more[0]} differs from row to row")
        return self.first()

    def elements(self, k: int, name: str = "") -> list[Dim] | None:
        """Returns elements as `ints`, with expressions of sizes, and None for an unknown
        element.
        """
        v = self.operand(k)
        if v is None or v.const is not None:
            return [*found] if (found := self.ints(k, name)) is not None else None
        elements = sizes(v)
        if elements is None:
            raise Refused(f"operand {k} is computed")
        return [*elements]

    @contextmanager
    def in_one_row(self) -> Iterator[None]:
        """Gives values with an axis for the rows the types of one row, for nodes emitted inside."""
        own = [v for v in dict.fromkeys(self.binding.reads()) if self.layouts.get(v) == OWN]
        types = [v.type for v in own]
        for v in own:
            v.type = _of_one_row(v.type)
        try:
            yield
        finally:
            for v, type_ in zip(own, types, strict=True):
                v.type = type_

    # ---- changing --------------------------------------------------------------------------------

    def put(self, k: int, v: Var, layout: Layout | None) -> None:
        """Replaces operand `k`."""
        self.layouts[v] = layout
        self.operands[k] = v

    def reshape(self, v: Var, sizes: Sequence[Size], rows: Size | None = None) -> Var:
        """Returns `v` in another shape. The row axis is -1; `rows` is its size in the file (None:
        the number of rows).
        """
        if not all(at_least(d, 1) for d in sizes if d != -1):
            if self.binding.block.opsets.get("", 0) >= ALLOWS_ZERO:
                return self._maybe_empty(v, sizes, rows)
            if 0 in sizes:
                raise Refused(f"'{v.name}' is empty")
        layout, before = self.layouts.get(v), self.in_file(v)
        own = -1 if layout is None else layout.axis
        # 0 copies a size of the operand
        target: list[Size] = [
            0 if isinstance(d, str) and i != own and before[i : i + 1] == (d,) else d
            for i, d in enumerate(sizes)
        ]
        return self._typed(op.Reshape(v, self.sizes_at.vector(target)), v, sizes, rows)

    def _maybe_empty(self, v: Var, sizes: Sequence[Size], rows: Size | None) -> Var:
        """Returns a value in another shape, of which a size other than that of the rows is 0 or may
        be 0 in a run, so that nothing can be -1.
        """
        self.sizes_at.learn(v, self.layouts.get(v))
        many = self.sizes_at.rows()
        each = known(exactly(rows, self.count)) if rows is not None else 1
        if each != 1:
            many = op.Mul(many, self.sizes_at.vector([each]))
        target = self.sizes_at.vector([many if d == -1 else d for d in sizes])
        return self._typed(op.Reshape(v, target, allowzero=1), v, sizes, rows)

    def _typed(self, made: Var, v: Var, sizes: Sequence[Size], rows: Size | None) -> Var:
        if not is_static(made.shape):  # a size could be 0, and 0 would copy another
            many = self.count if rows is None else rows
            made.type = TensorType(v.dtype, tuple(many if d == -1 else d for d in sizes))
        return made

    def placed(self, v: Var, sizes: Sequence[Size], layout: Layout) -> Var:
        """Returns `v` in a shape of one row, with the rows on one of its axes."""
        target = [*sizes[: layout.axis], -1, *sizes[layout.axis + 1 :]]
        return self.reshape(v, target, known(multiply(self.count, sizes[layout.axis])))

    def placed_in_file(self, v: Var, sizes: Sequence[Size], layout: Layout) -> Var:
        """Returns `v` as `placed`, in a shape with the rows of the file."""
        target = [*sizes[: layout.axis], -1, *sizes[layout.axis + 1 :]]
        return self.reshape(v, target, sizes[layout.axis])

    def moved(self, k: int, to: Layout) -> bool:
        """Gives operand `k` this layout by a Reshape that moves nothing in memory. Returns whether
        that is possible.
        """
        v, layout = self.operand(k), self.at(k)
        if v is None or layout is None or layout.own:
            return False
        if layout == to:
            return True
        if self.count > 1:  # results would have other shapes than in the file
            return False
        sizes = self.sizes(k)
        if not 0 <= to.axis < len(sizes) or exactly(sizes[to.axis], to.outer) is None:
            return False
        if stride(sizes, layout) != stride(sizes, to):
            return False
        self.put(k, self.placed(v, sizes, to), to)
        return True

    def tile(self, k: int, layout: Layout) -> None:
        """Repeats shared operand `k` over the rows, on this axis."""
        self.of_one_row(k, layout.axis)
        v, sizes = self.operand(k), self.sizes(k)
        if v is None or self.at(k) is not None:
            raise InternalError(f"operand {k} has rows already: {self.binding}")
        if layout.outer != 1:
            raise Refused(f"operand {k} would repeat inside an axis")
        repeats = self.repeats(layout.axis, len(sizes) - layout.axis - 1)
        self.put(k, op.Tile(v, repeats), layout)

    def arrange(self, layouts: Mapping[int, Layout]) -> None:
        """Gives each of these operands its layout; shared ones repeat, omitted ones are skipped.
        Raises Refused.
        """
        for k, layout in layouts.items():
            if self.operand(k) is None:
                continue
            if self.at(k) is None:
                self.tile(k, layout)
            elif self.leading(k, layout.axis) != layout:
                raise Refused(f"the rows of operand {k} are not in front")

    def of_one_row(self, k: int, axis: int) -> None:
        """If the file has several rows, reduce shared operand `k` to one row, if all its rows are
        equal.
        """
        v = self.operand(k)
        if self.count > 1 and v is not None and self.at(k) is None:
            self.put(k, one_row(v, axis, self.count), None)

    def repeats(self, before: int, after: int) -> Any:
        """Returns the operand of Tile: the number of rows among ones."""
        ones: list[Size | Var] = [1] * before
        return self.sizes_at.vector([*ones, self.sizes_at.rows(), *([1] * after)])

    def front(self, k: int, rank: int | None = None) -> Var:
        """Returns operand `k` with the rows on their own axis in front, padded to `rank` axes after
        it; a shared operand unchanged.
        """
        v = self.operand(k)
        if v is None:
            raise Refused(f"operand {k} is missing")
        return v if self.at(k) is None else self.fronted(v, rank)

    def fronted(self, v: Var, rank: int | None = None) -> Var:
        """Returns a value that contains rows as `front` does."""
        layout, sizes = self.layouts[v], self.sizes_of(v)
        if layout is None:
            raise InternalError(f"'{v.name}' holds no rows")
        ones = [1] * ((len(sizes) if rank is None else rank) - len(sizes))
        wanted = [-1, *ones, *sizes]
        if layout.own:
            axes = np.arange(1, len(ones) + 1)
            return op.Unsqueeze(v, axes) if ones else v
        self.sizes_at.learn(v, layout)
        before = known(multiply(product(sizes[: layout.axis]), layout.outer))
        if before != 1:
            v = self.reshape(v, [before, -1, stride(sizes, layout)])
            v = op.Transpose(v, perm=[1, 0, 2])
        return self.reshape(v, wanted)

    def leading(self, k: int, axis: int = 0) -> Layout:
        """Moves the rows of operand `k` in front of the positions of an axis."""
        v, layout, place = self.operand(k), self.at(k), Layout(axis)
        if v is None or layout is None:
            raise Refused(f"operand {k} is shared by all rows")
        if self.count > 1 and layout.axis != axis:
            raise Refused(f"the rows of operand {k} are not in front")
        if layout.own or layout.axis != axis:
            sizes = self.sizes(k)
            if not sizes:
                raise Refused(f"operand {k} is a scalar in each row")
            if sizes[axis] != 1 or not self.moved(k, place):
                front = self.front(k)
                if axis:
                    rest = range(axis + 1, len(sizes) + 1)
                    front = op.Transpose(front, perm=[*range(1, axis + 1), 0, *rest])
                self.put(k, self.placed(front, sizes, place), place)
        return self.at(k) or place

    def again(self, *operands: Any, **attributes: Any) -> Any:
        """Emits the same node on other operands, with attributes changed (None: removed)."""
        b = self.binding
        outputs = [v is not None for v in b.outputs]
        many = {} if len(outputs) == 1 else {"outputs": outputs}
        return emit(b.op, operands, {**b.attrs, **attributes, **many}, domain=b.domain)

    def back(self, made: Any) -> None:
        """Replaces the results by values with the rows in front; the rows join an axis of each
        shape.
        """
        results = made if isinstance(made, tuple) else (made,)
        self.replaced = [
            None if new is None else self.joined(old, new)
            for old, new in zip(self.binding.outputs, results)
            if old is not None
        ]

    def joined(self, old: Var, new: Var) -> Placed:
        """Returns a value with the rows in front as the result `old`, in whose shape they join."""
        sizes = self.sizes_of(old)
        if not sizes:
            return new, OWN
        layout = joined(sizes)
        try:
            vague = self.sizes_at.mapped and self.sizes_at.is_vague(sizes)
            if vague or 0 in sizes or new.dtype in NARROW:
                raise Refused("a Reshape is not for it")
            return self.placed(new, sizes, layout), layout
        except Refused:
            if not self.sizes_at.mapped:
                raise
            shape = [None if isinstance(d, str) else d for d in sizes]
            new.type = TensorType(new.dtype, (self.count, *shape))
            return new, OWN


def with_rows(site: Site, v: Var | None) -> Var:
    """A value with its rows in front; a shared one repeats."""
    if v is None:
        raise Refused("a state is omitted")
    if site.layouts.get(v) is not None:
        return site.fronted(v)
    made: Var = op.Tile(op.Unsqueeze(v, [0]), site.repeats(0, len(site.in_file(v))))
    return made


def _of_one_row(type_: Type | None) -> Type | None:
    """The type of a value with rows in front, or of a sequence of such values, in one row."""
    if isinstance(type_, SequenceType):
        return SequenceType(_of_one_row(type_.elem))
    if isinstance(type_, TensorType) and type_.shape is not None:
        return TensorType(type_.dtype, type_.shape[1:])
    return type_
