"""Models of scikit-learn through skl2onnx: operators of ai.onnx.ml, strings, sequences of maps."""

from __future__ import annotations

from typing import Any

import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_blobs, make_regression
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingRegressor, IsolationForest, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.svm import SVC, SVR

from exporting.others import IR_VERSION, Exported, Models

PACKAGES = ("scikit-learn", "skl2onnx", "onnx", "onnxruntime")
OPSETS = {"": 18, "ai.onnx.ml": 3}


def _blobs(classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    x, y = make_blobs(90, 4, centers=classes, cluster_std=3.0, random_state=0)
    return x.astype(np.float32), y


def _curve() -> tuple[np.ndarray, np.ndarray]:
    x, y = make_regression(90, 4, noise=5.0, random_state=0)
    return x.astype(np.float32), (y / 100).astype(np.float32)


def _exported(fitted: Any, x: np.ndarray, expected: tuple[Any, ...], **options: Any) -> Exported:
    zipmap = {"options": {id(fitted): {"zipmap": False}}} if options.pop("columns", False) else {}
    tolerance = options.pop("tolerance", 1e-4)
    model = to_onnx(fitted, x[:1], target_opset=OPSETS, **zipmap, **options)
    model.ir_version = IR_VERSION
    return Exported(model, {"X": x[:9]}, expected, tolerance)


def _classifier(fitted: Any, x: np.ndarray, **options: Any) -> Exported:
    return _exported(fitted, x, (fitted.predict(x[:9]), fitted.predict_proba(x[:9])), **options)


def logistic_regression() -> Exported:
    """Scaler and logistic regression of labels that are text; a sequence of maps comes out."""
    x, y = _blobs()
    names = np.array(["ash", "birch", "cedar"])[y]
    return _classifier(make_pipeline(StandardScaler(), LogisticRegression()).fit(x, names), x)


def svm_classifier() -> Exported:
    """Support vectors of an RBF kernel, with scores, as columns."""
    x, y = _blobs(2)
    fitted = SVC(random_state=0).fit(x, y)
    # skl2onnx gives the scores of two classes with the other sign
    return _exported(fitted, x, (fitted.predict(x[:9]), None), columns=True)


def svm_regressor() -> Exported:
    """Scaler and support vector regression with a polynomial kernel."""
    x, y = _curve()
    fitted = make_pipeline(StandardScaler(), SVR(kernel="poly", C=2.0)).fit(x, y)
    return _exported(fitted, x, (fitted.predict(x[:9]),))


def random_forest() -> Exported:
    """Ten trees that vote; a sequence of maps by whole numbers comes out."""
    x, y = _blobs()
    return _classifier(RandomForestClassifier(10, max_depth=4, random_state=0).fit(x, y), x)


def gradient_boosting() -> Exported:
    """Twenty regression trees in a row."""
    x, y = _curve()
    fitted = GradientBoostingRegressor(n_estimators=20, random_state=0).fit(x, y)
    return _exported(fitted, x, (fitted.predict(x[:9]),))


def k_means() -> Exported:
    """Distances to five centres, and which is the nearest."""
    x, _ = _blobs()
    fitted = KMeans(5, n_init=2, random_state=0).fit(x)
    return _exported(fitted, x, (fitted.predict(x[:9]), fitted.transform(x[:9])))


def k_nearest() -> Exported:
    """The votes of five neighbours: a Scan over the samples, TopK, ArrayFeatureExtractor."""
    x, y = _blobs()
    fitted = KNeighborsClassifier(5).fit(x[:40], y[:40])
    return _classifier(fitted, x[45:], columns=True)


def gaussian_mixture() -> Exported:
    """Principal components, then a mixture of three Gaussians with full covariances."""
    x, _ = _blobs()
    fitted = make_pipeline(PCA(3, random_state=0), GaussianMixture(3, random_state=0)).fit(x)
    return _classifier(fitted, x)


def mlp() -> Exported:
    """Scaler and a perceptron of two layers."""
    x, y = _curve()
    network = MLPRegressor(
        hidden_layer_sizes=(16, 8), activation="tanh", max_iter=200, random_state=0
    )
    fitted = make_pipeline(StandardScaler(), network).fit(x, y)
    return _exported(fitted, x, (fitted.predict(x[:9]),))


def columns() -> Exported:
    """Columns of three kinds, each an input: numbers with gaps, integers in bins, text one-hot."""
    rng = np.random.default_rng(0)
    sizes = rng.normal(size=(60, 2)).astype(np.float32)
    sizes[rng.random(sizes.shape) < 0.1] = np.nan
    ages = rng.integers(18, 80, (60, 1))
    colours = rng.choice(["red", "green", "blue"], (60, 1)).astype(object)
    table = np.concatenate([sizes.astype(object), ages.astype(object), colours], axis=1)
    y = (ages[:, 0] > 40) ^ (colours[:, 0] == "red")
    y = y.astype(np.int64)
    kinds = [
        ("sizes", make_pipeline(SimpleImputer(), StandardScaler()), [0, 1]),
        ("ages", KBinsDiscretizer(4, encode="onehot-dense"), [2]),
        ("colours", OneHotEncoder(handle_unknown="ignore"), [3]),
    ]
    fitted = make_pipeline(ColumnTransformer(kinds), LogisticRegression()).fit(table, y)
    inputs = [
        ("sizes", FloatTensorType([None, 2])),
        ("ages", Int64TensorType([None, 1])),
        ("colours", StringTensorType([None, 1])),
    ]
    options = {id(fitted): {"zipmap": False}}
    model = to_onnx(fitted, initial_types=inputs, target_opset=OPSETS, options=options)
    model.ir_version = IR_VERSION
    feeds = {"sizes": sizes[:9], "ages": ages[:9], "colours": colours[:9]}
    return Exported(model, feeds, (fitted.predict(table[:9]), fitted.predict_proba(table[:9])))


def text() -> Exported:
    """Sentences to words, words to weighted counts, counts to a class."""
    words = ["the cat sat", "a dog ran far", "cat and dog", "far far away", "the end"] * 4
    y = np.array([0, 1, 0, 1, 1] * 4)
    fitted = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(words, y)
    inputs = [("text", StringTensorType([None]))]
    # the locale that every machine has
    options = {TfidfVectorizer: {"locale": "C"}}
    model = to_onnx(fitted, initial_types=inputs, target_opset=OPSETS, options=options)
    model.ir_version = IR_VERSION
    feeds = {"text": np.array(words[:9], object)}
    return Exported(model, feeds, (fitted.predict(words[:9]), fitted.predict_proba(words[:9])))


def gaussian_process() -> Exported:
    """A Gaussian process of 30 samples."""
    x, y = _curve()
    fitted = GaussianProcessRegressor(alpha=0.1).fit(x[:30], y[:30])
    return _exported(fitted, x, (fitted.predict(x[:9]),))


def naive_bayes() -> Exported:
    """Rows of norm 1, all products of two columns, then naive Bayes."""
    x, y = _blobs()
    fitted = make_pipeline(Normalizer(), PolynomialFeatures(2), GaussianNB()).fit(x, y)
    return _classifier(fitted, x)


def isolation_forest() -> Exported:
    """Outliers by the depth of their leaves."""
    x, _ = _blobs()
    fitted = IsolationForest(n_estimators=5, max_samples=32, random_state=0).fit(x)
    return _exported(fitted, x, (fitted.predict(x[:9]), fitted.decision_function(x[:9])))


MODELS: Models = {
    build.__name__: build
    for build in (
        logistic_regression, svm_classifier, svm_regressor, random_forest, gradient_boosting,
        k_means, k_nearest, gaussian_mixture, mlp, columns, text, gaussian_process, naive_bayes,
        isolation_forest,
    )
}  # fmt: skip
