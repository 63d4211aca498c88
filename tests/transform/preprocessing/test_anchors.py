"""Boxes from offsets to anchors: worked out by hand, and beside torchvision's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.transform.preprocessing.anchors import Anchors, Candidates
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.transform.preprocessing.test_detection import TWO

RETINANET = {  # of torchvision
    "strides": (8, 16, 32, 64, 128),
    "sizes": tuple(int(s * 2 ** (k / 3)) for s in (32, 64, 128, 256, 512) for k in range(3)),
    "ratios": (0.5, 1.0, 2.0),
}


def both(steps: str, offsets: Any, scores: Any) -> dict[str, Any]:
    """The boxes and scores of a proved graph."""
    shapes = [",".join(map(str, v.shape)) for v in (offsets, scores)]
    model = TWO.replace("N,A,4", shapes[0]).replace("N,A,C", shapes[1])
    made = onnxgrad.preprocess(parse(model), after={"boxes,scores": steps})
    return dict(run(made, {"b": offsets, "s": scores}))


def written(folder: Path, values: Any) -> Path:
    np.save(folder / "anchors.npy", np.array(values, np.float32))
    return folder / "anchors.npy"


def test_priors_of_a_file(tmp_path: Path) -> None:
    """Center (0.5, 0.25), 0.2 wide and 0.4 high, in an image of 100 x 200."""
    file = written(tmp_path, [[0.5, 0.25, 0.2, 0.4]])
    offsets = np.array([[[2.0, -1.0, np.log(2) / 0.2, 0.0]]], np.float32)
    scores = np.array([[[3.0, 2.0, 1.0]]], np.float32)
    steps = f"anchors{{file={file},size=[100,200],variances=[0.1,0.2]}},softmax,drop-background"
    found = both(steps, offsets, scores)
    x, y, w, h = (0.5 + 0.2 * 0.2) * 200, (0.25 - 0.1 * 0.4) * 100, 0.2 * 2 * 200, 0.4 * 100
    assert np.allclose(found["boxes"], [[[x - w / 2, y - h / 2, x + w / 2, y + h / 2]]])
    e = np.exp(scores)
    assert np.allclose(found["scores"], (e / e.sum())[..., 1:])
    last = both(steps.replace("background", "background{place=last}"), offsets, scores)
    assert np.allclose(last["scores"], (e / e.sum())[..., :2])


def test_corners_in_pixels_and_a_limit(tmp_path: Path) -> None:
    file = written(tmp_path, [[10, 20, 30, 30], [0, 0, 4, 4]])
    offsets = np.array([[[0, 0, 0, 0], [0.5, 0, 99, -99]]], np.float32)
    scores = np.array([[[0.0], [-200.0]]], np.float32)
    steps = f"anchors{{file={file},corners=true,limit=8}},sigmoid,nms{{score=0.1}}"
    found = both(steps, offsets, scores)
    assert np.allclose(found["boxes"], [[10, 20, 30, 30]]) and found["scores"].tolist() == [0.5]
    boxes = both(f"anchors{{file={file},corners=true,limit=8}}", offsets, scores)["boxes"]
    assert np.allclose(boxes[0, 1], [4 - 16, 2, 4 + 16, 2], atol=1e-5)


def test_generated_anchors() -> None:
    """Cells of 2 x 3 with stride 4 and one of stride 8, two ratios."""
    made = Anchors(size=(8, 12), strides=(4, 8), sizes=(16.0, 30.0), ratios=(1.0, 4.0))
    centers, sizes = made._placed()
    wanted = [[4 * x, 4 * y] for y in range(2) for x in range(3) for _ in range(2)]
    # the second grid has 1 x 2 cells, so torchvision's stride along the width is 12 // 2
    wanted += [[6 * x, 0] for x in range(2) for _ in range(2)]
    assert centers.tolist() == wanted
    # half a side is rounded: 30 / 2 / 2 = 7.5 to 8
    assert sizes.tolist() == [[16, 16], [8, 32]] * 6 + [[30, 30], [16, 60]] * 2


@pytest.mark.parametrize("size", [(256, 320), (200, 333)])
def test_retinanet_beside_torchvision(size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision", exc_type=ImportError)
    from torchvision.models.detection import _utils, anchor_utils, image_list

    grids = [[-(-n // s) for n in size] for s in RETINANET["strides"]]
    sizes = tuple(RETINANET["sizes"][i : i + 3] for i in range(0, 15, 3))
    generator = anchor_utils.AnchorGenerator(sizes, (RETINANET["ratios"],) * 5)
    images = image_list.ImageList(torch.zeros(1, 3, *size), [size])
    (anchors,) = generator(images, [torch.zeros(1, 1, *grid) for grid in grids])
    rng = np.random.default_rng(0)
    offsets = rng.normal(0, 1.5, (1, len(anchors), 4)).astype(np.float32)
    wanted = _utils.BoxCoder((1.0, 1.0, 1.0, 1.0)).decode_single(torch.tensor(offsets[0]), anchors)
    made = Anchors(size=size, **RETINANET)
    found = made.compute({"b": offsets, "s": offsets}, None)["boxes"][0]
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-3)


def test_priors_of_ssd_beside_torchvision(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision", exc_type=ImportError)
    from torchvision.models.detection import _utils, anchor_utils, image_list

    generator = anchor_utils.DefaultBoxGenerator([[2], [2, 3]], scales=[0.1, 0.4, 0.7])
    images = image_list.ImageList(torch.zeros(1, 3, 96, 64), [(96, 64)])
    (anchors,) = generator(images, [torch.zeros(1, 1, 6, 4), torch.zeros(1, 1, 3, 2)])
    offsets = np.random.default_rng(1).normal(0, 2, (1, len(anchors), 4)).astype(np.float32)
    coder = _utils.BoxCoder((10.0, 10.0, 5.0, 5.0))
    wanted = coder.decode_single(torch.tensor(offsets[0]), anchors)
    file = written(tmp_path, anchors.numpy())
    found = both(
        f"anchors{{file={file},corners=true,variances=[0.1,0.2]}}", offsets, offsets[..., :2]
    )
    assert np.allclose(found["boxes"][0], wanted, rtol=1e-5, atol=1e-3)


def test_distances_of_fcos() -> None:
    """Sides from the center of each cell, in sizes of its anchor; scores with the centerness."""
    rng = np.random.default_rng(3)
    boxes = rng.uniform(0, 3, (2, 8, 4)).astype(np.float32)
    logits, center = (rng.normal(size=(2, 8, n)).astype(np.float32) for n in (3, 1))
    model = """g (float[2,8,4] b, float[2,8,3] s, float[2,8,1] c) => (float[2,8,4] box, float[2,8,3] cls, float[2,8,1] mid) {
      box = Relu(b) cls = Identity(s) mid = Identity(c) }"""
    steps = "centerness,anchors{size=[8,12],strides=[4,8],sizes=[4,8],code=distances}"
    made = onnxgrad.preprocess(parse(model), after={"box,cls,mid": steps})
    found = dict(run(made, {"b": boxes, "s": logits, "c": center}))
    cells = [(4 * x, 4 * y, 4) for y in range(2) for x in range(3)] + [
        (6 * x, 0, 8) for x in range(2)
    ]
    for a, (x, y, side) in enumerate(cells):
        left, top, right, bottom = (boxes[:, a] * side).T
        wanted = np.stack([x - left, y - top, x + right, y + bottom], 1)
        assert np.allclose(found["boxes"][:, a], wanted, atol=1e-5)
    p, q = (1 / (1 + np.exp(-v.astype(float))) for v in (logits, center))
    assert np.allclose(found["scores"], np.sqrt(p * q), atol=1e-6)
    with pytest.raises(InputError, match="centerness works on outputs of boxes, scores and center"):
        onnxgrad.preprocess(parse(TWO), after={"boxes,scores": "centerness"})


@pytest.mark.parametrize("by", ["level", "class"])
def test_candidates(by: str) -> None:
    """The best of levels of 12 and 4 boxes, of all classes together, or of each class."""
    rng = np.random.default_rng(4)
    boxes = rng.normal(size=(2, 16, 4)).astype(np.float32)
    scores = (
        rng.permutation(np.linspace(0.01, 0.99, 2 * 16 * 3)).reshape(2, 16, 3).astype(np.float32)
    )
    steps = f"candidates{{most=5,by={by},size=[8,12],strides=[4,8],each=2}}"
    found = both(steps, boxes, scores)
    assert np.array_equal(found["boxes"], boxes)
    for n in range(2):
        for a, b in ((0, 12), (12, 16)):
            kept, given = found["scores"][n, a:b], scores[n, a:b]
            groups = (
                [(kept.ravel(), given.ravel())]
                if by == "level"
                else zip(kept.T, given.T, strict=True)
            )
            for mine, theirs in groups:
                best = np.argsort(-theirs)[:5]
                assert np.array_equal(np.flatnonzero(mine), np.sort(best))
                assert np.array_equal(mine[best], theirs[best])
    whole = both(f"candidates{{most=7,by={by}}}", boxes, scores)["scores"]
    counts = (whole > 0).sum((1, 2) if by == "level" else 1)
    assert (counts == 7).all() and whole.max() == scores.max()
    assert np.array_equal(both(f"candidates{{most=99,by={by}}}", boxes, scores)["scores"], scores)


def test_candidates_that_do_not_fit() -> None:
    model = parse(TWO.replace("N,A,4", "1,3,4").replace("N,A,C", "1,3,2"))
    for steps, message in (
        ("candidates{most=5,strides=[8]}", "strides need the size of the model's image"),
        (
            "candidates{most=5,size=8,strides=[8]}",
            "strides have 1 box, but there are 3 scores of each",
        ),
    ):
        with pytest.raises(InputError, match=message):
            onnxgrad.preprocess(model, after={"boxes,scores": steps})


@pytest.mark.parametrize("size", [(256, 320), (200, 333)])
def test_fcos_and_its_candidates_beside_torchvision(size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision", exc_type=ImportError)
    from torchvision.models.detection import _utils, anchor_utils, image_list

    strides = (8, 16, 32, 64, 128)
    grids = [[-(-n // s) for n in size] for s in strides]
    generator = anchor_utils.AnchorGenerator(tuple((s,) for s in strides), ((1.0,),) * 5)
    images = image_list.ImageList(torch.zeros(1, 3, *size), [size])
    (anchors,) = generator(images, [torch.zeros(1, 1, *grid) for grid in grids])
    rng = np.random.default_rng(0)
    offsets = np.abs(rng.normal(0, 1.5, (1, len(anchors), 4))).astype(np.float32)
    wanted = _utils.BoxLinearCoder(normalize_by_size=True).decode(torch.tensor(offsets[0]), anchors)
    made = Anchors(size=size, strides=strides, sizes=tuple(map(float, strides)), code="distances")
    found = made.compute({"b": offsets, "s": offsets}, None)["boxes"][0]
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-3)
    scores = torch.rand(len(anchors), 4, generator=torch.Generator().manual_seed(0))
    kept = torch.zeros_like(scores)
    for part, given in zip(
        *(s.split([h * w for h, w in grids]) for s in (kept, scores)), strict=True
    ):
        values, places = given.flatten().topk(min(20, given.numel()))
        part.view(-1)[places] = values
    mine = Candidates(most=20, size=size, strides=strides)
    found = mine.compute({"boxes": offsets, "scores": scores.numpy()[None]}, None)["scores"][0]
    assert np.array_equal(found, kept.numpy())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"needs either file=FILE.npy or strides=\[...\],sizes=\[...\]"),
        ({"file": "a.npy", "strides": (8,)}, "needs either file=FILE.npy or strides"),
        (
            {"strides": (8,), "sizes": (9.0,)},
            "strides need the size of the model's image: size=800",
        ),
        ({"strides": (8, 16), "sizes": (9.0,), "size": 64}, "each of the 2 strides, not 1 for all"),
        ({"file": "a.npy", "variances": (1.0,)}, "variances must be 2 or 4 numbers, not 1"),
        ({"file": "a.npy", "limit": 0.0}, "anchors: limit must be .*above 0"),
    ],
)
def test_options_are_checked(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Anchors(**options)


def test_anchors_that_do_not_fit(tmp_path: Path) -> None:
    model = TWO.replace("N,A,4", "1,3,4").replace("N,A,C", "1,3,2")

    def refused(values: Any, message: str) -> None:
        file = tmp_path / "anchors.npy"
        np.save(file, np.array(values))
        with pytest.raises(InputError, match=message):
            onnxgrad.preprocess(parse(model), after={"boxes,scores": f"anchors{{file={file}}}"})

    refused(
        [[1.0, 2, 3, 4]], "the number of anchors is 1, but 'boxes' has 3 boxes|but 'b' has 3 boxes"
    )
    refused([1.0, 2, 3, 4], r"anchors.npy must be an .npy of \[A, 4\], not \[4\]")
    refused([[1.0, 2, 3, np.inf]] * 3, "anchors.npy must have finite numbers")
    (tmp_path / "text.npy").write_text("no numbers")
    for name, message in (
        ("none.npy", "cannot read .*none.npy: .*No such file"),
        ("text.npy", "cannot read"),
    ):
        after = {"boxes,scores": f"anchors{{file={tmp_path / name}}}"}
        with pytest.raises(InputError, match=message):
            onnxgrad.preprocess(parse(model), after=after)
