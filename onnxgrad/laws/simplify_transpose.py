"""Cancels transposes and moves them through elementwise operators, Concat, MatMul and Gemm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import ACTIVATIONS, ROUNDINGS
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.permeable import transposed_constant
from onnxgrad.laws.remove_noops import x_or_identity
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Measure, count, rewrite

x, a, b, p, q, axis, c, d = capture("x a b p q axis c d")


def _above_products(block: BindingBlock) -> int:
    """The weight of all transposes. Each weighs 3 to the power of the products on the longest path
    to it, so that T(b) @ T(a) weighs less than T(a @ b).
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
    decline_if(
        inner is None or inner.use_count > 1,
        "the inner transpose has another reader and would stay",
    )
    return op.Transpose(x, perm=perm)


# operators that compute each element by itself, with the same bits wherever it lies in memory
_SAME_BITS = {*ROUNDINGS, "Abs", "Cast", "LeakyRelu", "Neg", "Not", "Reciprocal", "Relu", "Sqrt"}


@rewrite(
    P.Transpose(
        P.any_of("Cast", "Not", *ACTIVATIONS)(P.Transpose(x, perm=p)).only.named("between"), perm=q
    ),
    shrinks=count("Transpose"),
)
def transpose_through_elementwise(x: Var, p: Any, q: Any, between: Binding) -> Any:
    """Transpose(f(Transpose(x, p)), q) = f(x), where p o q is the identity and f works on each
    element by itself
    """
    if not _cancel(p, q):
        return None
    decline_if(
        between.op not in _SAME_BITS,
        f"{between.op} may round an element differently at another place in memory; the pass "
        "convert-layout, which no preset has, removes both Transposes",
    )
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
    constants = all(v is None or v.is_constant for v in between.inputs)
    if between.version < 7 or None in moved or constants:
        return None
    made: Var = getattr(op, between.op)(*moved)
    return made


def _untransposed(v: Var | None, q: Any) -> Var | None:
    """Transpose(v, q) if `v` is a transposed value that this undoes, or a number; None for anything
    else.
    """
    made = None if v is None else v.definition
    if made is not None and made.is_op("Transpose"):
        return made.inputs[0] if _cancel(made.attr("perm"), q) else None
    return v if v is not None and q and v.is_constant and v.shape in ((), (1,)) else None


def _transposed_at_once(v: Var | None, q: Any) -> Var | None:
    """Transpose(v, q) of a constant that nothing else reads; None for anything else."""
    return None if v is None or q is None or v.use_count > 1 else transposed_constant(v, q)


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
        decline_if(
            b is None and (v.const is None or v.use_count > 1),
            f"{v.name} is neither a Transpose nor a constant that is read only here",
        )
    perm = perms.pop()
    if perm is None or perms:
        return decline(
            "the permutations differ" if perms else "the transposed values' rank is unknown"
        )
    # in a nested block (such as a loop's body) the Concat may run often, but the transposes outside
    # of it run once
    decline_if(
        sum(
            b is not None and v.sole_user() is root and v.block is root.block
            for b, v in zip(made, x, strict=True)
        )
        < 2,
        "the transposes have other readers and would stay",
    )
    inner = [
        _transposed_at_once(v, np.argsort(perm)) if b is None else b.inputs[0]
        for b, v in zip(made, x, strict=True)
    ]
    return op.Transpose(op.Concat(*inner, axis=perm[axis % len(perm)]), perm=list(perm))


def is_matrix_transpose(perm: Sequence[int] | None) -> bool:
    """Whether a permutation swaps the last two axes and keeps the leading ones."""
    return (
        perm is not None
        and len(perm) >= 2
        and list(perm) == [*range(len(perm) - 2), len(perm) - 1, len(perm) - 2]
    )


def transposed(v: Var) -> Var:
    """The matrix transpose of `v`. If `v` is a matrix transpose, its operand."""
    b = v.definition
    if (
        b is not None
        and b.is_op("Transpose")
        and b.inputs[0] is not None
        and is_matrix_transpose(b.attr("perm"))
    ):
        return b.inputs[0]
    return v.mT


TRANSPOSES_INTO_GEMM = Measure(
    "number of transposed operands of Gemm",
    lambda block: sum(
        _transposes_on(v) for b in block.walk() if b.is_op("Gemm") for v in b.inputs[:2]
    ),
)


def _transposes_on(v: Var | None) -> int:
    height = 0
    while v is not None and v.definition is not None and v.definition.is_op("Transpose"):
        v, height = v.definition.inputs[0], height + 1
    return height


def _transpose_of_matmul(a: Var, b: Var, q: Any) -> Any:
    if not is_matrix_transpose(q):
        return None
    if a.rank is None or b.rank is None:
        return decline("an operand's rank is unknown")
    decline_if(a.rank < 2 or b.rank < 2, "a rank-1 operand is never transposed")
    return transposed(b) @ transposed(a)


@rewrite(P.Transpose(P.MatMul(a, b).only, perm=q), shrinks=TRANSPOSES_ABOVE_PRODUCTS)
def transpose_of_matmul(a: Var, b: Var, q: Any) -> Any:
    """T(a @ b) = T(b) @ T(a)"""
    return _transpose_of_matmul(a, b, q)


def _cheap(v: Var) -> bool:
    b = v.definition
    return v.is_constant or (
        b is not None and b.is_op("Transpose") and is_matrix_transpose(b.attr("perm"))
    )


@rewrite(P.Transpose(P.MatMul(a, b).only, perm=q), shrinks=TRANSPOSES_ABOVE_PRODUCTS)
def transpose_of_matmul_if_free(a: Var, b: Var, q: Any) -> Any:
    """T(a @ b) = T(b) @ T(a), when at least one operand's transpose costs nothing"""
    decline_if(
        is_matrix_transpose(q) and not (_cheap(a) or _cheap(b)),
        "both operands would need a transpose of their own",
    )
    return _transpose_of_matmul(a, b, q)


@rewrite(P.Gemm(P.Transpose(a, perm=(1, 0)), b, c.maybe), shrinks=TRANSPOSES_INTO_GEMM)
def gemm_of_transpose_left(a: Var, b: Var, c: Var | None, root: Binding) -> Any:
    """Gemm(T(a), b, c) = Gemm(a, b, c, transA flipped)"""
    return _gemm(root, a, b, c, 1 - root.attr("transA"), root.attr("transB"))


@rewrite(P.Gemm(a, P.Transpose(b, perm=(1, 0)), c.maybe), shrinks=TRANSPOSES_INTO_GEMM)
def gemm_of_transpose_right(a: Var, b: Var, c: Var | None, root: Binding) -> Any:
    """Gemm(a, T(b), c) = Gemm(a, b, c, transB flipped)"""
    return _gemm(root, a, b, c, root.attr("transA"), 1 - root.attr("transB"))


def _gemm(like: Binding, a: Var, b: Var, c: Var | None, trans_a: int, trans_b: int) -> Any:
    decline_if(like.version < 7, "before opset 7 Gemm broadcasts by an attribute")
    alpha, beta = like.attr("alpha"), like.attr("beta")
    return op.Gemm(a, b, c, alpha=alpha, beta=beta, transA=trans_a, transB=trans_b)


@rewrite(
    P.Transpose(P.Gemm(a, b, c.maybe).only.named("product"), perm=(1, 0)),
    shrinks=TRANSPOSES_ABOVE_PRODUCTS,
)
def transpose_of_gemm(a: Var, b: Var, c: Var | None, product: Binding) -> Any:
    """T(Gemm(a, b, c)) = Gemm(b, a, T(c)), each operand's transposition flipped; a bias (N,)
    becomes (N, 1)
    """
    decline_if(
        c is not None and (c.shape is None or any(d is None for d in c.shape)),
        "the bias's shape is unknown",
    )
    if c is not None and c.shape not in ((), (1,), (1, 1)):
        c = transposed(c) if c.rank == 2 else op.Unsqueeze(c, [1])
    return _gemm(product, b, a, c, 1 - product.attr("transB"), 1 - product.attr("transA"))


GEMM_RULES = [gemm_of_transpose_left, gemm_of_transpose_right, transpose_of_gemm]


def _last_axis_of_products(block: BindingBlock) -> int:
    transposes = (b for b in block.walk() if b.op == "Transpose" and _moves_last(b.attr("perm")))
    made = (None if b.inputs[0] is None else b.inputs[0].definition for b in transposes)
    return sum(m is not None and m.op == "MatMul" for m in made)


LAST_AXIS_OF_PRODUCTS = Measure(
    "transposes of products that move the last axis", _last_axis_of_products
)


def _moves_last(perm: Any) -> bool:
    return perm is not None and len(perm) >= 3 and perm[-1] != len(perm) - 1


@rewrite(
    P.Transpose(P.MatMul(P.Transpose(a, perm=c), b).only, perm=d), shrinks=LAST_AXIS_OF_PRODUCTS
)
def transpose_of_product_of_transpose(a: Var, b: Var, c: Any, d: Any) -> Any:
    """Transpose(T(a) @ b, p) = Transpose(T(b) @ a, p after T), where that leaves the last axis
    in place
    """
    if not is_matrix_transpose(c) or not _moves_last(d) or a.rank != b.rank or b.rank is None:
        return None
    if b.definition is not None and b.definition.is_op("MatMul"):
        return None  # its transpose would be one more of the same kind
    swapped = {b.rank - 1: b.rank - 2, b.rank - 2: b.rank - 1}
    perm = [swapped.get(i, i) for i in d]
    return None if _moves_last(perm) else op.Transpose(transposed(b) @ a, perm=perm)
