"""RoiAlign against differences, and its kernel against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.backend_suite import case, clamp_ir
from tests.grad.numeric import check_model, check_op, distinct, normal, op_model

BATCH = np.array([0, 1, 1, 0, 1])


def regions(seed: int = 0) -> np.ndarray:
    """Five regions of several sizes on an image of 7 x 9, some reaching out of it."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(-2.5, 6.0, (5, 2))
    return np.concatenate([corners, corners + rng.uniform(1.3, 9.0, (5, 2))], axis=1).astype(
        np.float32
    )


def align(**attributes: object) -> str:
    given = ", ".join(
        f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in attributes.items()
    )
    return f"y = RoiAlign <output_height = 3, output_width = 2, {given}> (x, rois, batch)"


CASES = [
    {"coordinate_transformation_mode": c, "sampling_ratio": r, "spatial_scale": s}
    for c, r, s in [("half_pixel", 0, 1.0), ("half_pixel", 2, 0.5), ("output_half_pixel", 0, 0.7),
                    ("output_half_pixel", 3, 1.0), ("half_pixel", 1, 1.0)]
]  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("attributes", CASES)
def test_roi_align(mode: str, attributes: dict[str, object]) -> None:
    feeds = {"x": normal(2, 3, 7, 9), "rois": regions(), "batch": BATCH}
    check_op(align(mode=mode, **attributes), feeds, ["x", "rois"])


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("attributes", CASES)
def test_the_kernel_is_onnxruntimes(mode: str, attributes: dict[str, object]) -> None:
    feeds = {"x": normal(2, 3, 7, 9), "rois": regions(1), "batch": BATCH}
    model = op_model(align(mode=mode, **attributes), feeds)
    np.testing.assert_allclose(run(model, feeds)["y"], reference(model, feeds)["y"], atol=3e-6)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types(mode: str, dtype: type[np.floating]) -> None:
    """Half precision is computed in float32; onnxruntime has no RoiAlign for it."""
    feeds = {"x": normal(2, 3, 7, 9).astype(dtype), "rois": regions().astype(dtype), "batch": BATCH}
    check_op(align(mode=mode), feeds, ["x", "rois"], onnxruntime=dtype is np.float64, seeds=(0,))


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_second_derivative(mode: str) -> None:
    """d/dx and d/drois of the regions' gradient."""
    feeds = {"x": normal(1, 2, 5, 6), "rois": regions()[:2] / 2 + 0.5, "batch": np.array([0, 0])}
    node = align(mode=mode, sampling_ratio=2) + " w = Mul (y, y) s = ReduceSum <keepdims = 0> (w)"
    first = gradient(op_model(node, feeds, outputs=["s"]), ["rois", "x"], "s")
    d = {name: [v.name for v in first.graph.output][i + 1] for i, name in enumerate(["rois", "x"])}
    for name in d.values():
        second = gradient(first, ["x", "rois"], name, adjoint="input")
        u = np.random.default_rng(0).standard_normal(reference(first, feeds)[name].shape)
        got = reference(second, {**feeds, f"{name}_grad": u})
        names = [v.name for v in second.graph.output][-2:]
        for wrt, g in zip(["x", "rois"], names, strict=True):
            v = np.random.default_rng(1).standard_normal(feeds[wrt].shape)
            ends = [
                float(
                    (
                        reference(first, {**feeds, wrt: feeds[wrt].astype(np.float64) + h * v})[
                            name
                        ]
                        * u
                    ).sum()
                )
                for h in (1e-6, -1e-6)
            ]
            np.testing.assert_allclose(
                float((got[g] * v).sum()), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-5
            )


def test_no_regions() -> None:
    feeds = {
        "x": normal(1, 2, 5, 6),
        "rois": np.zeros((0, 4), np.float32),
        "batch": np.zeros(0, np.int64),
    }
    for mode in ("avg", "max"):
        graph = gradient(
            op_model(align(mode=mode), feeds, symbolic=True), ["x", "rois"], "y", adjoint="input"
        )
        given = {**feeds, "y_grad": np.zeros((0, 2, 3, 2), np.float32)}
        dx, drois = list(run(graph, given).values())[-2:]
        assert dx.shape == (1, 2, 5, 6) and not dx.any() and drois.shape == (0, 4)


@pytest.mark.parametrize(
    "name", ["test_roialign_aligned_false", "test_roialign_aligned_true", "test_roialign_mode_max"]
)
def test_suite(name: str) -> None:
    """Some samples of the suite's lie exactly on pixels, where the regions have no derivative: they are moved a bit."""
    found = case(name)
    model, feeds = clamp_ir(found.model), found.inputs
    check_model(model, feeds, ["X"], onnxruntime=False)
    moved = feeds["rois"] + np.array([0.013, 0.017, -0.011, 0.019])
    check_model(model, {**feeds, "rois": moved}, onnxruntime=False)


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
