"""The smallest model that fails, by a function or a command."""

from __future__ import annotations

import sys

import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from tests.helpers import parse

TEXT = "g (float[2] x) => (float[2] y) { a = Neg(x) b = Tanh(a) y = Exp(b) }"
CODE = "import sys; sys.exit(7 * (b'Tanh' in open(sys.argv[1], 'rb').read()))"


def has_tanh(model: onnx.ModelProto) -> bool:
    found = any(node.op_type == "Tanh" for node in model.graph.node)
    model.graph.ClearField("node")  # the candidate is the function's own
    return found


@pytest.mark.parametrize("check", [has_tanh, [sys.executable, "-c", CODE]])
def test_a_function_and_a_command(check: object) -> None:
    model = parse(TEXT)
    before = model.SerializeToString(deterministic=True)
    found = onnxgrad.reduce(model, check, report=True)
    assert [node.op_type for node in found.model.graph.node] == ["Tanh"]
    assert model.SerializeToString(deterministic=True) == before
    assert found.finished and found.checked and found.to_dict()["finished"]
    assert isinstance(onnxgrad.reduce(onnxgrad.load(model), has_tanh), onnxgrad.ir.program.Program)


def test_what_cannot_be_reduced() -> None:
    with pytest.raises(InputError, match="must fail on it: it returns false"):
        onnxgrad.reduce(parse(TEXT), lambda model: False)
    with pytest.raises(InputError, match="the check must fail on it, but it ends with 7"):
        onnxgrad.reduce(parse(TEXT), [sys.executable, "-c", CODE], interesting_exit=3)
    for words in ("", "'open"):
        with pytest.raises(InputError, match="the command"):
            onnxgrad.reduce(parse(TEXT), words)
    with pytest.raises(KeyError, match="own"):
        onnxgrad.reduce(parse(TEXT), lambda model: {}["own"])
