"""onnxgrad/jobs/inspection/operator_costs.py against counts by hand."""

from __future__ import annotations

import onnx
import pytest

from onnxgrad.ir.load import load
from onnxgrad.jobs.inspection.operator_costs import FORMULAS, flops, has_formula
from tests.helpers import parse

F = "float[2,3,8,8] x"
COUNTED = {
    # 4 channels, 6x6 places, 2 images, 3 channels of 3x3, with a bias
    "Conv": (f"{F}, float[4,3,3,3] w, float[4] b", "Conv (x, w, b)", 2 * 4 * 36 * (2 * 27 + 1)),
    "Conv of groups": (f"{F}, float[3,1,3,3] w", "Conv <group = 3> (x, w)", 2 * 3 * 36 * 2 * 9),
    "ConvTranspose": (f"{F}, float[3,5,2,2] w", "ConvTranspose (x, w)", 2 * (2 * 3 * 64) * 5 * 4),
    "MatMul": ("float[2,3,4] x, float[4,5] w", "MatMul (x, w)", 2 * 2 * 3 * 4 * 5),
    "MatMul of vectors": ("float[4] x, float[4] w", "MatMul (x, w)", 8),
    "Gemm": (
        "float[4,3] x, float[4,5] w, float[5] c",
        "Gemm <transA = 1> (x, w, c)",
        2 * 3 * 4 * 5 + 15,
    ),
    "Einsum": (
        "float[2,3,4] x, float[2,4,5] w",
        'Einsum <equation = "bij, bjk -> bik"> (x, w)',
        2 * 2 * 3 * 4 * 5,
    ),
    "MaxPool": (F, "MaxPool <kernel_shape = [2,2], strides = [2,2]> (x)", 2 * 3 * 16 * 4),
    "GlobalAveragePool": (F, "GlobalAveragePool (x)", 2 * 3 * 64),
    "ReduceMean": (F, "ReduceMean (x)", 2 * 3 * 64),
    "ReduceSumSquare": (F, "ReduceSumSquare (x)", 2 * 2 * 3 * 64),
    "Add": (f"{F}, float[8] w", "Add (x, w)", 2 * 3 * 64),
    "Tanh": (F, "Tanh (x)", 2 * 3 * 64),
    "Sum": (f"{F}, float[8] w, float[1] v", "Sum (x, w, v)", 2 * 2 * 3 * 64),
    "Softmax": (F, "Softmax (x)", 5 * 2 * 3 * 64),
    "LayerNormalization": (f"{F}, float[8] w", "LayerNormalization (x, w)", 7 * 2 * 3 * 64),
    "Reshape": (f"{F}, int64[1] s", "Reshape (x, s)", 0),
    # two directions, 7 steps, 2 rows, 4 gates of 5: 3 features and 5 states, 2 biases, activation
    "LSTM": (
        "float[7,2,3] x, float[2,20,3] w, float[2,20,5] r, float[2,40] b",
        'LSTM <hidden_size = 5, direction = "bidirectional"> (x, w, r, b)',
        2 * 7 * 2 * 5 * (4 * (6 + 10 + 1 + 2) + 5),
    ),
    "RNN": (
        "float[7,2,3] x, float[1,5,3] w, float[1,5,5] r",
        "RNN <hidden_size = 5> (x, w, r)",
        7 * 2 * 5 * (6 + 10 + 1),
    ),
    # 2 x 4 heads: 3 rows, 6 columns, depth 8
    "Attention": (
        "float[2,4,3,8] q, float[2,4,6,8] k, float[2,4,6,8] v",
        "Attention (q, k, v)",
        2 * 4 * 3 * 6 * (16 + 16 + 5),
    ),
    "Attention with heads in the width": (
        "float[2,3,32] q, float[2,6,16] k, float[2,6,16] v",
        "Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v)",
        2 * 4 * 3 * 6 * (16 + 16 + 5),
    ),
}


@pytest.mark.parametrize("what", COUNTED)
def test_by_hand(what: str) -> None:
    inputs, call, wanted = COUNTED[what]
    model = parse(f"g ({inputs}) => (y) {{ y = {call} }}", opset=23)
    (b,) = load(model).main.bindings
    assert flops(b) == wanted


def test_resize_counts_the_axes_that_change() -> None:
    text = """g (float[1,2,4,4] x) => (y, z) {
        s = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> ()  e = Constant <value_floats : floats = []> ()
        y = Resize <mode = "linear"> (x, e, s)  z = Resize <mode = "nearest"> (x, e, s) }"""
    found = [flops(b) for b in load(parse(text)).main.bindings if b.op == "Resize"]
    assert found == [2 * 4 * (2 * 64), 0]


def test_what_is_open() -> None:
    program = load(parse("g (float[N] x) => (float[N] y) { y = Tanh (x) }"))
    (b,) = program.main.bindings
    assert flops(b) is None and has_formula(b)
    strange = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
        g (float[2] x) => (float[2] y) { y = my.Own (x) }""")
    (b,) = load(strange).main.bindings
    assert flops(b) is None and not has_formula(b)


def test_every_formula_is_of_an_operator() -> None:
    known = {s.name for s in onnx.defs.get_all_schemas_with_history()}
    ours = {name for name in FORMULAS if not name.startswith("com.microsoft::")}
    assert ours - known == {"SimplifiedLayerNormalization"}
