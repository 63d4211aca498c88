"""The ways of libraries to resize images, by name: `pil-bilinear`, `opencv-linear`.

`resampling.py` computes them in a graph, `pixels.py` in NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnxgrad.errors import InputError
from onnxgrad.wording import perhaps

Kernel = Literal["triangle", "keys", "cubic", "box", "hamming", "lanczos"]
# pixels behind the border: left out of the weighted mean, or equal to the pixel at the border
Border = Literal["drop", "repeat"]
# the precision in which the place of a pixel is computed; fused: a float32 scale, rounded once
Places = Literal["float64", "float32", "fused"]
# the arithmetic on 8-bit levels: integer weights of 22 bits (Pillow), of as many bits as 16-bit
# integers hold (PyTorch), of 11 bits (OpenCV), or float64 and one rounding at the end
Levels = Literal["22 bits", "16 bits", "11 bits", "rounded"]


@dataclass(frozen=True)
class Mode:
    """A weighted mean along each axis: `kernel` of the distance to the `radius`-nearest pixels, or
    `antialias` if it is widened when the image shrinks. `levels` is the arithmetic on uint8,
    `places` the precision on uint8 and on floats. The width is resized first; with `tall_first` the
    height is, if it loses more than twice as many pixels (Pillow 13).
    """

    kernel: Kernel
    radius: float
    antialias: bool
    border: Border
    levels: Levels
    places: tuple[Places, Places] = ("float64", "float64")
    tall_first: bool = False


@dataclass(frozen=True)
class Nearest:
    """The pixel at floor(scale * (i + offset)), computed in `places`; `summed`: the scale is added
    up from pixel to pixel; `inverse`: the scale is 1 / (m / n), not n / m.
    """

    offset: float
    places: Literal["float64", "float32"] = "float64"
    summed: bool = False
    inverse: bool = False


def _pil(kernel: Kernel, radius: float) -> Mode:
    return Mode(kernel, radius, True, "drop", "22 bits", tall_first=True)


def _torchvision(kernel: Kernel, radius: float) -> Mode:
    return Mode(kernel, radius, True, "drop", "16 bits", ("float64", "float32"))


def _torchvision_v1(kernel: Kernel, radius: float) -> Mode:
    return Mode(kernel, radius, True, "drop", "rounded", ("float32", "float32"))


def _torch(kernel: Kernel, radius: float) -> Mode:
    return Mode(kernel, radius, False, "repeat", "16 bits", ("float64", "fused"))


MODES: dict[str, Mode | Nearest] = {
    "pil-nearest": Nearest(0.5, summed=True),
    "pil-box": _pil("box", 0.5),
    "pil-bilinear": _pil("triangle", 1),
    "pil-hamming": _pil("hamming", 1),
    "pil-bicubic": _pil("keys", 2),
    "pil-lanczos": _pil("lanczos", 3),
    "opencv-nearest": Nearest(0, inverse=True),
    "opencv-linear": Mode("triangle", 1, False, "repeat", "11 bits", ("float32", "float64")),
    "opencv-cubic": Mode("cubic", 2, False, "repeat", "rounded"),
    "torchvision-nearest": Nearest(0, "float32"),
    "torchvision-nearest-exact": Nearest(0.5, "float32"),
    "torchvision-bilinear": _torchvision("triangle", 1),
    "torchvision-bicubic": _torchvision("keys", 2),
    "torchvision-v1-bilinear": _torchvision_v1("triangle", 1),
    "torchvision-v1-bicubic": _torchvision_v1("keys", 2),
    "torch-bilinear": _torch("triangle", 1),
    "torch-bicubic": _torch("cubic", 2),
}

_FIXED = "computes in fixed point of its own"
REFUSED = {
    "opencv-area": ("averages parts of pixels by rules of its own", "pil-box"),
    "opencv-lanczos4": ("has a kernel of 8 tabulated weights", "pil-lanczos"),
    "opencv-linear-exact": (_FIXED, "opencv-linear"),
    "opencv-nearest-exact": (_FIXED, "opencv-nearest"),
}


def mode_of(name: str) -> Mode | Nearest:
    """Returns the mode of a name. Raises InputError if it is unknown, or is one that no graph here
    reproduces.
    """
    if name in REFUSED:
        why, near = REFUSED[name]
        raise InputError(
            f"resize: {name} {why}, which no graph of ours reproduces; {near} is the nearest mode"
        )
    if name not in MODES:
        raise InputError(
            f"resize: unknown mode '{name}'{perhaps(name, MODES)}: choose from {', '.join(MODES)}"
        )
    return MODES[name]
