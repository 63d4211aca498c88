"""Configurations of Transformers as steps, beside its processors and Pillow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.transform.preprocessing.processor_config import PROCESSORS, steps_of
from onnxgrad.transform.preprocessing.registry import steps_before
from onnxgrad.transform.preprocessing.steps import Prepared
from onnxgrad.verify.running.session import run
from scripts.compare_resizers import image
from tests.helpers import parse

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NUMBERS = {"do_normalize": True, "do_resize": True, "image_mean": MEAN, "image_std": STD}
NEW = {**NUMBERS, "do_rescale": True, "rescale_factor": 0.00392156862745098}
NORMALIZE = f"to-float,normalize{{mean={MEAN},std={STD}}}".replace(" ", "")
CROP = "center-crop{size=%s,rounding=transformers}"

# the fields of files of the Hub, old and new, and their steps
FILES: dict[str, tuple[dict[str, Any], str]] = {
    "CLIP, old": (
        {**NUMBERS, "feature_extractor_type": "CLIPFeatureExtractor", "size": 32, "resample": 3,
         "do_center_crop": True, "crop_size": 30},
        f"resize{{size=32,mode=pil-bicubic}},{CROP % 30},{NORMALIZE}",
    ),
    "CLIP": (
        {**NEW, "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32},
         "crop_size": {"height": 32, "width": 32}, "do_convert_rgb": True, "resample": 3},
        f"resize{{size=32,mode=pil-bicubic}},{CROP % '[32,32]'},{NORMALIZE}",
    ),
    "ViT, old": (
        {**NUMBERS, "image_processor_type": "ViTFeatureExtractor", "size": 32},
        f"resize{{size=[32,32],mode=pil-bilinear}},{NORMALIZE}",
    ),
    "ViT": (
        {**NEW, "image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 24}},
        f"resize{{size=[32,24],mode=pil-bilinear}},{NORMALIZE}",
    ),
    "DETR, old": (
        {**NUMBERS, "feature_extractor_type": "DetrFeatureExtractor", "format": "coco_detection",
         "size": 40, "max_size": 61},
        f"resize{{size=40,max_size=61,rounding=transformers,mode=pil-bilinear}},{NORMALIZE}",
    ),
    "DETR": (
        {**NEW, "image_processor_type": "DetrImageProcessor", "do_pad": True,
         "size": {"shortest_edge": 40, "longest_edge": 61}, "pad_size": {"height": 61, "width": 61}},
        f"resize{{size=40,max_size=61,rounding=transformers,mode=pil-bilinear}},{NORMALIZE},"
        "pad{size=[61,61]}",
    ),
    "RT-DETR": (
        {**NEW, "image_processor_type": "RTDetrImageProcessor", "do_normalize": False,
         "size": {"height": 32, "width": 32}, "resample": 2, "do_convert_annotations": True},
        "resize{size=[32,32],mode=pil-bilinear},to-float",
    ),
    "BiT, of DINOv2": (
        {**NEW, "image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 40},
         "crop_size": {"height": 35, "width": 35}, "resample": 3},
        f"resize{{size=40,mode=pil-bicubic}},{CROP % '[35,35]'},{NORMALIZE}",
    ),
    "ConvNeXt": (
        {**NUMBERS, "feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875,
         "size": 32, "resample": 3},
        f"resize{{size=36,mode=pil-bicubic}},{CROP % 32},{NORMALIZE}",
    ),
    "ConvNeXt of 384": (
        {**NEW, "image_processor_type": "ConvNextImageProcessor", "crop_pct": 1.0,
         "size": {"shortest_edge": 384}},
        f"resize{{size=[384,384],mode=pil-bicubic}},{NORMALIZE}",
    ),
    "levels": (
        {"image_processor_type": "ViTImageProcessor", "do_resize": False, "rescale_factor": 0.5,
         "image_mean": 0.5, "image_std": 2},
        "scale{factor=0.5},normalize{mean=0.5,std=2}",
    ),
}  # fmt: skip


def written(folder: Path, fields: Any) -> str:
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(fields), encoding="utf-8")
    return str(file)


def computed(steps: str, x: Any) -> Any:
    source, rest = steps_before(steps, "before")
    at = source.compute(Prepared(x[None]))
    for step in rest:
        at = step.compute(at)
    return at.value


@pytest.mark.parametrize("name", FILES)
def test_the_steps_of_a_file(name: str, tmp_path: Path) -> None:
    fields, wanted = FILES[name]
    assert steps_of(written(tmp_path, fields)) == wanted
    steps_before(wanted, "before")
    nested = {"processor_class": "P", "image_processor": fields}
    assert steps_of(written(tmp_path, nested)) == wanted


@pytest.mark.parametrize("backend", ["Pil", ""])
@pytest.mark.parametrize("name", FILES)
def test_pixels_beside_transformers(name: str, backend: str, tmp_path: Path) -> None:
    """Both of its backends: of Pillow, the same bits; of torchvision, the rounding of floats."""
    transformers = pytest.importorskip("transformers")
    if not backend:
        pytest.importorskip("torchvision", exc_type=ImportError)
    fields = dict(FILES[name][0])
    old = fields.pop("feature_extractor_type", fields.pop("image_processor_type", ""))
    kind = old.replace("FeatureExtractor", "ImageProcessor")
    processor = getattr(transformers, kind + backend)(**fields)
    fields["image_processor_type"] = kind if backend else f"{kind}Fast"
    steps = steps_of(written(tmp_path, fields))
    for size in ((50, 75), (75, 50), (64, 64), (47, 130)):
        x = image(*size)
        wanted = np.asarray(processor(x, return_tensors="np" if backend else "pt")["pixel_values"])
        found = computed(steps, x)
        assert found.shape == wanted.shape
        assert np.array_equal(found, wanted) if backend else np.abs(found - wanted).max() < 2e-6


@pytest.mark.parametrize("size", [(50, 75), (61, 47)])
def test_a_model_beside_pillow(size: tuple[int, int], tmp_path: Path) -> None:
    """CLIP's steps written with Pillow and NumPy alone; the input of the text stays."""
    pillow = pytest.importorskip("PIL.Image")
    text = """g (int64[1,T] input_ids, float[N,3,30,30] pixel_values) => (float[N,3,30,30] y, int64[1,T] z) {
      y = Identity (pixel_values) z = Identity (input_ids) }"""
    config = Path(written(tmp_path, FILES["CLIP, old"][0]))
    made = onnxgrad.preprocess(parse(text), {"pixel_values": "image{layout=hwc}"}, config=config)
    x = image(*size)
    height, width = (32 * n // min(size) for n in size)
    resized = pillow.fromarray(x).resize((width, height), pillow.Resampling.BICUBIC)
    top, left = (height - 30) // 2, (width - 30) // 2
    part = np.asarray(resized)[top : top + 30, left : left + 30].astype(np.float32) / 255
    wanted = (part - np.float32(MEAN)) / np.float32(STD)
    found = run(made, {"pixel_values": x, "input_ids": np.array([[1]])})["y"][0]
    assert np.allclose(found, wanted.transpose(2, 0, 1), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_processor_type": None}, "has no image_processor_type: pass the"),
        ({"image_processor_type": "LevitImageProcessor"}, "LevitImageProcessor is none of ours.*; these have steps: Bit, "),
        ({"image_processor_type": "DetrrImageProcessor"}, "did you mean 'Detr'"),
        ({"do_thumbnail": True}, r"do_thumbnail = true: no step expresses this field; write the steps instead"),
        ({"size_divisor": 32}, "size_divisor = 32: no step"),
        ({"data_format": "channels_last"}, 'data_format = "channels_last": no step'),
        ({"size": {"longest_edge": 9}}, r'size = {"longest_edge": 9}: no step has these sides'),
        ({"size": None}, "size = null: it must be a number of pixels"),
        ({"size": {"height": True, "width": 3}}, "size = .*: it must be a number of pixels"),
        ({"size": "large"}, 'size = "large": it must be'),
        ({"crop_size": {"shortest_edge": 9}}, "crop_size = .*: it must have height and width"),
        ({"resample": 6}, "resample = 6: it must be a filter of Pillow, 0 to 5"),
        ({"resample": 1, "image_processor_type": "CLIPImageProcessorFast"}, "no step resizes as torchvision's lanczos"),
        ({"crop_size": 99, "image_processor_type": "CLIPImageProcessorFast"}, "crop_size = 99: torchvision places zeros"),
        ({"max_size": 99}, "max_size = 99: a shorter side has no other limit"),
        ({"crop_pct": 0.9}, "crop_pct = 0.9: only ConvNeXt reads it"),
        ({"do_resize": 1}, "do_resize = 1: it must be true or false"),
        ({"rescale_factor": 0}, "rescale_factor = 0: it must be a number above 0"),
        ({"image_mean": [1, "2"]}, "image_mean = .*: it must be a number, or one for each channel"),
        ({"do_resize": False, "do_center_crop": False, "do_rescale": False, "do_normalize": False}, "has no step"),
    ],
)  # fmt: skip
def test_what_no_step_expresses_is_refused_by_name(
    change: Any, message: str, tmp_path: Path
) -> None:
    fields = {**FILES["CLIP"][0], **change}
    with pytest.raises(InputError, match=message) as error:
        steps_of(
            written(tmp_path, {k: v for k, v in fields.items() if v is not None or k == "size"})
        )
    assert "\n" not in str(error.value) and "preprocessor_config.json" in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    for text, why in (("{", "is not JSON"), ("[" * 100000, "is not JSON"), ("\xff", "decode")):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(InputError, match=rf"c.json.* {why}"):
            steps_of(str(file))
    with pytest.raises(InputError, match=r"none.json: No such file"):
        steps_of(str(tmp_path / "none.json"))


def test_which_input(tmp_path: Path) -> None:
    config = written(tmp_path, FILES["ViT, old"][0])
    two = "g (float[1,3,32,32] a, float[1,3,32,32] b) => (float[1,3,32,32] y) { y = Add (a, b) }"
    with pytest.raises(
        InputError, match="several inputs of images: a, b; write the steps for each"
    ):
        onnxgrad.preprocess(parse(two), config=config)
    none = "g (float[3] a) => (float[3] y) { y = Identity (a) }"
    with pytest.raises(InputError, match="config: the model has no input of images"):
        onnxgrad.preprocess(parse(none), config=config)


def test_each_processor_has_a_name_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for name, own in PROCESSORS.items():
        cls = getattr(transformers, f"{name}ImageProcessorPil")
        assert own.resample == int(cls.resample), name
        crops, normalizes = (getattr(cls, f"do_{x}", False) for x in ("center_crop", "normalize"))
        assert (own.crops, own.normalizes) == (crops, normalizes), name
