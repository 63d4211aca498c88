"""Mixed precision as PyTorch's autocast: products in a narrow dtype, everything else in float32.

The operands of a product (MatMul, Gemm, Conv, ConvTranspose, Einsum) are cast to the narrow dtype
and its result is cast back, so the products of the gradient are narrow, too. Weights, their
gradients, the optimiser's states and the loss stay float32. So do all operators between products:
normalisations, softmax and sums as in PyTorch, and those that PyTorch computes in the narrow dtype.
Source: Micikevicius et al., "Mixed Precision Training", 2018; torch.amp.autocast.

onnxruntime's CPU has few kernels for bfloat16, and computes neighbouring nodes of float16 in
float32 without rounding between them, so that nothing overflows. `widened` lets a session compute
in float32 and round each result once, as hardware for narrow dtypes does.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypeAlias

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emit, emitting
from onnxgrad.ir.load import program_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.passes.convert_opset import convert

Narrow: TypeAlias = Literal["bfloat16", "float16"]
_DTYPES = {"bfloat16": TensorProto.BFLOAT16, "float16": TensorProto.FLOAT16}
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})
# the first opset in which every product supports bfloat16
_OPSET = 22
# operators that round nothing, or convert between dtypes
_ANY_DTYPE = frozenset({"Cast", "Shape", "Size", "If", "Loop", "Scan", "Constant", "Identity"})


def autocast(program: Program, dtype: Narrow) -> str:
    """Computes the products of float32 values in the narrow dtype. Returns a note for the user."""
    if dtype == "bfloat16" and program.opset < _OPSET:
        convert(program, _OPSET)
    found = [b for b in program.main.walk() if _is_product(b)]
    counts = Counter(b.op for b in found)
    for b in found:
        name, block = b.out.name, b.block
        with emitting(block, sources=(b,), made_by="autocast"):
            operands = [None if v is None else op.Cast(v, to=_DTYPES[dtype]) for v in b.inputs]
            wide = op.Cast(emit(b.op, operands, b.attrs), to=TensorProto.FLOAT)
        block.replace(b.out, wide)
        block.remove(b)
        if wide.name != name:
            wide.rename(name)
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no product"
    lost = ", where adjoints below 6e-8 are 0: scale the loss" if dtype == "float16" else ""
    return (
        f"autocast: {listed} and their gradients in {dtype}{lost}; weights and all other values in "
        "float32"
    )


def _is_product(b: Binding) -> bool:
    """Whether this is a product of float32 values that can be emitted again."""
    plain = b.op in PRODUCTS and not b.domain and not b.has_refs
    if not plain or any(isinstance(value, tuple) and not value for value in b.attrs.values()):
        return False
    return all(v is None or v.dtype == TensorProto.FLOAT for v in (*b.inputs, b.out))


def widened(program: Program) -> Program:
    """Returns a program in which operators on bfloat16 and float16 compute in float32 and round
    their results. The same program if there are none.
    """
    if not any(_is_narrow(v) for block in program.blocks() for v in block.vars()):
        return program
    program = program_of(to_proto(program), program.folder, digests=program.digests)
    for b in list(program.main.walk()):
        if not b.blocks and b.op not in _ANY_DTYPE and any(map(_is_narrow, b.inputs)):
            _widen(b)
    return program


def _widen(b: Binding) -> None:
    """Lets an operator compute in float32, and rounds each result."""
    block = b.block
    with emitting(block, sources=(b,), made_by="autocast"):
        operands = [
            op.Cast(v, to=TensorProto.FLOAT) if v is not None and _is_narrow(v) else v
            for v in b.inputs
        ]
        present = [v is not None for v in b.outputs]
        made = emit(b.op, operands, {**b.attrs, "outputs": present}, domain=b.domain)
        for old, new in zip(b.outputs, made, strict=True):
            if old is not None:
                block.replace(old, op.Cast(new, to=old.dtype) if _is_narrow(old) else new)
    block.remove(b)


def _is_narrow(v: Var | None) -> bool:
    return (
        v is not None
        and isinstance(v.type, TensorType)
        and v.dtype in (TensorProto.BFLOAT16, TensorProto.FLOAT16)
    )
