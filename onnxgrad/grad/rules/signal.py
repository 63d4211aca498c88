"""DFT and STFT. Both are linear: the adjoint is the conjugate transpose, which is the inverse
without the factor 1 / n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp, zero
from onnxgrad.grad.rules._common import pad
from onnxgrad.grad.rules.gather import add_rows
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import rank_of
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.fill_and_reshape import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.type_inference.shape_arithmetic import sizes
from onnxgrad.ir.var import Var


def _size(v: Var, axis: Any) -> Any:
    """Returns the size along `axis`: an int if known, else an int64 vector with one element.

    `axis` is an int, or a vector with one element if known at run time only.
    """
    if isinstance(axis, Var):
        return op.Gather(op.Shape(v), axis, axis=0)
    size = v.shape[axis] if v.shape is not None else None
    return size if isinstance(size, int) else op.Shape(v, start=axis, end=axis + 1)


def _number(n: Any, like: Var) -> Any:
    return float(n) if isinstance(n, int) else op.Cast(op.Squeeze(n, [0]), to=like.dtype)


def _fitted(v: Var, axis: Any, n: Any) -> Var:
    """Crops `v`, or pads it with zeros, to length `n` along `axis`."""
    own = _size(v, axis)
    if isinstance(own, int) and isinstance(n, int):
        return v if own == n else _padded(v, axis, [n - own])
    return _padded(v, axis, op.Sub(_vector(n), _vector(own)))


def _padded(v: Var, axis: Any, after: Any) -> Var:
    pads = (
        [0, *after]
        if isinstance(after, list)
        else op.Concat(constant(np.array([0], np.int64)), after, axis=0)
    )
    return pad(v, pads, axis if isinstance(axis, Var) else [axis])


def _real(v: Var, parts: Any) -> Var:
    """Returns the real part if the forward operand was real."""
    return v if parts == 2 else op.Slice(v, [0], [1], [-1])


def _complex(v: Var) -> Var:
    """Returns real numbers (..., 1) as complex ones (..., 2)."""
    return v if v.shape is not None and v.shape[-1] == 2 else _padded(v, (v.rank or 0) - 1, [1])


def _parts(v: Var, binding: Binding) -> int:
    parts = v.shape[-1] if v.shape is not None else None
    if not isinstance(parts, int) and binding.attr("onesided"):  # one side of real numbers
        parts = 2 if binding.attr("inverse", 0) else 1
    if parts == 1 or parts == 2:
        return int(parts)
    raise InputError(
        f"the gradient of '{binding}' needs to know whether '{v.name}' is real or complex: its "
        "last axis, 1 or 2, must be known"
    )


def _dft(
    g: Var,
    y: Var,
    x: Var,
    dft_length: Any,
    axis: Any,
    inverse: int,
    onesided: int,
    binding: Binding,
) -> Var:
    parts = _parts(x, binding)
    rank = rank_of(x, binding)
    usual = 1 if binding.version < 20 else -2
    a: Any = (
        op.Reshape(op.Cast(axis, to=TensorProto.INT64), [1])
        if isinstance(axis, Var)
        else (usual if axis is None else int(axis[0])) % rank
    )
    if inverse and onesided:
        # y = irfft(x): each bin except 0 and n / 2 also represents its mirror image
        n = _size(y, a)
        bins = _transform(_real(g, 1), a, onesided=1)
        return _fitted(bins * _mirror_weights(bins, n, a) / _number(n, g), a, _size(x, a))
    n = _length(dft_length, x, a) if onesided else _size(y, a)
    full = _fitted(_complex(g), a, n)
    found = (
        _transform(full, a) / _number(n, g)
        if inverse
        else _transform(full, a, inverse=1) * _number(n, g)
    )
    return _fitted(_real(found, parts), a, _size(x, a))


def _transform(v: Var, axis: Any, **attributes: int) -> Var:
    at = op.Squeeze(axis, [0]) if isinstance(axis, Var) else np.int64(axis)
    return op.DFT(v, None, at, **attributes)


def _length(given: Any, x: Var, axis: Any) -> Any:
    if given is None:
        return _size(x, axis)
    if not isinstance(given, Var):
        return int(given[0])
    known = sizes(given)
    if known is not None and isinstance(known[0], int):
        return known[0]
    return op.Reshape(op.Cast(given, to=TensorProto.INT64), [1])


def _mirror_weights(bins: Var, n: Any, axis: Any) -> Var:
    """Returns how often each bin of the one-sided spectrum counts: 1 at 0 and n / 2, else 2."""
    rank = bins.rank or 0
    if isinstance(n, int) and isinstance(axis, int):
        bins_ = np.arange(n // 2 + 1)
        weights = np.where((bins_ == 0) | (2 * bins_ == n), 1.0, 2.0)
        return constant(weights.reshape([-1 if i == axis else 1 for i in range(rank)]), bins.dtype)
    k = op.Range(
        constant(np.int64(0)), op.Squeeze(_vector(_size(bins, axis)), [0]), constant(np.int64(1))
    )
    alone = op.Or(op.Equal(k, constant(np.int64(0))), op.Equal(op.Add(k, k), _vector(n)))
    counted = op.Where(alone, constant(1.0, bins.dtype), constant(2.0, bins.dtype))
    ones = constant(np.ones(rank, np.int64))
    shape = op.ScatterElements(ones, _vector(axis), _vector(-1), axis=0)
    return op.Reshape(counted, shape)


def _vector(n: Any) -> Var:
    return constant(np.array([n], np.int64)) if isinstance(n, int) else n


vjp("DFT", _dft)


# ---- STFT: overlapping frames, multiplied by the window and transformed --------------------------


class _Frames:
    """The positions of the frames of an STFT. Stacked frames have the shape (B, F, n, parts)."""

    def __init__(
        self,
        y: Var,
        signal: Var,
        frame_step: Any,
        window: Var | None,
        frame_length: Any,
        binding: Binding,
    ) -> None:
        self.window, self.binding = window, binding
        if signal.rank is None and binding.attr("onesided"):
            signal = op.Reshape(signal, [0, -1, 1])  # real, of two or three axes
        self.signal = op.Unsqueeze(signal, [2]) if signal.rank == 2 else signal
        self.parts = _parts(self.signal, binding)
        if frame_length is not None:
            self.n = _length(frame_length, self.signal, 1)
        elif window is not None:
            self.n = _size(window, 0)
        else:
            raise InputError(
                f"'{binding}' has neither a window nor a frame_length: it has no gradient"
            )
        step = (
            frame_step
            if isinstance(frame_step, Var)
            else constant(np.array(frame_step, np.int64).reshape(1))
        )
        step = op.Reshape(op.Cast(step, to=TensorProto.INT64), [1])
        starts = op.Mul(_count(_size(y, 1)), step)
        self.places = op.Reshape(op.Add(op.Unsqueeze(starts, [1]), _count(self.n)), [-1])

    def adjoint(self, g: Var) -> Var:
        """Returns the adjoint of the windowed frames, given that of the spectra."""
        full = op.DFT(_fitted(g, 2, self.n), None, np.int64(2), inverse=1) * _number(self.n, g)
        return _real(full, self.parts)


def _count(n: Any) -> Var:
    if isinstance(n, int):
        return constant(np.arange(n, dtype=np.int64))
    return op.Range(constant(np.int64(0)), op.Squeeze(n, [0]), constant(np.int64(1)))


def _stft_signal(
    g: Var,
    y: Var,
    signal: Var,
    frame_step: Any,
    window: Var | None,
    frame_length: Any,
    binding: Binding,
) -> Var:
    at = _Frames(y, signal, frame_step, window, frame_length, binding)
    v = at.adjoint(g)
    if at.window is not None:
        v = v * op.Unsqueeze(at.window, [1])
    flat = op.Reshape(v, [0, -1, at.parts])
    # frames overlap, so they are added up along the first axis, whose rows are contiguous
    summed = add_rows(
        op.Transpose(at.signal, perm=[1, 0, 2]), at.places, op.Transpose(flat, perm=[1, 0, 2])
    )
    return reshape_like(op.Transpose(summed, perm=[1, 0, 2]), signal)


def _stft_window(
    g: Var, y: Var, signal: Var, frame_step: Any, window: Var, frame_length: Any, binding: Binding
) -> Var:
    at = _Frames(y, signal, frame_step, window, frame_length, binding)
    v = at.adjoint(g)
    frames = op.Reshape(op.Gather(at.signal, at.places, axis=1), op.Shape(v))
    return op.ReduceSum(v * frames, [0, 1, 3], keepdims=0)


vjp("STFT", _stft_signal, None, _stft_window)
zero("MelWeightMatrix", notes="a table; its operands receive nothing")
zero("HannWindow", "HammingWindow", "BlackmanWindow", notes="a table of a given size")
