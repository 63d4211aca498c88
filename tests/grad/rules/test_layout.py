"""Slice: bounds of every kind, known and at run time."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, normal, op_model, operators


@pytest.mark.parametrize("wrt", [None, ["b"]])
@pytest.mark.parametrize("axis", [1, -1])
def test_concat(axis: int, wrt: list[str] | None) -> None:
    feeds = {"a": normal(2, 3), "b": normal(2, 1), "c": normal(2, 2)}
    check_op(f"y = Concat <axis = {axis}> (a, b, c)", feeds, wrt)


def test_split() -> None:
    parts = {"s": np.array([2, 3])}
    check_op("y, z = Split <axis = 1> (x, s)", {"x": normal(2, 5)}, constants=parts)
    check_op("y, z = Split <axis = 1> (x, s)", {"x": normal(2, 5)}, constants=parts, outputs=["z"])
    check_op("y, z = Split <axis = 1, num_outputs = 2> (x)", {"x": normal(2, 5)})


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


SLICES = [
    ([1], [3], [1], None), ([-3], [-1], [1], None), ([0, 1], [2, 1000], None, None), ([-1], [-1000], [1], [-1]),
    ([0], [10], [-1], [2]), ([0], [10**9], [0], [1]), ([4], [1], [1], [-2]), ([7], [9], [1], None),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:no requested value reaches")  # the last slice is empty
@pytest.mark.parametrize("bounds", SLICES)
def test_slice(bounds: tuple[list[int] | None, ...]) -> None:
    given = {n: ints(*v) for n, v in zip("seap", bounds, strict=True) if v is not None}
    operands = ", ".join(n if n in given else "" for n in "seap").rstrip(", ")
    check_op(f"y = Slice (x, {operands})", {"x": normal(3, 5)}, constants=given)
    check_op(f"y = Slice (x, {operands})", {"x": normal(3, 5), **given}, symbolic=True)


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_slice_that_starts_before_the_beginning(symbolic: bool) -> None:
    given = {"s": np.array([-9]), "e": np.array([4]), "a": np.array([0])}
    if symbolic:
        check_op("y = Slice (x, s, e, a)", {"x": normal(5, 3), **given}, symbolic=True)
    else:
        check_op("y = Slice (x, s, e, a)", {"x": normal(5, 3)}, constants=given)


def test_a_slice_backwards_of_nothing() -> None:
    bounds = {"s": ints(-1), "e": ints(-1000), "a": ints(1), "t": ints(-1)}
    x = np.zeros((3, 0), np.float32)
    model = op_model("y = Slice (x, s, e, a, t)", {"x": x}, constants=bounds, symbolic=True)
    found = run(gradient(model, adjoint="input"), {"x": x, "y_grad": x})["x_grad"]
    assert found.shape == (3, 0)


def test_what_was_turned_round_is_turned_back() -> None:
    bounds = {"s": ints(-1, -1), "e": ints(-1000, -9), "a": ints(1, 2), "t": ints(-1, -1)}
    node = "y = Slice (x, s, e, a, t) z = Mul (y, y) "
    check_op(node, {"x": normal(3, 5, 4)}, constants=bounds)
    graph = gradient(
        op_model(node, {"x": normal(3, 5, 4)}, constants=bounds), "x", "z", adjoint="input"
    )
    assert operators(graph)["Slice"] == 2 and "ScatterElements" not in operators(graph)


@pytest.mark.parametrize("sizes", [(4, -1), (4, 6), (0, 12), (24,)])
def test_reshape(sizes: tuple[int, ...]) -> None:
    check_op("y = Reshape (x, s)", {"x": normal(2, 3, 4)}, constants={"s": ints(*sizes)})
    check_op("y = Reshape (x, s)", {"x": normal(2, 3, 4), "s": ints(*sizes)}, symbolic=True)


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_flatten(axis: int) -> None:
    check_op(f"y = Flatten <axis = {axis}> (x)", {"x": normal(2, 3, 4)})


def test_squeeze_and_unsqueeze() -> None:
    check_op("y = Squeeze (x, a)", {"x": normal(2, 1, 4)}, constants={"a": ints(1)})
    check_op("y = Squeeze (x)", {"x": normal(2, 1, 4)}, symbolic=False)
    check_op("y = Squeeze (x, a)", {"x": normal(2, 1, 4), "a": ints(1)}, symbolic=False)
    check_op("y = Unsqueeze (x, a)", {"x": normal(2, 4)}, constants={"a": ints(1, -1)})


def test_transpose() -> None:
    check_op("y = Transpose <perm = [2, 0, 1]> (x)", {"x": normal(2, 3, 4)})
    check_op("y = Transpose (x)", {"x": normal(2, 3, 4)})


@pytest.mark.parametrize("sizes", [(2, 3, 4), (1, 1), (3, 1)])
def test_expand(sizes: tuple[int, ...]) -> None:
    check_op("y = Expand (x, s)", {"x": normal(3, 1)}, constants={"s": ints(*sizes)})
    check_op("y = Expand (x, s)", {"x": normal(3, 1), "s": ints(*sizes)})


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("at_run_time", [False, True])
def test_pad(mode: str, at_run_time: bool) -> None:
    pads = {"p": np.array([1, 0, 2, 1])}
    given = ({}, pads) if at_run_time else (pads, {})
    check_op(
        f'y = Pad <mode = "{mode}"> (x, p)', {"x": normal(3, 4), **given[1]}, constants=given[0]
    )


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
    check_op(
        f"y = Trilu <upper = {upper}> (x, k)", {"x": normal(3, 4)}, constants={"k": np.array(1)}
    )


def test_reverse_sequence() -> None:
    lengths = np.array([1, 3, 2])
    check_op(
        "y = ReverseSequence <batch_axis = 1, time_axis = 0> (x, n)",
        {"x": normal(4, 3), "n": lengths},
    )
    check_op(
        "y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, n)",
        {"x": normal(3, 4, 2), "n": lengths},
    )


def test_space_and_depth() -> None:
    check_op("y = SpaceToDepth <blocksize = 2> (x)", {"x": normal(1, 3, 4, 6)})
    for mode in ("DCR", "CRD"):
        check_op(
            f'y = DepthToSpace <blocksize = 2, mode = "{mode}"> (x)', {"x": normal(2, 8, 3, 2)}
        )
