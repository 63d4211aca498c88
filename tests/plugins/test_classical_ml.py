"""Operators of ai.onnx.ml."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.verify import run
from onnxgrad.verify.reference.evaluate import reference
from tests.grad.numeric import check_op, normal, op_model
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


def numbers(*shape: int) -> str:
    return ", ".join(f"{v:.4f}" for v in normal(*shape, seed=7).reshape(-1))


CLASSIFIERS = [
    (
        f'coefficients = [{numbers(k, 4)}], intercepts = [{numbers(k)}], {classes}, post_transform = "{end}"'
    )
    for k, classes in (
        (3, "classlabels_ints = [0, 1, 2]"),
        (2, 'classlabels_strings = ["a", "b"]'),
        (1, "classlabels_ints = [0, 1]"),
    )
    for end in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
]


@pytest.mark.covering
@pytest.mark.parametrize("attributes", CLASSIFIERS)
def test_linear_classifier(attributes: str) -> None:
    node, x = f"l, y = ai.onnx.ml.LinearClassifier <{attributes}> (x)", {"x": normal(3, 4)}
    model = op_model(node, x, domains=ML, outputs=["y", "l"])
    wanted, got = run(model, x), reference(model, x)
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-5)
    assert list(got["l"]) == list(wanted["l"])
    check_op(node, x, domains=ML, outputs=["y"], seeds=(0,))


@pytest.mark.parametrize("norm", ["L1", "L2", "MAX"])
def test_normalizer(norm: str) -> None:
    node = f'y = ai.onnx.ml.Normalizer <norm = "{norm}"> (x)'
    x = normal(5, 4)
    x[0] = -np.abs(x[0])
    model = op_model(node, {"x": x}, domains=ML)
    np.testing.assert_allclose(
        run(model, {"x": x})["y"], reference(model, {"x": x})["y"], rtol=1e-5
    )
    check_op(node, {"x": x}, domains=ML, symbolic=True, seeds=(0,))
    graph = onnxgrad.gradient(model, "x", adjoint="input")
    zeros = {"x": np.zeros_like(x), "y_grad": np.ones_like(x)}
    assert (run(graph, zeros)["x_grad"] == 0).all()


@pytest.mark.parametrize("missing", [np.nan, -9.0])
def test_imputer(missing: float) -> None:
    attributes = f"imputed_value_floats = [1.0, 2.0, 3.0], replaced_value_float = {missing}"
    x = normal(4, 3)
    model = op_model(f"y = ai.onnx.ml.Imputer <{attributes}> (x)", {"x": x}, domains=ML)
    x[1, 1] = missing
    graph = onnxgrad.gradient(model, "x", adjoint="input")
    g = normal(4, 3, seed=1)
    found = run(graph, {"x": x, "y_grad": g})
    wanted = g.copy()
    wanted[1, 1] = 0
    assert found["y"][1, 1] == 2 and (found["x_grad"] == wanted).all()


def test_feature_vectorizer() -> None:
    node = "y = ai.onnx.ml.FeatureVectorizer <inputdimensions = [3, 1, 2]> (a, b, c)"
    feeds = {"a": normal(4, 3), "b": normal(4, 1), "c": normal(4, 2)}
    check_op(node, feeds, domains=ML, seeds=(0,))


@pytest.mark.covering
@pytest.mark.parametrize("count", [5, 0])
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_svm_regressor(kernel: str, count: int) -> None:
    supports = f"support_vectors = [{numbers(count, 4)}], n_supports = {count}, " if count else ""
    attributes = (
        f'coefficients = [{numbers(count or 4)}], {supports}kernel_type = "{kernel}", rho = [0.7], '
        "kernel_params = [0.3, 0.5, 2.0]"
    )
    node = f"y = ai.onnx.ml.SVMRegressor <{attributes}> (x)"
    x = {"x": normal(3, 4)}
    if count:
        model = op_model(node, x, domains=ML)
        np.testing.assert_allclose(run(model, x)["y"], reference(model, x)["y"], rtol=1e-4)
        check_op(node, x, domains=ML, symbolic=True, seeds=(0,))
    elif kernel == "LINEAR":
        check_op(node, x, domains=ML, symbolic=True, seeds=(0,))


# the kernel, the vectors of each class (none: a linear model), whether probabilities are computed
SVM_CLASSIFIERS = [
    ("RBF", (2, 1, 2), True, "NONE"), ("LINEAR", (2, 1, 2), False, "SOFTMAX"),
    ("POLY", (2, 2), False, "NONE"), ("SIGMOID", (1, 2), False, "LOGISTIC"),
    ("RBF", (1, 2), False, "SOFTMAX"), ("POLY", (2, 1), True, "LOGISTIC"),
    ("LINEAR", (0, 0, 0), False, "SOFTMAX_ZERO"), ("LINEAR", (0, 0), False, "LOGISTIC"),
]  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize(("kernel", "of_class", "likely", "end"), SVM_CLASSIFIERS)
def test_svm_classifier(kernel: str, of_class: tuple[int, ...], likely: bool, end: str) -> None:
    classes, count = len(of_class), sum(of_class)
    pairs = classes * (classes - 1) // 2
    attributes = (
        f'classlabels_ints = {[*range(classes)]}, kernel_type = "{kernel}", post_transform = "{end}", '
        f"kernel_params = [0.3, 0.5, 2.0], rho = [{numbers(pairs)}]"
    )
    if count:
        attributes += (
            f", vectors_per_class = {[*of_class]}, support_vectors = [{numbers(count, 4)}], "
            f"coefficients = [{numbers(classes - 1, count)}]"
        )
    else:
        attributes += f", coefficients = [{numbers(classes, 4)}]"
    if likely:
        attributes += f", prob_a = [{numbers(pairs)}], prob_b = [{numbers(pairs)}]"
    node, x = f"l, y = ai.onnx.ml.SVMClassifier <{attributes}> (x)", {"x": normal(5, 4)}
    model = op_model(node, x, domains=ML, outputs=["y", "l"])
    wanted, got = run(model, x), reference(model, x)
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-5)
    assert list(got["l"]) == list(wanted["l"])
    graph = onnxgrad.gradient(model, "x", "y", adjoint="input")
    found = run(graph, {**x, "y_grad": np.ones_like(wanted["y"])})
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5)
    assert list(found["l"]) == list(wanted["l"])
    check_op(node, x, domains=ML, outputs=["y"], symbolic=True, seeds=(0,))


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ('l, y = ai.onnx.ml.LinearClassifier <coefficients = [1.0, 2.0, 3.0], intercepts = [0.5], classlabels_ints = [0],'
         ' post_transform = "PROBIT"> (x)', "post_transform PROBIT of scores"),
        ("y = ai.onnx.ml.FeatureVectorizer <inputdimensions = [2]> (x)", "differ from inputdimensions"),
        ("y = ai.onnx.ml.SVMRegressor <coefficients = [1.0, 2.0, 3.0], one_class = 1> (x)", "one_class"),
        ('l, y = ai.onnx.ml.SVMClassifier <coefficients = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], rho = [0.5],'
         ' classlabels_ints = [0, 1], post_transform = "PROBIT"> (x)', "post_transform PROBIT of 2 classes"),
    ],
)  # fmt: skip
def test_what_has_no_derivative_is_named(node: str, reason: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 1]>
        g (float[2,3] x) => (float[2,N] y) {{ {node} }}"""
    with pytest.raises(InputError, match=reason):
        onnxgrad.gradient(onnx.parser.parse_model(text), "x", "y", adjoint="input")


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
