"""Globs mean weights, nodes and modules; what cannot be adapted is named with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import run
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.train import lora
from onnxgrad.train.adapters.targets import choose
from tests.helpers import ROOT
from tests.train.adapters.common import with_weights

F32 = np.float32


def names(model: Any, targets: Any) -> list[str]:
    return [site.name for site in choose(load(model), targets)]


def test_names_of_weights_nodes_and_modules() -> None:
    gpt2, bert = ROOT / "models" / "gpt2.onnx", ROOT / "models" / "bert.onnx"
    weight = "model.transformer.h.0.attn.c_attn.weight"
    assert names(gpt2, weight) == names(gpt2, "node_addmm") == [weight]
    assert names(gpt2, "model.transformer.h.0.attn.c_attn") == [weight]
    assert names(bert, "model.encoder.layer.0.attention.self.*") == ["val_62", "val_70", "val_78"]
    assert names(bert, "*.layer.0.*,!*.key,!*dense*") == ["val_62", "val_78"]


def test_a_glob_leaves_masks_and_biases_alone() -> None:
    found = choose(load(ROOT / "models" / "llama.onnx"), "*")
    assert {read.binding.op for site in found for read in site.reads} == {"MatMul", "Gather"}


def test_names_with_commas() -> None:
    model = with_weights(
        "(float[N,4] x) => (float[N,4] y) { y = MatMul (x, W) }", W=np.eye(4, dtype=F32)
    )
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "W,0"
    assert names(model, "W,0") == ["W,0"]


def test_readers_of_the_size_or_dtype_alone_stay_as_they_are() -> None:
    """torch.onnx.export(optimize=False) writes the size of a Conv's bias as that of its weight."""
    model = with_weights(
        """(float[N,4,3,3] x) => (float[N,2,3,3] y) <int64[1] zero = {0}, int64[1] one = {1}, float[1] nothing = {0}> {
          s = Shape (W) n = Size (W) m = Slice (s, zero, one) f = CastLike (n, W) a = Add (f, nothing)
          b = Expand (a, m) y = Conv (x, W, b) }""",
        W=np.arange(8, dtype=F32).reshape(2, 4, 1, 1),
    )
    assert names(model, "W") == ["W"]
    x = {"x": np.linspace(-1, 1, 36, dtype=F32).reshape(1, 4, 3, 3)}
    adapted = lora(model, "W", rank=2)
    assert np.array_equal(run(adapted, inputs=x)["y"], run(model, inputs=x)["y"])


@pytest.mark.parametrize(
    ("graph", "shape", "reason"),
    [
        ("{ y = Conv (x, W) }", (8, 4, 3, 3), "Conv 'y' has a 3x3 kernel: adapters are for 1x1"),
        ("{ y = Conv <group = 4> (x, W) }", (4, 1, 1, 1), "Conv 'y' has group=4"),
        ("{ y = ConvTranspose (x, W) }", (4, 4, 1, 1), "ConvTranspose 'y' reads it, which cannot have an adapter"),
        ("{ y = MatMul (x, W) }", (3, 4, 4, 4), "MatMul 'y' reads 4 axes of it"),
        ("{ y = MatMul (W, W) }", (4, 4), "MatMul 'y' multiplies it with itself"),
        ("{ i = Constant <value = int64[2] {0, 1}> () z = Gather <axis = 1> (W, i) y = MatMul (x, z) }", (4, 4),
         "reads columns: adapters apply to rows, axis 0"),
        ("{ z = Add (x, W) y = MatMul (z, W) }", (4, 4), "Add 'z' reads it, which cannot have an adapter"),
        ("{ z = MatMul (x, x) t = Neg (z) y = Gemm (z, t, W) }", (4, 4), "it is the bias of Gemm 'y'"),
        ("{ z = Mul (x, W) y = Gemm (z, z, W) }", (4, 4), "Mul 'z' reads it"),
    ],
)  # fmt: skip
def test_what_cannot_be_adapted_and_why(graph: str, shape: Any, reason: str) -> None:
    text = f"(float[2,4,4,4] x) => (float y) {graph}"
    model = with_weights(text, W=np.ones(shape, F32))
    for v in (*model.graph.input, *model.graph.output):
        if "Gemm" in graph or v.name == "y":
            v.type.tensor_type.ClearField("shape")
    with pytest.raises(InputError) as error:
        names(model, "W")
    assert str(error.value).startswith("'W' cannot have an adapter: ") and reason in str(
        error.value
    )
    assert str(error.value).endswith("exclude it with '!W'")


def test_a_glob_that_meets_something_impossible_says_so_and_how_many() -> None:
    path = ROOT / "models" / "resnet18.onnx"
    with pytest.raises(
        InputError, match=r"cannot have an adapter \(nor can 16 more\).* 7x7 kernel"
    ):
        names(path, "*")


def test_a_weight_that_is_returned_too() -> None:
    model = with_weights(
        "(float[N,4] x) => (float[N,4] y, float[4,4] t) { y = MatMul (x, W) t = Transpose (W) }",
        W=np.eye(4, dtype=F32),
    )
    with pytest.raises(InputError, match="the model returns it"):
        names(model, "W")


def test_products_of_integers_and_calls_of_functions_are_named() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18, "own": 1]>
        g (float[N,4] x) => (float[N,4] y) <float[4,4] W = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}>
        { y = own.Linear (x, W) }
        <domain: "own", opset_import: ["": 18]> Linear (a, b) => (c) { c = MatMul (a, b) }""")
    with pytest.raises(InputError, match="Linear 'y' reads it, which cannot have an adapter"):
        names(model, "*")
    model = with_weights(
        "(uint8[N,4] x) => (int32[N,4] y) { y = MatMulInteger (x, W) }", W=np.eye(4, dtype=np.uint8)
    )
    with pytest.raises(InputError, match="MatMulInteger 'y' reads it"):
        names(model, "*")


def test_metadata_that_is_no_list_of_modules() -> None:
    model = with_weights(
        "(float[N,4] x) => (float[N,4] y) { y = MatMul (x, W) }", W=np.eye(4, dtype=F32)
    )
    for text in ("[", "7", "['a', 3]"):
        del model.graph.node[0].metadata_props[:]
        model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=text)
        assert names(model, "*") == ["W"]
    assert names(model, "a") == ["W"]


def test_an_unknown_dtype_is_said_to_be_unknown() -> None:
    graph = "{ z = own.Mystery (x) h = MatMul (z, W) y = own.Mystery (h) }"
    model = with_weights(f"(float[N,4] x) => (float[N,4] y) {graph}", W=np.eye(4, dtype=F32))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    with pytest.raises(InputError, match="the dtype of 'h', the result of its MatMul, is unknown"):
        names(model, "W")
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("h", 1, None))
    assert names(model, "W") == ["W"]


def test_dtypes_that_differ_or_cannot_be_trained_are_named() -> None:
    graph = (
        "(float[N,4] x, double[N,4] z) => (float[N,4] y, double[N,4] u) "
        "{ d = Cast <to = 11> (W) y = MatMul (x, W) u = MatMul (z, d) }"
    )
    with pytest.raises(InputError, match="several dtypes, f32 and f64"):
        names(with_weights(graph, W=np.eye(4, dtype=F32)), "W")
    graph = "(int32[N,4] x) => (int32[N,4] y) { y = MatMul (x, W) }"
    with pytest.raises(InputError, match="readers' results, i32, cannot be trained"):
        names(with_weights(graph, W=np.eye(4, dtype=np.int32)), "W")
