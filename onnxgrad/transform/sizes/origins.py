"""Tracing a fixed size that meets an open one back to its cause: a constant or a node's target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from onnxgrad.batching.layout import Refused, Size
from onnxgrad.batching.registry import names
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.type_inference.per_binding import types_of
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements, sizes
from onnxgrad.ir.types import Dim, TensorType, TypeMismatch
from onnxgrad.ir.var import Var
from onnxgrad.transform.sizes.agreement import Meeting, Place, meetings
from onnxgrad.transform.sizes.constants import for_any_size
from onnxgrad.transform.sizes.expressions import Expressions, Fixed
from onnxgrad.transform.sizes.extensions import Extensions
from onnxgrad.wording import option

_PROBE = "size_that_is_followed"
# operators with other numbers that may follow a size
_VAGUE = frozenset(
    name for _, name in names("TopK OneHot Pad Split Tile Slice Resize Upsample Expand Range")
)
Wanted: TypeAlias = Mapping[int, Size]


def states_of(b: Binding) -> int:
    """Returns the number of states of a Loop or Scan."""
    return len(b.inputs) - (2 if b.op == "Loop" else int(b.attr("num_scan_inputs")))


class Origins:
    """Makes axes of operands open by changing the nodes and constants that compute them."""

    def __init__(
        self,
        at: Expressions,
        run_time: RunTimeSizes,
        numbers: dict[str, None],
        most: dict[tuple[Size, int, str], None],
        extensions: Extensions,
    ) -> None:
        self.at, self.run_time, self.numbers, self.most = at, run_time, numbers, most
        self.extensions = extensions
        self._made: dict[object, Var] = {}
        self.done: set[object] = set()  # values that this turn has changed

    def follow(self, b: Binding, k: int, wanted: Wanted) -> None:
        """Sets axes of operand `k` to the `wanted` sizes. Raises Refused, naming what fixes
        them.
        """
        v = b.inputs[k]
        if v is None or v.shape is None:
            raise Refused(f"operand {k} has no shape")
        if v.const is not None:
            self._indexes(b, k, v, wanted)
            b.block.set_operand(b, k, self._constant(v, wanted))
            return
        self._trace(v, wanted)

    def result(self, block: BindingBlock, i: int, wanted: Wanted) -> None:
        """Sets axes of output `i` of a body to the `wanted` sizes. Raises Refused."""
        v = block.outputs[i]
        if v.const is None:
            self._trace(v, wanted)
            return
        made = self._constant(v, wanted)
        with emitting(block, made_by="open-batch"):
            block.return_instead(v, op.Identity(made))

    def _trace(self, v: Var, wanted: Wanted) -> None:
        """Sets axes of a value to the `wanted` sizes where it is computed."""
        d = v.definition
        if d is None and v.block.owner is not None:
            self._outside(v, v.block.owner, wanted)
            return
        if d is None or v.is_input:
            axis, size = next(iter(wanted.items()))
            name = next(iter(self.at.opened), "")
            flag = option(f"--open {name}=...,{v.name}.{axis}", f"'...,{v.name}.{axis}'")
            raise Fixed(
                f"axis {axis} of input '{v.name}' {v.type} is fixed, but must equal "
                f"{self.at.plain(size)}: open it as well ({flag})"
            )
        key = (v, tuple(sorted(wanted.items())))
        if key not in self.done:
            self.done.add(key)
            self._back(d, v, wanted)

    def _outside(self, v: Var, owner: Binding, wanted: Wanted) -> None:
        """Sets axes of an operand of Loop or Scan that is an input of its body."""
        k = v.block.inputs.index(v)
        first = states_of(owner) if owner.op == "Scan" else len(v.block.inputs)
        if k >= first:
            axes = owner.attr("scan_input_axes") or [0] * len(v.block.inputs)
            walked = int(axes[k - first]) % ((v.rank or 0) + 1)
            wanted = {a + (a >= walked): d for a, d in wanted.items()}
        self.follow(owner, k, wanted)

    def _inside(self, d: Binding, v: Var, wanted: Wanted) -> None:
        """Sets axes of a result of If, Loop or Scan in its bodies."""
        i = d.outputs.index(v)
        if d.op == "If":
            for block in d.blocks.values():
                self.result(block, i, wanted)
            return
        ends, first, states = (1, 2, states_of(d)) if d.op == "Loop" else (0, 0, states_of(d))
        if i < states:
            self.follow(d, first + i, wanted)
            return
        axes = d.attr("scan_output_axes") or [0] * len(d.outputs)
        made = int(axes[i - states]) % (v.rank or 1)
        if made in wanted:
            raise Refused(f"axis {made} of '{v.name}' is as long as {d.op} runs")
        self.result(d.blocks["body"], ends + i, {a - (a > made): n for a, n in wanted.items()})

    def _back(self, d: Binding, v: Var, wanted: Wanted) -> None:
        """Sets axes of a node's result to the `wanted` sizes."""
        if d.op in ("If", "Loop", "Scan") and not d.domain:
            self._inside(d, v, wanted)
            return
        before: dict[int, dict[int, Size]] = {}
        for axis, size in wanted.items():
            places = self._sources(d, v, axis)
            for k, a in places:
                if not self.at.same(self._size(d, (k, a)), size):
                    before.setdefault(k, {})[a] = size
            rule = None if places or d.domain else NUMBERS.get(d.op)
            if not places and (rule is None or not rule(self, d, axis, size)):
                cause = Refused if d.op in _VAGUE else Fixed
                raise cause(
                    f"axis {axis} of '{v.name}' {v.type} must equal {self.at.plain(size)}, but "
                    f"{d.op} '{d.node.name or d.out.name}' computes it for this size alone"
                )
        for k, axes in before.items():
            self.follow(d, k, axes)

    def _constant(self, v: Var, wanted: Wanted) -> Var:
        key = (v, tuple(sorted(wanted.items())))
        if key not in self._made:
            plain = {a: p for a, d in wanted.items() if (p := self.at.plain(d)) is not None}
            made, how = for_any_size(v, plain, self.run_time, self.extensions)
            self._made[key] = made
            self.numbers[f"constant '{v.name}' {v.type} {how}"] = None
        return self._made[key]

    def _indexes(self, b: Binding, k: int, v: Var, wanted: Wanted) -> None:
        """If `v` holds indices into a table, record the number of rows as the largest size."""
        x, array = b.inputs[0], v.const
        if b.op not in ("Gather", "GatherElements") or b.domain or k != 1 or array is None:
            return
        axis = b.attr("axis", 0) % max((x and x.rank) or 1, 1)
        rows = None if x is None or x.shape is None else x.shape[axis]
        for size in wanted.values():
            plain = self.at.plain(size)
            if x is not None and isinstance(rows, int) and plain is not None and array.max() > 0:
                first = int(array.min())
                self.most[plain, rows - first, f"'{x.name}' has {rows} rows"] = None

    # ---- axes of operands that determine an axis of a result -------------------------------------

    def _sources(self, d: Binding, v: Var, axis: int) -> list[Place]:
        if d.op == "Reshape" and d.domain == "":
            return self._before_reshape(d, axis)
        if d.op == "Expand" and d.domain == "" and (place := self._expanded(d, axis)) is not None:
            return [place]
        size = (v.shape or ())[axis]
        groups: list[Sequence[Place]] = [m.places for m in self._meetings(d)]
        inside = {place for g in groups for place in g}
        groups += [
            [(k, a)]
            for k, x in enumerate(d.inputs)
            for a in range(len((x and x.shape) or ()))
            if (k, a) not in inside
        ]
        for group in groups:
            places = [p for p in group if self._size(d, p) == size]
            if places and self._carries(d, v, axis, places):
                return places
        return []

    def _meetings(self, d: Binding) -> list[Meeting]:
        return meetings(d) or []

    def _size(self, d: Binding, place: Place) -> Dim:
        x = d.inputs[place[0]]
        return None if x is None or x.shape is None else x.shape[place[1]]

    def _carries(self, d: Binding, v: Var, axis: int, places: Sequence[Place]) -> bool:
        """Whether the axis of the result has the size of these axes of operands for any size."""
        operands = [(x, a) for k, a in places if (x := d.inputs[k]) is not None]
        before = {x: x.type for x, _ in operands}
        try:
            for x, a in operands:
                if x.shape is not None:
                    x.type = TensorType(x.dtype, (*x.shape[:a], _PROBE, *x.shape[a + 1 :]))
            found = types_of(d, KnownElements())[d.outputs.index(v)]
        except TypeMismatch:
            return False
        finally:
            for x, type_ in before.items():
                x.type = type_
        shape = found.shape if isinstance(found, TensorType) else None
        return shape is not None and shape[axis] == _PROBE

    def _before_reshape(self, d: Binding, axis: int) -> list[Place]:
        """Returns the axis of the operand that has the same place in memory, if there is one."""
        x = d.inputs[0]
        given = [self.at.at(n) for n in (x and x.shape) or ()]
        made = [self.at.at(n) for n in d.out.shape or ()]
        if None in given or None in made:
            return []
        behind = np.prod([n for n in made[axis + 1 :] if n], dtype=np.int64)
        for a, size in enumerate(given):
            if size == made[axis] and np.prod([n for n in given[a + 1 :] if n]) == behind:
                return [(0, a)]
        return []

    def _expanded(self, d: Binding, axis: int) -> Place | None:
        """Returns the axis of the operand, if Expand leaves its size unchanged."""
        x = d.inputs[0]
        a = axis - (d.out.rank or 0) + ((x and x.rank) or 0)
        size = None if a < 0 else self._size(d, (0, a))
        return (0, a) if size is not None and size == (d.out.shape or ())[axis] else None

    # ---- numbers in nodes ------------------------------------------------------------------------

    def element(self, d: Binding, k: int, index: int, size: Size) -> bool:
        """Replaces one element of an operand that holds sizes. Returns whether that was
        possible.
        """
        v = d.inputs[k]
        found = None if v is None else sizes(v)
        if v is None or found is None:
            return False
        wanted = [size if i == index else n for i, n in enumerate(found)]
        plain = [p for n in wanted if (p := self.at.plain(n)) is not None]
        if len(plain) < len(wanted) or self.at.at(found[index]) != self.at.at(size):
            return False
        made = self.run_time.vector(plain)
        d.block.set_operand(d, k, made if isinstance(made, Var) else constant(made))
        self.numbers[f"{found[index]} is {self.at.plain(size)}"] = None
        return True


def _of_expand(o: Origins, d: Binding, axis: int, size: Size) -> bool:
    rank = len(sizes(d.inputs[1]) or ()) if d.inputs[1] is not None else 0
    return o.element(d, 1, axis - (d.out.rank or 0) + rank, size)


def _of_shape(o: Origins, d: Binding, axis: int, size: Size) -> bool:
    return o.element(d, 0, axis, size)


def _of_tile(o: Origins, d: Binding, axis: int, size: Size) -> bool:
    x = d.inputs[0]
    one = x is not None and x.shape is not None and x.shape[axis] == 1
    return one and d.version >= 6 and o.element(d, 1, axis, size)


def _of_resize(o: Origins, d: Binding, axis: int, size: Size) -> bool:
    if d.operand(3) is None:
        return False
    rank = d.out.rank or 1
    axes = [a % rank for a in d.attr("axes") or range(rank)]
    return axis in axes and o.element(d, 3, axes.index(axis), size)


def _of_range(o: Origins, d: Binding, axis: int, size: Size) -> bool:
    bounds = [None if v is None else sizes(v) for v in d.inputs]
    if any(b is None or len(b) != 1 for b in bounds):
        return False
    start, limit, step = (b[0] for b in bounds if b is not None)
    if step != 1 or o.at.at(algebra.subtract(limit, start)) != o.at.at(size):
        return False
    end = o.at.plain(algebra.add(start, o.at.plain(size)))
    return end is not None and _scalar(o, d, end)


def _scalar(o: Origins, d: Binding, end: Size) -> bool:
    made = o.run_time.vector([end])
    if not isinstance(made, Var):
        return False
    scalar = op.Reshape(made, np.zeros(0, np.int64))
    v = d.inputs[1]
    if v is not None and v.dtype != scalar.dtype:
        scalar = op.Cast(scalar, to=v.dtype)
    d.block.set_operand(d, 1, scalar)
    o.numbers[f"the limit of Range '{d.node.name or d.out.name}' is {end}"] = None
    return True


def _of_slice(o: Origins, d: Binding, axis: int, size: Size) -> bool:
    """The Slice reads the first rows of a table: its end follows the size."""
    x = d.inputs[0]
    if d.version < 10 or x is None or x.shape is None:
        return False
    bounds = [sizes(v) if (v := d.operand(k)) is not None else None for k in (1, 2, 3, 4)]
    starts, ends, axes, steps = bounds
    if starts is None or ends is None:
        return False
    rank = len(x.shape)
    places = [int(str(a)) % rank for a in axes] if axes is not None else list(range(len(starts)))
    if axis not in places:
        return False
    i = places.index(axis)
    start, end, total = starts[i], ends[i], x.shape[axis]
    if not isinstance(start, int) or not isinstance(end, int) or (steps and steps[i] != 1):
        return False
    rows = o.at.at(total)
    if start < 0 or rows is None or not start < end <= rows:
        return False
    wanted = o.at.plain(algebra.add(o.at.plain(size), start))
    plain = o.at.plain(size)
    if wanted is None or plain is None or not o.element(d, 2, i, wanted):
        return False
    if isinstance(total, int):
        o.most[plain, total - start, f"'{x.name}' has {total} rows on axis {axis}"] = None
    return True


NUMBERS: dict[str, Callable[[Origins, Binding, int, Size], bool]] = {
    "Expand": _of_expand,
    "ConstantOfShape": _of_shape,
    "Tile": _of_tile,
    "Resize": _of_resize,
    "Range": _of_range,
    "Slice": _of_slice,
}
