"""onnxgrad/ir/type_inference/onnxruntime_operators.py: the types that onnxruntime's results have in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.ir.load import load
from onnxgrad.ir.type_inference.onnxruntime_operators import RULES
from onnxgrad.ir.types import TensorType, numpy_dtype
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.language_models import ARCHITECTURES, WEIGHTS, Architecture, LanguageModel, Weights
from tests.laws.bodies.test_lowering import CALLS, Made, op_of, value
from tests.laws.quantized.test_lstm import feeds_of, lstm, quantised

# their sizes follow from elements of operands, or a rank is missing
OPEN = {"GroupQueryAttention", "MultiHeadAttention"}
TYPED = [made for made in CALLS if op_of(made) in RULES]


def undeclared(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, which declares of its results neither dtype nor shape."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.graph.value_info[:]
    for v in plain.graph.output:
        v.ClearField("type")
    return plain


def fits(model: onnx.ModelProto, feeds: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """The inferred types by name, which the results have at the sizes of the feeds."""
    program = load(undeclared(model))
    sizes: dict[str, int] = {}
    for v in program.main.inputs:
        if v.name in feeds and v.shape is not None:
            sizes |= {d: n for d, n in zip(v.shape, feeds[v.name].shape) if isinstance(d, str)}
    found = {v.name: v.type for v in program.main.outputs}
    for name, type_ in found.items():
        if not isinstance(type_, TensorType):
            continue
        # the oracle, which runs what the CPU provider lacks, computes in float64
        if results[name].dtype != np.float64:
            assert numpy_dtype(type_.dtype) == results[name].dtype, name
        dims = [sizes.get(d, d) if isinstance(d, str) else d for d in type_.shape or ()]
        shape = results[name].shape
        assert type_.shape is None or len(dims) == len(shape), (name, dims, shape)
        assert all(d in (None, n) for d, n in zip(dims, shape)), (name, dims, shape)
    return found


@pytest.mark.parametrize("made", TYPED, ids=map(op_of, TYPED))
def test_types_are_those_of_a_run(made: Made) -> None:
    model, feeds = made
    found = fits(model, feeds, value(model, feeds))
    first = found[model.graph.output[0].name]
    assert first is not None
    assert first.shape is not None and (op_of(made) in OPEN or None not in first.shape)


def test_the_table_is_tested() -> None:
    lacking = {"BiasAdd", "QMoE", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLSTM"}
    assert RULES.keys() - {op_of(made) for made in TYPED} <= lacking


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_the_quantised_recurrent_layer(direction: str, tmp_path: Path) -> None:
    model = quantised(lstm(direction, full=True), tmp_path, "u8")
    feeds = feeds_of(model)
    found = fits(model, feeds, run(model, feeds))
    directions = 1 + (direction == "bidirectional")
    assert [str(found[name]) for name in ("y", "cell")] == [
        f"f32[12,{directions},N,16]",
        f"f32[{directions},N,16]",
    ]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_language_model_without_value_info_is_typed(
    architecture: Architecture, weights: Weights
) -> None:
    language = LanguageModel(architecture, weights)
    program = load(undeclared(language.build()))
    made = [v for b in program.main.bindings for v in b.outputs if v is not None]
    assert all(v.dtype and v.rank is not None for v in made)
    (logits,) = [v for v in made if v.name == "logits"]
    assert str(logits.type) == "f32[batch,length,48]"
    (cache,) = [v for v in made if v.name == "present.1.value"]
    assert str(cache.type) == f"f32[batch,{language.kv_heads},?,16]"


def test_an_operator_of_the_file_itself_is_not_onnxruntimes() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        g (float[N,4] x) => (float y) { h = com.microsoft.Gelu (x) y = Identity (h) }
        <domain: "com.microsoft", opset_import: ["": 18]> Gelu (a) => (c) { c = Size (a) }""")
    assert str(load(undeclared(model)).main.outputs[0].type) == "i64[]"


def test_a_product_transposed_and_one_that_does_not_fit() -> None:
    text = """g (float[N,3,4] x, float[5,4] w) => (float[N,3,5] y)
        {{ h = com.microsoft.FusedMatMul <transB = {turned}> (x, w) y = Identity (h) }}"""
    for turned, said in ((1, "f32[N,3,5]"), (0, "None")):
        model = parse(text.format(turned=turned))
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
        assert str(load(undeclared(model)).main.outputs[0].type) == said
