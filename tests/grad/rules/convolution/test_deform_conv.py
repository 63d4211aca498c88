"""DeformConv with respect to all five operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.backend_suite import case, clamp_ir
from tests.grad.numeric import check_model, check_op, normal, op_model
from tests.suite_table import table

GEOMETRIES: list[dict[str, Any]] = [
    {"kernel": (2, 2)},
    {"kernel": (3, 2), "group": 2, "strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 2, 1]},
    {"kernel": (2, 3), "offset_group": 2, "strides": [1, 2], "dilations": [2, 1], "pads": [1, 1, 1, 1]},
    {"kernel": (2, 2), "group": 2, "offset_group": 4, "strides": [2, 2], "pads": [0, 1, 1, 0]},
    {"kernel": (1, 1), "group": 4, "offset_group": 2},
    {"kernel": (2, 1, 2), "size": (3, 4, 3), "group": 2, "offset_group": 2, "strides": [1, 2, 1],
     "pads": [1, 0, 0, 0, 1, 1]},
    {"kernel": (3,), "size": (7,), "dilations": [2], "pads": [2, 1]},
]  # fmt: skip


def binding(geometry: dict[str, Any], bias: bool, mask: bool) -> tuple[str, dict[str, Any]]:
    """(text, feeds) of 2 images with 4 channels and 8 maps."""
    options = dict(geometry)
    kernel, size = options.pop("kernel"), options.pop("size", (5, 6))
    rank, group, parts = len(kernel), options.get("group", 1), options.get("offset_group", 1)
    strides, dilations = options.get("strides", [1] * rank), options.get("dilations", [1] * rank)
    pads = options.get("pads", [0] * 2 * rank)
    out = [
        (s + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i, s in enumerate(size)
    ]
    spots = parts * int(np.prod(kernel))
    feeds = {
        "x": normal(2, 4, *size),
        "w": normal(8, 4 // group, *kernel),
        "o": 1.5 * normal(2, spots * rank, *out),
    }
    operands = ["x", "w", "o"]
    if bias:
        feeds["b"] = normal(8)
    if mask:
        feeds["m"] = normal(2, spots, *out)
    operands += ["b" if bias else ""] * (bias or mask) + ["m"] * mask
    attributes = ", ".join(f"{k} = {v}" for k, v in options.items())
    return (
        f"y = DeformConv {f'<{attributes}>' if attributes else ''} ({', '.join(operands)})",
        feeds,
    )


@pytest.mark.covering
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize(("bias", "mask"), [(False, False), (False, True), (True, True)])
def test_geometries(geometry: dict[str, Any], bias: bool, mask: bool) -> None:
    text, feeds = binding(geometry, bias, mask)
    images = len(geometry["kernel"]) == 2  # onnxruntime runs no others
    check_op(text, feeds, opset=19 if mask else 22, onnxruntime=images)


@pytest.mark.parametrize(("dtype", "rtol"), [("float16", 2e-2), ("float64", 1e-6)])
def test_other_float_types(dtype: str, rtol: float) -> None:
    text, feeds = binding(GEOMETRIES[1], True, True)
    check_op(text, {k: v.astype(dtype) for k, v in feeds.items()}, opset=22, rtol=rtol)


def test_second_derivatives() -> None:
    text, feeds = binding({"kernel": (2, 2), "group": 2, "offset_group": 2}, True, True)
    first = gradient(op_model(text, feeds, opset=22), list(feeds), ["y"], adjoint="input")
    more = {**feeds, "y_grad": normal(2, 8, 4, 5)}
    check_model(
        first, more, list(more), target=[o.name for o in first.graph.output[1:]], seeds=(0,)
    )


def test_at_pixel_centres_the_slope_is_that_of_larger_positions() -> None:
    feeds = {
        "x": np.float32([1, 10, 100]).reshape(1, 1, 1, 3),
        "w": np.ones((1, 1, 1, 1), np.float32),
        "o": np.zeros((1, 2, 1, 3), np.float32),
    }
    graph = gradient(
        op_model("y = DeformConv (x, w, o)", feeds, opset=22), ["o"], ["y"], adjoint="input"
    )
    slopes = run(graph, {**feeds, "y_grad": np.ones((1, 1, 1, 3), np.float32)})["o_grad"]
    # below the image there is nothing, and beyond its end
    assert slopes.tolist() == [[[[-1, -10, -100]], [[9, 90, -100]]]]


@pytest.mark.parametrize(
    "name", sorted(n for n in table()["single_node_moving"] if "deform_conv" in n)
)
def test_cases_of_the_backend_suite_beside_their_kinks(name: str) -> None:
    """Their offsets point exactly at pixels, and halfway between."""
    found = case(name)
    (offset,) = (k for k in found.inputs if k.startswith("offset"))
    moved = (
        np.random.default_rng(0).uniform(0.01, 0.04, found.inputs[offset].shape).astype(np.float32)
    )
    check_model(
        clamp_ir(found.model), {**found.inputs, offset: found.inputs[offset] + moved}, seeds=(0,)
    )
