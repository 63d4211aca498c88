"""Heads of detectors: in a graph and in NumPy, and beside boxes that were placed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.transform.preprocessing.detection import Boxes, Nms, overlap
from onnxgrad.verify.running.session import run
from tests.helpers import parse

TWO = """g (float[N,A,4] b, float[N,A,C] s) => (float[N,A,4] boxes, float[N,A,C] scores) {
  boxes = Identity (b) scores = Identity (s) }"""


def scattered(seed: int, count: int = 60, classes: int = 3, images: int = 1) -> tuple[Any, Any]:
    """Boxes in corners that overlap in groups, and scores."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform(20, 80, (images, 8, 2))[:, rng.integers(0, 8, count)]
    centers = centers + rng.normal(0, 3, centers.shape)
    sizes = rng.uniform(10, 20, (images, count, 2))
    boxes = np.concatenate([centers - sizes / 2, centers + sizes / 2], -1)
    return boxes.astype(np.float32), rng.random((images, count, classes), np.float32)


def suppressed(boxes: Any, scores: Any, iou: float, least: float) -> list[int]:
    """Greedy suppression of one class in float64, by areas."""
    kept: list[int] = []
    for i in sorted(range(len(scores)), key=lambda i: -scores[i]):
        shares = []
        for k in kept:
            low, high = (
                np.maximum(boxes[i, :2], boxes[k, :2]),
                np.minimum(boxes[i, 2:], boxes[k, 2:]),
            )
            inner = np.prod(np.clip(high - low, 0, None))
            areas = [np.prod(boxes[j, 2:] - boxes[j, :2]) for j in (i, k)]
            shares.append(inner / (sum(areas) - inner))
        if scores[i] > least and max(shares, default=0) <= iou:
            kept.append(i)
    return kept


@pytest.mark.parametrize("seed", range(3))
def test_suppression(seed: int) -> None:
    boxes, scores = scattered(seed, images=2)
    after = {"boxes,scores": "nms{iou=0.4,score=0.3,best=false}"}
    made = onnxgrad.preprocess(parse(TWO), after=after, verify=False)
    found = dict(run(made, {"b": boxes, "s": scores}))
    wanted = {
        (n, c, i)
        for n in range(2)
        for c in range(3)
        for i in suppressed(boxes[n].astype(np.float64), scores[n, :, c], 0.4, 0.3)
    }
    places = zip(found["images"], found["classes"], found["boxes"], found["scores"], strict=True)
    got = {
        (int(n), int(c), int(np.flatnonzero((boxes[n] == b).all(-1) & (scores[n, :, c] == s))[0]))
        for n, c, b, s in places
    }
    assert got == wanted and len(found["scores"]) == len(wanted) > 20
    assert (np.diff(found["scores"]) <= 0).all()
    numpy = Nms(0.4, 0.3, best=False).compute({"boxes": boxes, "scores": scores}, None)
    for name, value in found.items():
        assert np.array_equal(value, numpy[name]), name


def test_a_box_counts_for_its_best_class_only() -> None:
    boxes, scores = scattered(5)
    made = onnxgrad.preprocess(parse(TWO), after={"boxes,scores": "nms{most=2}"}, verify=False)
    found = dict(run(made, {"b": boxes, "s": scores}))
    assert [v.name for v in made.graph.output] == ["boxes", "scores", "classes", "images"]
    for box, c, s in zip(found["boxes"], found["classes"], found["scores"], strict=True):
        (place,) = np.flatnonzero((boxes[0] == box).all(-1))
        assert scores[0, place].argmax() == c and scores[0, place].max() == s
    assert np.bincount(found["classes"]).tolist() == [2, 2, 2]
    empty = dict(run(made, {"b": boxes, "s": scores / 9}))
    assert empty["boxes"].shape == (0, 4) and empty["classes"].shape == (0,)
    numpy = Nms(most=2).compute({"boxes": boxes, "scores": scores / np.float32(9)}, None)
    assert numpy["boxes"].shape == (0, 4) and numpy["images"].shape == (0,)


def test_overlap() -> None:
    a = np.array([0, 0, 2, 2], np.float32)
    assert overlap(a, a) == 1 and overlap(a, a + 1) == np.float32(1 / 7) and overlap(a, a + 2) == 0


def test_boxes_of_infinite_area_suppress_none() -> None:
    """Networks without training have them: exp of a width overflows."""
    boxes = np.array(
        [[[-3e38, -3e38, 3e38, 3e38]] * 2 + [[0, 0, 2, 2], [0, 0, 2, 2.1]]], np.float32
    )
    scores = np.array([[0.9, 0.8, 0.7, 0.6]], np.float32)[..., None]
    made = onnxgrad.preprocess(parse(TWO), after={"boxes,scores": "nms"}, verify=False)
    found = np.asarray(run(made, {"b": boxes, "s": scores})["scores"]).tolist()
    numpy = Nms().compute({"boxes": boxes, "scores": scores}, None)["scores"].tolist()
    assert found == numpy == scores[0, :3, 0].tolist()


def test_what_makes_a_result_doubtful() -> None:
    boxes, scores = scattered(7, count=5)
    assert not Nms().doubt({"boxes": boxes, "scores": scores})
    scores[0, :4, 1] = [0.9, 0.9, 0.9, 0.1]
    boxes[0, 2, 3] = np.inf
    above = (scores > np.float32(0.25)).sum()
    assert (
        Nms()
        .doubt({"boxes": boxes, "scores": scores})
        .startswith(
            f"nms: 1 of 5 boxes are infinite and 2 of {above} scores equal another, so that rounding"
        )
    )
    assert (
        Nms(score=0.95)
        .doubt({"boxes": boxes, "scores": scores})
        .startswith("nms: 1 of 5 boxes are infinite, so that")
    )


@pytest.mark.parametrize("form", ["yolov8", "yolov5", "yolox"])
def test_detectors_of_one_output(form: str) -> None:
    """A box with its center at (24, 12), 16 wide and 8 high, and a score of 0.5 for class 1."""
    anchors = 1024 // 64 + 1024 // 256 + 1
    y = np.zeros((1, anchors, 7), np.float32)
    y[0, 3] = [24, 12, 16, 8, 0.625, 0.125, 0.8]
    y[0, 3, 4:] = y[0, 3, 4:] if form != "yolov8" else [0, 0.125, 0.5]
    if form == "yolox":  # cell (3, 0) of the grid of 8 pixels
        y[0, 3, :4] = [24 / 8 - 3, 12 / 8, np.log(16 / 8), np.log(8 / 8)]
    y = y[..., [0, 1, 2, 3, 5, 6]].transpose(0, 2, 1) if form == "yolov8" else y
    shape = ",".join(map(str, y.shape))
    model = parse(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Identity (x) }}")
    size = ",size=32" if form == "yolox" else ""
    made = onnxgrad.preprocess(model, after=f"boxes{{format={form}{size}}}")
    found = dict(run(made, {"x": y}))
    assert np.allclose(found["boxes"][0, 3], [16, 8, 32, 16]), found["boxes"][0, 3]
    assert found["boxes"].shape == (1, anchors, 4) and found["scores"].shape == (1, anchors, 2)
    assert np.allclose(found["scores"][0, 3], [0.125 if form == "yolov8" else 0.078125, 0.5])


@pytest.mark.parametrize(
    ("form", "wanted"),
    [("xyxy", [20, 20, 60, 40]), ("xywh", [20, 20, 80, 60]), ("cxcywh", [-10, 0, 50, 40])],
)
def test_boxes_of_their_own_output(form: str, wanted: list[float]) -> None:
    boxes = np.array([[[0.2, 0.1, 0.6, 0.2]]], np.float32)
    after = {"boxes,scores": f"boxes{{format={form},size=[200,100]}}"}
    made = onnxgrad.preprocess(parse(TWO), after=after)
    found = run(made, {"b": boxes, "s": np.ones((1, 1, 2), np.float32)})
    assert np.allclose(found["boxes"], [[wanted]])
    plain = Boxes(form).compute({"boxes": boxes, "scores": boxes}, None)  # type: ignore[arg-type]  # a text
    assert np.allclose(plain["boxes"] * [100, 200, 100, 200], [[wanted]])


@pytest.mark.parametrize("size", [(40, 80), (90, 30)])
def test_boxes_in_the_image_of_the_caller(size: tuple[int, int]) -> None:
    """Boxes of the letterbox that a corner of the image lies at, and one outside."""
    height, width = size
    ratio = 64 / max(size)
    left, top = (64 - width * ratio) // 2, (64 - height * ratio) // 2
    corner = [left, top, left + width * ratio / 2, top + height * ratio]
    model = """g (float[1,3,64,64] x) => (float[1,2,4] boxes, float[1,2,1] scores)
      <float[1,2,4] b = {%s}, float[1,2,1] s = {1, 1}, float zero = {0}> {
      m = ReduceMean <keepdims = 0> (x) z = Mul (m, zero) boxes = Add (b, z) scores = Add (s, z) }"""
    text = ", ".join(map(str, [*corner, -9.0, -9.0, 99.0, 99.0]))
    after = {"boxes,scores": "boxes{format=xyxy},to-image"}
    made = onnxgrad.preprocess(parse(model % text), "letterbox{size=64}", after)
    found = run(made, {"x": np.zeros((1, *size, 3), np.uint8)})["boxes"]
    assert np.allclose(found, [[[0, 0, width / 2, height], [0, 0, width, height]]], atol=1e-4)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (
            {"boxes,scores": "boxes{format=yolov8}"},
            "works on one value, but there are boxes, scores",
        ),
        ({"boxes": "boxes{format=xyxy}"}, "an output of boxes and one of scores, in this order"),
        ({"boxes": "boxes{format=yolox}"}, "needs the size of the model's image: size=640"),
        ({"boxes": "boxes{format=ssd}"}, "boxes: format must be one of yolov8, yolov5"),
        ({"boxes,scores": "nms,to-image"}, "to-image needs the steps of exactly one image"),
        ({"boxes,scores": "nms", "boxes": "argmax"}, "the output 'boxes' has steps already"),
        ("nms", "write --after OUTPUT=STEPS|write after={OUTPUT: STEPS}"),
    ],
)
def test_heads_that_do_not_fit(after: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        onnxgrad.preprocess(parse(TWO), after=after)
