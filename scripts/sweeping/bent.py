"""Random variations of a random model: another opset, constants of other ranks, open sizes and
ranks.

The nodes around a match then seldom have the form that a law expects. A varied model is valid ONNX;
otherwise the model stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper


def bent(model: ModelProto, rng: Random) -> ModelProto:
    """Returns the model after a few changes that keep it valid."""
    found = model
    for change in rng.sample(_CHANGES, rng.randint(1, len(_CHANGES))):
        made = ModelProto()
        made.CopyFrom(found)
        change(made, rng)
        if _is_valid(made):
            found = made
    return found


def _is_valid(model: ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return False
    return True


def _opset(model: ModelProto, rng: Random) -> None:
    for entry in [e for m in (model, *model.functions) for e in m.opset_import if not e.domain]:
        entry.version = entry.version if rng.random() < 0.3 else rng.randint(7, 26)


def _constants(model: ModelProto, rng: Random) -> None:
    """Adds axes of size 1, removes an axis, or changes the length of a row."""
    floats = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    for tensor in rng.sample(floats, min(len(floats), rng.randint(1, 3))):
        array = numpy_helper.to_array(tensor)
        ones = (1,) * rng.randint(1, 4)
        ways = [array.reshape((*ones, *array.shape))]
        if array.ndim and array.shape[0]:
            ways += [array[0], array[:1], np.repeat(array, 2, axis=0), array[..., :1]]
        tensor.CopyFrom(numpy_helper.from_array(np.array(rng.choice(ways)), tensor.name))


def _open(model: ModelProto, rng: Random) -> None:
    """Replaces known sizes by symbols or unknown sizes, or removes the rank."""
    for value in (*model.graph.input, *model.graph.output):
        tensor = value.type.tensor_type
        way = rng.random()
        if way < 0.15:
            tensor.ClearField("shape")
        for d in tensor.shape.dim if tensor.HasField("shape") else ():
            if way < 0.5 and rng.random() < 0.5:
                size = d.dim_value or d.dim_param
                d.Clear()
                if rng.random() < 0.7:
                    d.dim_param = f"d{size}"
    del model.graph.value_info[:]


_CHANGES: list[Callable[[ModelProto, Random], None]] = [_opset, _constants, _constants, _open]
