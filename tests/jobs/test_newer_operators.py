"""The line about chains that operators of a newer opset stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxgrad
from onnxgrad.jobs.newer_operators import NewerOperators

MODELS = Path(__file__).parent.parent.parent / "models"


@pytest.mark.parametrize("name", ["llama.onnx", "t5.onnx", "bert.onnx", "vit.onnx"])
def test_it_promises_what_the_opset_then_brings(name: str) -> None:
    done = onnxgrad.optimize(MODELS / name, verify=False, report=True)
    promised = done.outcome.newer.chains
    raised = onnxgrad.optimize(MODELS / name, verify=False, target_opset=23, report=True)
    after = raised.outcome.after
    assert after is not None and promised
    assert promised == {op: after.operators[op] for op in promised}
    assert raised.outcome.newer == NewerOperators()


@pytest.mark.slow
def test_the_line_and_the_json_name_operators_opset_and_option() -> None:
    done = onnxgrad.optimize(MODELS / "llama.onnx", verify=False, report=True)
    assert (
        "opset 23 has operators for 61 chains (RMSNormalization ×25, RotaryEmbedding ×24, "
        "Attention ×12): try target_opset=23"
    ) in str(done)
    assert "opset 23 has operators for 61 chains" in done.to_html()
    found = done.to_dict()["newer_operators"]
    assert found["Attention"] == {"opset": 23, "chains": 12}


@pytest.mark.parametrize(
    "options", [{"target_opset": 23}, {"preset": "clean"}, {"without": ["raise-composites"]}]
)
def test_nothing_is_said_where_nothing_would_be_raised(options: dict[str, object]) -> None:
    done = onnxgrad.optimize(MODELS / "llama.onnx", verify=False, report=True, **options)
    assert "has operators for" not in str(done)
    assert done.to_dict()["newer_operators"] == {}


def test_a_model_without_such_chains() -> None:
    done = onnxgrad.optimize(MODELS / "resnet18.onnx", verify=False, report=True)
    assert done.outcome.newer == NewerOperators()
