"""onnxgrad/grad/rules/index.py"""

import numpy as np
import pytest

from tests.grad.numeric import check_op, normal


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("indices", [[1, -2, 1], [[1, 0], [-1, 1]], 1, -2])
def test_gather(indices: object, axis: int) -> None:
    at = np.array(indices, np.int64)
    check_op(f"y = Gather <axis = {axis}> (x, i)", {"x": normal(2, 5, 3), "i": at}, symbolic=True)
    check_op(f"y = Gather <axis = {axis}> (x, i)", {"x": normal(2, 5, 3)}, constants={"i": at}, symbolic=False)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis: int) -> None:
    at = np.array([[1, -2, 1], [0, 0, 1]]) % 2
    check_op(f"y = GatherElements <axis = {axis}> (x, i)", {"x": normal(2, 5), "i": at})
