"""The step after a detector whose boxes are offsets from anchors: SSD, RetinaNet, Faster R-CNN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.ir.storage.atomic_files import regular
from onnxgrad.options import Range
from onnxgrad.transform.preprocessing.detection import boxes_and_scores, check_rank, columns
from onnxgrad.transform.preprocessing.image_sizes import Pixels, Sizes, pair_of
from onnxgrad.transform.preprocessing.pixels import Array
from onnxgrad.transform.preprocessing.steps import Frame, Head, Values
from onnxgrad.wording import counted

_LARGEST = 1 << 28  # bytes of a file
Positive = Annotated[float, Range(0, 3e38, above=True, words="a finite number above 0")]


@dataclass(frozen=True)
class Anchors(Head):
    """Boxes x1, y1, x2, y2 [N, A, 4] from offsets dx, dy, dw, dh [N, A, 4] to anchors of center
    (x, y) and size (w, h): center (x + v0 dx w, y + v1 dy h), size (w exp(v2 dw), h exp(v3 dh)).

    The anchors are those of `file`, an .npy of [A, 4] as x, y, w, h, or as x1, y1, x2, y2 with
    `corners`; `size`, of the model's image, multiplies anchors from 0 to 1. Or they are generated
    as torchvision's AnchorGenerator does for an image of `size`: for each of the `strides`, in this
    order, and each cell of its grid, an anchor for each ratio of height to width and each size.
    `sizes` are those of all strides, one after another. `variances`: v of centers and sizes, or all
    four. `limit`: a box is at most this many times as wide and high as its anchor.
    """

    name: ClassVar[str] = "anchors"
    file: str = ""
    size: Sizes | None = None
    corners: bool = False
    strides: tuple[Pixels, ...] = ()
    sizes: tuple[Positive, ...] = ()
    ratios: tuple[Positive, ...] = (1.0,)
    variances: tuple[Positive, ...] = (1.0, 1.0)
    limit: Positive = 62.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            pair_of(self.size, self.name)
        if bool(self.file) == bool(self.strides):
            raise InputError("anchors needs either file=FILE.npy or strides=[...],sizes=[...]")
        if self.strides and self.size is None:
            raise InputError("anchors: strides need the size of the model's image: size=800")
        if self.strides and (not self.sizes or len(self.sizes) % len(self.strides)):
            raise InputError(
                f"anchors: sizes must have as many numbers for each of the {len(self.strides)} "
                f"strides, not {len(self.sizes)} for all"
            )
        if len(self.variances) not in (2, 4):
            raise InputError(
                f"anchors: variances must be 2 or 4 numbers, not {len(self.variances)}"
            )

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes and scores."""
        offsets, scores = boxes_and_scores(values, self.name)
        check_rank(offsets, self.name)
        centers, sizes = self._placed()
        if isinstance(offsets.shape[1], int) and offsets.shape[1] != len(centers):
            raise InputError(
                f"anchors: the number of anchors is {len(centers)}, but '{offsets.name}' has "
                f"{counted(offsets.shape[1], 'box', 'boxes')}"
            )
        by_center, by_size = self._factors()
        xy = columns(offsets, 0, 2) * by_center * sizes + centers
        most = math.log(self.limit)
        wh = op.Exp(op.Min(columns(offsets, 2, 4) * by_size, most)) * sizes * 0.5
        return {"boxes": op.Concat(xy - wh, xy + wh, axis=-1), "scores": scores}

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes and scores."""
        offsets, scores = boxes_and_scores(values, self.name)
        (centers, sizes), (by_center, by_size) = self._placed(), self._factors()
        xy = centers + sizes * by_center * offsets[..., :2]
        wh = sizes * np.exp(np.minimum(by_size * offsets[..., 2:], math.log(self.limit)))
        boxes = np.concatenate([xy - wh / 2, xy + wh / 2], -1)
        return {"boxes": boxes.astype(offsets.dtype), "scores": scores}

    def _factors(self) -> tuple[Array, Array]:
        """Returns the variances of centers and of sizes."""
        four = np.repeat(self.variances, 4 // len(self.variances)).astype(np.float32)
        return four[:2], four[2:]

    def _placed(self) -> tuple[Array, Array]:
        """Returns centers and sizes of the anchors, float32 [A, 2]. Raises InputError."""
        found = self._read() if self.file else self._generated()
        one, other = found[:, :2], found[:, 2:]
        if self.corners or not self.file:
            one, other = (one + other) / 2, other - one
        return one.astype(np.float32), other.astype(np.float32)

    def _read(self) -> Array:
        try:
            found = np.load(regular(Path(self.file), _LARGEST), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"anchors: cannot read {self.file}: {error}") from None
        if not isinstance(found, np.ndarray) or found.ndim != 2 or found.shape[1] != 4:
            what = list(found.shape) if isinstance(found, np.ndarray) else "an archive"
            raise InputError(f"anchors: {self.file} must be an .npy of [A, 4], not {what}")
        if found.dtype.kind not in "iuf" or not np.isfinite(found).all():
            raise InputError(f"anchors: {self.file} must have finite numbers")
        height, width = (1, 1) if self.size is None else pair_of(self.size, self.name)
        scaled: Array = found.astype(np.float64) * [width, height, width, height]
        return scaled

    def _generated(self) -> Array:
        """Returns anchors x1, y1, x2, y2 as torchvision's AnchorGenerator."""
        height, width = pair_of(self.size or 0, self.name)
        roots, found = np.sqrt(self.ratios)[:, None], []
        groups = np.reshape(self.sizes, (len(self.strides), -1))
        for stride, sizes in zip(self.strides, groups, strict=True):
            wide, high = (sizes / roots).ravel(), (sizes * roots).ravel()
            base = np.rint(np.stack([-wide, -high, wide, high], 1) / 2)
            rows, across = -(-height // stride), -(-width // stride)
            y, x = np.mgrid[:rows, :across]
            y, x = y.ravel() * (height // rows), x.ravel() * (width // across)
            found.append((np.stack([x, y, x, y], 1)[:, None] + base).reshape(-1, 4))
        return np.concatenate(found)
