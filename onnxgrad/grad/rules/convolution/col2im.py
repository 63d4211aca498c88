"""Col2Im: patches added up into an image, so its adjoint cuts patches out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import pad
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _col2im(
    g: Var, y: Var, x: Var, image: Any, block: tuple[int, ...] | Var, binding: Binding
) -> Var:
    """The patches of g: for each place in the block, a strided slice, or elements by number
    where it is not known.
    """
    rank = g.rank if isinstance(block, Var) else len(block) + 2
    if rank is None:
        raise InputError(
            f"the gradient of '{binding}' needs to know how many axes the image has: "
            "declare its shape"
        )
    n = rank - 2
    dilations = binding.attr("dilations") or (1,) * n
    strides = binding.attr("strides") or (1,) * n
    pads = binding.attr("pads") or (0,) * 2 * n
    padded = pad(g, [0, 0, *pads[:n], 0, 0, *pads[n:]])
    if isinstance(block, Var):
        return reshape_like(_patches(padded, block, n, strides, dilations), x)
    axes = list(range(2, n + 2))
    ends = op.Shape(padded, start=2)
    extent = np.array([(k - 1) * d for k, d in zip(block, dilations, strict=True)], np.int64)
    patches = []
    for place in product(*map(range, block)):
        start = np.array([p * d for p, d in zip(place, dilations, strict=True)], np.int64)
        patch = op.Slice(padded, start, op.Sub(ends, extent - start), axes, list(strides))
        patches.append(op.Unsqueeze(op.Reshape(patch, [0, 0, -1]), [2]))
    stacked = op.Concat(*patches, axis=2)
    return reshape_like(stacked, x)


def _patches(
    padded: Var, block: Var, n: int, strides: Sequence[int], dilations: Sequence[int]
) -> Var:
    """padded (N, C, *image) as (N, C, places in the block, positions): Gather by the sum of two
    row-major numbers.
    """
    sizes = op.Shape(padded, start=2)
    place: Any = np.int64(0)
    position: Any = np.int64(0)
    for i in range(n):
        size, count = (op.Squeeze(op.Slice(v, [i], [i + 1], [0]), [0]) for v in (sizes, block))
        offsets = op.Range(np.int64(0), count, np.int64(1)) * np.int64(dilations[i])
        starts = op.Range(
            np.int64(0), size - (count - np.int64(1)) * np.int64(dilations[i]), np.int64(strides[i])
        )
        place = offsets if i == 0 else op.Reshape(op.Unsqueeze(place * size, [1]) + offsets, [-1])
        position = (
            starts if i == 0 else op.Reshape(op.Unsqueeze(position * size, [1]) + starts, [-1])
        )
    numbers = op.Unsqueeze(place, [1]) + position
    return op.Gather(op.Reshape(padded, [0, 0, -1]), numbers, axis=2)


vjp("Col2Im", _col2im)
