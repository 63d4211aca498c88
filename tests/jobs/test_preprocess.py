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
from onnxgrad.transform.preprocessing.detection import Nms
from onnxgrad.transform.preprocessing.images import Normalize
from onnxgrad.transform.preprocessing.steps import Prepared
from onnxgrad.verify.running.session import run
from scripts.compare_resizers import image
from tests.helpers import MODELS_DIR, interface, parse

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
    padded = np.full((128, 128, 3), 114, np.float32)
    cv2 = pytest.importorskip("cv2", exc_type=ImportError)
    padded[:72] = cv2.resize(photo[..., ::-1], (128, 72), interpolation=cv2.INTER_LINEAR)
    raw = run(onnx.load(path), {"x": padded.transpose(2, 0, 1)[None]})["detections"][0]
    cells = [(s, x, y) for s in (8, 16, 32) for y in range(128 // s) for x in range(128 // s)]
    stride, x, y = np.array(cells, np.float32).T
    center = np.stack([(raw[:, 0] + x) * stride, (raw[:, 1] + y) * stride], 1)
    half = np.exp(raw[:, 2:4]) * stride[:, None] / 2
    corners = np.concatenate([center - half, center + half], 1)
    scores = raw[:, 4:5] * raw[:, 5:]
    wanted = Nms(0.3, 0).compute({"boxes": corners[None], "scores": scores[None]}, None)
    assert np.allclose(found["scores"][:20], wanted["scores"][:20], rtol=1e-3)
    limits = np.array([160, 90, 160, 90])
    assert np.allclose(boxes[:20], np.clip(wanted["boxes"][:20] / 0.8, 0, limits), atol=0.05)


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
