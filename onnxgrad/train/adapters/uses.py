"""Where a matrix of weights stands in a model: each product, convolution or lookup that reads it,
and why an adapter cannot go beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onnxgrad.grad.weight_slots import WEIGHTS
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.ir.var import Var

Kind = Literal["right", "left", "conv", "rows"]
_CONTRIB = "com.microsoft"
# products of integers, which is where a quantised matrix may end without a DequantizeLinear
_INTEGER = {
    "MatMulInteger": 1, "MatMulIntegerToFloat": 1, "DynamicQuantizeMatMul": 1, "QGemm": 3,
    "QLinearMatMul": 3, "QLinearConv": 3, "ConvInteger": 1, "GatherBlockQuantized": 0,
    "MatMulBnb4": 1,
}  # fmt: skip


class Declined(Exception):
    """Why no adapter can go beside a weight."""


@dataclass(frozen=True)
class Use:
    """One reader of a matrix W, or of its transpose: x @ M ("right"), M @ x ("left"), a 1x1
    convolution with M ("conv"), rows of M ("rows"), M being W or, where `transposed`, W^T.

    other: the slot of x. scale: what the operator itself multiplies the product with.
    """

    binding: Binding
    kind: Kind
    other: int
    transposed: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class Read:
    """An operand that a weight becomes, behind Transpose, Cast, Identity and DequantizeLinear."""

    binding: Binding
    slot: int
    transposed: bool

    @property
    def of_weight(self) -> bool:
        """The operand is what trains, what was quantised of it, or goes into a body."""
        b = self.binding
        if b.domain == _CONTRIB and b.op == "MatMulNBits":
            return self.slot == 1
        called = any(key[:2] == (b.domain, b.op) for key in b.block.program.functions)
        if called or b.blocks:  # what a body does with it is not looked into
            return True
        return self.slot in WEIGHTS.get(b.op, {}) or _INTEGER.get(b.op) == self.slot

    @property
    def where(self) -> str:
        """The reader in words."""
        name = self.binding.node.name or self.binding.out.name
        return f"{self.binding.op} '{name}'"


def reads(v: Var, transposed: bool = False) -> Iterator[Read]:
    """Who reads a weight in the end."""
    for b in v.users:
        for slot in b.places(v):
            if b.is_op("Transpose") and v.rank == 2 and b.attr("perm", ()) == (1, 0):
                yield from reads(b.out, not transposed)
            elif b.is_op("Identity") or _to_float(b, slot):
                yield from reads(b.out, transposed)
            else:
                yield Read(b, slot, transposed)


def _to_float(b: Binding, slot: int) -> bool:
    casts = b.is_op("Cast") or b.is_op("DequantizeLinear")
    return casts and slot == 0 and b.out.dtype in FLOAT_DTYPES


def returned(v: Var) -> bool:
    """A graph returns it, as it is or transposed."""
    return bool(v.returned) or any(
        returned(b.out)
        for b in v.users
        if b.op in ("Transpose", "Identity", "Cast", "DequantizeLinear")
    )


def use_of(read: Read, shape: tuple[int, ...]) -> Use:
    """What the reader does with a weight of that shape. Raises Declined."""
    b = read.binding
    if b.domain == _CONTRIB and b.op == "MatMulNBits" and read.slot == 1:
        return Use(b, "right", 0)
    if b.domain == "" and b.op == "Conv" and read.slot == 1:
        return _of_conv(read, shape)
    if b.domain != "" or b.op not in ("MatMul", "Gemm", "Gather") or not read.of_weight:
        raise Declined(f"{read.where} reads it, beside which no adapter goes")
    if len(shape) != 2:
        raise Declined(f"{read.where} reads {len(shape)} axes of it: adapters are for matrices")
    if b.op == "Gather":
        return _of_gather(read)
    return _of_product(read)


def _of_product(read: Read) -> Use:
    """Of MatMul and Gemm, alpha A' B' + beta C."""
    b, slot = read.binding, read.slot
    if slot > 1:
        raise Declined(f"it is the bias of {read.where}")
    x = b.inputs[1 - slot]
    if x is b.inputs[slot]:
        raise Declined(f"{read.where} multiplies it with itself")
    side: Kind = "right" if slot else "left"
    if b.op == "Gemm":
        flipped = read.transposed != bool(b.attr("transB" if slot else "transA", 0))
        return Use(b, side, 1 - slot, flipped, float(b.attr("alpha", 1.0)))
    if slot == 0 and (x is None or x.rank is None):
        raise Declined(f"{read.where} multiplies it with a value of unknown rank")
    if slot == 0 and x is not None and x.rank == 1:
        # onnxruntime 1.31 multiplies a transposed matrix with a vector wrongly: M x = x M^T
        return Use(b, "right", 1, not read.transposed)
    return Use(b, side, 1 - slot, read.transposed)


def _of_conv(read: Read, shape: tuple[int, ...]) -> Use:
    if (group := read.binding.attr("group", 1)) != 1:
        raise Declined(f"{read.where} has group={group}: adapters are for group=1")
    if any(n != 1 for n in shape[2:]) or len(shape) < 3:
        kernel = "x".join(map(str, shape[2:]))
        raise Declined(f"{read.where} has a {kernel} kernel: adapters are for 1x1")
    return Use(read.binding, "conv", 0)


def _of_gather(read: Read) -> Use:
    if read.binding.attr("axis", 0) % 2 != 0:
        raise Declined(f"{read.where} takes columns: adapters are for rows, axis 0")
    return Use(read.binding, "rows", 1, read.transposed)
