"""Feeds stay inside what their consumers index."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.verify import verify
from onnxgrad.verify.feeds.generate import bound_by, feeds_for
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.helpers import parse


def feeds(text: str, seed: int = 0, **options: Any) -> dict[str, Any]:
    return feeds_for(parse(text), seed=seed, **options)


def with_table(body: str, rows: int = 7, inputs: str = "int64[64, 64] ids") -> onnx.ModelProto:
    """A graph with a float table (rows, 4) called `table`."""
    model = parse(f"g ({inputs}) => (float y) {{ {body} }}")
    table = onnx.numpy_helper.from_array(np.zeros((rows, 4), np.float32), "table")
    model.graph.initializer.append(table)
    return model


@pytest.mark.parametrize(
    "body",
    [
        "y = Gather(table, ids)",
        "c = Cast <to = 6> (ids) r = Reshape(c, s) u = Unsqueeze(r, s) y = Gather(table, u)",
        "t = Transpose(table) y = Gather <axis = 1> (t, ids)",
        "i = Identity(table) y = Gather(i, ids)",
        "y = GatherElements <axis = 0> (table, ids)",
        "y = ScatterElements <axis = 0> (table, ids, ids)",
        "a, b = Split <num_outputs = 2> (ids) y = Gather(table, b)",
        "c = If (cond) <then_branch = t () => (float z) { z = Gather(table, ids) }, "
        "else_branch = e () => (float z) { z = Gather(table, ids) }> y = Neg(c)",
    ],
)
def test_ids_lie_in_the_table_and_use_it(body: str) -> None:
    ids = feeds_for(with_table(body), seed=0)["ids"]
    assert ids.min() == 0 and ids.max() == 6


def test_offsets_are_undone() -> None:
    ids = feeds_for(
        with_table("two = Constant <value_int = 2> () i = Add(ids, two) y = Gather(table, i)"),
        seed=0,
    )["ids"]
    assert ids.min() == -2 and ids.max() == 4
    ids = feeds_for(
        with_table("two = Constant <value_int = 2> () i = Mul(ids, two) y = Gather(table, i)"),
        seed=0,
    )["ids"]
    assert ids.min() == 0 and ids.max() == 3


def test_the_tightest_table_counts() -> None:
    model = with_table("a = Gather(table, ids) b = Gather(small, ids) y = Add(a, b)")
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.zeros((3, 4), np.float32), "small")
    )
    assert feeds_for(model, seed=0)["ids"].max() == 2


def test_through_a_local_function() -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "f": 1]>
        g (int64[64] ids, float[5,2] w) => (float[64,2] y) { y = f.embed(w, ids) }
        <domain: "f", opset_import: ["": 20]> embed (t, i) => (r) { r = Gather(t, i) }"""
    ids = feeds(text)["ids"]
    assert ids.max() == 4 and ids.min() == 0


def test_a_table_computed_from_a_symbolic_input() -> None:
    ids = feeds(
        "g (float[N, 3] x, int64[50] ids) => (float[50, 3] y) { y = Gather(x, ids) }", dims={"N": 9}
    )["ids"]
    assert ids.max() == 8


def test_gather_nd_and_one_hot() -> None:
    text = """g (float[4,6] x, int64[9,2] at, int64[99] c) => (float[9] y, float[99,12] h)
              <int64 depth = {12}, float[2] values = {0, 1}> {
              y = GatherND(x, at) h = OneHot(c, depth, values) }"""
    made = feeds(text)
    assert made["at"].max() == 3 and made["c"].max() == 11
    run(parse(text), made)


def test_compared_with_a_range_means_an_encoding() -> None:
    text = """g (int32[99] x) => (bool[99,5] y) <int32[1,5] r = {0, 1, 2, 3, 4}, int64[1] one = {1}> {
              u = Unsqueeze(x, one) y = Equal(u, r) }"""
    assert feeds(text)["x"].max() == 4


def test_masks_are_prefixes_of_ones() -> None:
    made = feeds("g (int64[2,8] attention_mask, bool[2,8] m) => (int64[2,8] y, bool[2,8] n) "
                 "{ y = Identity(attention_mask) n = Not(m) }")  # fmt: skip
    for mask in (made["attention_mask"].astype(int), made["m"].astype(int)):
        assert (
            set(np.unique(mask)) <= {0, 1}
            and (mask[:, 0] == 1).all()
            and (np.diff(mask) <= 0).all()
        )


def test_one_minus_x_is_a_mask_too() -> None:
    made = feeds("g (float[2,8] a) => (float[2,8] y) <float one = {1}, float big = {-10000}> "
                 "{ s = Sub(one, a) y = Mul(s, big) }")  # fmt: skip
    assert set(np.unique(made["a"])) <= {0.0, 1.0} and made["a"].dtype == np.float32


def test_a_switch_takes_a_value_that_the_model_knows() -> None:
    made = feeds("g (int64 sr) => (bool y) <int64 rate = {16000}> { y = Equal(sr, rate) }")
    assert made["sr"] == 16000


@pytest.mark.parametrize("ignored", [-100, 0, 2])
def test_not_all_labels_are_ignored(ignored: int) -> None:
    """In a loss, and in its gradient, which compares the label with the ignored one."""
    for body in (
        f"y = SoftmaxCrossEntropyLoss <ignore_index = {ignored}> (s, label)",
        f"k = Constant <value_int = {ignored}> () z = Constant <value_int = 0> () e = Equal(label, k) "
        "p = Where(e, z, label) t = Unsqueeze(p, one) y = GatherElements <axis = 1> (s, t)",
    ):
        text = (
            f"g (float[1,3] s, int64[1] label) => (float[] y) <int64[1] one = {{1}}> {{ {body} }}"
        )
        drawn = {int(feeds(text, seed)["label"][0]) for seed in range(20)}
        assert drawn == {0, 1, 2} - {ignored}


def test_flags_are_off_and_images_are_images() -> None:
    made = feeds("g (bool training_mode, float[1,3,8,8] pixels, float[1,8,8,1] grey, float[1,8,8,2] flow, "
                 "uint8[1,8,8,3] raw) => (bool y, float[1,3,8,8] z) "
                 "{ y = Not(training_mode) z = Neg(pixels) }")  # fmt: skip
    assert not made["training_mode"]
    for name in ("pixels", "grey"):
        assert made[name].min() >= 0 and made[name].max() <= 1
    assert made["flow"].min() < 0
    assert made["raw"].max() > 200


def test_domains() -> None:
    made = feeds(
        "g (float[99] p, float[99] q) => (float[99] y, float[99] z) { y = Sqrt(p) z = Acos(q) }"
    )
    assert made["p"].min() > 0 and np.abs(made["q"]).max() < 1


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Acosh", "Acos", "Asin", "Atanh", "Reciprocal"])
def test_where_a_function_is_real_and_finite(op: str) -> None:
    model = parse(f"g (float[999] x) => (float[999] y) {{ y = {op}(x) }}")
    assert np.isfinite(reference(model, feeds_for(model, seed=0))["y"]).all()


@pytest.mark.parametrize("batch", [1, 2])
def test_regions_lie_in_their_image(batch: int) -> None:
    model = parse(f"""g (float[{batch},2,9,6] x, float[40,5] r) => (float[40,2,2,2] y) {{
      s = Relu(x) q = Identity(r) y = MaxRoiPool <pooled_shape = [2, 2]> (s, q) }}""")
    feeds = feeds_for(model, seed=0)
    image, left, top, right, bottom = feeds["r"].T
    assert {*image.tolist()} == {*range(batch)}
    assert (left >= 0).all() and (left <= right).all() and (right <= 6).all() and right.max() > 4
    assert (top >= 0).all() and (top <= bottom).all() and (bottom <= 9).all() and bottom.max() > 6
    assert verify(model, model).ok


def test_lengths_fit_their_sequence() -> None:
    text = """g (float[5,2,3] x, float[1,16,3] w, float[1,16,4] r, float[1,32] b, int32[2] n) => (float[5,1,2,4] y) {
              y = LSTM <hidden_size = 4> (x, w, r, b, n) }"""
    made = feeds(text)
    assert made["n"].min() >= 0 and made["n"].max() <= 5


def test_other_kinds() -> None:
    made = feeds("g (seq(float[N]) s, optional(float[2]) o, string[3] t, float16[2] h, bfloat16[2] b, int4[3] q, "
                 "complex64[2] c) => (seq(float[N]) y) { y = Identity(s) }")  # fmt: skip
    assert isinstance(made["s"], list) and made["o"].shape == (2,) and made["t"].dtype == object
    assert (made["h"].dtype.name, made["b"].dtype.name, made["q"].dtype.name) == (
        "float16",
        "bfloat16",
        "int4",
    )


@pytest.mark.parametrize(
    "node",
    [
        "Tile (x, n)",
        "Pad (x, n)",
        "Expand (x, n)",
        "ConstantOfShape (n)",
        "Split (x, n)",
        "TopK (x, n)",
    ],
)
def test_counts_are_1(node: str) -> None:
    """The least that is not empty; other counts are the edges."""
    made = feeds(f"g (float[4] x, int64[2] n) => (float[K] y) {{ y = {node} }}")
    assert made["n"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "pooled",
    [
        'y = ScatterND <reduction = "add"> (e, b, x)',
        'i = Expand (b, shape) y = ScatterElements <reduction = "add"> (e, i, x)',
        'd = Identity (e) w = Add (d, d) y = ScatterND <reduction = "max"> (w, b, x)',
    ],
)
def test_counts_of_rows_that_indices_choose_are_2(pooled: str) -> None:
    """Nodes of two graphs at any number of nodes: with one graph, the node of the second failed."""
    text = f"""g (float[nodes,4] x, int64[nodes] batch, int64 num_graphs) => (float[M,4] y) {{
        z = Constant <value_ints = [0]> () o = Constant <value_ints = [1]> ()
        four = Constant <value_ints = [4]> () shape = Shape (x) b = Unsqueeze (batch, o)
        n = Unsqueeze (num_graphs, z) size = Concat <axis = 0> (n, four) e = ConstantOfShape (size)
        {pooled} }}"""
    made = feeds(text)
    assert made["num_graphs"].tolist() == 2 and made["batch"].tolist() == [0, 1]


def test_the_depth_of_indices_is_2() -> None:
    depth = "y = OneHot ({}, n, v)"
    given = "int64[3] i, int64 n, float[2] v"
    for operand, count in (("i", 2), ("c", 1)):
        c = "c = Constant <value = int64[3] {0, 1, 0}> ()" * (operand == "c")
        made = feeds(f"g ({given}) => (float[K,D] y) {{ {c} {depth.format(operand)} }}")
        assert made["n"].tolist() == count


def test_scalar_and_empty_shapes() -> None:
    made = feeds("g (float x, float[0,3] z) => (float y) { y = Neg(x) }")
    assert made["x"].shape == () and made["z"].shape == (0, 3)


def test_same_seed_same_values_and_other_inputs_do_not_matter() -> None:
    a = feeds("g (float[9] x, float[9] z) => (float[9] y) { y = Add(x, z) }", 3)
    b = feeds("g (float[9] z, float[9] x) => (float[9] y) { y = Add(x, z) }", 3)
    assert np.array_equal(a["x"], b["x"]) and not np.array_equal(a["x"], a["z"])
    assert not np.array_equal(
        a["x"], feeds("g (float[9] x) => (float[9] y) { y = Neg(x) }", 4)["x"]
    )


def test_given_values_win_and_fix_their_symbols() -> None:
    text = "g (float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }"
    x = np.zeros(13, np.float32)
    made = feeds(text, given={"x": x})
    assert made["x"] is x and made["z"].shape == (13,)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"q": np.zeros(2)}, "no input of this name"),
        ({"x": np.zeros((2, 3))}, "wants float, it holds float64"),
        ({"x": np.zeros((3, 3), np.float32)}, "wants shape"),
        ({"x": np.zeros(3, np.float32)}, "wants shape"),
        ({"x": object()}, "expected an array, not object"),
        ({"x": None}, "expected an array, not NoneType"),
        ([np.zeros(3, np.float32)], "arrays by the names of the model's inputs, not list"),
    ],
)
def test_given_values_must_fit(given: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        feeds("g (float[2,N] x) => (float[2,N] y) { y = Neg(x) }", given=given)


def test_what_cannot_be_made_names_the_option() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.input[0].type.Clear()
    with pytest.raises(InputError, match=r"inputs=\{'x': array\}"):
        feeds_for(model, seed=0)
    with pytest.raises(InputError, match="dims="):
        feeds("g (float[N,N,N] x) => (float[N,N,N] y) { y = Neg(x) }", dims={"N": 10_000})


def test_whole_timesteps_are_those_of_a_schedule_of_a_thousand() -> None:
    drawn = feeds("g (int64[500] timestep) => (int64[500] y) { y = Neg (timestep) }")["timestep"]
    assert 0 <= drawn.min() < 100 and 900 < drawn.max() < 1000


def test_inputs_without_a_shape_have_the_rank_of_the_plan() -> None:
    model = parse("g (float[] x, seq(float[]) s) => (float[] y) { y = Neg(x) }")
    feeds = feeds_for(model, seed=0, dims={"x.rank": 4, "s.rank": 1})
    assert feeds["x"].shape == (2, 3, 4, 5) and [v.shape for v in feeds["s"]] == [(2,)] * 3
    assert bound_by(model, {"x": np.zeros((1, 5, 2), np.float32)}) == {"x.rank": 3}


def test_positions_whose_number_is_counted_are_all_positions() -> None:
    model = parse(
        "g (int64[1,8] position_ids) => (int64[n] y) {"
        " most = ReduceMax <keepdims = 0> (position_ids)"
        " zero = Constant <value_int = 0> () one = Constant <value_int = 1> ()"
        " count = Add (most, one) y = Range (zero, count, one) }"
    )
    assert feeds_for(model, seed=0)["position_ids"].tolist() == [[*range(8)]]
