"""Layout rules against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.grad import gradient
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_op, normal, op_model


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("at_run_time", [False, True])
def test_pad(mode: str, at_run_time: bool) -> None:
    pads = {"p": np.array([1, 0, 2, 1])}
    given = ({}, pads) if at_run_time else (pads, {})
    check_op(f'y = Pad <mode = "{mode}"> (x, p)', {"x": normal(3, 4), **given[1]}, constants=given[0])


def test_pad_that_crops() -> None:
    check_op("y = Pad (x, p)", {"x": normal(3, 4)}, constants={"p": np.array([-1, 1, 0, -2])})


def test_pad_along_some_axes_and_its_value() -> None:
    check_op(
        "y = Pad (x, p, v, a)",
        {"x": normal(3, 4, 2), "v": np.float32(0.7)},
        constants={"p": np.array([1, 2, 0, -1]), "a": np.array([2, 0])},
    )


@pytest.mark.parametrize("repeats", [[2, 1], [1, 3], [2, 2]])
def test_tile(repeats: list[int]) -> None:
    check_op("y = Tile (x, r)", {"x": normal(2, 3)}, constants={"r": np.array(repeats)})
    check_op("y = Tile (x, r)", {"x": normal(2, 3), "r": np.array(repeats)})


@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(upper: int) -> None:
    check_op(f"y = Trilu <upper = {upper}> (x)", {"x": normal(2, 3, 4)})
    check_op(f"y = Trilu <upper = {upper}> (x, k)", {"x": normal(3, 4), "k": np.array(-1)})
    check_op(f"y = Trilu <upper = {upper}> (x, k)", {"x": normal(3, 4)}, constants={"k": np.array(1)})


def test_space_and_depth() -> None:
    check_op("y = SpaceToDepth <blocksize = 2> (x)", {"x": normal(1, 3, 4, 6)})
    for mode in ("DCR", "CRD"):
        check_op(f'y = DepthToSpace <blocksize = 2, mode = "{mode}"> (x)', {"x": normal(2, 8, 3, 2)})


def test_reverse_sequence() -> None:
    lengths = np.array([1, 3, 2])
    check_op("y = ReverseSequence <batch_axis = 1, time_axis = 0> (x, n)", {"x": normal(4, 3), "n": lengths})
    check_op("y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, n)", {"x": normal(3, 4, 2), "n": lengths})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative(exclusive: int, reverse: int) -> None:
    flags = f"<exclusive = {exclusive}, reverse = {reverse}>"
    check_op(f"y = CumSum {flags} (x, a)", {"x": normal(3, 4)}, constants={"a": np.array(1)})
    check_op(f"y = CumSum {flags} (x, a)", {"x": normal(3, 4), "a": np.array(-2)})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_cum_prod(exclusive: int, reverse: int, zeros: int) -> None:
    x = normal(2, 5)
    x[0, [1, 3][:zeros]] = 0
    flags = f"<exclusive = {exclusive}, reverse = {reverse}>"
    check_op(f"y = CumProd {flags} (x, a)", {"x": x}, constants={"a": np.array(1)}, opset=26, onnxruntime=False)


def test_range() -> None:
    model = op_model("y = Range (a, b, d)", {"a": np.float32(0), "b": np.float32(0), "d": np.float32(0)})
    feeds = {"a": np.float32(1), "b": np.float32(3.9), "d": np.float32(0.5), "y_grad": normal(6)}
    found = run(gradient(model, ["a", "d"], seed="input"), feeds)
    np.testing.assert_allclose(found["a_grad"], feeds["y_grad"].sum(), rtol=1e-6)
    np.testing.assert_allclose(found["d_grad"], (feeds["y_grad"] * np.arange(6)).sum(), rtol=1e-6)
