"""Each pass about functions and quantized operators alone over the ONNX backend suite: no crash, nothing wrong."""

from __future__ import annotations

import pytest
from onnx import ModelProto

from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.verify import verify
from onnxgrad.verify.interface import interface_differences
from tests import suite_table
from tests.backend_suite import Case, clamp_ir, usable

# `inline` gets every operator that has a schema body as well; a `[A-Z]*` is all of the standard ones
PASSES = (
    "remove-unused-functions",
    "inline{names=[A-Z]*}",
    "outline",
    "outline,inline{names=onnxgrad::*}",
    "legalize",
    "legalize{to=float}",
    "fake-quantization-to-integer{exact=false}",
    "convert-layout",
    "adjust-matmul-order{rows=8},expand-matmul-of-sum{rows=8},reorder-gather-matmul{rows=8}",
)
# one LSB of a quantized result: these round in another place than the kernel
_SAMPLE = 40
# onnxruntime's CPU runs the operator, but not its schema's body: there is no Div of bfloat16
NO_KERNELS = {"test_celu_bfloat16"}


def rewritten(model: ModelProto, passes: str) -> tuple[ModelProto, int]:
    program, fired = load(model), 0
    pipeline = Pipeline.of(passes=passes)
    for p in pipeline.passes:
        fired += sum(r.rewrites for r in Pipeline((p,)).run(program))
    for block in program.blocks():
        block.check()
    return to_proto(program), fired


def _is_right(c: Case, after: ModelProto) -> bool:
    if c.name not in NO_KERNELS:
        return suite_table.is_right(c, after)
    return verify(clamp_ir(c.model), after, checks=("float64",)).ok


def failures(cases: list[Case], passes: str) -> tuple[dict[str, str], int]:
    """Case name -> what is wrong, for cases that onnxruntime gets right before; and how many models were changed."""
    found: dict[str, str] = {}
    changed = 0
    for c in cases:
        model = clamp_ir(c.model)
        after, fired = rewritten(model, passes)
        changed += bool(fired)
        different = interface_differences(model, after)
        if different:
            found[c.name] = str(different[0])
        elif fired and not _is_right(c, after):
            found[c.name] = "another result"
        elif not fired and after != model:
            found[c.name] = "changed without a rewrite"
    return found, changed


@pytest.mark.parametrize("passes", PASSES)
def test_a_sample_of_the_suite(passes: str) -> None:
    with suite_table.any_opset():
        assert failures(suite_table.right_clamped()[::_SAMPLE], passes)[0] == {}


@pytest.mark.slow
@pytest.mark.parametrize("passes", PASSES)
def test_the_whole_suite(passes: str) -> None:
    with suite_table.any_opset():
        found, changed = failures(suite_table.right_clamped(), passes)
    print(f"{passes}: {changed} models changed")
    assert found == {}


@pytest.mark.slow
@pytest.mark.parametrize("passes", PASSES)
def test_what_onnxruntime_cannot_run_does_not_crash_us(passes: str) -> None:
    right = {c.name for c in suite_table.right_clamped()}
    for c in usable():
        if c.name not in right:
            model = clamp_ir(c.model)
            after, _ = rewritten(model, passes)
            assert not interface_differences(model, after), c.name
            load(after)
