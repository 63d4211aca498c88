"""onnxgrad/grad/rules/losses.py"""

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, normal, op_model, positive

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


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_negative_log_likelihood(reduction: str) -> None:
    node = f'y = NegativeLogLikelihoodLoss <reduction = "{reduction}"'
    weighted = {"x": normal(3, 4), "l": LABELS, "w": positive(4)}
    check_op(f"{node}> (x, l)", {"x": normal(3, 4), "l": LABELS})
    check_op(f"{node}, ignore_index = 1> (x, l, w)", weighted)
    labels = np.array([[1, 0], [3, -100], [2, 1]], np.int32)
    check_op(
        f"{node}, ignore_index = -100> (x, l)", {"x": normal(3, 4, 2), "l": labels}, symbolic=True
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 2)])
@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_nothing_but_ignored_labels(
    op: str, shape: tuple[int, ...], weighted: bool, reduction: str
) -> None:
    """PyTorch's gradient is 0, though its mean is NaN."""
    feeds = {"x": normal(*shape), "l": np.full((shape[0], *shape[2:]), -1)} | (
        {"w": positive(3)} if weighted else {}
    )
    node = f'y = {op} <reduction = "{reduction}", ignore_index = -1> ({", ".join(feeds)})'
    model = op_model(node, feeds)
    graph = gradient(model, adjoint="input")
    u = np.ones([d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim], np.float32)
    for found in (run(graph, {**feeds, "y_grad": u}), reference(graph, {**feeds, "y_grad": u})):
        for name in ("x_grad", *(["w_grad"] if weighted else [])):
            assert not np.any(found[name]), f"{name}: {found[name]}"
