"""onnxgrad/verify/feeds/distinct_indices.py: places that an index input may name once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.verify.feeds.edge_cases import Edges
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.running.session import run
from tests.helpers import parse

SCATTER = "g (float[3,4] d, int64[3,4] i, float[3,4] u) => (float[3,4] y) {{ y = ScatterElements <axis = {}{}> (d, i, u) }}"
POINTS = "g (float[5,4] d, int64[{0}] i, float[{1}] u) => (float[5,4] y) {{ {2} y = ScatterND (d, {3}, u) }}"
# model -> the axis of one place's components and the axis along which places differ; None: flat
MODELS = {
    "along axis 1": (SCATTER.format(1, ""), 1),
    "along axis 0": (SCATTER.format(-2, ""), 0),
    "rows": (POINTS.format("3,1", "3,4", "", "i"), "rows"),
    "elements": (POINTS.format("9,2", "9", "", "i"), "rows"),
    "through a Cast": (POINTS.format("3,1", "3,4", "j = Cast <to = 7> (i)", "j"), "rows"),
    "unpooled": ("g (float[1,1,2,2] d, int64[1,1,2,2] i) => (float[1,1,4,4] y) { y = MaxUnpool <kernel_shape = [2,2], strides = [2,2]> (d, i) }", None),
    "axes of Unsqueeze": ("g (float[3,4] d, int64[2] i) => (float[A,B,C,D] y) { y = Unsqueeze (d, i) }", None),
    "axes of Squeeze": ("g (float[1,3,1,4] d, int64[2] i) => (float[A,B] y) { y = Squeeze (d, i) }", None),
    "axes of Slice": ("g (float[3,4,5] d, int64[2] s, int64[2] e, int64[2] i) => (float[A,B,C] y) { y = Slice (d, s, e, i) }", None),
}  # fmt: skip


def repeats(indices: np.ndarray[Any, Any], kind: object) -> bool:
    """True if indices name a place twice."""
    if isinstance(kind, int):
        lines = np.moveaxis(indices, kind, -1).reshape(-1, indices.shape[kind])
        return any(len({*line}) < len(line) for line in lines.tolist())
    flat = indices.reshape(-1, indices.shape[-1]) if kind == "rows" else indices.reshape(-1, 1)
    return len({*map(tuple, flat.tolist())}) < len(flat)


@pytest.mark.parametrize("name", MODELS)
def test_no_place_is_named_twice(name: str) -> None:
    text, kind = MODELS[name]
    model = parse(text)
    for seed in range(6):
        for edges in (None, Edges()):
            feeds = feeds_for(model, seed=seed, edges=edges)
            assert not repeats(np.asarray(feeds["i"]), kind)
            results = run(model, feeds)  # legal for onnxruntime
            assert np.asarray(results["y"]).size


def test_a_reduction_may_meet_a_place_twice() -> None:
    model = parse(SCATTER.format(1, ', reduction = "add"'))
    found = [np.asarray(feeds_for(model, seed=seed)["i"]) for seed in range(4)]
    assert any(repeats(indices, 1) for indices in found)


def test_more_indices_than_places_repeat() -> None:
    model = parse(
        "g (float[2] d, int64[5] i, float[5] u) => (float[2] y) { y = ScatterElements (d, i, u) }"
    )
    assert {*np.asarray(feeds_for(model, seed=0)["i"]).tolist()} <= {0, 1}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "wrt"), [("along axis 1", "u"), ("rows", "u"), ("unpooled", "d")])
def test_the_gradient_of_a_scatter_is_right(name: str, wrt: str, seed: int) -> None:
    model = parse(MODELS[name][0])
    report = onnxgrad.check_gradient(model, wrt, "y", adjoint="input", seed=seed)
    assert report.ok, str(report)


@pytest.mark.parametrize("fmod", [0, 1])
def test_the_divisor_of_mod_is_not_zero(fmod: int) -> None:
    model: onnx.ModelProto = parse(
        f"g (int64[64] x, int64[64] n) => (int64[64] y) {{ y = Mod <fmod = {fmod}> (x, n) }}"
    )
    divisors = np.asarray(feeds_for(model, seed=0)["n"])
    assert divisors.min() == 1 and divisors.max() == 8
    assert onnxgrad.verify(model, model)


def test_a_slice_is_not_empty() -> None:
    model = parse("g (float[6] x, int64[1] s, int64[1] e) => (float[N] y) { y = Slice (x, s, e) }")
    for seed in range(6):
        assert np.asarray(run(model, feeds_for(model, seed=seed))["y"]).size
