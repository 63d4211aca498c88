"""Resizes beside the libraries': their stored results, and the libraries themselves where installed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.transform.preprocessing import pixels
from onnxgrad.transform.preprocessing.modes import MODES
from onnxgrad.verify.running.session import run
from scripts.compare_resizers import image, of_graph, of_library
from tests.helpers import DATA_DIR, parse

GOLDEN = dict(np.load(DATA_DIR / "resize.npz"))
# float sums that the library rounds once: 1 of 255 in few places
ROUNDED = [name for name, mode in MODES.items() if getattr(mode, "levels", "") == "rounded"]
PACKAGE = {"pil": "PIL", "opencv": "cv2", "torch": "torchvision", "torchvision": "torchvision"}


def of_numpy(x: Any, height: int, width: int, name: str) -> Any:
    made = pixels.resized(x.transpose(2, 0, 1)[None], height, width, MODES[name])
    return made[0].transpose(1, 2, 0)


@pytest.mark.parametrize("resize", [of_numpy, of_graph])
@pytest.mark.parametrize("name", MODES)
def test_levels_are_those_of_the_library(name: str, resize: Any) -> None:
    for h, w in ((7, 8), (16, 12)):
        wanted, made = GOLDEN[f"{name} {h} {w}"], resize(GOLDEN["image"], h, w, name)
        assert made.dtype == np.uint8
        assert np.array_equal(made, wanted)


@pytest.mark.parametrize("resize", [of_numpy, of_graph])
@pytest.mark.parametrize("name", MODES)
def test_floats_are_those_of_the_library(name: str, resize: Any) -> None:
    x = (GOLDEN["image"][..., :1] / np.float32(255)).astype(np.float32)
    made = resize(x, 7, 8, name)
    assert made.dtype == np.float32
    assert np.abs(made - GOLDEN[f"{name} float"]).max() < 1e-6


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((61, 83), (40, 40)),
        ((30, 41), (64, 57)),
        ((1, 1), (3, 2)),
        ((9, 2), (1, 1)),
        ((203, 331), (3, 5)),
        ((16, 32), (16, 31)),
        ((80, 20), (31, 17)),
    ],
)
def test_the_graph_and_numpy_have_the_same_levels(
    name: str, old: tuple[int, int], new: tuple[int, int]
) -> None:
    """Sums of floats, rounded once, may be ties, which their order decides."""
    x = image(*old)
    gap = np.abs(of_graph(x, *new, name).astype(int) - of_numpy(x, *new, name))
    assert gap.max() <= (name in ROUNDED) and (gap > 0).mean() < 2e-3


@pytest.mark.parametrize(
    ("old", "new", "tall"),
    [((40, 40), (20, 30), False), ((40, 40), (20, 31), True), ((40, 40), (41, 60), False)],
)
def test_the_height_is_first_if_it_loses_more_than_twice_as_much(
    old: tuple[int, int], new: tuple[int, int], tall: bool
) -> None:
    """In Pillow 13, whose results on uint8 depend on the order."""
    name, x = "pil-lanczos", image(*old)
    made = of_graph(x, *new, name)
    assert np.array_equal(made, of_numpy(x, *new, name))
    turned = pixels.resized(x.transpose(2, 1, 0)[None], *new[::-1], replace(MODES[name], tall_first=False))  # fmt: skip
    plain = pixels.resized(x.transpose(2, 0, 1)[None], *new, replace(MODES[name], tall_first=False))
    wanted, other = (turned.transpose(0, 1, 3, 2), plain) if tall else (plain, turned.transpose(0, 1, 3, 2))  # fmt: skip
    assert np.array_equal(made, wanted[0].transpose(1, 2, 0))
    assert not np.array_equal(made, other[0].transpose(1, 2, 0))


@pytest.mark.parametrize("name", ["pil-bicubic", "torch-bilinear", "torchvision-nearest"])
def test_several_images_and_channels(name: str) -> None:
    """Images [2, 40, 31, 4] as a model reads them one by one."""
    model = parse("g (float[N,4,9,8] x) => (float[N,4,9,8] y) { y = Identity (x) }")
    steps = f"image{{channels=4}},resize{{size=[9,8],mode={name}}}"
    made = onnxgrad.preprocess(model, steps, verify=False)
    x = np.random.default_rng(0).integers(0, 256, (2, 40, 31, 4), np.uint8)
    found = run(made, {"x": x})["y"]
    wanted = pixels.resized(x.transpose(0, 3, 1, 2), 9, 8, MODES[name])
    assert np.array_equal(found, wanted.astype(np.float32))
    readers = {n.op_type for n in made.graph.node if "x" in n.input}
    # pixels that are not read are not transposed
    assert readers == {"Shape", "Transpose" if name.startswith("pil") else "Gather"}


@pytest.mark.parametrize("name", MODES)
def test_beside_the_library(name: str) -> None:
    pytest.importorskip(PACKAGE[name.partition("-")[0]], exc_type=ImportError)
    for old, new in (((120, 161), (64, 85)), ((60, 80), (112, 100)), ((151, 70), (50, 61))):
        x = image(*old)
        gap = np.abs(of_graph(x, *new, name).astype(int) - of_library(x, *new, name))
        assert gap.max() <= (name in ROUNDED) and (gap > 0).mean() < 1e-3
        x = (x / np.float32(255)).astype(np.float32)
        assert np.abs(of_graph(x, *new, name) - of_library(x, *new, name)).max() < 2e-6


def test_levels_outside_of_the_range_are_cut() -> None:
    """Cubic kernels overshoot at an edge from 0 to 255."""
    x = np.zeros((8, 8, 3), np.uint8)
    x[:, 4:] = 255
    for name in ("pil-bicubic", "pil-lanczos", "opencv-cubic", "torch-bicubic"):
        made = of_graph(x, 16, 16, name)
        assert np.array_equal(made, of_numpy(x, 16, 16, name))
        assert made[:, :6].max() < 30 and made[:, 10:].min() > 225, name
        floats = of_graph(x.astype(np.float32), 16, 16, name)
        assert floats.min() < -5 and floats.max() > 260, name
