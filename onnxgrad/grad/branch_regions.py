"""Regions that reach a target only through selections: a Where, Max, Min or Clip passes no adjoint
to the elements that it rejects, and gradients of these must not become NaN.

The partials of an operator in such a region are 0 where the selection rejects the elements that
they belong to, if the operator can make NaN of an adjoint of 0: its slope is infinite somewhere
(Log at 0), or it multiplies by a value that may not be finite. A product reads operands whose
rejected rows are 0, because its gradient by the other operand adds these rows up.

The region of a selection is found backwards. A value belongs to it if every path of adjoints to the
value passes the selection on the same side, and if each axis of the condition is a part of the
value's axes (`ir.axis_places`). An element that feeds selected and rejected results alike is not
guarded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.grad.arranged_conditions import arranged, parts_by_axis
from onnxgrad.grad.paths import Paths
from onnxgrad.ir.axis_maps import on_axes
from onnxgrad.ir.axis_places import Place, Run, composed, joined, reshaped, run_in, whole
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import CASTS, COMPARISONS, MOVES, VIEWS
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, Shape, same_dim, same_shape
from onnxgrad.ir.var import Var


@frozen
class Selection:
    """The elements at which a condition holds, or does not hold, are selected.

    condition: a boolean value; or an operand of a Max, Min or Clip, selected where it equals
    `bounded`, the result. by: the name of the selecting result.
    """

    condition: Var
    bounded: Var | None
    holds: bool
    by: str = field(compare=False)

    def applied(self, partial: Var, runs: Sequence[Run], shape: Shape) -> Var:
        """Returns the partial of a value of this shape, 0 where the selection rejects elements. The
        condition's axes are `runs` in the value.
        """
        condition = self.condition
        if self.bounded is not None:
            condition = op.Equal(condition, self.bounded)
        at, ahead = on_axes(self.condition) or (), len(shape) - (self.condition.rank or 0)
        if ahead < 0 or any(run != whole(i + ahead) for i, run in zip(at, runs)):
            condition = arranged(condition, at, runs, partial, shape)
        result: Var = op.Where(condition, *((partial, 0.0) if self.holds else (0.0, partial)))
        return result


# by selection, the condition's axes as parts of a value's axes, in the condition's order
Masks: TypeAlias = "dict[Selection, tuple[Run, ...]]"

# the number of operands from which an operator selects; None: all
_BOUNDING = {"Clip": 1, "Max": None, "Min": None}
# they move the elements of a condition, or repeat them along new axes
_MOVES = frozenset((*VIEWS, "Expand", "Transpose")) - {"Flatten"}


def masks_of(
    block: BindingBlock, paths: Paths, passed: Collection[Var], seeds: Collection[Var]
) -> dict[Binding, Masks]:
    """Returns the selections of each binding's first result, for bindings that have any.

    passed: the values on which a seed depends. seeds: the values whose adjoint is given.
    """
    arriving: dict[Var, Masks] = {}
    found: dict[Binding, Masks] = {}
    for b in reversed(list(block.bindings)):
        results = [v for v in b.outputs if v is not None and v in passed]
        if not results:
            continue
        masks: Masks = {}
        if not any(v in seeds for v in results):
            masks = _common([arriving.get(v, {}) for v in results])
            if masks:
                found[b] = masks
        beside = set(paths[b])
        for slot, v in enumerate(b.inputs):
            if v is None or v not in passed or v not in beside:
                continue
            reaching = through(b, slot, masks)
            selection = _selected(b, slot, v)
            if selection is not None:
                reaching = {**reaching, selection[0]: selection[1]}
            arriving[v] = _common([arriving[v], reaching]) if v in arriving else reaching
        for v in beside.difference(b.inputs):  # captured by a nested block
            arriving[v] = {}
    return found


def through(b: Binding, slot: int, masks: Masks) -> Masks:
    """Returns the selections of the result that an operand carries, with its runs."""
    x = b.operand(slot)
    found: Masks = {}
    for selection, runs in masks.items():
        carried = [run_in(b, slot, run) for run in runs]
        known = tuple(run for run in carried if run is not None)
        if x is not None and len(known) == len(runs) and parts_by_axis(known, x.shape) is not None:
            found[selection] = known
    return found


def _common(several: Sequence[Masks]) -> Masks:
    first, *others = several
    return {s: axes for s, axes in first.items() if all(m.get(s) == axes for m in others)}


def _selected(b: Binding, slot: int, v: Var) -> tuple[Selection, tuple[Run, ...]] | None:
    """Returns the selection of an operand by this binding, and its runs in the operand."""
    out = b.outputs[0]
    if b.domain or out is None or v.shape is None:
        return None
    if slot == 0 and b.op in _PICKERS:
        return _picked(b, v.shape, out.name)
    if out.shape is None:
        return None
    if b.op in _BOUNDING and b.inputs.index(v) < (_BOUNDING[b.op] or len(b.inputs)):
        axes = on_axes(v) if same_shape(v.shape, out.shape) else None
        runs = None if axes is None else tuple(map(whole, axes))
        return None if runs is None else (Selection(v, out, True, out.name), runs)
    condition = b.operand(0)
    if b.op != "Where" or slot == 0 or condition is None or condition.shape is None:
        return None
    ahead = len(out.shape) - len(condition.shape)
    at = on_axes(condition) or ()
    carried = [run_in(b, slot, whole(i + ahead)) for i in at]
    known = tuple(run for run in carried if run is not None)
    if len(known) < len(at):
        return None
    return _origin(condition, slot == 1, known, v.shape, out.name)


# they return the elements of an operand at which a mask holds
_PICKERS = frozenset({"Compress", "Gather", "GatherND"})


def _picked(b: Binding, shape: Shape, by: str) -> tuple[Selection, tuple[Run, ...]] | None:
    """Returns the selection by the mask from which the positions are computed, if there is one."""
    axis, mask = b.attr("axis", None if b.op == "Compress" else 0), b.operand(1)
    if b.op != "Compress":
        if b.op == "GatherND":
            mask = _first_of(mask) if is_made_by(mask, "Transpose") else None
        while b.op == "Gather" and is_made_by(mask, *_MOVES):
            mask = _first_of(mask)
        if not is_made_by(mask, "NonZero") or b.attr("batch_dims", 0):
            return None
        mask = _first_of(mask)
    while is_made_by(mask, "Cast") and mask is not None and mask.dtype != TensorProto.BOOL:
        mask = _first_of(mask)
    if axis is None and len(shape) > 1:  # all elements are one row
        mask = _first_of(mask) if is_made_by(mask, "Reshape") else None
    if mask is None or mask.shape is None or mask.dtype != TensorProto.BOOL:
        return None
    first, rank = (axis or 0) % max(len(shape), 1), len(mask.shape)
    if not same_shape(mask.shape, shape[first : first + rank]) or (rank > 1 and b.op == "Gather"):
        return None
    runs = tuple(whole(first + i) for i in on_axes(mask) or ())
    return _origin(mask, True, runs, shape, by)


def is_made_by(v: Var | None, *ops: str) -> bool:
    """Whether the value is the result of one of these operators of the default domain."""
    b = None if v is None else v.definition
    return b is not None and not b.domain and b.op in ops


def _first_of(v: Var | None) -> Var | None:
    """Returns the first operand of the operator that computes the value."""
    return None if v is None or v.definition is None else v.definition.operand(0)


def _origin(
    condition: Var, holds: bool, runs: tuple[Run, ...], shape: Shape, by: str
) -> tuple[Selection, tuple[Run, ...]]:
    """Returns the selection by the value from which the condition is moved, repeated or negated, so
    that selections by one condition are equal. shape: that of the selected value.
    """
    while True:
        made = condition.definition
        if made is None or made.domain:
            break
        if made.op == "Not":
            condition, holds = made.inputs[0] or condition, not holds
            continue
        if (same := _recomputed(made, condition)) is not None:
            condition = same
            continue
        if made.op == "Equal" and holds:
            of, result = made.inputs
            if of is not None and result is not None and _is_bound(of, result):
                return Selection(of, result, True, by), runs
        before = _before(made, condition, runs, shape) if made.op in _MOVES else None
        if before is None or parts_by_axis(before[1], shape) is None:
            break
        condition, runs = before
    return Selection(condition, None, holds, by), runs


def _recomputed(made: Binding, condition: Var) -> Var | None:
    """Returns c if the condition is c and (c or n), as in a recomputed segment, which equals c."""
    c, either = made.operand(0), made.operand(1)
    again = made.op == "And" and c is not None and is_made_by(either, "Or")
    if not again or _first_of(either) is not c or c is None:
        return None
    return c if same_shape(c.shape, condition.shape) else None


def _is_bound(of: Var, result: Var) -> bool:
    """Whether `result` is that of a Max, Min or Clip of `of`, of the same shape."""
    made = result.definition
    bounding = made is not None and not made.domain and made.op in _BOUNDING and of in made.inputs
    return bounding and same_shape(of.shape, result.shape) and of.dtype in FLOAT_DTYPES


def _before(
    made: Binding, after: Var, runs: tuple[Run, ...], shape: Shape
) -> tuple[Var, tuple[Run, ...]] | None:
    """Returns the operand of a move or an Expand, and its axes as runs in the selected value, which
    has this shape; `runs` are the result's axes.
    """
    x = made.operand(0)
    if x is None or x.shape is None or after.shape is None:
        return None
    run_of, found = dict(zip(on_axes(after) or (), runs)), []
    for axis in on_axes(x) or ():
        if made.op == "Transpose":
            parts = whole(list(made.attr("perm")).index(axis))
        elif made.op == "Expand":
            parts = whole(axis + len(after.shape) - len(x.shape))
            if not same_dim(x.shape[axis], after.shape[parts[0][0]]):
                return None
        elif (known := reshaped((axis, None, 1), x.shape, after.shape)) is not None:
            parts = known
        else:
            return None
        run: list[Place] = []
        for i, size, inner in parts:
            part = composed(run_of[i], size, inner, shape) if i in run_of else None
            if part is None:
                return None
            run += part
        found.append(joined(run))
    return x, tuple(found)


# ---- what can make NaN of an adjoint of 0 -------------------------------------------------------

# operators whose slope or result is infinite somewhere
STEEP = frozenset(
    {
        "Acos", "Acosh", "Asin", "Atanh", "Cosh", "Div", "Exp", "Log", "LpNormalization", "Mod",
        "Pow", "Reciprocal", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "Sinh", "Sqrt", "Tan",
    }
)  # fmt: skip
# a partial is the adjoint, moved, added up, selected or multiplied by a number
_LINEAR = frozenset((
    *MOVES, *CASTS, "Add", "AveragePool", "Clip", "Compress", "Concat", "CumSum", "Dropout",
    "GlobalAveragePool", "Max", "Mean", "Min", "Neg", "Pad", "ReduceMean", "ReduceSum", "Sub",
    "Sum", "Where",
))  # fmt: skip
# the gradient by one operand adds up rows of the other
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
_COMPARES = frozenset((*COMPARISONS, "IsInf", "IsNaN"))
_DEEPEST = 16  # bindings from a condition to its comparisons


def suspects(
    block: BindingBlock, masks: Mapping[Binding, Masks], steep: Collection[Binding]
) -> set[Var]:
    """Returns the values that may not be finite: those that the conditions test, results of steep
    operators in a region, and what is computed from these.
    """
    found: set[Var] = set()
    for selection in {s for m in masks.values() for s in m}:
        found.update(_tested(selection))
    for b in block.bindings:
        if b in steep or any(v in found for v in b.inputs):
            found.update(v for v in b.outputs if v is not None and v.dtype in FLOAT_DTYPES)
    return found


def _tested(selection: Selection) -> set[Var]:
    """Returns the floating-point values that a condition compares."""
    found, seen, todo = set[Var](), set[Var](), [(selection.condition, _DEEPEST)]
    while todo and selection.bounded is None:
        v, depth = todo.pop(0)  # the nearest first
        b = v.definition
        if b is None or not depth or b.domain or v in seen:
            continue
        seen.add(v)
        if b.op in _COMPARES:
            found.update(x for x in b.inputs if x is not None and not x.is_constant)
        else:
            todo += [(x, depth - 1) for x in b.inputs if x is not None]
    return {v for v in found if v.dtype in FLOAT_DTYPES}


def makes_nan(b: Binding, slot: int, steep: Collection[Binding], suspect: Collection[Var]) -> bool:
    """Whether the partial of an operand may be NaN though the adjoint is 0."""
    if b.op in _LINEAR and not b.domain:
        return False
    if b in steep:
        return True
    if b.is_op("Mul"):
        return b.operand(1 - slot) in suspect
    if b.is_op("Div") and slot == 0:
        return b.operand(1) in suspect
    return any(v in suspect for v in (*b.inputs, *b.outputs))


def masked_operands(b: Binding, masks: Masks, suspect: Collection[Var]) -> dict[int, Masks]:
    """Returns the operands of a product whose rejected rows have to be 0, with their selections:
    those that may not be finite and of which another operand's gradient adds up rows.
    """
    if b.op not in _PRODUCTS or b.domain:
        return {}
    reached = {i: through(b, i, masks) for i, v in enumerate(b.inputs) if v is not None}
    added = {s for s in masks if any(s not in m for m in reached.values())}
    return {
        i: lacking
        for i, m in reached.items()
        if b.inputs[i] in suspect and (lacking := {s: a for s, a in m.items() if s in added})
    }
