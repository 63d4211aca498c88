"""What stands around a constant in the graph: the product before a bias, the Softmax behind a
mask, rotate-half.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from onnxgrad.grad.weight_readers import MOVES, Reader, moves
from onnxgrad.grad.weight_values import are_cos_and_sin
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var

_PRODUCTS = frozenset(
    {
        "Conv", "ConvTranspose", "DeformConv", "Einsum", "FusedConv", "FusedGemm", "FusedMatMul",
        "Gemm", "MatMul", "NhwcConv", "TransposeMatMul",
    }
)  # fmt: skip
_NORMALISATIONS = frozenset(
    {
        "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization",
        "LpNormalization", "MeanVarianceNormalization", "RMSNormalization",
        "SimplifiedLayerNormalization",
    }
)  # fmt: skip
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
_REDUCTIONS = frozenset(
    {"ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "GlobalAveragePool"}
)
_ROOTS = frozenset({"Sqrt", "Pow", "ReduceL2"})
_ON_THE_WAY = _ROOTS | {"Reciprocal", "Max", "Clip", "Add", "Mul", "Div"}
# how far is looked
_STEPS = 12

Kind = Literal["product", "normalisation", ""]


def before(v: Var, fixed: Collection[Var]) -> tuple[Kind, Binding | None]:
    """The product with a weight, or the normalisation, that `v` comes from by moves and
    arithmetic with constants.
    """
    for _ in range(_STEPS):
        b = v.definition
        if b is None:
            break
        varying = [w for w in b.inputs if w is not None and w not in fixed]
        if b.op in _NORMALISATIONS:
            return "normalisation", b
        if b.op in _PRODUCTS and any(w in fixed for w in b.inputs):
            return "product", b
        if is_spread(v, fixed) or (
            b.op in ("Mul", "Div") and any(is_spread(w, fixed) for w in varying)
        ):
            return "normalisation", b
        if not (moves(b, 0) or (b.op in _ARITHMETIC and len(varying) == 1)) or not varying:
            break
        v = varying[0]
    return "", None


def is_spread(v: Var, fixed: Collection[Var]) -> bool:
    """A root of a mean or sum of squares, or one over it: what a normalisation divides by."""
    root = False
    for _ in range(_STEPS):
        b = v.definition
        if b is None:
            return False
        root = root or b.op in _ROOTS
        if b.op in _REDUCTIONS:
            return root
        varying = [w for w in b.inputs if w is not None and w not in fixed]
        if not (b.op in _ON_THE_WAY or b.op in MOVES) or len(varying) != 1:
            return False
        v = varying[0]
    return False


def columns(product: Binding) -> int | str | None:
    """How many features the product has."""
    shape = product.out.shape
    if not shape:
        return None
    return shape[1] if "Conv" in product.op and len(shape) > 1 else shape[-1]


def in_front_of_softmax(v: Var) -> bool:
    """Whether a Softmax takes `v`, moved, scaled or added to."""
    return any(
        b.op in ("Softmax", "LogSoftmax")
        for b in _behind(v, _ARITHMETIC | MOVES | {"Where", "Max", "Softmax"})
    )


def makes_angles(v: Var) -> bool:
    """Whether both Cos and Sin take `v`, moved, scaled or joined to others."""
    return {b.op for b in _behind(v, _ARITHMETIC | MOVES | {"Concat"})} >= {"Cos", "Sin"}


def scaled_again(v: Var, fixed: Collection[Var]) -> bool:
    """Whether what is multiplied with `v`, moved, is a constant."""
    return any(b.op == "Mul" and any(w in fixed for w in b.inputs) for b in _behind(v, MOVES))


def standardises(by: Reader, fixed: Collection[Var]) -> bool:
    """(x - m) / s or (x - m) * s with constants m and s: the reader subtracts m or divides by s."""
    if by.binding.op == "Sub":
        return any(
            b.op in ("Div", "Mul") and any(w in fixed for w in b.inputs)
            for b in _behind(by.binding.out, MOVES)
        )
    if by.binding.op != "Div":
        return False
    divided = _source(by.binding.inputs[0])
    b = None if divided is None else divided.definition
    return b is not None and b.op == "Sub" and b.inputs[1] in fixed


def is_rotary(by: Reader, array: Array) -> bool:
    """x * cos + rotated(x) * sin: the products with two constants, a cosine and a sine of the
    same angles, add up.
    """
    if by.binding.op != "Mul":
        return False
    for b in _behind(by.binding.out, MOVES):
        for w in b.inputs if b.op in ("Add", "Sub") else ():
            other = _source(w)
            if other is None or other.definition is None or other.definition.op != "Mul":
                continue
            tables = [
                t
                for t in map(_source, other.definition.inputs)
                if t is not None and t.const is not None
            ]
            if any(are_cos_and_sin(array, t.const) for t in tables if t.const is not None):
                return True
    return False


def _source(v: Var | None) -> Var | None:
    """What `v` was before it was moved."""
    while v is not None and v.definition is not None and moves(v.definition, 0):
        v = v.definition.inputs[0]
    return v


def _behind(v: Var, through: Collection[str]) -> Iterator[Binding]:
    """The readers of `v`, and those of what operators in `through` make of it."""
    todo, seen = [v], {v}
    for read in todo:
        for b in read.users:
            yield b
            if b.op in through and len(seen) < 16 * _STEPS:
                new = [w for w in b.outputs if w is not None and w not in seen]
                seen.update(new)
                todo += new
