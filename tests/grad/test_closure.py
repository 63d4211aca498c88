"""Second derivatives need a rule for every operator that a rule emits: what rules emit is what they are seen to emit.

Each rule runs on a model of its operator, and what the gradient graph has more of than the model was emitted. Every
graph that `check_model` judges anywhere in these tests is looked at as well (`tests.grad.numeric`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import gradient, jvp
from onnxgrad.errors import InputError
from onnxgrad.grad import find
from onnxgrad.grad.coverage import coverage
from tests.backend_suite import FLOATS, case, clamp_ir
from tests.grad.numeric import (
    check_model,
    check_op,
    distinct,
    emitted,
    normal,
    op_model,
    operators,
    positive,
    without_rule,
)
from tests.grad.rules.test_sequences import CASES as SEQUENCES
from tests.grad.rules.test_sequences import graph as sequences
from tests.grad.test_suite import REFERENCE_ONLY, RUNS, WRT
from tests.helpers import parse
from tests.laws.bodies.test_table import FIRST as ONNXRUNTIME

CONTRIB = {"com.microsoft": 1, "ai.onnx.ml": 1}
IDS = np.array([[1, 0, 2], [3, 3, 1]], np.int32)
ROIS = np.array([[0, 0, 0, 3, 3]], np.float32)
X, S, W, B = normal(2, 3, 4), normal(2, 3, 4, seed=1), positive(4), normal(4)
# what the suite has no case of, or none whose result moves
SINGLE: dict[str, dict[str, Any]] = {
    "y = GlobalLpPool (x)": {"x": normal(1, 2, 3, 3)},
    "y = MaxRoiPool <pooled_shape = [2, 2]> (x, r)": {"x": distinct(1, 2, 4, 4), "r": ROIS},
    "y = Trilu (x)": {"x": X},
    "y = SimplifiedLayerNormalization (x, w)": {"x": X, "w": W},
    "y = ai.onnx.ml.ArrayFeatureExtractor (x, i)": {"x": X, "i": np.array([2, 0])},
    "y = ai.onnx.ml.Scaler <offset = [1.0], scale = [3.0]> (x)": {"x": S[0]},
    "y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0, 3.0, 4.0]> (x)": {"x": S[0]},
    'l, y = ai.onnx.ml.LinearClassifier <coefficients = [1.0, 2.0, 3.0, 4.0, 4.0, 3.0, 2.0, 1.0], '
    'classlabels_ints = [0, 1], post_transform = "SOFTMAX"> (x)': {"x": S[0]},
    'y = ai.onnx.ml.Normalizer <norm = "L2"> (x)': {"x": S[0]},
    'y = ai.onnx.ml.Imputer <imputed_value_floats = [1.0], replaced_value_float = 0.5> (x)': {"x": S[0]},
    "y = ai.onnx.ml.FeatureVectorizer <inputdimensions = [4, 4]> (x, s)": {"x": X[0], "s": S[0]},
    'y = ai.onnx.ml.SVMRegressor <coefficients = [2.0], n_supports = 1, kernel_type = "RBF", '
    "support_vectors = [1.0, 2.0, 3.0, 4.0], kernel_params = [0.5, 0.0, 3.0], rho = [0.5]> (x)": {"x": S[0]},
    'l, y = ai.onnx.ml.SVMClassifier <classlabels_ints = [0, 1], coefficients = [2.0, -1.0], kernel_type = "RBF", rho = [0.5], '
    "vectors_per_class = [1, 1], support_vectors = [1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 0.0, 1.0], "
    "kernel_params = [0.5, 0.0, 3.0]> (x)": {"x": S[0]},
    "y = com.microsoft.Attention <num_heads = 2> (x, v, b)": {"x": X, "v": normal(4, 12), "b": normal(12)},
    "y = com.microsoft.BiasGelu (x, b)": {"x": X, "b": B},
    'y, s = com.microsoft.CausalConvWithState <activation = "silu"> (x, w)': {"x": X, "w": normal(3, 1, 2)},
    "y = com.microsoft.DecoderMaskedMultiHeadAttention <num_heads = 2> (q, k, k)": {
        "q": normal(2, 1, 4), "k": normal(2, 2, 3, 2),
    },
    "y = com.microsoft.EmbedLayerNormalization (i, , t, p, , w, b)": {
        "i": IDS, "t": normal(5, 4), "p": normal(6, 4), "w": W, "b": B,
    },
    "y = com.microsoft.FastGelu (x, b)": {"x": X, "b": B},
    'y = com.microsoft.FusedConv <activation = "HardSigmoid", activation_params = [0.2, 0.4]> (x, v)': {
        "x": normal(1, 2, 4, 4), "v": normal(3, 2, 2, 2),
    },
    'y = com.microsoft.FusedGemm <activation = "Softplus"> (x, v)': {"x": normal(3, 4), "v": normal(4, 5)},
    "y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, s)": {"x": X, "s": S},
    "y = com.microsoft.Gelu (x)": {"x": X},
    "y = com.microsoft.LayerNormalization (x, w)": {"x": X, "w": W},
    "y, s = com.microsoft.LinearAttention <q_num_heads = 2, kv_num_heads = 2> (x, x, x, , d, b)": {
        "x": X, "d": normal(2, 3, 2), "b": positive(2, 3, 2),
    },
    'y = com.microsoft.MoE <k = 2, activation_type = "swiglu", swiglu_fusion = 1> (t, r, v, , w)': {
        "t": normal(3, 4), "r": normal(3, 2), "v": normal(2, 6, 4), "w": normal(2, 4, 3),
    },
    "y = com.microsoft.MatMulNBits <K = 16, N = 2, block_size = 16> (x, q, s)": {
        "x": normal(3, 16), "q": np.arange(16, dtype=np.uint8).reshape(2, 1, 8), "s": positive(2),
    },
    "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, s, x)": {"x": X, "s": S},
    "y = com.microsoft.QuickGelu (x)": {"x": X},
    "y = com.microsoft.SimplifiedLayerNormalization (x, w)": {"x": X, "w": W},
    "y = com.microsoft.SkipLayerNormalization (x, s, w, b)": {"x": X, "s": S, "w": W, "b": B},
    "y = com.microsoft.SkipSimplifiedLayerNormalization (x, s, w)": {"x": X, "s": S, "w": W},
    "y = com.microsoft.TransposeMatMul <transA = 1> (x, s)": {"x": X, "s": S},
}  # fmt: skip
BRANCHES = """g (float[3] x, bool c) => (float[3] y) { y = If (c) <then_branch = t () => (float[3] a) { a = Sin (x) },
    else_branch = e () => (float[3] b) { b = Exp (x) }> }"""
LOOP = """g (float[3] x, int64 n) => (float[3] y) { y = Loop (n, , x) <body = b (int64 i, bool c, float[3] s) =>
    (bool d, float[3] t) { d = Identity (c)  t = Sin (s) }> }"""


def from_the_suite(every: bool) -> Iterator[tuple[onnx.ModelProto, list[str] | None]]:
    """The suite's cases whose result moves, and what can be asked for: one of each operator, or every one."""
    seen: set[tuple[str, str]] = set()
    for name in (*RUNS, *REFERENCE_ONLY):
        model = clamp_ir(case(name).model)
        node = model.graph.node[0]
        if every or (node.domain, node.op_type) not in seen:
            seen.add((node.domain, node.op_type))
            operand = WRT.get(node.op_type)
            yield model, None if operand is None else [node.input[operand]]


def written_here() -> Iterator[onnx.ModelProto]:
    for node, feeds in SINGLE.items():
        yield op_model(node, feeds, domains=CONTRIB, outputs=["y"])
    yield from (parse(sequences(body)) for body in SEQUENCES.values())
    yield from (case.model() for case in ONNXRUNTIME)
    yield parse(BRANCHES)
    yield parse(LOOP)


def models(every: bool = False) -> Iterator[tuple[onnx.ModelProto, list[str] | None]]:
    yield from from_the_suite(every)
    yield from ((model, None) for model in written_here())


def floats(values: Iterable[onnx.ValueInfoProto]) -> list[str]:
    return [v.name for v in values if v.type.tensor_type.elem_type in FLOATS]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_operator_that_a_rule_emits_has_a_rule(every: bool) -> None:
    found: set[str] = set()
    differentiated: set[str] = set()
    for model, wrt in models(every):
        graph = gradient(model, wrt, floats(model.graph.output), adjoint="input", simplify=False)
        differentiated |= set(operators(model))
        found |= emitted(model, graph)
    with_rule = {c.name for c in coverage() if c.kind in ("rule", "body")}
    assert with_rule - differentiated == set(), "no model here differentiates these"
    assert without_rule(found) == set()
    assert len(found) > 70, found
    # by the operators of values, by getattr, by nested blocks, and inside of them
    assert {
        "Add",
        "MatMul",
        "Pow",
        "Transpose",
        "Softplus",
        "Scan",
        "If",
        "SequenceInsert",
    } <= found, found


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:no requested value reaches"
)  # nothing is left of a linear operator
def test_what_a_rule_emits_can_be_differentiated() -> None:
    """The gradient of the gradient, and the tangents, are there for one model of each operator."""
    done, refused = 0, set()
    for model, wrt in models():
        results = floats(model.graph.output)
        first = gradient(model, wrt, results, adjoint="input")
        try:
            gradient(
                first, None, floats(first.graph.output[len(model.graph.output) :]), adjoint="input"
            )
            jvp(model, wrt, results)
            done += 1
        except InputError as error:
            assert "last axis, 1 or 2, must be known" in str(error)
            refused.add(model.graph.node[0].op_type)
    # their axis is a graph input there, so what a rule pads is of unknown size
    assert refused == {"DFT", "STFT"}
    assert done > 150


def test_an_operator_without_a_rule_is_noticed() -> None:
    given, more = (
        parse("g (float[3] x) => (float[3] y) { y = Sin (x) }"),
        parse(
            """g (float[3] x, bool c) => (float[3] y) { y = If (c) <then_branch = t () => (float[3] a)
           { a = Sin (x) }, else_branch = e () => (float[3] b) { b = NoSuchOperator (x) }> }"""
        ),
    )
    assert emitted(given, more) == {"If", "NoSuchOperator"}
    assert without_rule(emitted(given, more)) == {"NoSuchOperator"}
    assert find("NoSuchOperator") is None


SECOND = {
    "y = Tanh (x)": {"x": normal(2, 3)},
    "y = Gelu (x)": {"x": normal(2, 3)},
    "y = Pow (x, e)": {"x": positive(2, 3), "e": positive(3, seed=1)},
    "y = MatMul (x, w)": {"x": normal(2, 3, 4), "w": normal(4, 5)},
    "y = Softmax (x)": {"x": normal(2, 3)},
    "y = LayerNormalization (x, s, b)": {
        "x": normal(2, 3, 4),
        "s": normal(4),
        "b": normal(4, seed=1),
    },
    "y = Conv <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 0, 1]> (x, w)": {
        "x": normal(1, 2, 5, 6),
        "w": normal(3, 2, 3, 2),
    },
    "y = MaxPool <kernel_shape = [2, 2]> (x)": {"x": distinct(1, 2, 4, 4)},
    "y = AveragePool <kernel_shape = [2, 2], pads = [1, 0, 0, 0]> (x)": {"x": distinct(1, 2, 4, 4)},
    "y = ReduceLogSumExp (x)": {"x": normal(2, 3)},
    "y = ReduceProd (x)": {"x": positive(2, 3)},
    "y = InstanceNormalization (x, s, b)": {"x": normal(2, 3, 4), "s": positive(3), "b": normal(3)},
}


@pytest.mark.parametrize("node", SECOND)
def test_second_derivatives_agree_with_differences_of_the_first(node: str) -> None:
    feeds = SECOND[node]
    first = gradient(op_model(node, feeds, symbolic=True), adjoint="input")
    given = {**feeds, "y_grad": normal(*output_shape(node, feeds), seed=2)}
    check_model(first, given, [*feeds, "y_grad"], target=[f"{n}_grad" for n in feeds], seeds=(0,))


def output_shape(node: str, feeds: dict[str, object]) -> tuple[int, ...]:
    model = op_model(node, feeds)
    return tuple(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim)


def test_numeric_checks_can_fail() -> None:
    with pytest.raises(AssertionError, match="differences give"):
        check_op(
            "y = Abs (x)", {"x": normal(2, 3) * 1e-9}, symbolic=False
        )  # a kink within the step
