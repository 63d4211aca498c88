"""Resize in its modes against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient, jvp
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, normal, op_model
from tests.helpers import parse

X = normal(1, 2, 4, 5)


@pytest.mark.covering(2)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "transformation", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
)
@pytest.mark.parametrize("scales", [[1, 1, 2, 1.5], [1, 1, 0.5, 0.6]])
def test_resize_by_scales(mode: str, transformation: str, scales: list[float]) -> None:
    if transformation == "align_corners":
        scales = [
            1,
            1,
            2,
            3,
        ]  # where a size is rounded, onnxruntime and the specification align other corners
    check_op(
        f'y = Resize <mode = "{mode}", coordinate_transformation_mode = "{transformation}"> (x, , s)',
        {"x": X},
        constants={"s": np.float32(scales)},
    )


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_to_sizes(mode: str) -> None:
    check_op(
        f'y = Resize <mode = "{mode}"> (x, , , s)',
        {"x": X},
        constants={"s": np.array([1, 2, 7, 3])},
    )
    check_op(
        f'y = Resize <mode = "{mode}", axes = [3, 2]> (x, , , s)',
        {"x": X},
        constants={"s": np.array([3, 6])},
        symbolic=False,
    )


@pytest.mark.parametrize("sizes", [[1, 2, 7, 3], [1, 2, X.shape[2], 3], list(X.shape)])
def test_axes_that_keep_their_size_cost_nothing(sizes: list[int]) -> None:
    model = op_model("y = Resize (x, , , s)", {"x": X}, constants={"s": np.array(sizes)})
    found = gradient(model, adjoint="input").graph.node
    changed = sum(a != b for a, b in zip(sizes, X.shape))
    assert sum(n.op_type == "Resize" and n.output[0] != "y" for n in found) == changed


def test_sizes_are_known_from_scales() -> None:
    """A tangent has the sizes of its value, so nothing is compared at run time."""
    model = parse("""g (float[N,2,3,4] x) => (float[N,2,6,8] y) {
      s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> () y = Resize <mode = "linear"> (x, , s) }""")
    made = jvp(model, "x", "y")
    assert not {"Shape", "Equal", "NonZero", "Slice"} & {n.op_type for n in made.graph.node}
    assert str(load(made).main.outputs[-1].type) == "f32[N,2,6,8]"


def test_scales_that_an_exporter_joins() -> None:
    """Only the axes whose scale is not 1 are multiplied by weights; an empty batch runs too."""
    model = parse("""g (float[N,2,3,4] x) => (float[N,2,3,8] y) {
        a = Constant <value = float[2] {1, 1}> ()  b = Constant <value = float[2] {1, 2}> ()  s = Concat <axis = 0> (a, b)  y = Resize (x, , s) }""")
    found = gradient(model, adjoint="input")
    assert [n.op_type for n in found.graph.node].count("Resize") == 2
    feeds = {"x": np.zeros((0, 2, 3, 4), np.float32), "y_grad": np.zeros((0, 2, 3, 8), np.float32)}
    assert run(found, feeds)["x_grad"].shape == (0, 2, 3, 4)


@pytest.mark.parametrize("more", ["antialias = 1", "exclude_outside = 1", "cubic_coeff_a = -0.5"])
def test_cubic_options(more: str) -> None:
    check_op(
        f'y = Resize <mode = "cubic", {more}> (x, , s)',
        {"x": X},
        constants={"s": np.float32([1, 1, 0.6, 0.8])},
    )


def test_crop_and_resize() -> None:
    check_op(
        'y = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"> (x, r, , s)',
        {"x": X},
        constants={"r": np.float32([0, 0, 0.2, 0.1, 1, 1, 0.9, 0.8]), "s": np.array([1, 2, 3, 3])},
    )


@pytest.mark.covering(2)
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "transformation", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
)
@pytest.mark.parametrize("sizes", [[7, 8], [3, 2], [1, 4]])
def test_one_scale_for_all_axes(
    policy: str, mode: str, transformation: str, sizes: list[int]
) -> None:
    """Resize is linear, so onnxruntime's own forward is the check; onnx.reference aligns other corners."""
    node = (
        f'y = Resize <mode = "{mode}", coordinate_transformation_mode = "{transformation}", axes = [2, 3], '
        f'keep_aspect_ratio_policy = "{policy}"> (x, , , s)'
    )
    for symbolic in (False, True):
        model = op_model(node, {"x": X}, constants={"s": np.array(sizes)}, symbolic=symbolic)
        y = run(model, {"x": X})["y"]
        u = normal(*y.shape)
        dx = run(gradient(model, ["x"], "y", adjoint="input"), {"x": X, "y_grad": u})["x_grad"]
        assert abs((dx * X).sum() - (u * y).sum()) < 1e-5 * np.linalg.norm(u) * np.linalg.norm(y)
        other = np.roll(X, 1, axis=3)
        assert (
            abs((dx * other).sum() - (u * run(model, {"x": other})["y"]).sum())
            < 1e-5 * np.linalg.norm(u) * 10
        )


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_one_scale_against_differences(policy: str, mode: str) -> None:
    node = f'y = Resize <mode = "{mode}", axes = [3, 2], keep_aspect_ratio_policy = "{policy}"> (x, , , s)'
    check_op(node, {"x": X}, constants={"s": np.array([8, 7])})


@pytest.mark.parametrize(
    "more",
    [
        'coordinate_transformation_mode = "half_pixel_symmetric"',
        "antialias = 1",
        "exclude_outside = 1",
    ],
)
def test_one_scale_is_refused_where_it_cannot_be_expressed(more: str) -> None:
    node = f'y = Resize <mode = "cubic", axes = [2, 3], keep_aspect_ratio_policy = "not_larger", {more}> (x, , , s)'
    model = op_model(node, {"x": X}, constants={"s": np.array([7, 8])})
    with pytest.raises(
        InputError, match=r"Resize.* is not supported for keep_aspect_ratio_policy not_larger with"
    ):
        gradient(model, ["x"], adjoint="input")


@pytest.mark.parametrize("name", ["r", "f"])
def test_measures_are_refused_by_name(name: str) -> None:
    """Positions move with them, so zero would be wrong."""
    node = 'y = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"> (x, r, f)'
    measures = {
        "r": np.float32([0, 0, 0.2, 0.1, 1, 1, 0.9, 0.8]),
        "f": np.float32([1, 1, 1.5, 1.5]),
    }
    for model in (
        op_model(node, {"x": X, **measures}),
        op_model(node, {"x": X}, constants=measures),
    ):
        with pytest.raises(InputError, match=rf"wrt '{name}'.*Resize.*: "):
            gradient(model, [name], "y", adjoint="input")
        gradient(model, ["x"], "y", adjoint="input")


def test_scales_are_no_parameters() -> None:
    model = op_model(
        "z = Mul (x, w) y = Resize (z, , f)",
        {"x": X},
        constants={"w": normal(5), "f": np.float32([1, 1, 2, 2])},
        outputs=["y"],
    )
    assert [v.name for v in gradient(model, "params", adjoint="input").graph.output] == [
        "y",
        "w_grad",
    ]
