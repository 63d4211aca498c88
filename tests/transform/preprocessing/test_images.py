"""Steps before an input: in a graph and in NumPy, beside torchvision's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.transform.preprocessing.images import Normalize, PadTokens
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


def test_a_recipe_of_torchvision() -> None:
    steps = (
        "image,resize{size=11},center-crop{size=8},to-float,"
        "normalize{mean=[0.4,0.5,0.6],std=[0.2,0.3,0.4]}"
    )
    found = both(steps, GOLDEN["image"][None], "3,8,8")
    assert np.abs(found[0] - GOLDEN["normalized"]).max() < 1e-5


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normalize(0, 0), "normalize: std must be .*a finite number above 0"),
        (lambda: PadTokens(4, side="top"), "pad-tokens: side must be one of right, left"),  # type: ignore[arg-type]  # refused
    ],
)
def test_options_are_checked(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
