"""Operators of ai.onnx.ml."""

from __future__ import annotations

import numpy as np
import pytest

import onnxgrad
from onnxgrad.verify import run
from tests.grad.numeric import check_op, normal
from tests.helpers import parse

ML = {"ai.onnx.ml": 1}


@pytest.mark.parametrize(
    "attributes",
    ["offset = [1.0, 2.0, 3.0], scale = [0.5, 2.0, -1.0]", "offset = [1.0], scale = [3.0]"],
)
def test_scaler(attributes: str) -> None:
    check_op(f"y = ai.onnx.ml.Scaler <{attributes}> (x)", {"x": normal(4, 3)}, domains=ML)


@pytest.mark.parametrize("intercepts", ["", ", intercepts = [0.5, -0.5]"])
def test_linear_regressor(intercepts: str) -> None:
    attributes = f"coefficients = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], targets = 2{intercepts}"
    check_op(f"y = ai.onnx.ml.LinearRegressor <{attributes}> (x)", {"x": normal(4, 3)}, domains=ML)


TREE = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1]> g (float[N,2] x) => (float[N,1] z) {
    y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1, nodes_falsenodeids = [2, 0, 0], nodes_featureids = [1, 0, 0],
        nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_nodeids = [0, 1, 2], nodes_treeids = [0, 0, 0],
        nodes_truenodeids = [1, 0, 0], nodes_values = [0.5, 0.0, 0.0], target_ids = [0, 0], target_nodeids = [1, 2],
        target_treeids = [0, 0], target_weights = [1.0, 2.0]> (x)
    s = ReduceSum <keepdims = 1> (x, axes)  axes = Constant <value_ints = [1]> ()
    z = Mul (y, s)
}"""


def test_a_tree_is_constant_between_its_thresholds() -> None:
    assert onnxgrad.check_gradient(parse(TREE)).ok
    x = np.array([[1.0, 0.0], [1.0, 1.0]], np.float32)
    found = onnxgrad.gradient(parse(TREE), "x", adjoint="input")
    feeds = {"x": x, "z_grad": np.ones((2, 1), np.float32)}
    assert run(found, feeds)["x_grad"].tolist() == [[1, 1], [2, 2]]
