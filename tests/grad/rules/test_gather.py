"""onnxgrad/grad/rules/gather.py"""

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, normal, op_model


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("indices", [[1, -2, 1], [[1, 0], [-1, 1]], 1, -2])
def test_gather(indices: object, axis: int) -> None:
    at = np.array(indices, np.int64)
    check_op(f"y = Gather <axis = {axis}> (x, i)", {"x": normal(2, 5, 3), "i": at}, symbolic=True)
    check_op(
        f"y = Gather <axis = {axis}> (x, i)",
        {"x": normal(2, 5, 3)},
        constants={"i": at},
        symbolic=False,
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis: int) -> None:
    at = np.array([[1, -2, 1], [0, 0, 1]]) % 2
    check_op(f"y = GatherElements <axis = {axis}> (x, i)", {"x": normal(2, 5), "i": at})


@pytest.mark.parametrize("at", [0, 2, -1])
def test_one_row_that_is_meant_every_time(at: int) -> None:
    """A table of token types: the row number is a fill that was expanded, reshaped and expanded again."""
    text = "e = Expand (k, n) r = Reshape (e, m) z = Expand (r, n) y = Gather (x, z)"
    constants = {"k": np.array([at], np.int64), "n": np.array([2, 3]), "m": np.array([2, 3])}
    check_op(text, {"x": normal(3, 4)}, constants=constants)


def test_rows_that_are_not_all_the_same_are_no_fill() -> None:
    text = "e = Expand (k, n) y = Gather (x, e)"
    check_op(
        text,
        {"x": normal(3, 4)},
        constants={"k": np.array([[0], [2]], np.int64), "n": np.array([2, 3])},
    )


def test_rows_that_are_read_twice_and_too_wide_for_a_stored_line_of_indices() -> None:
    feeds = {"x": normal(3, 5000), "i": np.array([2, 0, 2])}
    graph = gradient(op_model("y = Gather (x, i)", feeds), adjoint="input", wrt=["x"])
    g = normal(3, 5000, seed=1)
    found = run(graph, {**feeds, "y_grad": g})["x_grad"]
    np.testing.assert_array_equal(found, [g[1], np.zeros_like(g[1]), g[0] + g[2]])
