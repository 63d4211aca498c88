"""Types of what was of unknown type: operands may be known now, and bodies of control flow give
their owners types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.type_inference import at_emission
from onnxgrad.ir.types import TensorType, Type, same_dim
from onnxgrad.ir.var import Var


def retype(block: BindingBlock) -> None:
    """Type again what was of unknown type or rank, nested blocks included. Raises TypeMismatch."""
    block.schedule()
    for b in block.bindings:
        if b.blocks:
            _INTO.get(b.op if b.domain == "" else "", _nested)(b)
            _learn(b.outputs, types_of_bodies(b))
            continue
        if any(v is not None and _is_open(v) for v in b.outputs):
            type_again(b)


def type_again(b: Binding) -> None:
    """Give its results of unknown type or rank the types that its operands tell. Raises
    TypeMismatch.
    """
    _learn(b.outputs, at_emission.types_of(b))


def _nested(b: Binding) -> None:
    for nested in b.blocks.values():
        retype(nested)


def types_of_bodies(b: Binding) -> list[Type | None]:
    """What the bodies of control flow tell of its results: none for another operator."""
    return _TOLD[b.op](b) if b.domain == "" and b.op in _TOLD else []


def _of_if(b: Binding) -> list[Type | None]:
    """A result has what both branches agree on."""
    then, otherwise = (b.blocks[name].outputs for name in ("then_branch", "else_branch"))
    return [common_type(x.type, y.type) for x, y in zip(then, otherwise)]


def _of_loop(b: Binding) -> list[Type | None]:
    """A state keeps its dtype, not its shape; what is scanned gets a new first axis."""
    body, count = b.blocks["body"], len(b.inputs) - 2
    states, scans = body.outputs[1 : 1 + count], body.outputs[1 + count :]
    return [*(_unshaped(v) for v in states), *(_stacked(v.type, 0) for v in scans)]


def _of_scan(b: Binding) -> list[Type | None]:
    """A state keeps its type; what is scanned gets an axis."""
    body, count = b.blocks["body"], len(b.inputs) - b.attr("num_scan_inputs")
    if len(b.inputs) != len(body.inputs):
        return []  # below opset 9 there is a batch axis, and sequence_lens
    axes = b.attr("scan_output_axes") or [0] * (len(b.outputs) - count)
    scans = [_stacked(v.type, axis) for v, axis in zip(body.outputs[count:], axes)]
    return [*(v.type for v in body.outputs[:count]), *scans]


_TOLD: dict[str, Callable[[Binding], list[Type | None]]] = {
    "If": _of_if,
    "Loop": _of_loop,
    "Scan": _of_scan,
}


def _loop(b: Binding) -> None:
    body = b.blocks["body"]
    _learn(body.inputs[2:], [_unshaped(v) for v in b.inputs[2:]])
    retype(body)


def _scan(b: Binding) -> None:
    """What is scanned loses the axis that is walked."""
    body, scanned = b.blocks["body"], b.attr("num_scan_inputs")
    count = len(b.inputs) - scanned
    if len(b.inputs) != len(body.inputs):
        return  # as in _of_scan
    axes = b.attr("scan_input_axes") or [0] * scanned
    elements = [
        None if v is None else _element(v.type, axis) for v, axis in zip(b.inputs[count:], axes)
    ]
    _learn(body.inputs, [*(None if v is None else v.type for v in b.inputs[:count]), *elements])
    retype(body)


# how the bodies come to their own types
_INTO: dict[str, Callable[[Binding], None]] = {"Loop": _loop, "Scan": _scan}


def _learn(values: Sequence[Var | None], types: Sequence[Type | None]) -> None:
    for v, found in zip(values, types):
        if v is not None and found is not None and _is_open(v):
            v.type = found


def _is_open(v: Var) -> bool:
    return v.type is None or (isinstance(v.type, TensorType) and (v.shape is None or not v.dtype))


def common_type(a: Type | None, b: Type | None) -> Type | None:
    """What is known of a value that has either type."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype != b.dtype:
        return a if a == b else None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype, None)
    return TensorType(
        a.dtype, tuple(d if same_dim(d, e) else None for d, e in zip(a.shape, b.shape, strict=True))
    )


def _unshaped(v: Var | None) -> Type | None:
    return (
        TensorType(v.type.dtype, None) if v is not None and isinstance(v.type, TensorType) else None
    )


def _element(type_: Type | None, axis: int) -> Type | None:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return TensorType(type_.dtype, None) if isinstance(type_, TensorType) else None
    axis %= len(type_.shape)
    return TensorType(type_.dtype, type_.shape[:axis] + type_.shape[axis + 1 :])


def _stacked(type_: Type | None, axis: int) -> Type | None:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return TensorType(type_.dtype, None) if isinstance(type_, TensorType) else None
    axis %= len(type_.shape) + 1
    return TensorType(type_.dtype, (*type_.shape[:axis], None, *type_.shape[axis:]))
