"""Kernel windows over spatial axes, shared by convolutions and pools: pads, output sizes, and the
strided view at each kernel offset.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call


@dataclass(frozen=True)
class Windows:
    """Where the windows of one Conv or pool lie. All lists have one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]

    def extent(self, axis: int) -> int:
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def offsets(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*(range(k) for k in self.kernel))

    def pad(self, x: Array, value: float) -> Array:
        """x (N, C, *spatial) padded so that every window lies inside (the ceil mode's last one
        too).
        """
        sizes = x.shape[2:]
        widths = [(0, 0), (0, 0)]
        for axis, size in enumerate(sizes):
            needed = (
                (self.out[axis] - 1) * self.strides[axis]
                + self.extent(axis)
                - self.begin[axis]
                - size
            )
            widths.append((max(self.begin[axis], 0), max(self.end[axis], needed, 0)))
        padded = np.pad(x, widths, constant_values=value) if any(map(any, widths)) else x
        crop = tuple(slice(max(-self.begin[axis], 0), None) for axis in range(len(sizes)))
        return padded[(slice(None), slice(None), *crop)]

    def at(self, padded: Array, offset: Sequence[int]) -> Array:
        """The element of every window at one kernel offset: a view (N, C, *out)."""
        index: list[slice] = [slice(None), slice(None)]
        for axis, position in enumerate(offset):
            start = position * self.dilations[axis]
            index.append(
                slice(
                    start, start + (self.out[axis] - 1) * self.strides[axis] + 1, self.strides[axis]
                )
            )
        return padded[tuple(index)]


def windows(call: Call, spatial: Sequence[int], kernel: Sequence[int]) -> Windows:
    """Read strides, dilations, pads, auto_pad and ceil_mode of a Conv or pool over `spatial`
    sizes.
    """
    rank = len(spatial)
    strides = tuple(call["strides"] or [1] * rank)
    dilations = tuple(call["dilations"] or [1] * rank)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    mode = call["auto_pad"] or "NOTSET"
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        out = [-(-size // stride) for size, stride in zip(spatial, strides, strict=True)]
        total = [
            max((o - 1) * s + e - n, 0)
            for o, s, e, n in zip(out, strides, extents, spatial, strict=True)
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        begin, end = (small, large) if mode == "SAME_UPPER" else (large, small)
        return Windows(tuple(kernel), strides, dilations, tuple(begin), tuple(end), tuple(out))
    pads = [0] * (2 * rank) if mode == "VALID" or not call["pads"] else call["pads"]
    begin, end = pads[:rank], pads[rank:]
    out = []
    for axis in range(rank):
        room = spatial[axis] + begin[axis] + end[axis] - extents[axis]
        steps = -(-room // strides[axis]) if call["ceil_mode"] else room // strides[axis]
        if call["ceil_mode"] and steps * strides[axis] >= spatial[axis] + begin[axis]:
            steps -= 1  # a window that would start in the end padding is dropped
        out.append(max(steps + 1, 0))
    return Windows(tuple(kernel), strides, dilations, tuple(begin), tuple(end), tuple(out))
