"""MaxRoiPool against central differences, and its kernel against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.grad import gradient
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_op, distinct, op_model
from tests.grad.rules.images.test_roi_align import BATCH, regions


def pool_regions() -> np.ndarray:
    return np.concatenate([BATCH[:, None].astype(np.float32), regions(2)], axis=1)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_max_roi_pool(scale: float) -> None:
    node = f"y = MaxRoiPool <pooled_shape = [3, 2], spatial_scale = {scale}> (x, rois)"
    feeds = {"x": distinct(2, 3, 7, 9), "rois": pool_regions()}
    check_op(node, feeds, ["x"])
    model = op_model(node, feeds)
    np.testing.assert_allclose(run(model, feeds)["y"], reference(model, feeds)["y"], atol=1e-6)


def test_max_roi_pool_of_regions_that_are_one_pixel_or_turned_round() -> None:
    """They are one pixel wide then, and the bins share it."""
    rois = np.array([[0, 2, 3, 2, 3], [1, 8, 1, 8, 5], [1, 5, 6, 2, 2]], np.float32)
    feeds = {"x": distinct(2, 3, 7, 9), "rois": rois}
    check_op("y = MaxRoiPool <pooled_shape = [3, 2]> (x, rois)", feeds, ["x"])


def test_max_roi_pool_gives_regions_nothing_and_ties_to_the_first() -> None:
    node = "y = MaxRoiPool <pooled_shape = [1, 1]> (x, rois)"
    feeds = {
        "x": np.ones((1, 1, 3, 3), np.float32),
        "rois": np.array([[0, 1, 1, 2, 2]], np.float32),
    }
    graph = gradient(op_model(node, feeds), ["x", "rois"], "y", adjoint="input")
    dx, drois = list(
        run(graph, {**feeds, "y_grad": np.full((1, 1, 1, 1), 2, np.float32)}).values()
    )[-2:]
    assert dx[0, 0, 1, 1] == 2 and dx.sum() == 2 and not drois.any()


def test_max_roi_pool_bins_end_where_float32_rounds_them() -> None:
    """57 / 7 * 7 is a little more than 57 in float32: onnxruntime's last bin holds one row more."""
    node = "y = MaxRoiPool <pooled_shape = [7, 1]> (x, rois)"
    feeds = {
        "x": np.arange(60, dtype=np.float32).reshape(1, 1, 60, 1),
        "rois": np.array([[0, 0, 0, 0, 56]], np.float32),
    }
    model = op_model(node, feeds)
    assert run(model, feeds)["y"].max() == reference(model, feeds)["y"].max() == 57
    graph = gradient(model, ["x"], "y", adjoint="input")
    dx = list(run(graph, {**feeds, "y_grad": np.ones((1, 1, 7, 1), np.float32)}).values())[-1]
    assert dx[0, 0, 57, 0] == 1 and dx.sum() == 7
