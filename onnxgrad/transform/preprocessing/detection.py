"""Steps after the outputs of detectors: boxes in corners, non-maximum suppression, pixels of the
caller's image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.options import Range
from onnxgrad.transform.preprocessing.heads import emit_labels, labels_at, only
from onnxgrad.transform.preprocessing.image_sizes import Sizes, pair_of
from onnxgrad.transform.preprocessing.pixels import Array
from onnxgrad.transform.preprocessing.steps import Frame, Head, Values
from onnxgrad.wording import counted

Share = Annotated[float, Range(0, 1)]
Several = Annotated[int, Range(1, 1 << 31)]
_STRIDES = (8, 16, 32)  # of YOLOX
_END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Boxes(Head):
    """Boxes [N, A, 4] as x1, y1, x2, y2 in pixels of the model's image, and scores [N, A, C].

    yolov8: [N, 4+C, A] as Ultralytics exports YOLOv8 to v12. yolov5: [N, A, 5+C], a score is
    objectness times class. yolox: the same on grids of 8, 16 and 32 pixels, before decoding. xyxy,
    xywh, cxcywh: an output of boxes and one of scores. `size`: of the model's image, for yolox and
    for boxes from 0 to 1.
    """

    name: ClassVar[str] = "boxes"
    format: Literal["yolov8", "yolov5", "yolox", "xyxy", "xywh", "cxcywh"]
    size: Sizes | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            pair_of(self.size, self.name)
        elif self.format == "yolox":
            raise InputError("boxes{format=yolox} needs the size of the model's image: size=640")

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes and scores."""
        boxes, scores = self._parts(values)
        if scores is None:
            check_rank(boxes, f"boxes{{format={self.format}}}")
            y = op.Transpose(boxes, perm=[0, 2, 1]) if self.format == "yolov8" else boxes
            boxes = columns(y, 0, 4)
            scores = columns(y, 4 if self.format == "yolov8" else 5)
            if self.format != "yolov8":
                scores = scores * columns(y, 4, 5)
        xy, wh = columns(boxes, 0, 2), columns(boxes, 2, 4)
        if self.format == "yolox":
            grid, stride = _grid(pair_of(self.size or 0, self.name))
            if isinstance(boxes.shape[1], int) and boxes.shape[1] != len(grid):
                raise InputError(
                    f"boxes: a yolox of size {self.size} has "
                    f"{counted(len(grid), 'box', 'boxes')}, but the output has "
                    f"{boxes.shape[1]}"
                )
            xy, wh = (xy + grid) * stride, op.Exp(wh) * stride
        if self.format == "xywh":
            xy, wh = xy, xy + wh
        elif self.format != "xyxy":
            xy, wh = xy - wh / 2.0, xy + wh / 2.0
        corners = op.Concat(xy, wh, axis=-1)
        return {"boxes": corners * self._scale if self._unit else corners, "scores": scores}

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes and scores."""
        boxes, scores = self._parts(values)
        if scores is None:
            y = boxes.transpose(0, 2, 1) if self.format == "yolov8" else boxes
            boxes = y[..., :4]
            scores = y[..., 4:] if self.format == "yolov8" else y[..., 5:] * y[..., 4:5]
        xy, wh = boxes[..., :2], boxes[..., 2:4]
        if self.format == "yolox":
            grid, stride = _grid(pair_of(self.size or 0, self.name))
            with np.errstate(over="ignore"):
                xy, wh = (xy + grid) * stride, np.exp(wh) * stride
        if self.format == "xywh":
            xy, wh = xy, xy + wh
        elif self.format != "xyxy":
            xy, wh = xy - wh / 2, xy + wh / 2
        corners = np.concatenate([xy, wh], -1)
        return {"boxes": corners * self._scale if self._unit else corners, "scores": scores}

    def _parts(self, values: Values) -> tuple[Any, Any]:
        """Returns boxes and scores, or the only value and None. Raises InputError."""
        if self.format.startswith("yolo"):
            return only(values, f"boxes{{format={self.format}}}"), None
        return boxes_and_scores(values, f"boxes{{format={self.format}}}")

    @property
    def _unit(self) -> bool:
        return self.size is not None and self.format != "yolox"

    @property
    def _scale(self) -> Array:
        height, width = pair_of(self.size or 1, self.name)
        return np.array([width, height, width, height], np.float32)


@dataclass(frozen=True)
class Nms(Head):
    """Non-maximum suppression for each class: boxes above `score`, the best first, without those
    that overlap a better one of their class by more than `iou`, and at most `most` for each class.
    With `best`, a box counts for its best class only.
    """

    name: ClassVar[str] = "nms"
    iou: Share = 0.45
    score: Share = 0.25
    most: Several = 300
    best: bool = True
    labels: str = ""

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes [M, 4], scores, classes and images [M], and labels if there is a file."""
        boxes, scores = (op.Cast(v, to=TensorProto.FLOAT) for v in detections(values, self.name))
        if self.best:
            classes = op.Range(np.int64(0), op.Gather(op.Shape(scores), np.int64(2)), np.int64(1))
            first = op.Equal(op.ArgMax(scores, axis=2, keepdims=1), classes)
            scores = op.Where(first, scores, constant(np.float32(-1)))
        scores = op.Transpose(scores, perm=[0, 2, 1])
        chosen = op.NonMaxSuppression(
            boxes,
            scores,
            np.array([self.most]),
            np.array([self.iou], np.float32),
            np.array([self.score], np.float32),
        )
        found = op.GatherND(scores, chosen)
        found, order = op.TopK(found, op.Shape(found), axis=0, outputs=2)
        chosen = op.Gather(chosen, order, axis=0)
        image, classes, place = (op.Gather(chosen, np.int64(i), axis=1) for i in range(3))
        where = op.Concat(op.Unsqueeze(image, [1]), op.Unsqueeze(place, [1]), axis=1)
        texts = emit_labels(self.labels, None, classes)
        boxes = op.GatherND(boxes, where)
        return {"boxes": boxes, "scores": found, "classes": classes, "images": image, **texts}

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes [M, 4], scores, classes and images [M], and labels if there is a file."""
        boxes, scores = (v.astype(np.float32) for v in detections(values, self.name))
        kept: list[tuple[int, int, int]] = []
        for n in range(boxes.shape[0]):
            best = scores[n].argmax(-1)
            for c in range(scores.shape[2]):
                s = np.where(best == c, scores[n, :, c], -1) if self.best else scores[n, :, c]
                order = [i for i in np.argsort(-s, kind="stable") if s[i] > np.float32(self.score)]
                kept += [(n, c, i) for i in self._suppressed(boxes[n], order)]
        kept.sort(key=lambda at: -float(scores[at[0], at[2], at[1]]))
        image, classes, place = np.array(kept, np.int64).reshape(-1, 3).T
        texts = labels_at(self.labels, classes)
        return {
            "boxes": boxes[image, place],
            "scores": scores[image, place, classes],
            "classes": classes,
            "images": image,
            **texts,
        }

    def doubt(self, values: Values) -> str:
        """Returns how many boxes are infinite and how many candidates have equal scores, if any."""
        boxes, scores = (v.astype(np.float32) for v in detections(values, self.name))
        infinite = int((~np.isfinite(boxes)).any(-1).sum())
        columns_of = np.moveaxis(scores, -1, 1).reshape(-1, scores.shape[1])
        above = [column[column > np.float32(self.score)] for column in columns_of]
        equal = sum(column.size - np.unique(column).size for column in above)
        found = [
            f"{infinite:,} of {boxes.size // 4:,} boxes are infinite" * (infinite > 0),
            f"{equal:,} of {sum(map(np.size, above)):,} scores equal another" * (equal > 0),
        ]
        if not any(found):
            return ""
        return (
            f"nms: {' and '.join(filter(None, found))}, so that rounding decides which boxes stay: "
            "is the image scaled as in training (to-float), and is the model trained?"
        )

    def _suppressed(self, boxes: Array, order: list[Any]) -> list[int]:
        """Returns the boxes that stay, the best first."""
        kept: list[int] = []
        for i in order:
            if len(kept) == self.most:
                break
            if not any(overlap(boxes[i], boxes[k]) > np.float32(self.iou) for k in kept):
                kept.append(int(i))
        return kept


@dataclass(frozen=True)
class DropBackground(Head):
    """Scores without those of the background: the `first` class, as in SSD, or the `last`, as in
    DETR.
    """

    name: ClassVar[str] = "drop-background"
    place: Literal["first", "last"] = "first"

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes and scores with one class less."""
        boxes, scores = detections(values, self.name)
        ends = (1, _END) if self.place == "first" else (0, -1)
        return {"boxes": boxes, "scores": columns(scores, *ends)}

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns boxes and scores with one class less."""
        boxes, scores = detections(values, self.name)
        return {"boxes": boxes, "scores": np.delete(scores, 0 if self.place == "first" else -1, -1)}


def overlap(a: Array, b: Array) -> Any:
    """Returns the intersection over the union of two boxes, 0 for an empty one, and NaN for two of
    infinite areas, which suppress none.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        wh = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
        inner, areas = wh.prod(), (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod()
        return inner / (areas - inner) if inner > 0 else np.float32(0)


@dataclass(frozen=True)
class ToImage(Head):
    """Boxes in pixels of the caller's image: the way of the image through resize, crop and
    letterbox back, cut at its borders.
    """

    name: ClassVar[str] = "to-image"

    def emit(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns the values with other boxes."""
        boxes, at = _boxes(values), _frame(frame)
        numbers = [
            op.Cast(op.Concat(*(op.Unsqueeze(n, [0]) for n in four), axis=0), to=boxes.dtype)
            for four in _fours(at)
        ]
        move, scale, most = numbers
        return {**values, "boxes": op.Min(op.Max((boxes - move) / scale, 0.0), most)}

    def compute(self, values: Values, frame: Frame | None) -> dict[str, Any]:
        """Returns the values with other boxes."""
        boxes, at = _boxes(values), _frame(frame)
        move, scale, most = (np.array(four).astype(boxes.dtype) for four in _fours(at))
        return {**values, "boxes": np.clip((boxes - move) / scale, 0, most)}


def _fours(at: Frame) -> tuple[tuple[Any, ...], ...]:
    """Returns what is subtracted from x1, y1, x2 and y2, what divides them, and their largest."""
    pairs = (at.left, at.top), (at.scale_x, at.scale_y), (at.width, at.height)
    return tuple(pair * 2 for pair in pairs)


def _frame(frame: Frame | None) -> Frame:
    if frame is None:
        raise InputError("to-image needs the steps of exactly one image before the model")
    return frame


def _boxes(values: Values) -> Any:
    if "boxes" not in values:
        raise InputError(f"to-image works on boxes, but there is {', '.join(values)}")
    return values["boxes"]


def detections(values: Values, name: str) -> tuple[Any, Any]:
    """Returns boxes and scores: by name, or the only two values. Raises InputError."""
    if "boxes" in values and "scores" in values:
        return values["boxes"], values["scores"]
    if len(values) != 2:
        raise InputError(
            f"{name} works on boxes [N,A,4] and scores [N,A,C], but there is {', '.join(values)}: "
            "place boxes{format=...} before it"
        )
    boxes, scores = values.values()
    return boxes, scores


def boxes_and_scores(values: Values, name: str) -> tuple[Any, Any]:
    """Returns the two values. Raises InputError if there are others."""
    if len(values) != 2:
        raise InputError(
            f"{name} works on an output of boxes and one of scores, in this order, but there is "
            f"{', '.join(values)}"
        )
    boxes, scores = values.values()
    return boxes, scores


def check_rank(y: Var, name: str) -> None:
    """Raises InputError unless a value has 3 axes."""
    if y.shape is None or len(y.shape) != 3:
        raise InputError(f"{name} needs 3 axes, but '{y.name}' is {y.type or '?'}")


def columns(y: Var, start: int, end: int = _END) -> Var:
    """Returns y[..., start:end]."""
    return op.Slice(y, np.array([start]), np.array([end]), np.array([-1]))


def _grid(size: tuple[int, int]) -> tuple[Array, Array]:
    """Returns the grid cells [A, 2] of YOLOX as x and y, and their strides [A, 1]."""
    cells, strides = [], []
    for stride in _STRIDES:
        y, x = np.mgrid[: size[0] // stride, : size[1] // stride]
        cells.append(np.stack([x.ravel(), y.ravel()], 1))
        strides.append(np.full((x.size, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(strides).astype(np.float32)
