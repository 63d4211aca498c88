"""onnxgrad/verify/feeds/value_bounds.py: what the consumers of an input ask of its values."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

from onnxgrad.verify.feeds import value_bounds
from onnxgrad.verify.feeds.data_flow import DataFlow
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.verify.feeds.value_bounds import _DOMAINS, Uses, uses_of
from onnxgrad.verify.running.session import run
from tests.helpers import parse

# the table has 5 rows: an index is from 0 to 4 where Gather reads it
INDICES = {
    "y = Gather (table, i)": (0, 4),
    "j = MemcpyToHost (i) y = Gather (table, j)": (
        0,
        4,
    ),  # onnxruntime writes these two around CUDA's kernels
    "j = MemcpyFromHost (i) y = Gather (table, j)": (0, 4),
    "two = Constant <value_int = 2> () j = Mul (i, two) y = Gather (table, j)": (0, 2),
    "two = Constant <value_ints = [2]> () j = Mul (i, two) y = Gather (table, j)": (0, 2),
    "one = Constant <value_int = 1> () j = Sub (i, one) y = Gather (table, j)": (1, 5),
    "one = Constant <value_int = 1> () j = Sub (one, i) y = Gather (table, j)": (-3, 1),
    "one = Constant <value_int = 1> () j = Add (i, one) k = Neg (j) y = Gather (table, k)": (
        -math.inf,
        math.inf,
    ),
}
# Upsample accepts no factor below 1, Resize would drop samples; more than double only costs time
SCALES = {
    "y = Upsample (x, s)": (9, 1, 2),
    'y = Resize <mode = "linear"> (x, , s)': (19, 1, 2),
    "h = Div (x, s) y = Relu (h)": (19, 0.5, 2),
    "h = Mul (x, s) y = Log (h)": (19, -math.inf, math.inf),
}


def uses(text: str, name: str, opset: int = 21) -> Uses:
    return uses_of(DataFlow(parse(text, opset=opset)), name)


@pytest.mark.parametrize("nodes", INDICES)
def test_an_index_names_a_row_of_the_table(nodes: str) -> None:
    found = uses(f"g (float[5,3] table, int64[2] i) => (float[2,3] y) {{ {nodes} }}", "i")
    assert (found.low, found.high) == INDICES[nodes]


@pytest.mark.parametrize("nodes", SCALES)
def test_bounds_of_factors(nodes: str) -> None:
    opset, low, high = SCALES[nodes]
    found = uses(
        f"g (float[1,1,2,2] x, float[4] s) => (float[N,C,H,W] y) {{ {nodes} }}", "s", opset
    )
    assert (found.low, found.high) == (low, high)


# a node whose operand `s` the table bounds, and where that is a scalar
REAL = {
    "Log": "y = Log (s)", "Sqrt": "y = Sqrt (s)", "Acosh": "y = Acosh (s)", "Acos": "y = Acos (s)",
    "Asin": "y = Asin (s)", "Atanh": "y = Atanh (s)", "Div": "y = Div (x, s)",
    "Reciprocal": "y = Reciprocal (s)", "BatchNormalization": "y = BatchNormalization (x, w, w, w, s)",
    "Resize": "y = Resize <mode = \"nearest\"> (x, , s)", "Upsample": "y = Upsample (x, s)",
    "Dropout": "y = Dropout (x, s, t)", "NonMaxSuppression": "y = NonMaxSuppression (b, c, n, s, s)",
}  # fmt: skip


@pytest.mark.parametrize(("name", "operand"), _DOMAINS)
def test_both_ends_of_a_domain_give_finite_results(name: str, operand: int) -> None:
    """In onnxruntime, which refuses a scale, ratio or threshold out of range."""
    low, high = _DOMAINS[name, operand]
    size = {"Dropout": "", "Resize": "[4]", "Upsample": "[4]", "NonMaxSuppression": "[1]"}.get(
        name, "[2]"
    )
    declared = f"float[1,2,2,2] x, float{size} s, float[2] w, bool t, float[1,2,4] b, float[1,1,2] c, int64 n"
    opset = 9 if name == "Upsample" else 17
    dtype = "int64" if name == "NonMaxSuppression" else "float"
    model = parse(f"g ({declared}) => ({dtype}[A,B,C,D] y) {{ {REAL[name]} }}", opset=opset)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = {
        "x": np.ones((1, 2, 2, 2), np.float32), "w": np.ones(2, np.float32), "t": np.array(True),
        "b": np.ones((1, 2, 4), np.float32), "c": np.ones((1, 1, 2), np.float32),
        "n": np.array(1),
    }  # fmt: skip
    for end in (low, high):
        s = np.full((int(size[1:-1]),) if size else (), end, np.float32)
        assert np.isfinite(run(model, {**feeds, "s": s})["y"]).all()


@pytest.mark.parametrize(
    ("operand", "count"), [("starts", False), ("axes", False), ("steps", True)]
)
def test_steps_of_a_slice_are_positive(operand: str, count: bool) -> None:
    text = """g (float[9] x, int64[1] starts, int64[1] ends, int64[1] axes, int64[1] steps) => (float[N] y) {
                y = Slice (x, starts, ends, axes, steps) }"""
    assert uses(text, operand).count is count


@pytest.mark.parametrize(
    ("node", "longest"),
    [
        ("y = ReverseSequence (x, n)", 5),
        ("y = ReverseSequence <batch_axis = 1, time_axis = 0> (x, n)", 5),
        ("y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, n)", 2),
        ("y = RNN <hidden_size = 4> (x, w, r, , n)", 5),
    ],
)
def test_a_length_is_no_more_than_the_axis_of_time(node: str, longest: int) -> None:
    found = uses(
        f"g (float[5,2,3] x, float[1,4,3] w, float[1,4,4] r, int64[B] n) => (float[A,B,C] y) {{ {node} }}",
        "n",
    )
    assert (found.low, found.high) == (0, longest)


ML = '<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1, "com.microsoft": 1]>'


def test_words_that_an_encoder_knows() -> None:
    model = parse(f"""{ML} g (string[40,2] x) => (float[40,1,3] y) {{
        i = Constant <value_ints = [1]> ()  c = Gather <axis = 1> (x, i)
        y = ai.onnx.ml.OneHotEncoder <cats_strings = ["red", "green", "blue"]> (c) }}""")
    assert uses_of(DataFlow(model), "x").words == ["red", "green", "blue"]
    drawn = feeds_for(model, seed=0)["x"]
    known = np.isin(drawn, ["red", "green", "blue"])
    assert 0.5 < known.mean() < 1, "some are not known"


def test_sentences_of_the_words_that_are_counted() -> None:
    model = parse(f"""{ML} g (string[20] x) => (float[20,2] y) {{
        w = com.microsoft.Tokenizer <mark = 0, mincharnum = 1, pad_value = "#", separators = [" "]> (x)
        y = TfIdfVectorizer <max_gram_length = 1, max_skip_count = 0, min_gram_length = 1, mode = "TF",
            ngram_counts = [0], ngram_indexes = [0, 1], pool_strings = ["cat", "dog"]> (w) }}""")
    drawn = feeds_for(model, seed=0)["x"]
    assert all(len(text.split(" ")) >= 3 for text in drawn)
    assert any("cat" in text and "dog" in text for text in drawn)


def test_numbers_at_which_trees_branch() -> None:
    model = parse(f"""{ML} g (float[400,2] x) => (float[400,1] y) {{ y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1,
        nodes_falsenodeids = [4, 3, 0, 0, 0], nodes_featureids = [0, 1, 0, 0, 0],
        nodes_modes = ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"], nodes_nodeids = [0, 1, 2, 3, 4],
        nodes_treeids = [0, 0, 0, 0, 0], nodes_truenodeids = [1, 2, 0, 0, 0],
        nodes_values = [40.0, 60.0, 0.0, 0.0, 0.0], target_ids = [0, 0, 0], target_nodeids = [2, 3, 4],
        target_treeids = [0, 0, 0], target_weights = [1.0, 2.0, 3.0]> (x) }}""")
    found = uses_of(DataFlow(model), "x")
    assert (found.low, found.high, found.thresholds) == (35, 65, [40, 60])
    assert len(np.unique(run(model, feeds_for(model, seed=0))["y"])) == 3, "every leaf is reached"


def test_every_operand_of_a_table_exists_and_has_its_kind() -> None:
    """In some version of the operator: integers are counts, lengths and positions, floats have domains."""
    kinds: dict[tuple[str, int], set[str]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        for i, formal in enumerate(schema.inputs):
            types = allowed.get(formal.type_str, [formal.type_str])
            kinds.setdefault((schema.name, i), set()).update(types)
    tables = {
        "int": value_bounds._COUNTS
        | value_bounds._LENGTHS
        | value_bounds._CHOOSE_ALONG
        | {*value_bounds._CHOOSE},
        "bool": value_bounds._CONDITIONS,
        "float": {*_DOMAINS},
    }
    for kind, operands in tables.items():
        wrong = [o for o in operands if not any(f"({kind}" in t for t in kinds.get(o, ()))]
        assert not wrong, kind


@pytest.mark.parametrize(
    ("queries", "of", "ones"),
    [(6, "mask", 6), (1, "mask", 1), (6, "other", 1), ("S", "mask", 4)],
)
def test_a_mask_that_counts_keys_has_a_one_for_each_query(
    queries: int | str, of: str, ones: int
) -> None:
    """onnxruntime leaves the results of queries behind the last key unspecified."""
    text = f"""g (float[2,{queries},32] q, float[2,{queries},16] k, int64[2,K] mask, int64[2,K] other, int32 total)
        => (float[2,{queries},32] y) {{
        axis = Constant <value_ints = [1]> () one = Constant <value = int64[1] {{1}}> ()
        sum = ReduceSum <keepdims = 0> ({of}, axis) last = Sub (sum, one) lengths = Cast <to = 6> (last)
        y, , = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (q, k, k, , , lengths, total) }}"""
    assert value_bounds.least_ones(DataFlow(parse(text), {"S": 4}), "mask") == ones
    made = feeds_for(parse(text), seed=0, dims={"S": 4, "K": 8})["mask"]
    assert np.isin(made, [0, 1]).all() and (made.sum(1) >= ones).all() and (ones > 4 or 0 in made)
