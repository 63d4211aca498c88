"""onnxgrad/passes/float16.py: one rewrite for each binding, whole after each; inputs and outputs; the suite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.rewriting import optimize_program
from onnxgrad.passes.float16 import Float16
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.verify import run, verify
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.compare import compare
from tests import suite_table
from tests.backend_suite import Case, clamp_ir
from tests.helpers import MODELS_DIR
from tests.rewriting import apply, model_of, weights

TEXT = "g (float[2,4] x) => (float[2,3] y) { h = MatMul (x, w)  t = Tanh (h)  y = Add (t, t) }"


def test_whole_after_each_step() -> None:
    model = model_of(TEXT, weights(w=(4, 3)))
    for limit in range(4):
        done = optimize_program(
            model, Pipeline((Float16(),)), limit=limit, proof={"metric": "worst=0.005"}
        )
        assert len(done.trace.rewrites) == limit and done.report is not None and done.report.ok


def test_again_finds_nothing() -> None:
    once = apply(model_of(TEXT, weights(w=(4, 3))), Float16())
    again = apply(once.after, Float16())
    assert len(once.trace.rewrites) == 3
    assert not again.trace.rewrites and again.after == once.after


def test_inputs_and_outputs_too() -> None:
    model = model_of(TEXT, weights(w=(4, 3)))
    program = load(model)
    Pipeline((Float16(io=True),)).run(program)
    made = to_proto(program)
    onnx.checker.check_model(made, full_check=True)
    assert [n.op_type for n in made.graph.node] == ["MatMul", "Tanh", "Add"]
    assert {v.type.tensor_type.elem_type for v in (*made.graph.input, *made.graph.output)} == {
        TensorProto.FLOAT16
    }
    assert verify(model, made, metric="worst=0.005").verdict == "within bounds"


def test_inputs_that_are_read_in_float32_and_outputs_that_are_inputs() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y, float[2] x2) { y = Exp (x)  x2 = Identity (x) }"
    )
    program = load(model)
    Pipeline((Float16(io=True),)).run(program)
    made = to_proto(program)
    found = run(made, {"x": np.array([0, 1], np.float16)})
    assert found["y"].dtype == found["x2"].dtype == np.float16


def changed(case: Case, io: bool = False) -> ModelProto | None:
    model = clamp_ir(case.model)
    program = load(model)
    Pipeline((Float16(io=io),)).run(program)
    for block in program.blocks():
        block.check()
    made = to_proto(program)
    return None if made == model else made


def failures(cases: list[Case]) -> dict[str, str]:
    """Case name -> what is wrong with it in float16, for cases that onnxruntime gets right in float32."""
    bound = Bounds.of(None, None, "worst=0.02").common
    found: dict[str, str] = {}
    for c in cases:
        made = changed(c)
        if made is None:
            continue
        differences = compare(run(clamp_ir(c.model), c.inputs), run(made, c.inputs), bound)
        wrong = [d for d in differences if not d.ok]
        if wrong:
            found[c.name] = str(wrong[0])
    return found


def test_a_sample_of_the_suite() -> None:
    with suite_table.any_opset():
        assert failures(suite_table.right_clamped()[::60]) == {}


@pytest.mark.slow
def test_the_whole_suite() -> None:
    with suite_table.any_opset():
        assert failures(suite_table.right_clamped()) == {}


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(MODELS_DIR.glob("**/*.onnx")), ids=lambda p: p.stem)
def test_real_models(path: Path) -> None:
    done = optimize_program(path, Pipeline((Float16(),)), proof={"metric": ["worst=0.02"]})
    assert done.report is not None and done.report.ok
    before, after = onnx.load(path).graph.initializer, to_proto(done.program).graph.initializer
    # of a few weights the Casts between may take more
    assert sum(t.ByteSize() for t in after) < 0.9 * sum(t.ByteSize() for t in before)
