"""The cost of products in multiplications, as far as shapes are known. Laws that choose between
equal forms compare these costs.

A cost is `once + each * rows`, where the rows are those of the left operand over all batch axes.
If the number of rows is unknown, a form is cheaper only if it is cheaper for every number. A
product of constants costs nothing, because it is computed before the model runs.
"""

from __future__ import annotations

from math import prod

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import Shape, broadcast_shapes, element_count, is_static, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.combine_parallel.merging import rows
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Measure

# The cost of one addition of two matrices in memory, in multiplications of a product. Measured with
# onnxruntime 1.31, one thread: 512x512 to 2048x2048 take 0.3 to 0.9 ns an element, and a product of
# 128 rows 0.012 to 0.018 ns a multiplication (scripts/bench_neighbours.py).
MOVED = 16
# The same for an element that Gather takes out of a row: 4 to 7 ns, where a whole row takes 0.15 to
# 0.3 ns an element.
PICKED = 300
# a form replaces another if it costs at most so many tenths of it
CLEARLY = 9
# the most bindings in a row that `fixed` follows
_DEPTH = 6


@frozen
class Cost:
    """`once + each * rows` multiplications."""

    once: int
    each: int

    def below(self, other: Cost, count: int | None, tenths: int = CLEARLY) -> bool:
        """Whether this cost is less than `other` and at most so many tenths of it, for `count` rows
        or, if that is None, for every number of rows from one on.
        """
        # both are linear: less at one row, and rising no faster
        at = [(self.at(n), other.at(n)) for n in ((1,) if count is None else (count,))]
        at += [(self.each, other.each)] if count is None else []
        return at[0][0] < at[0][1] and all(10 * new <= tenths * old for new, old in at)

    def at(self, count: int) -> int:
        """The cost for so many rows."""
        return self.once + self.each * count


@frozen
class Chain:
    """The costs of the two orders of a product of three operands x (rows, k), a (k, r), b (r, n),
    and the number of rows.
    """

    left: Cost
    right: Cost
    rows: int | None


def chain(x: Shape | None, a: Shape | None, b: Shape | None, *, free: bool, rows: int) -> Chain:
    """The costs of (x @ a) @ b and x @ (a @ b). `free`: a @ b depends on constants only. `rows`,
    unless 0, replaces an unknown number of rows.

    Raises Decline if a shape that matters is unknown.
    """
    if x is None or a is None or b is None:
        raise decline("an operand's rank is unknown")
    decline_if(len(a) < 2 or len(b) < 2 or not x, "an operand has rank 1")
    k, r, n = a[-2], a[-1], b[-1]
    if not (isinstance(k, int) and isinstance(r, int) and isinstance(n, int)):
        raise decline("an inner size of the chain is unknown")
    if len(a) == len(b) == 2:  # the batch axes of x are rows like any other
        first = second = joint = 1
        count = element_count(x[:-1])
    elif len(x) >= 2 and same_shape(x[:-2], a[:-2]) and same_shape(a[:-2], b[:-2]):
        first = second = joint = 1
        count = element_count(x[-2:-1])
    elif len(x) >= 2 and is_static(x[:-2]) and is_static(a[:-2]) and is_static(b[:-2]):
        first, second, joint = (_batches(*s) for s in ((x, a), (x, a, b), (a, b)))
        count = element_count(x[-2:-1])
    else:
        raise decline("the batch axes differ and one is unknown")
    left = Cost(0, first * k * r + second * r * n)
    right = Cost(0 if free else joint * k * r * n, second * k * n)
    return Chain(left, right, count if count is not None else rows or None)


def _batches(*shapes: Shape) -> int:
    together = element_count(broadcast_shapes(s[:-2] for s in shapes))
    if together is None:
        raise decline("the batch axes do not fit")
    return together


def fixed(v: Var, depth: int = _DEPTH) -> bool:
    """Whether `v` depends on constants only, through products, sums and transposes."""
    if v.is_constant:
        return True
    made = v.definition
    if made is None or not depth or made.domain or made.op not in _FOLDED:
        return False
    return all(o is None or fixed(o, depth - 1) for o in made.inputs)


_FOLDED = frozenset({"MatMul", "Gemm", "Add", "Mul", "Transpose", "Gather"})


def rows_of(x: Var, given: int) -> int | None:
    """The number of rows of x over all batch axes. If it is unknown: `given`, or None for 0."""
    known = rows(x)
    return known if known is not None else given or None


def cost_of_products(given: int) -> Measure:
    """A measure: the multiplications of all products and sums of a block, with `given` rows (one
    for 0) if their number is unknown.
    """
    return Measure(
        "multiplications of products",
        lambda block: sum(_multiplications(b, given or 1) for b in block.walk()),
    )


def _multiplications(b: Binding, given: int) -> int:
    if b.domain or b.op not in ("MatMul", "Gemm", "Add", "Mul", "Gather") or fixed(b.out):
        return 0
    out, x = b.out.shape, b.inputs[0]
    if not out or x is None or not x.shape:
        return 0
    sizes = [d if isinstance(d, int) else None for d in out]
    # an axis of unknown size is a row axis, or a batch axis that all operands have
    count = prod(d for d in sizes if d is not None) * (1 if None not in sizes else given)
    if b.op == "Gather":
        return count * (PICKED if b.attr("axis") % len(x.shape) == len(x.shape) - 1 else MOVED)
    if b.op in ("Add", "Mul"):
        return MOVED * count
    inner = x.shape[0] if b.op == "Gemm" and b.attr("transA") else x.shape[-1]
    return count * inner if isinstance(inner, int) else 0
