"""The loss of a step as it trains, without gradient and update: what a proof differentiates."""

from __future__ import annotations

from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.train.step import TrainingStep


def forward(step: TrainingStep) -> Program:
    """The part of `train` that the loss needs: BatchNormalization and Dropout are in their modes
    there, where `evaluation` has them in inference. Inputs: the batch, and what the loss reads.
    """
    program, manifest = load(to_proto(step.train, weights=True)), step.manifest
    block = program.main
    for v in [v for v in block.outputs if v.name != manifest.loss]:
        block.remove_output(v)
    block.remove_unused()
    batch = {fed.name for fed in manifest.of_role("batch")}
    block.inputs = [v for v in block.inputs if v.use_count or v.name in batch]
    for v in [v for v in block.initializers.values() if not v.use_count and not v.is_input]:
        block.remove_initializer(v)
    block.touch()
    return program
