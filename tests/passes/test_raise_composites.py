"""onnxgrad/passes/raise_composites.py on the real models: what becomes of their chains, and that nothing else changes."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest

from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import verify
from tests.helpers import ROOT

CLEAN = "remove-noops,fold-constant,merge-equal"
# what is there after raising, of these operators
EXPECTED = {
    "llama": {"Attention": 12, "RMSNormalization": 25, "RotaryEmbedding": 24},
    "llama.raw": {"Attention": 12, "RMSNormalization": 25, "RotaryEmbedding": 24},
    "bert": {"Attention": 12, "LayerNormalization": 25, "Gelu": 12},
    "gpt2": {"Attention": 12, "LayerNormalization": 25, "Gelu": 12},
    "t5": {"Attention": 18, "RMSNormalization": 32},
    "whisper": {"Attention": 12, "LayerNormalization": 22, "Gelu": 10},
}  # fmt: skip
COUNTED = ("Attention", "RMSNormalization", "RotaryEmbedding", "LayerNormalization", "Gelu")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_the_chains_of_a_model(name: str) -> None:
    model = onnx.load(ROOT / f"models/{name}.onnx")
    # none of their operators changed from opset 20 to 23
    (entry,) = [o for o in model.opset_import if not o.domain]
    entry.version, model.ir_version = 23, 11
    program, trace = load(model), Trace(explain=True)
    Pipeline.of(passes=f"{CLEAN},raise-composites,{CLEAN},remove-unused").run(program, trace)
    counts = Counter(b.op for b in program.main.walk())
    assert {op: counts[op] for op in COUNTED if counts[op]} == EXPECTED[name]
    assert not counts["Softmax"] and trace.rounded
    report = verify(model, to_proto(program), seeds=(0,), weights="rounded")
    assert report.ok, str(report)
