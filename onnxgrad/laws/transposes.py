"""Laws of Transpose with itself, elementwise operators and Concat."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.noops import x_or_identity
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import decline
from onnxgrad.rewrite.worklist import Measure, count, rewrite

x, a, b, p, q, axis, c, d = capture("x a b p q axis c d")


def _above_products(block: BindingBlock) -> int:
    """Each transpose weighs 3 to the power of the products below it: T(b) @ T(a) weighs less
    than T(a @ b).
    """
    below: dict[Binding, int] = {}
    block.schedule()
    total = 0
    for binding in block.walk():
        operands = max(
            (below.get(v.definition, 0) for v in binding.reads() if v.definition is not None),
            default=0,
        )
        below[binding] = operands + (binding.op in ("MatMul", "Gemm"))
        total += 3**operands if binding.op == "Transpose" else 0
    return total


TRANSPOSES_ABOVE_PRODUCTS = Measure("weight of transposes above products", _above_products)


@rewrite(P.Transpose(P.Transpose(x, perm=p), perm=q), shrinks=TRANSPOSES_ABOVE_PRODUCTS)
def transpose_of_transpose(x: Var, p: Any, q: Any, root: Binding) -> Any:
    """Transpose(Transpose(x, p), q) = Transpose(x, p o q), and x when that is the identity"""
    if p is None or q is None or len(p) != len(q):
        return None
    perm = [p[i] for i in q]
    inner = root.inputs[0]
    if perm == sorted(perm):
        return x_or_identity(root, x)
    if inner is None or inner.use_count > 1:
        return decline("the inner transpose has another reader and would stay")
    return op.Transpose(x, perm=perm)


# of each element by itself, and to the bit what it is wherever the element stands in memory
_ELEMENTWISE = (
    "Abs",
    "Cast",
    "Ceil",
    "Floor",
    "LeakyRelu",
    "Neg",
    "Not",
    "Reciprocal",
    "Relu",
    "Round",
    "Sign",
    "Sqrt",
)


@rewrite(
    P.Transpose(P.any_of(*_ELEMENTWISE)(P.Transpose(x, perm=p)).only.named("between"), perm=q),
    shrinks=count("Transpose"),
)
def transpose_through_elementwise(x: Var, p: Any, q: Any, between: Binding) -> Any:
    """Transpose(f(Transpose(x, p)), q) = f(x), where p o q is the identity and f works on each
    element by itself
    """
    if not _cancel(p, q):
        return None
    return getattr(op, between.op)(x, **between.attrs)


_OF_TWO = P.Transpose(P.any_of("Add", "Sub", "Mul", "Div")(a, b).only.named("between"), perm=q)


@rewrite(_OF_TWO, shrinks=count("Transpose"))
def transpose_through_two(q: Any, between: Binding) -> Any:
    """Transpose(Transpose(x, p) + Transpose(y, p), q) = x + y, and so on, where p o q is the
    identity; or y a number
    """
    return _through_two(between, [_untransposed(v, q) for v in between.inputs])


@rewrite(_OF_TWO, shrinks=count("Transpose"))
def transpose_through_constant(q: Any, between: Binding) -> Any:
    """Transpose(Transpose(x, p) + c, q) = x + Transpose(c, q), and so on, where p o q is the
    identity: a constant c that is read here only is transposed at once
    """
    return _through_two(
        between, [_untransposed(v, q) or _transposed_at_once(v, q) for v in between.inputs]
    )


def _through_two(between: Binding, moved: list[Var | None]) -> Var | None:
    found = [v for v in moved if v is not None]
    if (
        between.version < 7
        or len(found) < 2
        or all(v is None or v.is_constant for v in between.inputs)
    ):
        return None
    made: Var = getattr(op, between.op)(*found)
    return made


def _untransposed(v: Var | None, q: Any) -> Var | None:
    """Transpose(v, q) for a transposed value that this undoes, and for a number; None for
    anything else.
    """
    made = None if v is None else v.definition
    if made is not None and made.is_op("Transpose"):
        return made.inputs[0] if _cancel(made.attr("perm"), q) else None
    return v if v is not None and q and v.is_constant and v.shape in ((), (1,)) else None


def _transposed_at_once(v: Var | None, q: Any) -> Var | None:
    if (
        v is None
        or q is None
        or not v.is_constant
        or v.shape is None
        or len(v.shape) > len(q)
        or v.use_count > 1
    ):
        return None
    array = v.const
    if array is None:
        return None
    aligned = array.reshape((*[1] * (len(q) - array.ndim), *array.shape))
    return constant(np.transpose(aligned, q), name=f"{v.name}_transposed")


def _cancel(p: Any, q: Any) -> bool:
    return (
        p is not None
        and q is not None
        and len(p) == len(q)
        and [p[i] for i in q] == list(range(len(p)))
    )


@rewrite(P.Concat(Each(x), axis=axis), shrinks=count("Transpose"))
def concat_of_transposes(x: list[Var], axis: int, root: Binding) -> Any:
    """Concat(T(a), T(b), ..., axis=k) = T(Concat(a, b, ..., axis=perm[k])), one perm for all, any
    number of operands; constants among them are transposed at once
    """
    made = [
        v.definition if v.definition is not None and v.definition.is_op("Transpose") else None
        for v in x
    ]
    perms = {b.attr("perm") for b in made if b is not None}
    if not perms:
        return None
    for v, b in zip(x, made, strict=True):
        if b is None and (v.const is None or v.use_count > 1):
            return decline(f"{v.name} is no Transpose, nor a constant that is read here only")
    perm = perms.pop()
    if perm is None or perms:
        return decline(
            "the permutations differ" if perms else "the transposed values' rank is unknown"
        )
    # in a nested block (a loop's body, say) the Concat may run often, and the transposes outside of
    # it once
    if (
        sum(
            b is not None and v.sole_user() is root and v.block is root.block
            for b, v in zip(made, x, strict=True)
        )
        < 2
    ):
        return decline("the transposes have other readers and would stay")
    inner = [
        _transposed_at_once(v, np.argsort(perm)) if b is None else b.inputs[0]
        for b, v in zip(made, x, strict=True)
    ]
    return op.Transpose(op.Concat(*inner, axis=perm[axis % len(perm)]), perm=list(perm))
