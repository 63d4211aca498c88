"""Each pass of inference alone, and every preset, over the ONNX backend suite: no crash, no wrong result."""

from __future__ import annotations

import pytest

from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.pipeline import PRESETS, Pipeline
from onnxgrad.verify.interface import interface_differences
from tests import suite_table
from tests.backend_suite import Case, clamp_ir, usable

ALONE = [
    "simplify-inference",
    "simplify-inference{only_after_products=true}",
    "backward-fold-scale-axis{scalars=true}",
    "forward-fold-scale-axis{scalars=true}",
    "fold-bias",
    "combine-parallel-conv",
    "combine-parallel-dense{share_left=false}",
]


def failures(cases: list[Case], pipeline: Pipeline, right: bool) -> dict[str, str]:
    """Case name -> what is wrong after `pipeline`. `right`: onnxruntime gets these cases right before."""
    found: dict[str, str] = {}
    for c in cases:
        model = clamp_ir(c.model)
        program = load(model)
        pipeline.run(program)
        for block in program.blocks():
            block.check()
        after = to_proto(program)
        if changed := interface_differences(model, after):
            found[c.name] = str(changed[0])
        elif right and after != model and not suite_table.is_right(c, after):
            found[c.name] = "another result"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ALONE, *sorted(PRESETS)])
def test_the_whole_suite(name: str) -> None:
    if name in PRESETS:
        pipeline = Pipeline.of(name)
    else:
        pipeline = Pipeline.of(passes=name, merge="always")
    right = {c.name for c in suite_table.right_clamped()}
    assert failures([c for c in usable() if c.name not in right], pipeline, right=False) == {}
    with suite_table.any_opset():
        assert failures(suite_table.right_clamped(), pipeline, right=True) == {}
