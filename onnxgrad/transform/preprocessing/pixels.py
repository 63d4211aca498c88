"""Resizes images in NumPy as a mode's library does: the reference for `resampling.py`.

A resize is a matrix of weights for each axis, built pixel by pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onnxgrad.transform.preprocessing.modes import Kernel, Mode, Nearest

Array: TypeAlias = NDArray[Any]
_HEIGHT, _WIDTH = 2, 3


def resized(x: Array, height: int, width: int, mode: Mode | Nearest) -> Array:
    """Returns the image x, uint8 or float32 [N, C, H, W], in another size and the same dtype."""
    sizes = [(_WIDTH, width), (_HEIGHT, height)]
    lost = x.shape[_HEIGHT] - height
    if isinstance(mode, Mode) and mode.tall_first and lost > max(2 * (x.shape[_WIDTH] - width), 0):
        sizes.reverse()
    if isinstance(mode, Nearest):
        for axis, size in sizes:
            x = np.take(x, _nearest(x.shape[axis], size, mode), axis)
        return x
    if x.dtype != np.uint8:
        for axis, size in sizes:
            x = _product(_matrix(x.shape[axis], size, mode, 1).astype(x.dtype), x, axis)
        return x
    if mode.levels == "11 bits":
        return _of_opencv(x, height, width, mode)
    y = x.astype(np.float64)
    for axis, size in sizes:
        weights = _matrix(x.shape[axis], size, mode, 0)
        if mode.levels == "rounded":
            y = _product(weights.astype(np.float64), y, axis)
            continue
        one = 2.0**22 if mode.levels == "22 bits" else 2.0 ** _bits(weights)
        whole = np.trunc(weights * one + 0.5 * np.sign(weights))
        y = np.clip(np.floor((_product(whole, y, axis) + one / 2) / one), 0, 255)
    return np.clip(np.rint(y), 0, 255).astype(np.uint8)


def _product(weights: Array, x: Array, axis: int) -> Array:
    """Returns weights @ x along an axis of x."""
    return np.moveaxis(np.moveaxis(x, axis, -1) @ weights.T, -1, axis)


def _bits(weights: Array) -> int:
    """Returns how often the weights can double, at most 22 times, below 2^15."""
    bits = 0
    while bits < 22 and int(weights.max() * 2.0 ** (bits + 1) + 0.5) < 1 << 15:
        bits += 1
    return bits


def _of_opencv(x: Array, height: int, width: int, mode: Mode) -> Array:
    """INTER_LINEAR on uint8: rows in 11 bits, then the rows above and below."""
    across = np.rint(_matrix(x.shape[_WIDTH], width, mode, 0) * 2048)
    rows = (_product(across, x.astype(np.float64), _WIDTH)).astype(np.int64) >> 4
    n, made = x.shape[_HEIGHT], []
    for i in range(height):
        r = np.float32((i + 0.5) * (n / height) - 0.5)
        first = math.floor(r)
        part = float(r) - first
        above, below = (rows[:, :, min(max(j, 0), n - 1)] for j in (first, first + 1))
        b0, b1 = int(np.rint((1 - part) * 2048)), int(np.rint(part * 2048))
        made.append((((b0 * above) >> 16) + ((b1 * below) >> 16) + 2) >> 2)
    return np.stack(made, _HEIGHT).astype(np.uint8)


def _nearest(n: int, m: int, mode: Nearest) -> list[int]:
    real: Any = np.float64 if mode.places == "float64" else np.float32
    scale = real(1) / (real(m) / real(n)) if mode.inverse else real(n) / real(m)
    place = [(real(i) + real(mode.offset)) * scale for i in range(m)]
    if mode.summed:
        for i in range(1, m):
            place[i] = place[i - 1] + scale
    return [min(math.floor(p), n - 1) for p in place]


def _matrix(n: int, m: int, mode: Mode, floats: int) -> Array:
    """Returns the weights [m, n] of n pixels in each of m pixels."""
    places, kernel = mode.places[floats], _KERNELS[mode.kernel]
    if mode.border == "drop":
        return _windows(n, m, mode, np.float32 if places == "float32" else np.float64)
    scale = float(np.float32(n) / np.float32(m)) if places == "fused" else n / m
    found = np.zeros((m, n))
    for i in range(m):
        r = scale * (i + 0.5) - 0.5
        r = r if places == "float64" else float(np.float32(r))
        for j in range(math.floor(r) - int(mode.radius) + 1, math.floor(r) + int(mode.radius) + 1):
            found[i, min(max(j, 0), n - 1)] += kernel(np.array(j - r))
    return found


def _windows(n: int, m: int, mode: Mode, real: Any) -> Array:
    scale = real(n) / real(m)
    widened = max(scale, real(1))
    reach = widened * real(mode.radius)
    found = np.zeros((m, n), real)
    for i in range(m):
        center = scale * (real(i) + real(0.5))
        low = int(max(center - reach + real(0.5), real(0)))
        high = min(int(center + reach + real(0.5)), n)
        j = np.arange(low, high).astype(real)
        weights = _KERNELS[mode.kernel]((j - center + real(0.5)) * (real(1) / widened))
        found[i, low:high] = weights / weights.sum()
    return found


def _triangle(x: Array) -> Array:
    found: Array = np.maximum(1 - np.abs(x), 0)
    return found


def _convolution(a: float) -> Callable[[Array], Array]:
    def kernel(x: Array) -> Array:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = (((x - 5) * x + 8) * x - 4) * a
        return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(x.dtype)

    return kernel


def _box(x: Array) -> Array:
    return ((x > -0.5) & (x <= 0.5)).astype(x.dtype)


def _hamming(x: Array) -> Array:
    x = np.abs(x)
    return np.where(x < 1, np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x)), 0)


def _lanczos(x: Array) -> Array:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


_KERNELS: dict[Kernel, Callable[[Array], Array]] = {
    "triangle": _triangle,
    "keys": _convolution(-0.5),
    "cubic": _convolution(-0.75),
    "box": _box,
    "hamming": _hamming,
    "lanczos": _lanczos,
}
