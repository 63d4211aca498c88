"""Models with their preprocessing and heads inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, NotProved
from onnxgrad.transform.preprocessing.images import Normalize
from onnxgrad.transform.preprocessing.steps import Prepared
from onnxgrad.verify.running.session import run
from scripts.compare_resizers import image
from tests.helpers import MODELS_DIR, interface, parse
from tests.transform.preprocessing.test_detection import suppressed

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
RECIPE = f"resize{{size=110}},center-crop{{size=96}},to-float,normalize{{mean={MEAN},std={STD}}}"
POOL = """g (float[1,3,4,4] x) => (float[1,3] y) { m = GlobalAveragePool (x) y = Flatten (m) }"""
TWO = """g (float[N,3,H,W] x, float[N,3,H,W] m) => (float[N,3,H,W] y) { y = Mul (x, m) }"""


@pytest.mark.parametrize("size", [(130, 171), (97, 96), (60, 45)])
def test_a_classifier_beside_pillow(size: tuple[int, int]) -> None:
    """The steps of torchvision's recipe written with Pillow and NumPy alone."""
    pillow = pytest.importorskip("PIL.Image")
    path = MODELS_DIR / "resnet18.onnx"
    made = onnxgrad.preprocess(path, RECIPE, "softmax,top-k{k=5}", verify=False)
    onnx.checker.check_model(made, full_check=True)
    photo = image(*size)
    height, width = (int(110 * n / min(size)) for n in size)
    resized = pillow.fromarray(photo).resize((width, height), pillow.Resampling.BILINEAR)
    top, left = round((height - 96) / 2), round((width - 96) / 2)
    x = np.asarray(resized)[top : top + 96, left : left + 96].astype(np.float32) / 255
    x = (x - np.float32(MEAN)) / np.float32(STD)
    logits = run(onnx.load(path), {"x": x.transpose(2, 0, 1)[None]})["logits"]
    e = np.exp(logits - logits.max())
    found = run(made, {"x": photo[None]})
    assert found["classes"].tolist() == [np.argsort(-logits[0])[:5].tolist()]
    assert np.allclose(found["scores"], -np.sort(-e / e.sum())[:, :5], rtol=1e-5)


def test_a_detector_of_yolox() -> None:
    """Boxes of a random network on a picture, in pixels of the picture."""
    path = MODELS_DIR / "yolox.onnx"
    steps = "boxes{format=yolox,size=128},nms{iou=0.3,score=0},to-image"
    made = onnxgrad.preprocess(path, "bgr,letterbox{size=128,place=corner}", steps, verify=False)
    photo = image(90, 160, 3)
    found = run(made, {"x": photo[None]})
    boxes = np.asarray(found["boxes"])
    assert len(boxes) > 20 and (boxes >= 0).all()
    assert boxes[:, [0, 2]].max() <= 160 and boxes[:, [1, 3]].max() <= 90
    assert (np.diff(found["scores"]) <= 0).all() and set(found["images"].tolist()) == {0}


@pytest.mark.parametrize("size", [(300, 420), (211, 120)])
def test_a_detector_beside_pillow(size: tuple[int, int]) -> None:
    """Coloured squares, which a network finds in cells of 32 pixels, and the steps of Ultralytics
    written with Pillow and NumPy alone.
    """
    pillow = pytest.importorskip("PIL.Image")
    cells = [[32 * x + 16, 32 * y + 16, 40, 36] for y in range(5) for x in range(5)]
    model = parse("""g (float[N,3,160,160] x) => (float[N,7,25] y) <int64[3] to = {0, 3, 25}> {
      m = AveragePool <kernel_shape = [32, 32], strides = [32, 32]> (x) s = Reshape (m, to)
      z = ReduceSum <keepdims = 1> (s, axis) w = Mul (z, zero) b = Add (boxes, w)
      y = Concat <axis = 1> (b, s) }""")
    for name, value in {
        "boxes": np.array([cells], np.float32).transpose(0, 2, 1),
        "axis": np.array([1, 2]), "zero": np.zeros(1, np.float32),
    }.items():  # fmt: skip
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    after = "boxes{format=yolov8},nms{iou=0.1,score=0.3},to-image"
    made = onnxgrad.preprocess(
        model, "letterbox{size=160,mode=pil-bilinear},to-float", after, verify=False
    )
    height, width = size
    photo = np.zeros((height, width, 3), np.uint8)
    photo[height // 4 : height // 2, width // 2 : width * 3 // 4, 0] = 250
    photo[height * 2 // 3 :, : width // 3, 2] = 200
    found = run(made, {"x": photo[None]})

    ratio = 160 / max(size)
    new = [round(n * ratio) for n in size]
    top, left = (round((160 - n) / 2 - 0.1) for n in new)
    x = np.full((160, 160, 3), 114, np.uint8)
    resized = pillow.fromarray(photo).resize((new[1], new[0]), pillow.Resampling.BILINEAR)
    x[top : top + new[0], left : left + new[1]] = np.asarray(resized)
    y = run(model, {"x": x.transpose(2, 0, 1)[None].astype(np.float32) / 255})["y"][0]
    corners = np.concatenate([y[:2] - y[2:4] / 2, y[:2] + y[2:4] / 2]).T
    rows = []
    for c in range(3):
        mine = np.where(y[4:].argmax(0) == c, y[4 + c], -1)
        for i in suppressed(corners.astype(np.float64), mine, 0.1, 0.3):
            box = (corners[i] - [left, top, left, top]) / ratio
            rows.append([*np.clip(box, 0, [width, height, width, height]), mine[i], c])
    wanted = np.array(sorted(rows, key=lambda row: -row[4]))
    assert {0, 2} <= {*wanted[:, 5]} and wanted[0, 4] > 0.7
    assert np.allclose(found["boxes"], wanted[:, :4], atol=1e-3)
    assert np.allclose(found["scores"], wanted[:, 4]) and np.array_equal(
        found["classes"], wanted[:, 5]
    )


def test_the_proof_computes_the_steps_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails for a step that emits something else than it computes."""
    steps = "resize{size=[4,4]},to-float,normalize{mean=0.5,std=0.25}"
    onnxgrad.preprocess(parse(POOL), steps, "argmax")
    correct = Normalize.compute

    def wrong(self: Normalize, at: Prepared) -> Prepared:
        made = correct(self, at)
        return Prepared(made.value * np.float32(1.001), made.frame)

    monkeypatch.setattr(Normalize, "compute", wrong)
    with pytest.raises(NotProved, match="DIFFERENT on cpu: y"):
        onnxgrad.preprocess(parse(POOL), steps)


def test_the_proof_needs_a_detection() -> None:
    model = """g (float[1,3,8,8] x) => (float[1,1,4] boxes, float[1,1,1] scores)
      <float[1,1,4] b = {1, 2, 5, 6}, float[1,1,1] s = {0.1}, float zero = {0}> {
      m = ReduceMean <keepdims = 0> (x) z = Mul (m, zero) boxes = Add (b, z) scores = Add (s, z) }"""
    after = {"boxes,scores": "nms{score=0.2}"}
    with pytest.raises(NotProved, match="boxes"):
        onnxgrad.preprocess(parse(model), "letterbox{size=8}", after)
    after = {"boxes,scores": "nms{score=0.05}"}
    made = onnxgrad.preprocess(parse(model), "letterbox{size=8}", after)
    found = run(made, {"x": np.zeros((1, 5, 5, 3), np.uint8)})
    assert found["boxes"].tolist() == [[1, 2, 5, 6]]


def test_a_detector_that_saturates() -> None:
    """The random weights of this network suit images from 0 to 1: with levels, most scores are 1
    and some widths overflow.
    """
    before, after = "bgr,letterbox{size=128,place=corner}", "boxes{format=yolox,size=128},nms"
    message = (
        r"not proved: nms: \d+ of 336 boxes are infinite and [\d,]+ of [\d,]+ scores equal another, so "
        r"that rounding decides which boxes stay: is the image scaled as in training \(to-float\)"
    )
    options: Any = {"dims": {"height": 90, "width": 160}, "seeds": [0]}
    with pytest.raises(NotProved, match=message) as error:
        onnxgrad.preprocess(MODELS_DIR / "yolox.onnx", before, after, **options)
    assert "metric" not in str(error.value)  # no bound applies to shapes
    onnxgrad.preprocess(MODELS_DIR / "yolox.onnx", f"{before},to-float", after, **options)


def test_tokens_of_several_inputs_have_one_length() -> None:
    path = MODELS_DIR / "bert.onnx"
    steps = {
        "input_ids": "pad-tokens{length=12,value=1}",
        "attention_mask": "pad-tokens{length=12}",
    }
    made = onnxgrad.preprocess(path, steps, verify=False)
    shapes = [[d.dim_param for d in v.type.tensor_type.shape.dim] for v in made.graph.input]
    assert shapes == [["batch", "length"]] * 2
    ids = np.array([[3, 4, 5]])
    found = run(made, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    padded = np.array([[3, 4, 5, *[1] * 9]])
    mask = np.array([[1, 1, 1, *[0] * 9]])
    wanted = run(onnx.load(path), {"input_ids": padded, "attention_mask": mask})
    assert np.allclose(found["last_hidden_state"], wanted["last_hidden_state"], atol=1e-5)


def test_symbols_that_have_one_size_now(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source, out = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(parse(TWO), source)
    words = [str(source), "--before", "x=image{layout=hwc},resize{size=[4,6]},to-float"]
    assert main(["preprocess", *words, "-o", str(out), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["notes"] == [
        f"{s} is {n} now, by the steps" for s, n in (("N", 1), ("H", 4), ("W", 6))
    ]
    types = {v.name: str(v.type) for v in onnxgrad.load(out).main.inputs}
    assert types == {"x": "u8[height,width,3]", "m": "f32[1,3,4,6]"}


def test_an_old_model_is_raised(tmp_path: Path) -> None:
    model = parse("g (float[1,3,4,4] x) => (float[1,48] y) { y = Flatten (x) }", opset=9)
    made = onnxgrad.preprocess(model, "resize{size=[4,4],mode=pil-bicubic},to-float", "softmax")
    assert made.opset_import[0].version == 18
    assert interface(made) == (["x"], ["probabilities"])


def test_other_dtypes_of_the_model() -> None:
    half = "g (float16[1,3,4,4] x) => (float16[1,48] y) { y = Flatten (x) }"
    onnxgrad.preprocess(parse(half), "resize{size=[4,4]},to-float", "softmax")
    levels = "g (uint8[1,4,4,3] x) => (uint8[1,48] y) { y = Flatten (x) }"
    made = onnxgrad.preprocess(parse(levels), "resize{size=[4,4]},channels-last")
    x = image(4, 4)[None]
    assert np.array_equal(run(made, {"x": x})["y"], x.reshape(1, -1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no steps are named"),
        ({"before": "imagenet"}, r"the steps of 'x' end in f32\[1,3,224,224\], but the model reads f32\[1,3,4,4\]"),
        ({"before": {"z": "bgr"}}, "no input is called 'z'"),
        ({"before": {"resize(size": "4)"}}, r"called 'resize\(size'; options of a step are in braces: resize\{"),
        ({"before": "bgr", "after": {"softmax,top-k(k": "5)"}}, r"options of a step are in braces: top-k\{"),
        ({"before": "resize{size=4}"}, r"a size that depends on the image, but the model reads f32\[1,3,4,4\]: crop"),
        ({"before": "pad-tokens{length=3}"}, r"the input 'x' is f32\[1,3,4,4\], not tokens \[N,T\]"),
        ({"before": "normalize{mean=[1,2],std=1}"}, "mean has 2 numbers, but the image has 3"),
        ({"before": "resize{size=4,mode=opencv-area}"}, "opencv-area averages .* pil-box is the nearest"),
        ({"before": 3}, "preprocess: before must be"),
    ],
)  # fmt: skip
def test_steps_that_do_not_fit(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        onnxgrad.preprocess(parse(POOL), **options)


def test_a_model_of_several_inputs_needs_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"the model has the inputs x, m: write before=\{INPUT"):
        onnxgrad.preprocess(parse(TWO), "to-float")
    words = ["--before", "x=to-float", "--before", "x=bgr", "-o", "o.onnx"]
    assert main(["preprocess", str(MODELS_DIR / "resnet18.onnx"), *words]) == 2
    assert "--before is given twice for one name" in capsys.readouterr().err
