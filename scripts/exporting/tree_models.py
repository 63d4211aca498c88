"""Models of LightGBM and XGBoost through onnxmltools: ensembles of trees in ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import xgboost
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

from exporting.others import IR_VERSION, Exported, Models

PACKAGES = ("onnxmltools", "lightgbm", "xgboost", "skl2onnx", "onnx", "onnxruntime")
OPSET = 15  # the newest that onnxmltools knows


def _data(classes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """120 samples of 5 numbers; a number, or one of `classes`, for each."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + np.sin(x[:, 2])
    return x, np.digitize(y, np.quantile(y, np.arange(1, classes) / classes)) if classes else y


def _exported(convert: Any, fitted: Any, x: np.ndarray, *expected: Any, **more: Any) -> Exported:
    columns = FloatTensorType([None, x.shape[1]])
    model = convert(fitted, initial_types=[("x", columns)], target_opset=OPSET, **more)
    model.ir_version = min(model.ir_version, IR_VERSION)
    return Exported(model, {"x": x[:9]}, expected)


def _light(fitted: Any, x: np.ndarray, *expected: Any, **more: Any) -> Exported:
    return _exported(convert_lightgbm, fitted, x, *expected, **more)


def _extreme(fitted: Any, x: np.ndarray, *expected: Any) -> Exported:
    return _exported(convert_xgboost, fitted, x, *expected)


def lightgbm_regressor() -> Exported:
    """Fifteen trees of seven leaves."""
    x, y = _data()
    fitted = lightgbm.LGBMRegressor(n_estimators=15, num_leaves=7, verbose=-1).fit(x, y)
    return _light(fitted, x, fitted.predict(x[:9]))


def lightgbm_split() -> Exported:
    """Fifteen trees in three nodes, whose results are added in double."""
    x, y = _data()
    fitted = lightgbm.LGBMRegressor(n_estimators=15, num_leaves=7, verbose=-1).fit(x, y)
    return _light(fitted, x, fitted.predict(x[:9]), split=5)


def lightgbm_binary() -> Exported:
    """Two classes; a sequence of maps comes out."""
    x, y = _data(2)
    fitted = lightgbm.LGBMClassifier(n_estimators=10, num_leaves=7, verbose=-1).fit(x, y)
    return _light(fitted, x, fitted.predict(x[:9]), fitted.predict_proba(x[:9]))


def lightgbm_three() -> Exported:
    """Three classes, as columns."""
    x, y = _data(3)
    fitted = lightgbm.LGBMClassifier(n_estimators=5, num_leaves=7, verbose=-1).fit(x, y)
    return _light(fitted, x, fitted.predict(x[:9]), fitted.predict_proba(x[:9]), zipmap=False)


def lightgbm_categories() -> Exported:
    """A column of categories: branches on equality, and gaps."""
    x, y = _data()
    rng = np.random.default_rng(1)
    x[:, 4] = rng.integers(0, 6, len(x))
    y = y + x[:, 4] % 3
    x[rng.random(x.shape) < 0.05] = np.nan
    x[:, 4] = np.nan_to_num(x[:, 4])
    settings = {"n_estimators": 10, "num_leaves": 7, "min_data_per_group": 1, "verbose": -1}
    fitted = lightgbm.LGBMRegressor(**settings).fit(x, y, categorical_feature=[4])
    return _light(fitted, x, fitted.predict(x[:9]))


def lightgbm_poisson() -> Exported:
    """Counts: the exponential of the trees' sum."""
    x, y = _data()
    settings = {"objective": "poisson", "n_estimators": 10, "num_leaves": 7, "verbose": -1}
    fitted = lightgbm.LGBMRegressor(**settings).fit(x, np.abs(y).round())
    return _light(fitted, x, fitted.predict(x[:9]))


def xgboost_regressor() -> Exported:
    """Fifteen trees of depth three, with gaps in the samples."""
    x, y = _data()
    x[np.random.default_rng(1).random(x.shape) < 0.1] = np.nan
    fitted = xgboost.XGBRegressor(n_estimators=15, max_depth=3).fit(x, y)
    return _extreme(fitted, x, fitted.predict(x[:9]))


def xgboost_binary() -> Exported:
    """Two classes, their probabilities as columns."""
    x, y = _data(2)
    fitted = xgboost.XGBClassifier(n_estimators=10, max_depth=3).fit(x, y)
    return _extreme(fitted, x, fitted.predict(x[:9]), fitted.predict_proba(x[:9]))


def xgboost_three() -> Exported:
    """Three classes by softmax."""
    x, y = _data(3)
    fitted = xgboost.XGBClassifier(n_estimators=5, max_depth=3).fit(x, y)
    return _extreme(fitted, x, fitted.predict(x[:9]), fitted.predict_proba(x[:9]))


def xgboost_forest() -> Exported:
    """A random forest of ten trees."""
    x, y = _data()
    fitted = xgboost.XGBRFRegressor(n_estimators=10, max_depth=3).fit(x, y)
    return _extreme(fitted, x, fitted.predict(x[:9]))


MODELS: Models = {
    build.__name__: build
    for build in (
        lightgbm_regressor, lightgbm_split, lightgbm_binary, lightgbm_three, lightgbm_categories,
        lightgbm_poisson, xgboost_regressor, xgboost_binary, xgboost_three, xgboost_forest,
    )
}  # fmt: skip
