"""Steps that change the size of an image: in a graph and in NumPy, beside results of libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.transform.preprocessing.image_sizes import CenterCrop, Letterbox, Pad, Resize
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


# image -> its size by torchvision's Resize(20, max_size=29), Transformers'
# get_size_with_aspect_ratio(..., 20, 29), and torchvision's Resize(None, max_size=29)
SIDES = {
    (30, 40): ((20, 26), (20, 26), (21, 29)),
    (40, 30): ((26, 20), (26, 20), (29, 21)),
    (33, 33): ((20, 20), (20, 20), (29, 29)),
    (20, 27): ((20, 27), (20, 27), (21, 29)),
    (20, 50): ((11, 29), (12, 29), (11, 29)),
    (61, 20): ((29, 9), (29, 10), (29, 9)),
    (22, 51): ((12, 29), (13, 29), (12, 29)),
    (54, 5): ((29, 2), (29, 3), (29, 2)),
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("size", SIDES)
def test_a_longest_side(size: tuple[int, int], place: int) -> None:
    """Sizes as the libraries compute them, and Pillow's pixels."""
    pillow = pytest.importorskip("PIL.Image")
    options = ["size=20,max_size=29", "size=20,max_size=29,rounding=transformers", "max_size=29"]
    x = image(*size)
    found = both(f"resize{{{options[place]}}}", x[None], "3,H,W")
    height, width = SIDES[size][place]
    wanted = pillow.fromarray(x).resize((width, height), pillow.Resampling.BILINEAR)
    assert np.array_equal(found[0].transpose(1, 2, 0), np.asarray(wanted))


def test_sides_are_those_of_the_libraries() -> None:
    tv = pytest.importorskip("torchvision.transforms.functional", exc_type=ImportError)
    hf = pytest.importorskip("transformers.image_transforms", exc_type=ImportError)
    rng = np.random.default_rng(0)
    for h, w in rng.integers(1, 3000, (5000, 2)).tolist():
        size, most = 224, 224 + int(rng.integers(1, 900))
        expected = {
            Resize(size): tv._compute_resized_output_size((h, w), [size]),
            Resize(size, max_size=most): tv._compute_resized_output_size((h, w), [size], most),
            Resize(max_size=most): tv._compute_resized_output_size((h, w), None, most, True),
            Resize(size, "pil-box", most, "transformers"): hf.get_size_with_aspect_ratio((h, w), size, most),
        }  # fmt: skip
        for step, wanted in expected.items():
            assert sorted(wanted) == list(step._sides(min(h, w), max(h, w), step.size)), (h, w)


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (5, [0, 0, 1, 2, 3, 4, 5, 0]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (11, [2, 3, 4, 5, 6, 7, 8, 9]),
        (13, [3, 4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_a_crop_of_transformers(rows: int, wanted: list[int]) -> None:
    """Of rows 1, 2, ...; torchvision places the first and the third one lower."""
    x = np.arange(1, rows + 1, dtype=np.uint8)[None, :, None, None] + np.zeros((8, 3), np.uint8)
    assert (
        both("center-crop{size=8,rounding=transformers}", x, "3,8,8")[0, 0, :, 0].tolist() == wanted
    )
    plain = both("center-crop{size=8}", x, "3,8,8")[0, 0, :, 0].tolist()
    assert (plain == wanted) == (rows in (8, 13))


@pytest.mark.parametrize("size", [(5, 7), (3, 9), (4, 6)])
def test_padding(size: tuple[int, int]) -> None:
    x = image(*size)
    wanted = np.full((4, 6, 3), 7)
    part = x[:4, :6]
    wanted[: part.shape[0], : part.shape[1]] = part
    found = both("pad{size=[4,6],fill=7}", x[None], "3,4,6")
    assert np.array_equal(found[0].transpose(1, 2, 0), wanted)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Resize((1, 2, 3)), r"size must be a number or \[height, width\], not \[1, 2, 3\]"),
        (lambda: Resize(0), "resize: size must be"),
        (lambda: Resize(), "resize needs the option size or max_size"),
        (lambda: Resize((3, 4), max_size=5), r"resize: size \[3, 4\] is exact: leave max_size out"),
        (lambda: Resize(5, max_size=5), "resize: max_size must be above size, 5; got 5"),
        (
            lambda: Resize(5, rounding="transformers"),
            "rounding=transformers needs size and max_size",
        ),
        (lambda: Pad((1, 2, 3)), r"pad: size must be a number or \[height, width\]"),
        (lambda: Letterbox(fill=256), "letterbox: fill must be .*255"),
    ],
)
def test_options_are_checked(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
