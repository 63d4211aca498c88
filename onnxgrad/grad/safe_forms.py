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

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeAlias

from onnxgrad.grad.registry import rule_of
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import ELEMENTWISE
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.wording import first_of, option

# called with a partial, not yet fitted to its operand, and the binding that its rule reads
Guard: TypeAlias = Callable[[Var, Binding], Var]


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


def guards_of(block: BindingBlock) -> Mapping[Binding, Guard]:
    """Returns the guards for partials, by the bindings of a block."""
    used, guards = _USED.get(), dict[Binding, Guard]()
    if used is None:
        return guards
    bindings = [b for b in block.bindings if b.domain == ""]
    roots = {b: _at_root(used) for b in bindings if b.op in ("Sqrt", "Pow") and _is_root(b)}

    def add(inside: Binding, guard: Guard) -> None:
        # a branch within a branch: both must be selected
        guards[inside] = guard if inside not in guards else _both(guards[inside], guard)

    for b in bindings:
        for place in (1, 2) if b.op == "Where" else ():
            for inside in _branch(b, place):
                add(inside, _selected(b, place, used))
        for v in b.inputs[: _BOUNDED[b.op]] if b.op in _BOUNDED else ():
            inside_of = _alone(v, b)
            if inside_of is not None and _is_steep(inside_of):
                add(inside_of, _passed(b, used))
    return guards | roots


def _both(first: Guard, second: Guard) -> Guard:
    return lambda partial, read: second(first(partial, read), read)


# the number of operands from which an operator selects; None: all
_BOUNDED = {"Clip": 1, "Max": None, "Min": None}


def _at_root(used: Used) -> Guard:
    def guarded(partial: Var, read: Binding) -> Var:
        used.roots[read.out.name] = None
        result: Var = op.Where(op.Equal(read.out, 0.0), 0.0, partial)
        return result

    return guarded


def _selected(where: Binding, place: int, used: Used) -> Guard:
    def guarded(partial: Var, read: Binding) -> Var:
        used.branches[where.out.name] = None
        sides = (partial, 0.0) if place == 1 else (0.0, partial)
        result: Var = op.Where(where.inputs[0], *sides)
        return result

    return guarded


def _passed(bounding: Binding, used: Used) -> Guard:
    """Returns the guard for an operand of a Max, Min or Clip: the partial passes if the operand is
    the result.
    """

    def guarded(partial: Var, read: Binding) -> Var:
        used.branches[bounding.out.name] = None
        result: Var = op.Where(op.Equal(read.out, bounding.out), partial, 0.0)
        return result

    return guarded


# ---- roots ---------------------------------------------------------------------------------------

_DEEPEST = (
    16  # bindings from a root to its squares, or from a branch's result to its first operator
)
# they return elements, or sums of elements, of their first operand
_ADDS_UP = frozenset(
    {
        "Cast", "Expand", "Flatten", "Identity", "ReduceMean", "ReduceSum", "Reshape", "Slice",
        "Squeeze", "Transpose", "Unsqueeze",
    }
)  # fmt: skip


def _is_root(b: Binding) -> bool:
    """Whether this is a root of a value that is 0 only where its derivative is 0 too, of one that
    is bounded by 0, or |x|^p in a p-norm with p < 1.
    """
    of = b.inputs[0]
    if of is None or of.dtype not in FLOAT_DTYPES:
        return False
    if b.op == "Pow" and not 0.0 < _exponent(b) < 1.0:
        return False
    if _is_squares(of, _DEEPEST) or (_is_made_by(of, "Abs") and _is_in_a_norm(b)):
        return True
    bounds = of.definition.inputs if of.definition and _is_made_by(of, "Clip", "Max") else ()
    return len(bounds) > 1 and any(_is_zero(v) for v in bounds[:2])


def _is_zero(v: Var | None) -> bool:
    return v is not None and v.const is not None and not v.const.any()


def _exponent(b: Binding) -> float:
    """Returns the exponent of a Pow if it is one number, else 0."""
    value = None if b.inputs[1] is None else b.inputs[1].const
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else 0.0


def _is_made_by(v: Var, *ops: str) -> bool:
    return v.definition is not None and v.definition.domain == "" and v.definition.op in ops


def _is_in_a_norm(b: Binding) -> bool:
    """Whether its only reader is a ReduceSum, whose only reader is a Pow with the inverse power."""
    sums = list(b.out.users)
    readers = list(sums[0].out.users) if len(sums) == 1 and sums[0].is_op("ReduceSum") else []
    inverse = len(readers) == 1 and readers[0].is_op("Pow") and readers[0].inputs[0] is sums[0].out
    return inverse and abs(_exponent(readers[0]) * _exponent(b) - 1.0) < 1e-5


def _is_squares(v: Var, depth: int) -> bool:
    """Whether `v` is a sum of squares, of even powers, or of powers above 1 of absolute values,
    possibly times a number.
    """
    b = v.definition
    if b is None or b.domain != "" or depth == 0:
        return False
    operands = [x for x in b.inputs if x is not None]
    if b.op == "ReduceSumSquare" or (b.op == "Mul" and operands[0] is operands[1]):
        return True
    if b.op == "Pow":
        power, base = _exponent(b), operands[0]
        return power > 1.0 and (power % 2 == 0 or _is_made_by(base, "Abs"))
    if b.op in _ADDS_UP:
        return _is_squares(operands[0], depth - 1)
    if b.op in ("Add", "Sum"):
        return all(_is_squares(x, depth - 1) for x in operands)
    if b.op == "Mul" and _is_number(operands[0], depth):
        operands.reverse()
    if b.op in ("Mul", "Div") and _is_squares(operands[0], depth - 1):
        second = operands[1]
        return _is_number(second, depth) or (b.op == "Mul" and _is_squares(second, depth - 1))
    return False


def _is_number(v: Var, depth: int) -> bool:
    """Whether `v` is one constant other than 0, or is computed from sizes."""
    if v.const is not None:
        return bool(v.const.size == 1 and v.const.reshape(-1)[0] != 0)
    b = v.definition
    if b is None or depth == 0 or v.is_constant:
        return False
    return b.op in ("Shape", "Size") or all(
        x is None or x.const is not None or _is_number(x, depth - 1) for x in b.inputs
    )


# ---- branches ------------------------------------------------------------------------------------

# operators whose slope or result is infinite somewhere
_STEEP = frozenset(
    {
        "Acos", "Acosh", "Asin", "Atanh", "Cosh", "Div", "Exp", "Log", "Pow", "Reciprocal", "Sinh",
        "Sqrt", "Tan",
    }
)  # fmt: skip
_IN_BRANCHES = _STEEP | frozenset({"Add", "Mul", "Sub", "Where", *ELEMENTWISE})


def _is_steep(b: Binding) -> bool:
    """Whether its derivative is infinite somewhere, or too large for the dtype."""
    if b.domain != "" or b.op not in _STEEP:
        return False
    if b.op == "Pow":
        return _exponent(b) < 1.0
    divisor = b.inputs[1] if b.op == "Div" else None
    return divisor is None or not (divisor.is_constant or _is_number(divisor, _DEEPEST))


def _alone(v: Var | None, reader: Binding) -> Binding | None:
    """Returns the operator that computes `v`, if only `reader` passes an adjoint to `v` and both
    results have one shape; else None.
    """
    b = None if v is None else v.definition
    if (
        v is None
        or b is None
        or b.block is not reader.block
        or v.returned
        or v.dtype not in FLOAT_DTYPES
    ):
        return None
    passing = [u for u in v.users if (rule := rule_of(u)) is None or rule.kind != "zero"]
    alike = passing == [reader] and len(b.outputs) == 1 and same_shape(v.shape, reader.out.shape)
    return b if alike and b.domain == "" and b.op in _IN_BRANCHES else None


def _branch(where: Binding, place: int) -> list[Binding]:
    """Returns the operators that only compute this operand of a Where and lie between it and the
    first steep operators, these included.
    """
    found: list[Binding] = []

    def is_steep(v: Var | None, reader: Binding, depth: int) -> bool:
        b = _alone(v, reader) if depth else None
        if b is None:
            return False
        before = [is_steep(x, b, depth - 1) for x in b.inputs]
        steep = any(before) or _is_steep(b)
        if steep and b.op != "Where":  # which selects, and multiplies nothing
            found.append(b)
        return steep

    is_steep(where.inputs[place], where, _DEEPEST)
    return found
