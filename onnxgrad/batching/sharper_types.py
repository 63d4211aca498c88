"""Types inferred again for sizes that have a name of their own although a formula exists."""

from __future__ import annotations

from collections.abc import Set

from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.type_inference.per_binding import types_of
from onnxgrad.ir.type_inference.shape_arithmetic import sizes
from onnxgrad.ir.types import Dim, TensorType, Type, TypeMismatch
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import fixed_value


def sharpen(block: BindingBlock) -> None:
    """Infers the types of results again if a size has no formula of the inputs' sizes."""
    shapes = [v.shape for v in block.inputs if v.shape is not None]
    given = frozenset(name for shape in shapes for d in shape for name in algebra.symbols(d))
    for b in list(block.bindings):
        vague = [_is_vague(v, given) for v in b.outputs]
        if not any(vague) or b.blocks:
            continue
        if b.is_op("Resize") or b.is_op("Upsample"):
            _fix_scales(b)
        try:
            types = types_of(b)
        except TypeMismatch:
            continue
        if b.is_op("Reshape") and types:
            types = [_reshaped(b, types[0]), *types[1:]]
        for v, is_vague, type_ in zip(b.outputs, vague, types, strict=False):
            if v is not None and is_vague and isinstance(type_, TensorType) and type_.shape:
                v.type = TensorType(v.dtype, type_.shape)


def _fix_scales(b: Binding) -> None:
    """Replaces operands that are computed from constants, because result sizes depend on them."""
    for k, v in enumerate(b.inputs):
        array = None if k == 0 or v is None or v.is_constant else fixed_value(v)
        if v is not None and array is not None:
            with emitting(b.block, sources=[b], made_by="open-batch"):
                b.block.set_operand(b, k, constant(array, name=v.name))


def _is_vague(v: Var | None, given: Set[str]) -> bool:
    """Whether a size of `v` is unknown or has a name that no input has."""
    if v is None or not isinstance(v.type, TensorType):
        return False
    return v.shape is None or any(d is None or not algebra.symbols(d) <= given for d in v.shape)


def _reshaped(b: Binding, type_: Type | None) -> Type | None:
    """Returns the type of a Reshape by its target. Sizes are assumed not to be 0: a 0 in the target
    would copy another size, or leave -1 undetermined.
    """
    source, target = b.inputs[0], None if len(b.inputs) < 2 else b.inputs[1]
    if source is None or source.shape is None or target is None:
        return type_
    wanted = list(sizes(target) or ())
    copied = [] if b.attr("allowzero", 0) else [i for i, d in enumerate(wanted) if d == 0]
    for i in copied:
        wanted[i] = source.shape[i] if i < len(source.shape) else None
    if wanted.count(-1) == 1:
        others = algebra.product(d for d in wanted if d != -1)
        rest: Dim = algebra.exactly(algebra.product(source.shape), others)
        wanted = [rest if d == -1 else d for d in wanted]
    if len(wanted) != b.out.rank or None in wanted:
        return type_
    return TensorType(b.out.dtype, tuple(wanted))
