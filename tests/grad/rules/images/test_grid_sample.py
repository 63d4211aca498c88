"""GridSample with respect to image and grid, in all modes; at the kinks PyTorch's choice."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest

from onnxgrad import gradient
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.backend_suite import case, clamp_ir
from tests.grad.numeric import check_model, check_op, normal, op_model, within
from tests.suite_table import table

X = normal(2, 3, 4, 5)
GRID = within(-2.3, 2.3, 2, 3, 6, 2)  # in the image, in the next copy of it, and beyond
PADDINGS = ("zeros", "border", "reflection")


def node(mode: str, padding: str = "zeros", aligned: int = 0) -> str:
    return f'y = GridSample <mode = "{mode}", padding_mode = "{padding}", align_corners = {aligned}> (x, g)'


@pytest.mark.covering
@pytest.mark.parametrize(
    ("mode", "padding", "aligned"), [*product(["linear", "nearest", "cubic"], PADDINGS, [0, 1])]
)
def test_images(mode: str, padding: str, aligned: int) -> None:
    check_op(node(mode, padding, aligned), {"x": X, "g": GRID}, opset=20)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("mode", "padding", "aligned"), [*product(["linear", "nearest"], PADDINGS, [0, 1])]
)
def test_volumes(mode: str, padding: str, aligned: int) -> None:
    feeds = {"x": normal(2, 2, 3, 4, 5), "g": within(-2.3, 2.3, 2, 3, 2, 3, 3)}
    check_op(node(mode, padding, aligned), feeds, opset=22, seeds=(0,))


def test_other_ranks_that_only_the_reference_runs() -> None:
    volume = {"x": normal(2, 2, 3, 4, 5), "g": within(-2.3, 2.3, 2, 3, 2, 3, 3)}
    check_op(node("cubic", "border"), volume, opset=22, onnxruntime=False)
    line = {"x": normal(2, 3, 6), "g": within(-2.3, 2.3, 2, 7, 1)}
    check_op(node("cubic", "reflection", 1), line, opset=22, onnxruntime=False)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_the_names_of_opset_16(mode: str) -> None:
    check_op(node(mode), {"x": X, "g": GRID}, opset=18)


@pytest.mark.parametrize(("dtype", "rtol"), [("float16", 2e-2), ("float64", 1e-6)])
def test_other_float_types(dtype: str, rtol: float) -> None:
    check_op(
        node("linear", "border"),
        {"x": X.astype(dtype), "g": GRID.astype(dtype)},
        opset=22,
        rtol=rtol,
    )


def test_image_and_grid_of_different_types() -> None:
    check_op(node("linear"), {"x": X.astype(np.float64), "g": GRID}, opset=22, onnxruntime=False)


def test_one_pixel() -> None:
    for padding, aligned in product(PADDINGS, [0, 1]):
        feeds = {"x": normal(1, 2, 1, 1), "g": within(-1.4, 1.4, 1, 2, 3, 2)}
        # onnxruntime's own forward divides by zero when it folds a single aligned pixel
        runs = padding != "reflection" or not aligned
        check_op(node("linear", padding, aligned), feeds, onnxruntime=runs, seeds=(0,))


@pytest.mark.parametrize(
    ("mode", "padding"), [("linear", "zeros"), ("linear", "reflection"), ("cubic", "border")]
)
def test_second_derivatives(mode: str, padding: str) -> None:
    feeds = {"x": X, "g": GRID}
    first = gradient(
        op_model(node(mode, padding), feeds, opset=20), ["x", "g"], ["y"], adjoint="input"
    )
    more = {**feeds, "y_grad": normal(2, 3, 3, 6)}
    check_model(
        first, more, list(more), target=[o.name for o in first.graph.output[1:]], seeds=(0,)
    )


def gradients(text: str, x: Any, positions: Any) -> tuple[Any, Any]:
    """(x's adjoint, the grid's adjoint along the last axis) of the sum of y, for an image of one row and these
    horizontal positions in pixels, all of align_corners = 1.
    """
    row = np.float32(x).reshape(1, 1, 1, -1)
    size = row.shape[-1]
    grid = np.zeros((1, 1, len(positions), 2), np.float32)
    grid[..., 0] = np.float32(positions) * 2 / (size - 1) - 1
    feeds = {"x": row, "g": grid}
    graph = gradient(op_model(text, feeds, opset=20), ["x", "g"], ["y"], adjoint="input")
    given = {**feeds, "y_grad": np.ones((1, 1, 1, len(positions)), np.float32)}
    found, exact = list(run(graph, given).values()), list(reference(graph, given).values())
    for a, b in zip(found[1:], exact[1:], strict=True):
        assert np.allclose(a, b, atol=1e-6)
    return np.ravel(found[1]), found[2][0, 0, :, 0] * 2 / (size - 1)


def test_at_pixel_centres_the_slope_is_that_of_larger_positions() -> None:
    # torch.nn.functional.grid_sample's choice, as are the next two
    _, slopes = gradients(node("linear", "zeros", 1), [1, 10, 100, 1000, 5], [0, 1, 2, 3, 4, -1, 5])
    assert slopes.tolist() == [9, 90, 900, -995, -5, 1, 0]


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_at_an_edge_the_slope_is_zero(padding: str) -> None:
    _, slopes = gradients(node("linear", padding, 1), [1, 10, 100, 1000, 5], [0, 1, 3, 4])
    assert slopes.tolist() == [0, 90, -995, 0]


def test_nearest_selects_a_pixel_and_gives_the_grid_nothing() -> None:
    pixels, slopes = gradients(
        node("nearest", "zeros", 1), [1, 10, 100, 1000, 5], [0, 1, 1.25, 2.5, 3.5, 7]
    )
    assert pixels.tolist() == [1, 2, 1, 0, 1]  # halves to the even neighbour
    assert not slopes.any()


def test_a_slope_changes_its_sign_in_the_mirrored_image() -> None:
    _, slopes = gradients(
        node("linear", "reflection", 1), [1, 10, 100, 1000, 5], [1.25, -1.25, 6.75, 9.25]
    )
    assert slopes.tolist() == [90, -90, -90, 90]


@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_positions_far_out_and_infinite_have_finite_gradients(padding: str) -> None:
    far = [3e38, -3e38, np.inf, -np.inf, 1e12, -1e12]
    with np.errstate(all="ignore"):
        pixels, slopes = gradients(node("linear", padding, 1), [1, 2, 4, 8, 16], far)
    assert not slopes.any()
    assert pixels.tolist() == ([3, 0, 0, 0, 3] if padding == "border" else [0] * 5)


def test_pixels_that_are_read_often_miss_no_addition() -> None:
    """onnxruntime's ScatterND that adds loses some with several threads."""
    x, grid = np.zeros((1, 8, 2, 2), np.float32), np.zeros((1, 200, 200, 2), np.float32)
    graph = gradient(
        op_model(node("linear"), {"x": x, "g": grid}, opset=20), ["x"], ["y"], adjoint="input"
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 4
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    for _ in range(3):
        got = session.run(
            ["x_grad"], {"x": x, "g": grid, "y_grad": np.ones((1, 8, 200, 200), np.float32)}
        )[0]
        assert (got == 10000).all()


@pytest.mark.filterwarnings("ignore:no requested value reaches")
def test_an_empty_grid() -> None:
    feeds = {
        "x": X,
        "g": np.zeros((2, 0, 3, 2), np.float32),
        "y_grad": np.zeros((2, 3, 0, 3), np.float32),
    }
    graph = gradient(
        op_model(node("linear"), {k: feeds[k] for k in "xg"}, opset=20),
        ["x", "g"],
        ["y"],
        adjoint="input",
    )
    _, dx, dg = run(graph, feeds).values()
    assert dx.shape == X.shape and not dx.any() and dg.shape == (2, 0, 3, 2)


@pytest.mark.parametrize(
    "name", sorted(n for n in table()["single_node_moving"] if n.startswith("test_gridsample"))
)
def test_cases_of_the_backend_suite_beside_their_kinks(name: str) -> None:
    """Most of their grids point exactly at pixels."""
    found = case(name)
    moved = (
        np.random.default_rng(0).uniform(0.01, 0.04, found.inputs["Grid"].shape).astype(np.float32)
    )
    check_model(
        clamp_ir(found.model), {**found.inputs, "Grid": found.inputs["Grid"] + moved}, seeds=(0,)
    )


@pytest.mark.parametrize("sizes", [(2, 0, 7, 2), (2, 6, 0, 2)])
def test_a_grid_of_no_points_whose_size_is_known_late(sizes: tuple[int, ...]) -> None:
    feeds = {"x": normal(2, 3, 4, 5), "g": normal(2, 6, 7, 2)}
    graph = gradient(op_model("y = GridSample (x, g)", feeds, symbolic=True), adjoint="input")
    empty = {
        "x": feeds["x"],
        "g": np.zeros(sizes, np.float32),
        "y_grad": np.zeros((2, 3, *sizes[1:3]), np.float32),
    }
    found = run(graph, empty)
    assert found["g_grad"].shape == sizes
    assert found["x_grad"].shape == (2, 3, 4, 5) and not found["x_grad"].any()


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 2, 2), (2, 3, 2, 4, 5)])
def test_theta(size: tuple[int, ...], align_corners: int) -> None:
    d = len(size) - 2
    node = f"y = AffineGrid <align_corners = {align_corners}> (theta, size)"
    check_op(node, {"theta": normal(size[0], d, d + 1)}, constants={"size": np.array(size)})


def test_a_size_known_at_run_time() -> None:
    feeds = {"theta": normal(2, 2, 3), "size": np.array([2, 1, 3, 4])}
    check_op("y = AffineGrid (theta, size)", feeds, ["theta"], symbolic=False)
