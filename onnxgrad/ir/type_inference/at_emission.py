"""Types of one binding, emitted, copied or to be typed again: closed forms for the commonest
operators, onnx's own inference for the rest.

onnx forgets symbols wherever a shape is computed (Reshape, Expand, Slice, ...); `refined_shapes`
puts them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.type_inference import misinferred
from onnxgrad.ir.type_inference.closed_forms import CLOSED_FORMS
from onnxgrad.ir.type_inference.refined_shapes import refine
from onnxgrad.ir.types import (
    Shape,
    TensorType,
    Type,
    TypeMismatch,
    element_count,
    type_bytes,
    type_from_proto,
)
from onnxgrad.ir.var import Var

# constants larger than this are no shapes, axes or pads
_DATA_BYTES = 1 << 12


def result_types(
    schema: onnx.defs.OpSchema | None,
    node: NodeProto,
    inputs: Sequence[Var | None],
    block: BindingBlock,
) -> list[Type | None]:
    """One type per output name of `node`, None where nothing can be said. Raises TypeMismatch."""
    if schema is None or any(a.ref_attr_name for a in node.attribute[:]):
        return [None] * len(node.output)
    if node.domain != domains.canonical(node.domain):
        plain = NodeProto()
        plain.CopyFrom(node)
        domains.respell(plain)
        node = plain
    quick = CLOSED_FORMS.get(node.op_type) if node.domain == "" else None
    if (
        quick is not None
        and len(node.output) == 1
        and all(v is not None and v.dtype for v in inputs)
    ):
        found = quick(node, [v for v in inputs if v is not None])
        if found is not None:
            return [found]
    types = _onnx_types(schema, node, inputs, block)
    if (
        node.op_type in misinferred.OPERATORS
        and inputs[0] is not None
        and isinstance(types[0], TensorType)
    ):
        types[0] = TensorType(
            types[0].dtype, misinferred.corrected(node, inputs[0].shape, types[0].shape)
        )
    refined = refine(node, inputs)
    if refined is not None and types and isinstance(types[0], TensorType):
        types[0] = TensorType(types[0].dtype, _merge(types[0].shape, refined))
    return types


def types_of(b: Binding) -> list[Type | None]:
    """The types of a binding's results, as far as its operands tell now. Raises TypeMismatch."""
    node = b.to_node() if b.changed else b.node
    return result_types(attributes.schema(b.op, b.version, b.domain), node, b.inputs, b.block)


def _onnx_types(
    schema: onnx.defs.OpSchema, node: NodeProto, inputs: Sequence[Var | None], block: BindingBlock
) -> list[Type | None]:
    known = {v.name: type_bytes(v.type) for v in inputs if v is not None and v.type is not None}
    if any(v is not None and v.name not in known for v in inputs):
        return [None] * len(node.output)
    if node.op_type in misinferred.OPERATORS and misinferred.is_unbounded(node):
        raise TypeMismatch("more parts than anyone can read")
    data: dict[str, bytes] = {}
    for v in inputs:
        if v is not None and v.is_constant and v.dtype != TensorProto.STRING:
            count = element_count(v.shape)
            array = v.const if count is not None and count * 8 <= _DATA_BYTES else None
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
    """What onnx knows in ints, completed by what the symbols say."""
    if inferred is None or len(inferred) != len(symbols):
        return symbols
    return tuple(
        s if not isinstance(i, int) and s is not None else i
        for i, s in zip(inferred, symbols, strict=True)
    )
