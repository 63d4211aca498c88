"""Did someone compute with a model's weights? What was computed was rounded, and a proof must allow for that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto

from onnxgrad.cli.tensors import elements
from onnxgrad.ir.weights import tensors

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
_ELEMENTS = 1 << 26  # beyond this the search costs more than it is worth


def has_new_weights(a: ModelProto, b: ModelProto, folders: tuple[Path | None, Path | None]) -> bool:
    """True when a floating-point constant of b holds a value, other than 0 and 1, that is in no constant of a.

    Moved, merged, split or transposed weights are old values. With very many elements the answer is True.
    Raises InputError when data is damaged or missing.
    """
    if sum(int(np.prod(t.dims)) for m in (a, b) for t in tensors(m) if t.data_type in _FLOATS) > _ELEMENTS:
        return True
    old, new = (_values(m, folder) for m, folder in zip((a, b), folders, strict=True))
    return not np.isin(new, np.concatenate([old, np.array([0.0, 1.0])])).all()


def _values(model: ModelProto, folder: Path | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    found = [np.zeros(0)]
    for tensor in tensors(model):
        if tensor.data_type in _FLOATS:
            array = elements(tensor, folder).astype(np.float64)
            found.append(np.unique(array[np.isfinite(array)]))
    return np.concatenate(found)
