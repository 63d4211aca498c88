"""Operator kinds, by how a result's elements depend on the operands': what may share a loop with
what.

The table and the order of the kinds are those of TVM's operator patterns (Chen et al., "TVM", OSDI
2018, section 3.1).
"""

from __future__ import annotations

from enum import IntEnum

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.var import Var


class Kind(IntEnum):
    """A later kind fuses less; two on one path count as the later."""

    ELEMENTWISE = 0  # one element from the elements at the same place
    BROADCAST = 1  # the same, along axes that some operand repeats
    INJECTIVE = 2  # one element from one element at another place
    REDUCTION = 3  # one element from many
    COMPLEX = 4  # a convolution or product: elementwise work may follow in its output loop
    OPAQUE = 8  # anything else: no loop to share


_ELEMENTWISE = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh Elu Erf "
    "Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not "
    "Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh "
    "ThresholdedRelu"
)
_BROADCAST = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Expand Greater GreaterOrEqual Less "
    "LessOrEqual Max Mean Min Mod Mul Or Pow PRelu Sub Sum Where Xor"
)
_INJECTIVE = (
    "Concat DepthToSpace Flatten Gather GatherElements GatherND Pad Reshape ReverseSequence Slice "
    "SpaceToDepth Squeeze Tile Transpose Trilu Unsqueeze"
)
_REDUCTION = (
    "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
    "ReduceProd ReduceSum ReduceSumSquare"
)
_COMPLEX = (
    "AveragePool Conv ConvInteger ConvTranspose Gemm GlobalAveragePool GlobalMaxPool LpPool MatMul "
    "MatMulInteger MaxPool"
)
_KINDS: dict[str, Kind] = {
    op: kind
    for kind, ops in (
        (Kind.ELEMENTWISE, _ELEMENTWISE),
        (Kind.BROADCAST, _BROADCAST),
        (Kind.INJECTIVE, _INJECTIVE),
        (Kind.REDUCTION, _REDUCTION),
        (Kind.COMPLEX, _COMPLEX),
    )
    for op in ops.split()
}


def kind_of(binding: Binding) -> Kind:
    """The kind of a binding. One with nested graphs or not exactly one result is opaque, and so
    is every call.
    """
    if binding.domain != "" or binding.blocks or sum(v is not None for v in binding.outputs) != 1:
        return Kind.OPAQUE
    return Kind.OPAQUE if binding.outputs[0] is None else _KINDS.get(binding.op, Kind.OPAQUE)


def edge_kind(value: Var, reader: Binding) -> Kind:
    """How `reader` looks at `value`: what broadcasts takes an operand of its result's shape
    element by element.
    """
    kind = kind_of(reader)
    if (
        kind is Kind.BROADCAST
        and value.shape is not None
        and value.shape == reader.out.shape
        and None not in value.shape
    ):
        return Kind.ELEMENTWISE
    return kind
