"""Sizes of pools with ceil_mode=1 below opset 22, where onnx counts a window that starts behind the input.

onnxruntime and PyTorch leave that window out at every opset, and opset 22 says so; what onnx 1.23 infers for older
models is one too large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import ModelProto, NodeProto, helper

from onnxgrad.ir.types import Dim, Shape, TensorType, type_from_proto

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_SINCE = 22


def rounds_up(node: NodeProto) -> bool:
    """Whether `node` is a pool in ceil_mode with explicit pads."""
    return node.op_type in _POOLS and node.domain in ("", "ai.onnx") and bool(_attributes(node).get("ceil_mode"))


def without_late_windows(node: NodeProto, x: Shape | None, y: Shape | None) -> Shape | None:
    """The shape `y` inferred for a pool of `x`, less the windows that would start behind x and its first pads."""
    if x is None or y is None or len(x) != len(y):
        return y
    a, n = _attributes(node), len(x) - 2
    if a.get("auto_pad", b"NOTSET") != b"NOTSET":
        return y
    strides, begin = a.get("strides") or [1] * n, (a.get("pads") or [0] * n)[:n]
    sizes: list[Dim] = [
        out - 1 if isinstance(size, int) and isinstance(out, int) and (out - 1) * s >= size + b else out
        for size, out, s, b in zip(x[2:], y[2:], strides, begin)
    ]
    return (*y[:2], *sizes)


def correct(model: ModelProto, inferred: ModelProto) -> bool:
    """Give the first pool that was inferred too large the pads that make it right; whether there was one."""
    if all(o.domain not in ("", "ai.onnx") or o.version >= _SINCE for o in model.opset_import):
        return False
    pools = [node for node in model.graph.node if rounds_up(node)]
    if not pools:
        return False
    graph = inferred.graph
    values = {v.name: type_from_proto(v.type) for v in (*graph.input, *graph.value_info, *graph.output)}
    for node in pools:
        x, y = values.get(node.input[0]), values.get(node.output[0])
        if isinstance(x, TensorType) and isinstance(y, TensorType):
            right = without_late_windows(node, x.shape, y.shape)
            if right is not None and right != y.shape and x.shape is not None:
                _round_down(node, x.shape[2:], right[2:])
                return True
    return False


def _round_down(node: NodeProto, long: Sequence[Dim], short: Sequence[Dim]) -> None:
    """ceil_mode=0, and as much padding at the end as `short` windows need."""
    a, n = _attributes(node), len(long)
    strides, dilations = a.get("strides") or [1] * n, a.get("dilations") or [1] * n
    begin, end = (a.get("pads") or [0] * 2 * n)[:n], (a.get("pads") or [0] * 2 * n)[n:]
    for i, (size, out) in enumerate(zip(long, short)):
        if isinstance(size, int) and isinstance(out, int):
            end[i] = max(0, (out - 1) * strides[i] + (a["kernel_shape"][i] - 1) * dilations[i] + 1 - size - begin[i])
    kept = [x for x in node.attribute if x.name not in ("ceil_mode", "pads")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", [*begin, *end])])


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}
