"""onnxgrad/grad/rules/loss.py"""

import numpy as np
import pytest

from tests.grad.numeric import check_op, normal, positive

LABELS = np.array([1, 0, 3])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction: str) -> None:
    node = f'SoftmaxCrossEntropyLoss <reduction = "{reduction}"'
    check_op(f"y = {node}> (x, l)", {"x": normal(3, 4), "l": LABELS})
    check_op(f"y, p = {node}> (x, l)", {"x": normal(3, 4), "l": LABELS})
    check_op(f"y, p = {node}> (x, l)", {"x": normal(3, 4), "l": LABELS}, outputs=["p"])
    weighted = {"x": normal(3, 4), "l": LABELS, "w": positive(4)}
    check_op(f"y = {node}, ignore_index = 1> (x, l, w)", weighted)
    check_op(f"y = {node}> (x, l, w)", weighted)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_labels_that_are_ignored(reduction: str) -> None:
    labels = np.array([[1, 0], [3, -100], [2, 1]], np.int32)
    node = f'y = SoftmaxCrossEntropyLoss <reduction = "{reduction}", ignore_index = -100> (x, l)'
    check_op(node, {"x": normal(3, 4, 2), "l": labels})
