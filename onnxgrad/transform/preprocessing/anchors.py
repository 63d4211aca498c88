"""Steps after a detector whose boxes are offsets from anchors: SSD, RetinaNet, FCOS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.ir.storage.atomic_files import regular
from onnxgrad.ir.var import Var
from onnxgrad.options import Range
from onnxgrad.transform.preprocessing.detection import (
    Several,
    boxes_and_scores,
    check_rank,
    columns,
    detections,
)
from onnxgrad.transform.preprocessing.heads import sigmoid
from onnxgrad.transform.preprocessing.image_sizes import Pixels, Sizes, pair_of
from onnxgrad.transform.preprocessing.pixels import Array
from onnxgrad.transform.preprocessing.steps import Frame, Head, Values
from onnxgrad.wording import counted

_LARGEST = 1 << 28  # bytes of a file
_END = np.iinfo(np.int64).max
Positive = Annotated[float, Range(0, 3e38, above=True, words="a finite number above 0")]


@dataclass(frozen=True)
class Anchors(Head):
    """Boxes x1, y1, x2, y2 [N, A, 4] from offsets dx, dy, dw, dh [N, A, 4] to anchors of center
    (x, y) and size (w, h): center (x + v0 dx w, y + v1 dy h), size (w exp(v2 dw), h exp(v3 dh)). Or
    with `code` distances from l, t, r, b: (x - v0 l w, y - v1 t h, x + v2 r w, y + v3 b h).

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
    code: Literal["deltas", "distances"] = "deltas"
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
        if self.code == "distances":
            near = columns(offsets, 0, 2) * by_center * sizes
            far = columns(offsets, 2, 4) * by_size * sizes
            return {"boxes": op.Concat(centers - near, centers + far, axis=-1), "scores": scores}
        xy = columns(offsets, 0, 2) * by_center * sizes + centers
        most = math.log(self.limit)
        wh = op.Exp(op.Min(columns(offsets, 2, 4) * by_size, most)) * sizes * 0.5
        return {"boxes": op.Concat(xy - wh, xy + wh, axis=-1), "scores": scores}

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes and scores."""
        offsets, scores = boxes_and_scores(values, self.name)
        (centers, sizes), (by_center, by_size) = self._placed(), self._factors()
        xy = centers + sizes * by_center * offsets[..., :2]
        if self.code == "distances":
            near, far = (
                sizes * by * part
                for by, part in ((by_center, offsets[..., :2]), (by_size, offsets[..., 2:]))
            )
            boxes = np.concatenate([centers - near, centers + far], -1)
            return {"boxes": boxes.astype(offsets.dtype), "scores": scores}
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


@dataclass(frozen=True)
class Centerness(Head):
    """Scores of FCOS, from outputs of boxes, logits [N, A, C] and centerness [N, A, 1]: the square
    root of the probability of a class times that of the center.
    """

    name: ClassVar[str] = "centerness"

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes and scores."""
        boxes, scores, center = self._three(values)
        return {"boxes": boxes, "scores": op.Sqrt(op.Sigmoid(scores) * op.Sigmoid(center))}

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes and scores."""
        boxes, scores, center = self._three(values)
        found = np.sqrt(sigmoid(scores) * sigmoid(center))
        return {"boxes": boxes, "scores": found.astype(scores.dtype)}

    def _three(self, values: Values) -> list[Any]:
        if len(values) != 3:
            raise InputError(
                "centerness works on outputs of boxes, scores and centerness, in this order, but "
                f"there is {', '.join(values)}"
            )
        return [*values.values()]


@dataclass(frozen=True)
class Candidates(Head):
    """The best `most` scores of each level, over all classes, or with `by` class of each class. The
    others become 0. Scores equal to the last one stay.

    A level has the boxes of one of the `strides` of an image of `size`, `each` in a cell. Without
    strides there is one level.
    """

    name: ClassVar[str] = "candidates"
    most: Several
    by: Literal["level", "class"] = "level"
    size: Sizes | None = None
    strides: tuple[Pixels, ...] = ()
    each: Several = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            pair_of(self.size, self.name)
        elif self.strides:
            raise InputError("candidates: strides need the size of the model's image: size=800")

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns the values with other scores."""
        boxes, scores = detections(values, self.name)
        check_rank(scores, self.name)
        ends = self._ends(scores.shape[1])
        parts = [
            self._best(op.Slice(scores, np.array([a]), np.array([b]), np.array([1])))
            for a, b in pairwise(ends)
        ]
        return {
            "boxes": boxes,
            "scores": op.Concat(*parts, axis=1) if parts else self._best(scores),
        }

    def _best(self, scores: Var) -> Var:
        axis = 1
        found = op.Flatten(scores, axis=1) if self.by == "level" else scores
        count = op.Min(np.array([self.most]), op.Gather(op.Shape(found), np.array([axis])))
        best, _ = op.TopK(found, count, axis=axis, outputs=2)
        least = op.Slice(best, np.array([-1]), np.array([_END]), np.array([axis]))
        least = op.Unsqueeze(least, [2]) if self.by == "level" else least
        return op.Where(op.Less(scores, least), 0.0, scores)

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns the values with other scores."""
        boxes, scores = detections(values, self.name)
        made = scores.copy()
        for a, b in pairwise(self._ends(scores.shape[1]) or [0, scores.shape[1]]):
            part = made[:, a:b]
            found = part.reshape(len(part), -1, 1) if self.by == "level" else part
            least = np.sort(found, axis=1)[:, ::-1][:, : self.most][:, -1:]
            part[part < least] = 0
        return {"boxes": boxes, "scores": made}

    def _ends(self, count: Any) -> list[int]:
        """Returns where levels begin and end, nothing for one level. Raises InputError."""
        if not self.strides:
            return []
        height, width = pair_of(self.size or 0, self.name)
        levels = [-(-height // s) * -(-width // s) * self.each for s in self.strides]
        if isinstance(count, int) and count != sum(levels):
            raise InputError(
                f"candidates: the strides have {counted(sum(levels), 'box', 'boxes')}, but there "
                f"are {counted(count, 'score')} of each class"
            )
        return [0, *accumulate(levels)]
