"""Safe forms: an adjoint of 0 in place of NaN if an exporter split one function into parts.

`x.std()` is exported as Sqrt(ReduceMean(d d)), `x.norm(3)` as Pow(ReduceSum(Pow(Abs(x), 3)), 1/3).
At 0 the slope of the root is infinite and the slope of the squares is 0. Their product is NaN, but
PyTorch's gradient of the function is 0. If a Where does not select a branch, the derivative of that
branch is 0 too, whatever its slope. An example is Log(x) at 0 in Where(x > 0, Log(x), 0), for which
PyTorch returns NaN.

A root of squares passes an adjoint of 0 where its result is 0, and so does a root of what Max or
Clip bounds by 0, as `cdist` is exported. The operators of a branch pass 0 where the condition
selects the other branch. All other partials stay as their rules form them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from onnxgrad.frozen import frozen
from onnxgrad.grad.branch_regions import (
    STEEP,
    Masks,
    is_made_by,
    makes_nan,
    masked_operands,
    masks_of,
    suspects,
    through,
)
from onnxgrad.grad.paths import Paths
from onnxgrad.grad.weights.readers import is_one
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import BROADCASTING, ELEMENTWISE, MOVES, VIEWS
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.wording import first_of, option


@dataclass
class Used:
    """The results of roots and branches for which a safe form was used."""

    roots: dict[str, None] = field(default_factory=dict)
    branches: dict[str, None] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Returns the note for a report; an empty list if no safe form was used."""
        said = [
            f"{what} {first_of([repr(name) for name in names], 3)}"
            for what, names in (("the root", self.roots), ("a branch of", self.branches))
            if names
        ]
        off = option("--no-safe", "safe=False")
        return [f"0 in place of NaN: {'; '.join(said)} ({off}: as written)"] if said else []


_USED: ContextVar[Used | None] = ContextVar("safe forms", default=None)


@contextmanager
def safe_forms(wanted: bool) -> Iterator[Used]:
    """Lets backward walks use safe forms within this context, if `wanted`. Yields those used."""
    used = Used()
    token = _USED.set(used if wanted else None)
    try:
        yield used
    finally:
        _USED.reset(token)


@frozen
class Guard:
    """Guards that keep the partials of one binding from NaN: at a root of squares, and in a region
    that selections reject in part.

    masks: the selections of the result. slots: the operands whose partials are guarded. operands:
    those whose rejected rows the rule reads as 0, with their selections.
    """

    used: Used
    is_root: bool = False
    masks: Masks = field(default_factory=dict)
    slots: Collection[int] = ()
    operands: Mapping[int, Masks] = field(default_factory=dict)

    def reading(self, read: Binding) -> Binding:
        """Returns the binding that the rule reads: with rows of 0 in `operands`."""
        if not self.operands:
            return read
        inputs = list(read.inputs)
        for i, masks in self.operands.items():
            inputs[i] = self._apply(masks, inputs[i], read.inputs[i])
        return Binding(read.node, read.block, inputs, read.outputs)

    def partial(self, partial: Var, read: Binding, slot: int) -> Var:
        """Returns a partial that is not yet fitted to its operand, without NaN."""
        if slot in self.slots:
            x, y = read.inputs[slot], read.out
            of_operand = x is not None and same_shape(partial.shape, x.shape)
            of_result = not of_operand and same_shape(partial.shape, y.shape)
            whole = of_result or read.op in (*ELEMENTWISE, *BROADCASTING)
            masks = self.masks if whole else through(read, slot, self.masks)
            partial = self._apply(masks, partial, y if whole else x)
        if self.is_root:
            self.used.roots[read.out.name] = None
            partial = op.Where(op.Equal(read.out, 0.0), 0.0, partial)
        return partial

    def _apply(self, masks: Masks, value: Any, like: Var | None) -> Var:
        for selection, runs in masks.items():
            self.used.branches[selection.by] = None
            value = selection.applied(value, runs, (like and like.shape) or ())
        return cast(Var, value)


def guards_of(
    block: BindingBlock, paths: Paths, passed: Collection[Var], seeds: Collection[Var]
) -> Mapping[Binding, Guard]:
    """Returns the guards, by binding. passed: the values on which a seed depends; seeds: those
    whose adjoint is given.
    """
    used = _USED.get()
    if used is None:
        return {}
    roots = {
        b for b in block.bindings if b.op in ("Sqrt", "Pow") and b.domain == "" and _is_root(b)
    }
    masks = masks_of(block, paths, passed, seeds)
    steep = {b for b in masks if _is_steep(b)}
    suspect = suspects(block, masks, steep) if masks else set()
    guards: dict[Binding, Guard] = {b: Guard(used, True) for b in roots}
    for b, found in masks.items():
        slots = [i for i in range(len(b.inputs)) if makes_nan(b, i, steep, suspect)]
        operands = masked_operands(b, found, suspect)
        if slots or operands:
            guards[b] = Guard(used, b in roots, found, slots, operands)
    return guards


# ---- roots ---------------------------------------------------------------------------------------

_DEEPEST = 16  # bindings from a root to its squares
# they return elements, or sums of elements, of their first operand
_ADDS_UP = frozenset((*MOVES, "Cast", "ReduceMean", "ReduceSum"))


def _is_root(b: Binding) -> bool:
    """Whether this is a root of a value that is 0 only where its derivative is 0 too, of one that
    is bounded by 0, or |x|^p in a p-norm with p < 1.
    """
    of = b.inputs[0]
    if of is None or of.dtype not in FLOAT_DTYPES:
        return False
    if b.op == "Pow" and not 0.0 < _exponent(b) < 1.0:
        return False
    if _is_squares(of, _DEEPEST, {}) or (is_made_by(of, "Abs") and _is_in_a_norm(b)):
        return True
    return _is_bounded_by_zero(of)


def _is_bounded_by_zero(v: Var) -> bool:
    """Whether Max or Clip bounds the value by 0 from below, possibly before another bound."""
    queue = [v]
    for value in queue:
        if value.definition is None or not is_made_by(value, "Clip", "Max", "Min"):
            continue
        operands = [x for x in value.definition.inputs if x is not None]
        if value.definition.op == "Min":
            queue += dict.fromkeys(x for x in operands if x not in queue)
        elif len(operands) > 1 and any(_is_zero(x) for x in operands[:2]):
            return True
    return False


def _is_zero(v: Var | None) -> bool:
    return v is not None and v.const is not None and not v.const.any()


def _exponent(b: Binding) -> float:
    """Returns the exponent of a Pow if it is one number, else 0."""
    value = None if b.inputs[1] is None else b.inputs[1].const
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else 0.0


def _is_in_a_norm(b: Binding) -> bool:
    """Whether its only reader is a ReduceSum, whose only reader is a Pow with the inverse power."""
    sums = list(b.out.users)
    readers = list(sums[0].out.users) if len(sums) == 1 and sums[0].is_op("ReduceSum") else []
    inverse = len(readers) == 1 and readers[0].is_op("Pow") and readers[0].inputs[0] is sums[0].out
    return inverse and abs(_exponent(readers[0]) * _exponent(b) - 1.0) < 1e-5


_Known: TypeAlias = dict[tuple[Var, int], bool]  # answers by value and depth: operands are shared


def _is_squares(v: Var, depth: int, known: _Known) -> bool:
    """Whether `v` is a sum of squares, of even powers, or of powers above 1 of absolute values,
    possibly times a number.
    """
    if (v, depth) not in known:
        known[v, depth] = _is_sum_of_squares(v, depth, known)
    return known[v, depth]


def _is_sum_of_squares(v: Var, depth: int, known: _Known) -> bool:
    b = v.definition
    if b is None or b.domain != "" or depth == 0:
        return False
    operands = [x for x in b.inputs if x is not None]
    if b.op == "ReduceSumSquare" or _is_of_itself(b, operands):
        return True
    if b.op == "Pow":
        power, base = _exponent(b), operands[0]
        return power > 1.0 and (power % 2 == 0 or is_made_by(base, "Abs"))
    if b.op in _ADDS_UP:
        return _is_squares(operands[0], depth - 1, known)
    if b.op in ("Add", "Sum"):
        return all(_is_squares(x, depth - 1, known) for x in operands)
    if b.op == "Mul" and _is_number(operands[0]):
        operands.reverse()
    if b.op in ("Mul", "Div") and _is_squares(operands[0], depth - 1, known):
        second = operands[1]
        return _is_number(second) or (b.op == "Mul" and _is_squares(second, depth - 1, known))
    return False


def _is_of_itself(b: Binding, operands: Sequence[Var]) -> bool:
    """Whether each result of a product is an element of a value times itself, or a row of it times
    the same row.
    """
    if b.op not in ("Einsum", "Gemm", "MatMul", "Mul") or len(operands) != 2:
        return False
    (first, second), shapes = operands, [x.shape for x in operands]
    if b.op == "Einsum":
        terms = str(b.attr("equation")).replace(" ", "").split("->")[0].split(",")
        (first, term), (second, other) = map(_untransposed, operands, terms)
        return term == other and first is second
    if first is second and (b.op == "Mul" or first.rank == 1):
        return True
    if _unmoved(first) is not _unmoved(second) or shapes[0] is None or shapes[1] is None:
        return False
    if b.op == "Mul":
        return same_shape(*shapes)
    a, c = shapes[0], shapes[1]
    if b.op == "Gemm":
        a, c = a[::-1] if b.attr("transA") else a, c[::-1] if b.attr("transB") else c
    a, c = a if len(a) > 1 else (1, *a), c if len(c) > 1 else (*c, 1)
    return a[-2] == 1 == c[-1] and same_shape(a[:-2], c[:-2])


def _unmoved(v: Var) -> Var:
    """Returns the value from which views move no element to another place."""
    while (b := v.definition) is not None and not b.domain and (x := b.operand(0)) is not None:
        if b.op == "Transpose":
            long = [i for i in b.attr("perm") or () if x.shape is None or x.shape[i] != 1]
            if b.attr("perm") is None or long != sorted(long):
                break
        elif b.op not in VIEWS:
            break
        v = x
    return v


def _untransposed(v: Var, term: str) -> tuple[Var, str]:
    """Returns the value before transpositions, and the letters of its axes in an Einsum."""
    while v.definition is not None and is_made_by(v, "Transpose") and v.rank == len(term):
        letters = dict(zip(v.definition.attr("perm"), term, strict=True))
        v, term = v.definition.inputs[0] or v, "".join(letters[i] for i in range(len(term)))
    return v, term


_MOST = 64  # values behind a number


def _is_number(v: Var) -> bool:
    """Whether `v` is one constant other than 0, or is computed from sizes. A constant whose value
    may be replaced counts as well.
    """
    if v.const is not None:
        return bool(v.const.size == 1 and v.const.reshape(-1)[0] != 0)
    if v.hidden:
        return is_one(v)
    behind = [v]
    for value in behind:
        b = value.definition
        if b is None or value.is_constant or len(behind) > _MOST:
            return False
        if b.op not in ("Shape", "Size"):
            read = b.inputs[:1] if b.op == "CastLike" else b.inputs  # the second one is a dtype
            operands = [x for x in read if x is not None and x.const is None]
            behind += dict.fromkeys(x for x in operands if x not in behind)
    return True


def _is_steep(b: Binding) -> bool:
    """Whether its derivative is infinite somewhere, or too large for the dtype."""
    if b.domain != "" or b.op not in STEEP:
        return False
    if b.op == "Pow":
        return _exponent(b) < 1.0
    divisor = b.inputs[1] if b.op in ("Div", "Mod") else None
    return divisor is None or not (divisor.is_constant or _is_number(divisor))
