"""Types of one binding's results: at emission, in a copy, and again once operands are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.sizes import Dim
from onnxgrad.ir.traced_arrays import plain
from onnxgrad.ir.type_inference import misinferred, onnxruntime_operators
from onnxgrad.ir.type_inference.closed_forms import CLOSED_FORMS
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements
from onnxgrad.ir.type_inference.symbolic_shapes import REDUCTIONS, refine
from onnxgrad.ir.types import (
    Shape,
    TensorType,
    Type,
    TypeMismatch,
    element_count,
    same_dim,
    same_shape,
    type_bytes,
    type_from_proto,
)
from onnxgrad.ir.var import Var

# constants larger than this are not shapes, axes or pads
_DATA_BYTES = 1 << 12


def result_types(
    schema: onnx.defs.OpSchema | None,
    node: NodeProto,
    inputs: Sequence[Var | None],
    block: BindingBlock,
    known: KnownElements | None = None,
) -> list[Type | None]:
    """Returns one type per output name of `node`, None if nothing is known. `known` holds elements
    of vectors that were evaluated before. Raises TypeMismatch.
    """
    if block.is_function and any(a.ref_attr_name for a in node.attribute[:]):
        return [None] * len(node.output)
    if schema is None:
        return _of_onnxruntime(node, inputs, block)
    node = _respelled(node)
    quick = CLOSED_FORMS.get(node.op_type) if node.domain == "" else None
    if (
        quick is not None
        and len(node.output) == 1
        and all(v is not None and v.dtype for v in inputs)
    ):
        found = quick(node, [v for v in inputs if v is not None])
        if found is not None:
            return [found]
    shapes = refine(node, inputs, known)
    if known is not None and (found_types := _by_sizes(node, inputs, shapes)) is not None:
        return [*found_types]
    types = _onnx_types(schema, node, inputs, block)
    if (
        node.op_type in misinferred.OPERATORS
        and inputs[0] is not None
        and isinstance(types[0], TensorType)
    ):
        types[0] = TensorType(
            types[0].dtype, misinferred.corrected(node, inputs[0].shape, types[0].shape)
        )
    for i, shape in enumerate(shapes or ()):
        if i < len(types) and isinstance(first := types[i], TensorType):
            types[i] = TensorType(first.dtype, _merge(first.shape, shape))
    return types


def _respelled(node: NodeProto) -> NodeProto:
    """The node with the default domain spelled in one way."""
    if node.domain == domains.canonical(node.domain):
        return node
    plain = copy_of(node)
    domains.respell(plain)
    return plain


def _of_onnxruntime(
    node: NodeProto, inputs: Sequence[Var | None], block: BindingBlock
) -> list[Type | None]:
    """The types of the results of an operator without a schema: None for each unless onnxruntime
    defines it, and not the file.
    """
    of_file = any(key[:2] == (node.domain, node.op_type) for key in block.program.functions)
    opset = block.opsets.get("", 0)
    if not of_file and (
        node.domain == "com.microsoft"
        or (domains.is_default(node.domain) and attributes.is_of_onnxruntime(node.op_type, opset))
    ):
        return onnxruntime_operators.result_types(node, inputs)
    return [None] * len(node.output)


# their results have the first operand's dtype
_OF_SIZES = frozenset({"Expand", "Slice", "Split", *REDUCTIONS})


def _by_sizes(
    node: NodeProto, inputs: Sequence[Var | None], shapes: Sequence[Shape] | None
) -> list[TensorType] | None:
    """Returns the types of results if `refine` found all their sizes, so that onnx would add
    nothing.

    Returns None for a Reshape whose number of elements may be wrong: onnx decides.
    """
    x = inputs[0] if inputs else None
    if x is None or node.domain or not shapes or any(None in shape for shape in shapes):
        return None
    if any(v is not None and not v.dtype for v in inputs):
        return None
    if node.op_type == "Reshape":
        count, found = element_count(x.shape), element_count(shapes[0])
        fits = found is None or count == found
    else:
        fits = node.op_type in _OF_SIZES and not misinferred.is_unbounded(node)
    return [TensorType(x.dtype, shape) for shape in shapes] if fits else None


def types_of(b: Binding, known: KnownElements | None = None) -> list[Type | None]:
    """Returns the types of a binding's results, as far as its operands now determine them. Raises
    TypeMismatch.
    """
    node = b.to_node() if b.changed else b.node
    schema = attributes.schema(b.op, b.version, b.domain)
    return result_types(schema, node, b.inputs, b.block, known)


def _onnx_types(
    schema: onnx.defs.OpSchema, node: NodeProto, inputs: Sequence[Var | None], block: BindingBlock
) -> list[Type | None]:
    known = {v.name: type_bytes(v.type) for v in inputs if v is not None and v.type is not None}
    if any(v is not None and v.name not in known for v in inputs):
        return [None] * len(node.output)
    if len(inputs) == 4 and inputs[0] is not None and inputs[3] is not None:
        sizes = misinferred.sizes_of_resize(node, inputs[0].shape, inputs[3].shape)
        if sizes is not None:
            known[inputs[3].name] = type_bytes(TensorType(TensorProto.INT64, sizes))
    if node.op_type in misinferred.OPERATORS and misinferred.is_unbounded(node):
        raise TypeMismatch("'num_outputs' is out of range")
    data: dict[str, bytes] = {}
    for v in inputs:
        if v is not None and v.is_constant and v.dtype != TensorProto.STRING:
            count = element_count(v.shape)
            array = plain(v.const) if count is not None and count * 8 <= _DATA_BYTES else None
            if array is not None:
                data[v.name] = numpy_helper.from_array(array).SerializeToString()
    try:
        infer_node: Any = schema._infer_node_outputs  # its stub lags behind the signature
        out = infer_node(
            misinferred.spelled_out(node).SerializeToString(),
            known,
            data,
            {},
            dict(block.opsets),
            block.program.ir_version,
        )
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        RuntimeError,
        ValueError,
    ) as e:
        raise TypeMismatch(str(e).strip().splitlines()[0]) from e
    return [
        type_from_proto(onnx.TypeProto.FromString(out[n])) if n in out else None
        for n in node.output
    ]


def _merge(inferred: Shape | None, symbols: Shape) -> Shape:
    """Returns onnx's known sizes, completed by symbols."""
    if inferred is None or len(inferred) != len(symbols):
        return symbols
    return tuple(
        s if not isinstance(i, int) and s is not None else i
        for i, s in zip(inferred, symbols, strict=True)
    )


def retype(block: BindingBlock) -> None:
    """Infers again values of unknown type or rank, nested blocks included, as `type_again`."""
    block.schedule()
    for b in block.bindings:
        if b.blocks:
            retype_bodies(b)
            continue
        if any(v is not None and _is_open(v) for v in b.outputs):
            type_again(b)


def retype_bodies(b: Binding) -> None:
    """`retype` the nested blocks of a binding, and then its results."""
    _INTO.get(b.op if b.domain == "" else "", _nested)(b)
    _learn(b.outputs, types_of_bodies(b))


def type_again(b: Binding) -> None:
    """Infers again the types of a binding's results of unknown type or rank. A type that cannot be
    inferred, because onnx refuses the node, stays unknown.
    """
    try:
        _learn(b.outputs, types_of(b))
    except TypeMismatch:
        return


def _nested(b: Binding) -> None:
    for nested in b.blocks.values():
        retype(nested)


def types_of_bodies(b: Binding) -> list[Type | None]:
    """Returns the types of a control-flow binding's results, from its bodies; empty for others."""
    return _TOLD[b.op](b) if b.domain == "" and b.op in _TOLD else []


def _of_if(b: Binding) -> list[Type | None]:
    """A result has the type on which both branches agree: the dtype of one if the other's type is
    unknown.
    """
    then, otherwise = (b.blocks[name].outputs for name in ("then_branch", "else_branch"))
    return [
        _unshaped(x if y.type is None else y)
        if (x.type is None) != (y.type is None)
        else common_type(x.type, y.type)
        for x, y in zip(then, otherwise)
    ]


def _of_loop(b: Binding) -> list[Type | None]:
    """A state keeps its dtype, and its shape if one iteration keeps it. Scanned outputs get a new
    first axis.
    """
    body, count = b.blocks["body"], len(b.inputs) - 2
    states, scans = body.outputs[1 : 1 + count], body.outputs[1 + count :]
    kept = [
        out.type
        if before is not None
        and same_shape(before.shape, inside.shape)
        and same_shape(inside.shape, out.shape)
        else _unshaped(out)
        for before, inside, out in zip(b.inputs[2:], body.inputs[2:], states)
    ]
    return [*kept, *(_stacked(v.type, 0) for v in scans)]


def _of_scan(b: Binding) -> list[Type | None]:
    """A state keeps its type. Scanned outputs get an axis, as long as that of a scanned input."""
    body, count = b.blocks["body"], len(b.inputs) - b.attr("num_scan_inputs")
    if len(b.inputs) != len(body.inputs):
        return []  # below opset 9 there is a batch axis, and sequence_lens
    axes = b.attr("scan_output_axes") or [0] * (len(b.outputs) - count)
    walked = (b.attr("scan_input_axes") or [0])[0]
    scanned = b.inputs[count] if count < len(b.inputs) else None
    first = None if scanned is None else scanned.shape
    inside = first is not None and -len(first) <= walked < len(first)
    length = first[walked] if first is not None and inside else None
    scans = [_stacked(v.type, axis, length) for v, axis in zip(body.outputs[count:], axes)]
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
    """Types a Scan's body: scanned inputs lose the scanned axis."""
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


# how nested bodies are typed
_INTO: dict[str, Callable[[Binding], None]] = {"Loop": _loop, "Scan": _scan}


def _learn(values: Sequence[Var | None], types: Sequence[Type | None]) -> None:
    for v, found in zip(values, types):
        if v is not None and found is not None and _is_open(v):
            v.type = found


def _is_open(v: Var) -> bool:
    return v.type is None or (isinstance(v.type, TensorType) and (v.shape is None or not v.dtype))


def common_type(a: Type | None, b: Type | None) -> Type | None:
    """Returns the type that holds for a value of either type."""
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


def _stacked(type_: Type | None, axis: int, length: Dim = None) -> Type | None:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return TensorType(type_.dtype, None) if isinstance(type_, TensorType) else None
    axis %= len(type_.shape) + 1
    return TensorType(type_.dtype, (*type_.shape[:axis], length, *type_.shape[axis:]))
