"""Slice: bounds of every kind, known and at run time."""

import numpy as np
import pytest

from onnxgrad import gradient
from tests.grad.numeric import check_op, normal, op_model, operators


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


def test_what_was_turned_round_is_turned_back() -> None:
    bounds = {"s": ints(-1, -1), "e": ints(-1000, -9), "a": ints(1, 2), "t": ints(-1, -1)}
    node = "y = Slice (x, s, e, a, t) z = Mul (y, y) "
    check_op(node, {"x": normal(3, 5, 4)}, constants=bounds)
    graph = gradient(
        op_model(node, {"x": normal(3, 5, 4)}, constants=bounds), "x", "z", adjoint="input"
    )
    assert operators(graph)["Slice"] == 2 and "ScatterElements" not in operators(graph)
