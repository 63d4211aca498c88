"""onnxgrad/passes/convert_opset.py: one step for the whole program; the operators' stand in tests/laws/opsets."""

from __future__ import annotations

import pytest

from onnxgrad.errors import InputError
from onnxgrad.jobs.rewriting import optimize_program
from onnxgrad.passes.convert_opset import ConvertOpset
from onnxgrad.passes.pipeline import Pipeline
from tests.rewriting import apply, model_of

TEXT = "g (float[2,S] x) => (float[2] y) { y = ReduceSum <axes = [1], keepdims = 0> (x) }"


def test_one_firing() -> None:
    done = apply(model_of(TEXT, opset=12), ConvertOpset(to=23))
    assert done.fired("convert_opset") == 1 and done.program.opset == 23
    assert [str(b) for b in done.block.bindings] == ["y: f32[2] = ReduceSum(x, const, keepdims=0)"]
    done.prove()


@pytest.mark.parametrize("to", [0, 12])
def test_its_own_opset_changes_nothing(to: int) -> None:
    done = apply(model_of(TEXT, opset=12), ConvertOpset(to=to))
    assert not done.trace.rewrites and done.before == done.after


def test_in_a_pipeline_with_its_proofs() -> None:
    pipeline = Pipeline.of(passes="convert-opset{to=18},remove-unused")
    done = optimize_program(model_of(TEXT, opset=11), pipeline, each=True)
    assert done.report is not None and done.report.ok and done.program.opset == 18
    assert done.each is not None and done.each.alone == 1
    stopped = optimize_program(model_of(TEXT, opset=11), pipeline, limit=0)
    assert stopped.program.opset == 11


def test_a_refusal_is_one_line() -> None:
    with pytest.raises(InputError, match="opset 99 is not between 7 and 28"):
        apply(model_of(TEXT, opset=12), ConvertOpset(to=99))
