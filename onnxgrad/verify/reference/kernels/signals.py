"""Fourier transforms of parts of a signal."""

from __future__ import annotations

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel


@kernel("STFT", why="wrong")
def stft(
    call: Call,
    signal: Array,
    step: Array,
    window: Array | None = None,
    length: Array | None = None,
) -> Array:
    """signal (B, L), (B, L, 1) or (B, L, 2) of complex numbers -> (B, frames, bins, 2); the frames
    are as long as the window, or `length`. onnx.reference accepts a signal of three axes alone, and
    cuts no frame that is longer than the window. Raises Unsupported if no frame fits the signal, or
    the window no frame.
    """
    x = signal[..., 0] if signal.ndim == 3 else signal
    if signal.ndim == 3 and signal.shape[2] == 2:
        x = x + 1j * signal[..., 1]
    size = int(np.reshape(length, -1)[0]) if length is not None else 0
    if window is not None:
        size = size or len(window)
        if len(window) > size:
            raise Unsupported("STFT: the window is longer than a frame")
    hop = int(np.reshape(step, -1)[0])
    if size < 1 or hop < 1 or x.shape[1] < size:
        raise Unsupported(f"STFT: a signal of {x.shape[1]}, frames of {size} and steps of {hop}")
    starts = np.arange(0, x.shape[1] - size + 1, hop)
    frames = x[:, starts[:, None] + np.arange(size)]
    if window is not None:
        frames = frames[..., : len(window)] * window
    halved = call["onesided"] != 0 and not np.iscomplexobj(frames)
    made = np.fft.rfft(frames, size) if halved else np.fft.fft(frames, size)
    return np.stack([made.real, made.imag], axis=-1)
