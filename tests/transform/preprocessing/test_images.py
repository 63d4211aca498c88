"""Steps before an input: in a graph and in NumPy, beside torchvision's and OpenCV's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.transform.preprocessing.images import (
    CenterCrop,
    Letterbox,
    Normalize,
    PadTokens,
    Resize,
)
from onnxgrad.transform.preprocessing.registry import steps_before
from onnxgrad.transform.preprocessing.steps import Prepared
from onnxgrad.verify.running.session import run
from scripts.compare_resizers import image
from tests.helpers import DATA_DIR, parse

GOLDEN = dict(np.load(DATA_DIR / "resize.npz"))
COPY = "g (float[N,{}] x) => (float[N,{}] y) {{ y = Identity (x) }}"


def both(steps: str, x: Any, shape: str) -> Any:
    """The result of steps in onnxruntime, which NumPy's must equal bit by bit."""
    made = onnxgrad.preprocess(parse(COPY.format(shape, shape)), steps, verify=False)
    found = np.asarray(run(made, {"x": x})["y"])
    source, rest = steps_before(steps, "before")
    at = source.compute(Prepared(x))
    for step in rest:
        at = step.compute(at)
    assert np.array_equal(found, at.value.astype(np.float32))
    return found


@pytest.mark.parametrize(
    ("name", "steps", "shape"),
    [
        ("crop", "resize{size=11},center-crop{size=8}", "3,8,8"),
        ("padded", "center-crop{size=[16,12]}", "3,16,12"),
        ("letterbox", "letterbox{size=24}", "3,24,24"),
    ],
)
def test_images_are_those_of_the_libraries(name: str, steps: str, shape: str) -> None:
    found = both(steps, GOLDEN["image"][None], shape)
    assert np.array_equal(found[0].transpose(1, 2, 0), GOLDEN[name])


def test_a_recipe_of_torchvision() -> None:
    steps = (
        "image,resize{size=11},center-crop{size=8},to-float,"
        "normalize{mean=[0.4,0.5,0.6],std=[0.2,0.3,0.4]}"
    )
    found = both(steps, GOLDEN["image"][None], "3,8,8")
    assert np.abs(found[0] - GOLDEN["normalized"]).max() < 1e-5


@pytest.mark.parametrize("size", [(9, 14), (14, 9), (6, 6), (5, 33), (40, 41)])
def test_crops_and_boxes_of_any_size(size: tuple[int, int]) -> None:
    x = image(*size)[None]
    both("center-crop{size=[8,10]}", x, "3,8,10")
    both("letterbox{size=[20,16]}", x, "3,20,16")
    corner = both("letterbox{size=16,place=corner,fill=7,mode=pil-bicubic}", x, "3,16,16")
    ratio = min(16 / n for n in size)
    height, width = (int(n * ratio) for n in size)
    assert (corner[..., height:, :] == 7).all() and (corner[..., width:] == 7).all()
    both("resize{size=7,mode=torchvision-bilinear},center-crop{size=7}", x, "3,7,7")


@pytest.mark.parametrize("layout", ["nhwc", "nchw", "hwc", "chw"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_layouts(layout: str, dtype: str) -> None:
    x = image(6, 4)
    wanted = x.transpose(2, 0, 1)[None].astype(np.float32)
    given = x if layout.endswith("hwc") else x.transpose(2, 0, 1)
    given = (given[None] if layout[0] == "n" else given).astype(dtype)
    found = both(f"image{{dtype={dtype},layout={layout}}},scale{{factor=2}}", given, "3,6,4")
    assert np.array_equal(found, wanted * 2)
    reverse = both(f"image{{dtype={dtype},layout={layout}}},bgr", given, "3,6,4")
    assert np.array_equal(reverse, wanted[:, ::-1])


def test_a_model_that_reads_channels_last() -> None:
    x = image(9, 5)[None]
    found = both("resize{size=[4,6]},normalize{mean=127.5,std=[1,2,4]},channels-last", x, "4,6,3")
    assert found.shape == (1, 4, 6, 3) and abs(found[..., 2]).max() < 32


@pytest.mark.parametrize(
    ("steps", "given", "wanted"),
    [
        ("pad-tokens{length=4}", [[1, 2]], [[1, 2, 0, 0]]),
        ("pad-tokens{length=4,value=9,side=left}", [[1, 2]], [[9, 9, 1, 2]]),
        ("tokens,pad-tokens{length=2}", [[1, 2, 3]], [[1, 2]]),
    ],
)
def test_tokens(steps: str, given: Any, wanted: Any) -> None:
    model = parse("g (int64[N,T] x) => (int64[N,T] y) { y = Identity (x) }")
    made = onnxgrad.preprocess(model, steps)
    assert np.array_equal(run(made, {"x": np.array(given)})["y"], wanted)


def test_where_an_image_lies() -> None:
    """A pixel's place in the result is scale * place + offset."""
    x = np.zeros((1, 3, 40, 20))
    at = steps_before("image", "before")[0].compute(Prepared(x.transpose(0, 2, 3, 1)))
    boxed = Letterbox(80).compute(at).frame
    assert boxed is not None and (boxed.scale_y, boxed.left, boxed.top) == (2, 20, 0)
    cropped = CenterCrop(10).compute(Resize(10).compute(at)).frame
    assert cropped is not None and (cropped.scale_x, cropped.left, cropped.top) == (0.5, 0, -5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Resize((1, 2, 3)), r"size must be a number or \[height, width\], not \[1, 2, 3\]"),
        (lambda: Resize(0), "resize: size must be"),
        (lambda: Normalize(0, 0), "normalize: std must be .*a finite number above 0"),
        (lambda: Letterbox(fill=256), "letterbox: fill must be .*255"),
        (lambda: PadTokens(4, side="top"), "pad-tokens: side must be one of right, left"),  # type: ignore[arg-type]  # refused
    ],
)
def test_options_are_checked(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
