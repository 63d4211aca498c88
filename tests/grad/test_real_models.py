"""Real trained models: gradients by inputs and by weights against differences, silero's If and LSTM included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from onnxgrad import check_gradient
from onnxgrad.grad.wrt import hoist_requested, parameters
from onnxgrad.ir.load import load
from onnxgrad.ir.types import FLOAT_DTYPES
from scripts.fetch_models import SOURCES

# differences of one value of these take 10 seconds: fewer weights of them, evenly spread over the model
FEW = {"basic_pitch": 3, "rapidocr_rec": 6, "rapidocr_cls": 12}
MOST = 40
# a frame of sound: at generated sizes every activation is saturated, and nothing can be judged
DIMS = {name: {"batch": 1, "sequence": 576} for name in ("silero_16k", "silero_ifless")}


def some_parameters(path: Path, count: int) -> list[str]:
    """At most `count` weights that reach an output, from the first to the last."""
    program = load(path)
    hoist_requested(program, "params")
    program.main.schedule()
    values = {v.name: v for v in program.main.vars()}
    found = parameters(
        program.main, [v for v in program.main.outputs if v.dtype in FLOAT_DTYPES], values
    )
    return [v.name for v in found[:: max(1, -(-len(found) // count))]]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_by_inputs_and_weights(name: str, fetched: Callable[[str], Path]) -> None:
    path = fetched(name)
    model = onnx.load(path)
    outputs = [v.name for v in model.graph.output if v.type.tensor_type.elem_type in FLOAT_DTYPES]
    inputs = [v.name for v in model.graph.input if v.type.tensor_type.elem_type in FLOAT_DTYPES]
    weights = some_parameters(path, FEW.get(name, MOST))
    report = check_gradient(path, [*inputs, *weights], outputs, dims=DIMS.get(name))
    assert report.ok, str(report)
    judged = {v.name for v in report.values if v.judged}
    assert judged.issuperset(inputs) and len(judged) >= 0.8 * len(report.values)
