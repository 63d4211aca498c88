"""Values live no longer than they are needed; onnxruntime computes nodes together."""

from __future__ import annotations

import re
from math import erf
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

from onnxgrad.errors import InputError
from onnxgrad.ir.derivations import Node, Step
from onnxgrad.jobs.rebasing.functions import CALLS
from onnxgrad.jobs.rebasing.values import Values
from tests.helpers import ROOT
from tests.jobs.rebasing.test_steps import of_file

W = Step("weight", "w")


def node(op: str, *operands: Any, opset: int = 20) -> Step:
    proto = helper.make_node(op, [f"i{i}" for i in range(len(operands))], ["o0"])
    return Step("node", Node(proto, 0, TensorProto.FLOAT, opset), operands)


def test_onnxruntime_computes_nodes_between_arrays() -> None:
    """Nodes that read each other run together; numpy may stand between two runs, and opsets differ."""
    e = node("Exp", W)
    f = node("Mul", node("Erf", e), np.full(3, 2, np.float32))
    g = Step("numpy", "add", [f, e])
    h = node("Sin", g, opset=13)
    steps, numbers = of_file(h, f)
    array = np.array([0.1, -0.2, 0.3], np.float32)
    values = Values(steps, [steps[n] for n in numbers], lambda name: array)
    reads = []
    found = values.of(steps[numbers[0]])
    mul = np.array([2 * erf(np.exp(v)) for v in array])
    assert np.allclose(found, np.sin(mul + np.exp(array)), atol=1e-6)
    assert np.allclose(values.of(steps[numbers[1]]), mul, atol=1e-6)
    assert not values._values and not reads


def test_a_weight_is_read_once_and_dropped() -> None:
    read = []

    def weight(name: str) -> Any:
        read.append(name)
        return np.ones(2, np.float32)

    steps, (a, b) = of_file(Step("numpy", "negative", [W]), Step("numpy", "add", [W, W]))
    values = Values(steps, [steps[a], steps[b]], weight)
    assert values.of(steps[a]).tolist() == [-1, -1] and values.of(steps[b]).tolist() == [2, 2]
    assert read == ["w"] and not values._values


@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("numpy", name) for name in ("save", "load", "fromfile", "nothing")), ("call", "eval")],
)
def test_a_record_calls_no_other_function(kind: str, name: str) -> None:
    step = Step(kind, name, [W])
    values = Values([W, step], [step], lambda name: np.ones(2))
    with pytest.raises(InputError, match=f"a step '{kind} {name}' that does not exist"):
        values.of(step)


def test_every_declared_function_can_be_called() -> None:
    texts = (path.read_text("utf-8") for path in (ROOT / "onnxgrad").rglob("*.py"))
    found = [re.findall(r"^@(?:predicate|recorded)\ndef (\w+)", text, re.M) for text in texts]
    assert sorted(name for names in found for name in names) == sorted(CALLS)


def test_a_node_that_onnxruntime_refuses() -> None:
    step = node("Add", W, np.ones(3, np.float32))
    values = Values([W, step], [step], lambda name: np.ones(2, np.float32))
    with pytest.raises(InputError, match="onnxruntime cannot compute a constant"):
        values.of(step)
    assert isinstance(step.what.proto, NodeProto)
