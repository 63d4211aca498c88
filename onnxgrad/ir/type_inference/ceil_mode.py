"""Sizes of pools with ceil_mode=1 below opset 22, where onnx counts a window that starts behind the
input.

onnxruntime and PyTorch leave that window out at every opset, and opset 22 says so; what onnx 1.23
infers for older models is one too large.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxgrad.ir import domains
from onnxgrad.ir.attributes import values_of
from onnxgrad.ir.types import Dim, Shape

POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})


def rounds_up(node: NodeProto) -> bool:
    """Whether `node` is a pool in ceil_mode, or may be: a call may set it."""
    return (
        node.op_type in POOLS
        and domains.is_default(node.domain)
        and any(a.name == "ceil_mode" and (a.ref_attr_name or a.i) for a in node.attribute[:])
    )


def without_late_windows(node: NodeProto, x: Shape | None, y: Shape | None) -> Shape | None:
    """The shape `y` inferred for a pool of `x`, less the windows that would start behind x and
    its first pads.
    """
    if x is None or y is None or len(x) != len(y):
        return y
    a, n = values_of(node), len(x) - 2
    if a.get("auto_pad", b"NOTSET") != b"NOTSET":
        return y
    strides, begin = a.get("strides") or [1] * n, (a.get("pads") or [0] * n)[:n]
    sizes: list[Dim] = [
        out - 1
        if isinstance(size, int) and isinstance(out, int) and (out - 1) * s >= size + b
        else out
        for size, out, s, b in zip(x[2:], y[2:], strides, begin)
    ]
    return (*y[:2], *sizes)
