"""Classical machine learning (ai.onnx.ml)."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel

_ML = "ai.onnx.ml"


@kernel("ZipMap", domain=_ML, why="missing")
def zip_map(call: Call, x: Array) -> tuple[list[dict[Any, Any]]]:
    keys = call["classlabels_strings"] or call["classlabels_int64s"]
    if len(keys) != x.shape[-1]:
        raise ValueError(f"{len(keys)} keys for {x.shape[-1]} columns")
    return ([dict(zip(keys, row)) for row in np.atleast_2d(x)],)


@kernel("LinearRegressor", domain=_ML, why="wrong")
def linear_regressor(call: Call, x: Array) -> Array:
    if call["post_transform"] not in (None, "NONE"):
        raise Unsupported(f"post_transform={call['post_transform']}")
    rows = np.atleast_2d(x).astype(np.float64)
    found = rows @ np.asarray(call["coefficients"]).reshape(call["targets"], -1).T
    return np.asarray(found if call["intercepts"] is None else found + call["intercepts"])
