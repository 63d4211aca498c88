"""`optimize` over the ONNX backend suite: no crash, no wrong result, no changed interface."""

from __future__ import annotations

import pytest
from onnx import ModelProto

from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.verify.interface import interface_differences
from tests import suite_table
from tests.backend_suite import Case, clamp_ir, usable

# one of each operator: the default run takes these, the slow one takes all
_SAMPLE = 25


def optimized(model: ModelProto) -> ModelProto:
    program = load(model)
    Pipeline.of(merge="always").run(program)
    for block in program.blocks():
        block.check()
    return to_proto(program)


def failures(cases: list[Case]) -> dict[str, str]:
    """Case name -> what is wrong with its optimised model, for cases that onnxruntime gets right before."""
    found: dict[str, str] = {}
    for c in cases:
        model = clamp_ir(c.model)
        after = optimized(model)
        changed = interface_differences(model, after)
        if changed:
            found[c.name] = str(changed[0])
        elif after != model and not suite_table.is_right(c, after):
            found[c.name] = "another result"
    return found


def test_a_sample_of_the_suite_keeps_its_results() -> None:
    with suite_table.any_opset():
        assert failures(suite_table.right_clamped()[::_SAMPLE]) == {}


@pytest.mark.slow
def test_the_whole_suite_keeps_its_results() -> None:
    """With merge=auto, the default preset does in test_suite_presets.py."""
    with suite_table.any_opset():
        assert failures(suite_table.right_clamped()) == {}


@pytest.mark.slow
def test_no_case_that_onnxruntime_cannot_run_crashes_us() -> None:
    """Those too keep their interface, and what comes out can be read again."""
    right = {c.name for c in suite_table.right_clamped()}
    for c in usable():
        if c.name not in right:
            model = clamp_ir(c.model)
            after = optimized(model)
            assert not interface_differences(model, after), c.name
            load(after)
