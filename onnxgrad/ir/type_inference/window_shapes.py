"""The result shapes of convolutions, pools and resized images, whose sizes may be unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnx import NodeProto

from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.attributes import values_of, written
from onnxgrad.ir.sizes import Dim
from onnxgrad.ir.type_inference.misinferred import rounds_up
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements, sizes
from onnxgrad.ir.types import Shape
from onnxgrad.ir.var import Var


@dataclass(slots=True)
class Call:
    """A node, its first operand `x`, all operands, and the known elements of values."""

    node: NodeProto
    x: Var
    inputs: Sequence[Var | None]
    known: KnownElements | None

    def operand(self, index: int) -> Var | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def sizes(self, index: int) -> tuple[Dim, ...] | None:
        """The elements of an operand; None if it is absent or their number unknown."""
        v = self.operand(index)
        return None if v is None else sizes(v, self.known)

    def numbers(self, index: int) -> list[int] | None:
        """The elements of an operand if all are numbers."""
        given = self.sizes(index)
        found = [d for d in given or () if isinstance(d, int)]
        return found if given is not None and len(found) == len(given) else None

    def attr(self, name: str, default: Any) -> Any:
        return written(self.node, name, default)


def of_conv(c: Call) -> Shape | None:
    """Returns the result shape of a Conv."""
    w = c.operand(1)
    kernel = None if w is None or w.shape is None else w.shape[2:]
    return _windows(c, kernel, None if w is None or w.shape is None else w.shape[0])


def of_pool(c: Call) -> Shape | list[Shape] | None:
    """Returns the shape of each result of a pool."""
    if rounds_up(c.node) or c.x.shape is None or len(c.x.shape) < 2:
        return None
    found = _windows(c, c.attr("kernel_shape", None), c.x.shape[1])
    return None if found is None else [found] * len(c.node.output)


def _windows(c: Call, kernel: Sequence[Dim] | None, channels: Dim) -> Shape | None:
    """(N, channels, number of windows along each axis)."""
    shape, a = c.x.shape, values_of(c.node)
    if shape is None or kernel is None or len(kernel) != len(shape) - 2:
        return None
    n = len(kernel)
    strides, dilations = a.get("strides", [1] * n), a.get("dilations", [1] * n)
    pads, auto = a.get("pads", [0] * 2 * n), a.get("auto_pad", b"NOTSET")
    if (len(strides), len(dilations), len(pads)) != (n, n, 2 * n) or min(strides, default=1) < 1:
        return None
    dims: list[Dim] = []
    for i, d in enumerate(shape[2:]):
        width = algebra.add(algebra.multiply(dilations[i], algebra.subtract(kernel[i], 1)), 1)
        if auto in (b"SAME_UPPER", b"SAME_LOWER"):
            dims.append(algebra.divide(algebra.add(d, strides[i] - 1), strides[i]))
            continue
        if auto not in (b"NOTSET", b"VALID") or (auto == b"VALID" and any(pads)):
            return None
        room = algebra.subtract(algebra.add(d, pads[i] + pads[i + n]), width)
        dims.append(_count(room, strides[i]))
    return (shape[0], channels, *dims)


def _count(room: Dim, stride: int) -> Dim:
    """room / stride + 1. onnxruntime rounds towards zero: there is one window if less than a
    stride is missing.
    """
    whole = algebra.maximum(algebra.add(room, stride), 0)
    some = 0 if stride == 1 else algebra.minimum(whole, 1)
    return algebra.maximum(algebra.divide(whole, stride), some)


def of_transposed_conv(c: Call) -> Shape | None:
    """Returns the result shape of a ConvTranspose."""
    w, shape, a = c.operand(1), c.x.shape, values_of(c.node)
    if w is None or w.shape is None or shape is None or len(shape) != len(w.shape):
        return None
    n = len(shape) - 2
    strides, dilations = a.get("strides", [1] * n), a.get("dilations", [1] * n)
    pads, extra = a.get("pads", [0] * 2 * n), a.get("output_padding", [0] * n)
    if "output_shape" in a or a.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    if [len(strides), len(dilations), len(extra), len(pads)] != [n, n, n, 2 * n]:
        return None
    dims: list[Dim] = []
    for i, (d, k) in enumerate(zip(shape[2:], w.shape[2:], strict=True)):
        width = algebra.add(algebra.multiply(dilations[i], algebra.subtract(k, 1)), 1)
        more = algebra.add(width, extra[i] - pads[i] - pads[i + n] - strides[i])
        dims.append(algebra.maximum(algebra.add(algebra.multiply(d, strides[i]), more), 0))
    return (shape[0], algebra.multiply(w.shape[1], a.get("group", 1)), *dims)


def of_resize(c: Call) -> Shape | None:
    """Returns the result shape of a Resize: the given sizes, or the operand's times the scales."""
    shape, wanted = c.x.shape, c.sizes(3)
    axes = list(c.attr("axes", range(len(shape or ()))))
    policy = c.attr("keep_aspect_ratio_policy", b"stretch")
    if shape is None or policy != b"stretch":
        return None
    if any(not -len(shape) <= a < len(shape) for a in axes):
        return None
    if c.operand(3) is None:
        wanted = _scaled([shape[a] for a in axes], c.operand(2 if len(c.inputs) > 2 else 1))
    if wanted is None or len(wanted) != len(axes):
        return None
    dims = list(shape)
    for axis, d in zip(axes, wanted, strict=True):
        dims[axis] = d
    return tuple(dims)


def _scaled(dims: list[Dim], scales: Var | None) -> tuple[Dim, ...] | None:
    """Returns each size times its scale; None for a scale that may round."""
    found = None if scales is None else floats_of(scales)
    return None if found is None or len(found) != len(dims) else tuple(map(_times, dims, found))


def floats_of(v: Var) -> list[float] | None:
    """Returns the elements of a constant vector, or of constant vectors that are joined, as
    TorchScript's exporter writes scales.
    """
    b = v.definition
    parts = b.inputs if b is not None and b.is_op("Concat") else [v]
    arrays = [None if part is None else part.const for part in parts]
    found = [array for array in arrays if array is not None and array.ndim == 1]
    return [x for a in found for x in a.tolist()] if len(found) == len(parts) else None


def _times(d: Dim, scale: float) -> Dim:
    """Returns floor(d scale) for scales that never round, else None."""
    if scale >= 1 and scale == int(scale):
        return algebra.multiply(d, int(scale))
    return algebra.divide(d, int(1 / scale)) if scale in (0.5, 0.25, 0.125, 0.0625) else None


def of_depth_to_space(c: Call) -> Shape | None:
    """Returns the result shape of a DepthToSpace."""
    b = c.attr("blocksize", 0)
    if c.x.shape is None or len(c.x.shape) != 4 or b < 1:
        return None
    n, depth, height, width = c.x.shape
    return n, algebra.exactly(depth, b * b), algebra.multiply(height, b), algebra.multiply(width, b)


def of_space_to_depth(c: Call) -> Shape | None:
    """Returns the result shape of a SpaceToDepth."""
    b = c.attr("blocksize", 0)
    if c.x.shape is None or len(c.x.shape) != 4 or b < 1:
        return None
    n, depth, height, width = c.x.shape
    return n, algebra.multiply(depth, b * b), algebra.divide(height, b), algebra.divide(width, b)
