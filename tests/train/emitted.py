"""Formulas run as a graph: each function of Vars is emitted behind inputs and computed by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import helper

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.verify.running.session import run
from tests.helpers import parse


def computed(
    formula: Callable[[dict[str, Var]], Mapping[str, Var]], feeds: Mapping[str, Any]
) -> dict[str, Any]:
    """What onnxruntime makes of the values that `formula` emits from inputs of the feeds' names and types."""
    program = load(parse("g () => () { }"))
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    given = {
        name: program.main.add_input(
            name, TensorType(helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        )
        for name, a in arrays.items()
    }
    with emitting(program.main, share=True):
        found = {name: op.Identity(v) for name, v in formula(given).items()}
    for v in found.values():
        program.main.add_output(v)
    results = run(to_proto(program), arrays)
    return {name: results[v.name] for name, v in found.items()}
