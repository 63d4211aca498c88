"""Reading one tensor of a model for commands that look at values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.weights import internalize


def elements(tensor: TensorProto, folder: Path | None) -> np.ndarray[Any, Any]:
    """The array of a tensor, from whichever field or external file holds it; `folder` is the model's.

    Raises InputError when the data is damaged, missing or outside the folder.
    """
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor = internalize(tensor, folder)
    try:
        return numpy_helper.to_array(tensor)
    except (TypeError, ValueError) as error:
        raise InputError(f"the data of tensor '{tensor.name}' is damaged: {error}") from error
