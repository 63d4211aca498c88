"""Steps that change the size of an image: in a graph and in NumPy, beside results of libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.transform.preprocessing.image_sizes import CenterCrop, Letterbox, Resize
from onnxgrad.transform.preprocessing.registry import steps_before
from onnxgrad.transform.preprocessing.steps import Prepared
from scripts.compare_resizers import image
from tests.transform.preprocessing.test_images import GOLDEN, both


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
        (lambda: Letterbox(fill=256), "letterbox: fill must be .*255"),
    ],
)
def test_options_are_checked(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
