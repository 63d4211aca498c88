"""Each batching rule, by what it does to a small model: rows stay in place, get an axis of their own, or a Scan."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad.batching.layout import Layout, joined, places, stride
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.transform.open_batch import Opened, open_rows
from onnxgrad.verify import feeds_for, run
from tests.helpers import parse

W = "<float[3,2] w = {1,-2, 0.5,0.3, -0.4,0.7}, int64[2] i = {2, 0}>"


def opened(
    model: onnx.ModelProto,
    inputs: list[str] | None = None,
    *,
    batch: int | None = None,
    along: str = "auto",
) -> Opened:
    """The opened model, each row of which is what the model computes of that row alone."""
    done = open_rows(load_own(model), inputs, batch=batch, along=along)
    made = to_proto(done.program)
    onnx.checker.check_model(made, full_check=True)
    groups = [feeds_for(model, seed=seed) for seed in range(3)]
    shared = {n: v for n, v in groups[0].items() if n not in done.inputs}
    groups = [{**group, **shared} for group in groups]
    count = 3 if batch is None else 2 * batch + 1
    results = run(made, done.rows.some(done.rows.feeds(groups), range(count)))
    expected = done.rows.results([run(model, group) for group in groups], count, {})
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    return done


IN_PLACE = [
    "g (float[1,3] x) => (float[1,3] y) { y = Relu (x) }",
    "g (float[1,3] x, float[1,3] z) => (float[1,3] y) { y = Add (x, z) }",
    "g (float[1,2,3] x) => (float[1,2,2] y) W { y = MatMul (x, w) }",
    "g (float[1,2,3] x, float[1,3,4] z) => (float[1,2,4] y) { y = MatMul (x, z) }",
    "g (float[1,3] x) => (float[2,1] y) W { y = Gemm <transA = 1, transB = 1> (w, x) }",
    "g (float[1,4,3] x) => (float[3,4,1] y) { y = Transpose (x) }",
    "g (float[1,4,3] x) => (float[4,3] y) { s = Constant <value_ints = [4, 3]> ()  y = Reshape (x, s) }",
    "g (float[1,4,3] x) => (float[12] y) { s = Constant <value_ints = [-1]> ()  y = Reshape (x, s) }",
    "g (float[1,4] x) => (float[2,2] y) { s = Constant <value_ints = [2, 2]> ()  y = Reshape (x, s) }",
    "g (float[1,4,3] x) => (float[1,12] y) { y = Flatten (x) }",
    "g (float[1,4] x) => (float[4] y) { y = Squeeze (x) }",
    "g (float[1,4] x) => (float[1,1,4] y) { a = Constant <value_ints = [0]> ()  y = Unsqueeze (x, a) }",
    "g (float[1,4] x) => (float[2,1,4] y) { s = Constant <value_ints = [2, 1, 4]> ()  y = Expand (x, s) }",
    "g (float[1,4] x) => (float[1,8] y) { s = Constant <value_ints = [1, 2]> ()  y = Tile (x, s) }",
    "g (float[1,4] x) => (float[1,6] y) { c = Constant <value_floats = [1.0, 2.0]> () a = Constant <value_ints = [0]> ()"
    " d = Unsqueeze (c, a)  y = Concat <axis = 1> (x, d) }",
    "g (float[1,4] x) => (float[1,2] y, float[1,2] z) { y, z = Split <axis = 1, num_outputs = 2> (x) }",
    "g (float[1,4] x) => (float[1,4] y) { b = Constant <value_ints = [0]> () e = Constant <value_ints = [1]> ()"
    " y = Slice (x, b, e, b) }",
    "g (float[1,4] x) => (float[1,2] y) W { y = Gather <axis = 1> (x, i) }",
    "g (int64[1,2] ids) => (float[1,2,2] y) W { c = Constant <value_ints = [3]> () d = Mod (ids, c) y = Gather (w, d) }",
    "g (float[1,4] x) => (float[1,1] y) { a = Constant <value_ints = [1]> ()  y = ReduceSum (x, a) }",
    "g (float[1,4] x) => (int64[1,1] y) { y = ArgMax <axis = 1> (x) }",
    "g (float[1,4] x) => (float[1,4] y) { y = Softmax (x) }",
    "g (float[1,4] x) => (float[1,4] y) { a = Constant <value_int = 1> ()  y = CumSum (x, a) }",
    "g (float[1,4] x) => (float[1,2] y, int64[1,2] z) { k = Constant <value_ints = [2]> ()  y, z = TopK (x, k) }",
    "g (float[1,4] x) => (float[1,6] y) { p = Constant <value_ints = [0, 1, 0, 1]> ()  y = Pad (x, p) }",
    "g (float[1,4,4] x) => (float[1,4,4] y) { y = Trilu (x) }",
    "g (float[1,2,5,5] x) => (float[1,2,3,3] y) { y = MaxPool <kernel_shape = [3, 3]> (x) }",
    "g (float[1,2,3,3] x) => (float[1,2,H,W] y) { a = Constant <value_floats = [1.0, 1.0]> ()"
    "  b = Constant <value_floats = [2.0, 2.0]> ()  s = Concat <axis = 0> (a, b)  y = Resize (x, , s) }",
    "g (float[1,2,3,3] x) => (float[1,2,6,6] y) { s = Constant <value_ints = [1, 2, 6, 6]> ()  y = Resize (x, , , s) }",
    "g (float[1,2,3,3] x) => (float[1,2,6,6] y) { s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()"
    "  y = Resize (x, , s) }",
    # scales of rank 2, which onnxruntime accepts
    "g (float[1,2,3,3] x) => (float[N,C,H,W] y) { s = Constant <value = float[1,4] {1.0, 1.0, 2.0, 2.0}> ()"
    "  y = Resize (x, , s) }",
    "g (float[1,3] x) => (float[1,2] y) W { y = Einsum <equation = \"bi,ij->bj\"> (x, w) }",
    "g (float[1,8,2,2] x) => (float[1,2,4,4] y) { y = DepthToSpace <blocksize = 2> (x) }",
    "g (float[1,3] x) => (float[1,3] y) { s = Shape (x)  c = ConstantOfShape <value = float[1] {2}> (s)  y = Mul (x, c) }",
    "g (float[1,3] x) => (float[3] y) { c = Constant <value_floats = [1.0, 2.0, 3.0]> ()  y = CastLike (c, x) }",
]  # fmt: skip
SHIFTED = [
    "g (float[1,3] x) => (float[3,2] y) W { s = Constant <value_ints = [3, 1]> () r = Reshape (x, s) y = Add (r, w) }",
    "g (float[1,3] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }",
    "g (float[1,3] x) => (float[1,3] y) { m = ReduceSum <keepdims = 0> (x)  n = Exp (m) y = Div (x, n) }",
    "g (float[1,6] x) => (float[2,3] y) { s = Constant <value_ints = [2, 3]> ()  r = Reshape (x, s)  t = Transpose (r)"
    "  y = Reshape (t, s) }",
    "g (float[1,3] x) => (float[2] y) W { q = Squeeze (x)  y = MatMul (q, w) }",
    "g (float[1,3] x, float[1,2] z) => (float[3,2] y) { y = Gemm <transA = 1, alpha = 0.5> (x, z) }",
    "g (float[1,6] x) => (float[6] y) { q = Squeeze (x)  y = Softmax <axis = 0> (q) }",
    "g (float[1,6] x) => (float[2] y) W { q = Squeeze (x)  y = Gather (q, i) }",
    "g (float[1,6] x) => (float[3] y) { q = Squeeze (x)  b = Constant <value_ints = [1]> () e = Constant <value_ints = [4]> ()"
    "  y = Slice (q, b, e) }",
    "g (float[1,6] x) => (float[12] y) { q = Squeeze (x)  y = Concat <axis = 0> (q, q) }",
    "g (float[1,6] x) => (float[2] y, int64[2] z) { q = Squeeze (x)  k = Constant <value_ints = [2]> ()  y, z = TopK (q, k) }",
    "g (float[1,6] x) => (float[6] y) { q = Squeeze (x)  a = Constant <value_int = 0> ()  y = CumSum (q, a) }",
    "g (float[1,6] x) => (float[8] y) { q = Squeeze (x)  p = Constant <value_ints = [1, 1]> ()  y = Pad (q, p) }",
    "g (float[1,3] x) => (float[3,3] y) { q = Transpose (x) y = Einsum <equation = \"ij,kj->ik\"> (q, q) }",
    "g (float[1,3] x) => (int64 y) { q = Squeeze (x)  y = ArgMax <axis = 0, keepdims = 0> (q) }",
]  # fmt: skip
SCANNED = [
    "g (float[1,2,3,3] x, float[1,2,2,2] k) => (float[1,1,2,2] y) { y = Conv (x, k) }",
    "g (float[1,3] x, bool[1] c) => (float[1,3] y) { q = Squeeze (c) y = If (q) <"
    " then_branch = a () => (float[1,3] t) { t = Neg (x) }, else_branch = b () => (float[1,3] u) { u = Exp (x) }> }",
]  # fmt: skip


def test_rows_make_room_for_a_join() -> None:
    model = parse("""g (float[1,4] x) => (float[2,1,4] y) { a = Constant <value_ints = [0]> ()
      u = Unsqueeze (x, a)  n = Neg (u)  y = Concat <axis = 0> (u, n) }""")
    done = opened(model)
    assert not done.shifted and not done.warnings
    assert str(done.program.main.outputs[0].type) == "f32[2,batch,4]"


def test_a_bias_along_the_rows_is_added_to_each_row() -> None:
    """A FastGelu of all rows in a vector cannot add the bias of one row."""
    model = parse(
        """g (float[1,4] x) => (float[4] y) <float[4] b = {1, -1, 0.5, 2}> {
          s = Constant <value_ints = [4]> () a = Reshape (x, s) y = com.microsoft.FastGelu (a, b) }"""
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    opened(model)


def model_of(text: str) -> onnx.ModelProto:
    return parse(text.replace(" W {", f" {W} {{"))


@pytest.mark.parametrize("text", IN_PLACE)
def test_rows_stay_in_place(text: str) -> None:
    done = opened(model_of(text))
    assert not done.scanned and not done.shifted and not done.warnings


@pytest.mark.parametrize("text", SHIFTED)
def test_rows_get_an_axis_of_their_own(text: str) -> None:
    done = opened(model_of(text))
    assert done.shifted and not done.scanned


@pytest.mark.parametrize("text", SCANNED)
def test_a_node_without_a_rule_runs_once_per_row(text: str) -> None:
    model = model_of(text)
    done = opened(model, [v.name for v in model.graph.input])
    assert sum(done.scanned.values()) == 1


IFS = [
    # branches that read values of the graph around them, at other places, or none
    """g (float[1,3] x, bool c) => (float[1,3] y) { e = Exp (x)  y = If (c) <
        then_branch = a () => (float[1,3] p) { p = Add (x, e) }, else_branch = b () => (float[1,3] q) { q = Neg (e) }> }""",
    """g (float[1,3] x, bool c) => (float[1,1,3] y, float[1,3] z) { y, z = If (c) <
        then_branch = a () => (float[1,1,3] p, float[1,3] r) { s = Constant <value_ints = [1, 1, 3]> ()  p = Reshape (x, s)  r = Neg (x) },
        else_branch = b () => (float[1,1,3] q, float[1,3] t) { u = Constant <value_ints = [1]> ()  q = Unsqueeze (x, u)
          k = Constant <value = float[1,3] {1, 2, 3}> ()  t = Identity (k) }> }""",
    """g (float[1,2,3] x, bool c) => (float[1,2,3] y) { y = If (c) <
        then_branch = a () => (float[1,2,3] p) { s = Constant <value_ints = [2, 3]> ()  f = Reshape (x, s)  m = Softmax <axis = 0> (f)
          w = Constant <value_ints = [1, 2, 3]> ()  p = Reshape (m, w) }, else_branch = b () => (float[1,2,3] q) { q = Tanh (x) }> }""",
]


@pytest.mark.parametrize("text", IFS)
@pytest.mark.parametrize("condition", [True, False])
def test_rows_in_the_branches_of_an_if(text: str, condition: bool) -> None:
    model = parse(text)
    done = open_rows(load_own(model), ["x"])
    assert not done.scanned
    rows = [np.asarray(feeds_for(model, seed=s)["x"]) for s in range(3)]
    c = np.array(condition)
    results = run(to_proto(done.program), {"x": np.concatenate(rows), "c": c})
    expected = done.rows.results([run(model, {"x": row, "c": c}) for row in rows], 3, {})
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-6, err_msg=name)


def test_recurrent_states_repeat() -> None:
    text = """g (float[1,5,2] x) => (float[5,1,1,3] y, float[1,1,3] h)
      <float[1,9,2] w = {W18}, float[1,9,3] r = {W27}, float[1,1,3] s = {0.1, 0.2, 0.3}> {
        t = Transpose <perm = [1, 0, 2]> (x)  y, h = GRU <hidden_size = 3> (t, w, r, , , s) }"""
    for size in (18, 27):
        numbers = np.linspace(-0.5, 0.5, size).round(3)
        text = text.replace(f"W{size}", ", ".join(map(str, numbers)))
    done = opened(parse(text))
    assert not done.scanned and done.outputs["y"].axis == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[1,3] x) => (int64[2,?] y) { y = NonZero (x) }", "NonZero.*size depends"),
        ("g (float[1,3] x) => (float[1,3] y) { r = RandomNormalLike (x)  y = Add (x, r) }", "random"),
        ("g (float[1,3] x) => (float[1,3] y) { q, s, z = DynamicQuantizeLinear (x)"
         "  y = DequantizeLinear (q, s, z) }", "DynamicQuantizeLinear.*one scale"),
        ("g (float[1,2,3,3] x) => (float[1,2,3,3] y) { y = MeanVarianceNormalization (x) }", "statistics"),
    ],
)  # fmt: skip
def test_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        open_rows(load_own(parse(text)))


def test_places_in_memory() -> None:
    assert stride((2, 3, 4), Layout(1)) == 12
    assert places((6, 4), 12) == [Layout(0, 2)]
    assert places((2, 1, 3, 4), 12) == [Layout(0, 2), Layout(1), Layout(2)]
    assert places((5, 5), 12) == []
    assert joined((1, 3)) == Layout(0) and joined((3, 1)) == Layout(0)


SEVERAL = [
    "g (float[4,3] x) => (float[4,3] y) { c = Constant <value_floats = [1.0, 2.0, 3.0]> ()  y = Add (x, c) }",
    "g (float[4,3] x) => (float[4,3] y) { s = Constant <value_ints = [4, 3]> () c = ConstantOfShape <value = float[1] {2}> (s)"
    "  y = Mul (x, c) }",
    "g (float[4,6] x) => (float[4,2,3] y) { s = Constant <value_ints = [4, -1, 3]> ()  y = Reshape (x, s) }",
    "g (float[4,4] x) => (float[8,2] y) { s = Constant <value_ints = [8, 2]> ()  y = Reshape (x, s) }",
    "g (float[4,2,3] x) => (float[8,3] y) { s = Constant <value_ints = [-1, 3]> ()  r = Reshape (x, s)  y = Softmax (r) }",
    "g (float[4,2,3] x) => (float[4,1,2,3] y) { a = Constant <value_ints = [1]> ()  y = Unsqueeze (x, a) }",
    "g (float[4,2] x) => (float[4,3] y) { o = Constant <value_ints = [4, 1]> () c = ConstantOfShape <value = float[1] {1}> (o)"
    "  y = Concat <axis = 1> (x, c) }",
    "g (float[4,1,3,3] x) => (float[4,1,3,3] y) <float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}>"
    " { y = Conv <pads = [1, 1, 1, 1]> (x, w) }",
    "g (float[4,3] x) => (float[4,2] y) <int64[4,2] i = {2,0, 5,3, 8,6, 11,9}> { s = Constant <value_ints = [-1]> ()"
    "  f = Reshape (x, s)  y = Gather (f, i) }",
    "g (float[4,3] x) => (float[4,2] y) <int64[2,1] i = {2, 0}> { t = Transpose (x) g = GatherND (t, i) y = Transpose (g) }",
    "g (float[4,3,2] x) => (float[4,2,2] y) <int64[2,2,1] i = {2,0,1,1}> { t = Transpose <perm = [2, 1, 0]> (x)"
    " u = Transpose <perm = [2, 1, 0]> (t) v = Transpose <perm = [1, 2, 0]> (u) g = GatherND (v, i) h = Transpose <perm = [3, 0, 1, 2]> (g)"
    " a = Constant <value_ints = [2]> () y = ReduceSum <keepdims = 0> (h, a) }",
    "g (float[4,3] x) => (float[4,3] y) <int64[2,1] i = {2, 0}, float[2,4] u = {5,5,5,5,6,6,6,6}> { t = Transpose (x) g = ScatterND (t, i, u) y = Transpose (g) }",
    "g (float[4,2] x) => (float[4,3] y) <int64[2,1] i = {2, 0}, float[3,4] z = {7,7,7,7,8,8,8,8,9,9,9,9}> { t = Transpose (x)"
    " g = ScatterND <reduction = \"mul\"> (z, i, t) y = Transpose (g) }",
    "g (float[4,3] x) => (float[4,2] y) <int64[4,2,2] i = {0,2,0,0, 1,2,1,0, 2,2,2,0, 3,2,3,0}> { y = GatherND (x, i) }",
    "g (float[4,T] x) => (float[4,T] y) { y = Softmax (x) }",
    # the last token, by its own number in each row
    "g (float[4,3,2] x) => (float[4,2] y) <int64[1] two = {2}, int64[4] o = {0,3,6,9}, int64[2] s = {12, 2}> {"
    " m = ReduceSum <keepdims = 0> (x, two)  i = ArgMax <axis = 1, keepdims = 0> (m)  a = Add (i, o)  f = Reshape (x, s)"
    "  y = Gather (f, a) }",
    "g (float[4,3,2] x) => (float[4,2] y) <int64[1] two = {2}, int64[4,1] o = {0,1,2,3}> {"
    " m = ReduceSum <keepdims = 0> (x, two)  i = ArgMax <axis = 1> (m)  a = Concat <axis = -1> (o, i)  y = GatherND (x, a) }",
    # what all rows share, once for each
    "g (float[4,2,2,3] x) => (float[8,2,2] y) <float[2,2,3] w = {1,2,3,4,5,6,7,8,9,-1,-2,-3}, int64[3] r = {4,1,1},"
    " int64[3] s = {8,2,3}> { h = Reshape (x, s)  e = Neg (w)  t = Tile (e, r)  u = Transpose <perm = [0,2,1]> (t)"
    "  y = MatMul (h, u) }",
]  # fmt: skip


@pytest.mark.parametrize("text", SEVERAL)
def test_several_rows_in_the_file(text: str) -> None:
    done = opened(parse(text), batch=4)
    assert done.count == 4 and not done.shifted and not done.scanned


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[4,3] x) => (float[4,3] y) { a = Constant <value_ints = [0]> ()  m = ReduceMean (x, a)  y = Sub (x, m) }",
         "the 4 rows of the file depend on each other"),
        ("g (float[2,1] x) => (float[2,1] y) <float[2,1] w = {1, 2}> { y = Mul (x, w) }", "2 rows of constant 'w' differ"),
        ("g (float[2,3] x) => (float[3,2] y) { s = Constant <value_ints = [3, 2]> ()  y = Reshape (x, s) }", "splits the rows"),
        ("g (float[2,3] x, float[2] t) => (float[2,3] y) { a = Constant <value_ints = [1]> ()  u = Unsqueeze (t, a)"
         "  y = Mul (x, u) }", "rows of 'u' may differ; input 't' .* name it in inputs as t"),
        ("g (float[4,3] x) => (float[4,2] y) <int64[4,2] i = {2,0, 5,3, 8,6, 0,9}> { s = Constant <value_ints = [-1]> ()"
         "  f = Reshape (x, s)  y = Gather (f, i) }", "reads another row"),
        ("g (float[2,3] x, int64[2,1] i) => (float[2,1] y) <int64[2,1] o = {0, 3}, int64[1] s = {-1}> { a = Add (i, o)"
         "  f = Reshape (x, s)  y = Gather (f, a) }", "2 rows of constant 'o' differ"),
    ],
)  # fmt: skip
def test_several_rows_that_differ_or_depend(text: str, reason: str) -> None:
    model = parse(text)
    batch = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    with pytest.raises(InputError, match=reason):
        open_rows(load_own(model), batch=batch)


# at a length other than that of the batch; a size that nothing names is read where it is
DYNAMIC = [
    "g (float[1,T,6] x) => (float[1,2,T,3] y) { s = Constant <value_ints = [1, -1, 2, 3]> ()  r = Reshape (x, s)"
    "  y = Transpose <perm = [0, 2, 1, 3]> (r) }",
    "g (float[1,T,6] x) => (float[1,U] y) { s = Constant <value_ints = [1, -1]> ()  y = Reshape (x, s) }",
    "g (float[1,T,6] x) => (float[U] y) { s = Constant <value_ints = [-1]> ()  y = Reshape (x, s) }",
    "g (float[T,1,6] x) => (float[T,6] y) { a = Constant <value_ints = [1]> ()  r = Squeeze (x, a)  y = Tanh (r) }",
    "g (float[1,T,4] x) => (float[1,T,4] y) { s = Shape <start = 1, end = 2> (x) z = Constant <value_ints = [0]> ()"
    " c = ConstantOfShape <value = float[1] {2}> (s) o = Constant <value_ints = [1]> () u = Unsqueeze (c, o) y = Mul (x, u) }",
    "g (float[1,T] x) => (float[1,T] y) { s = Shape (x)  e = Expand (x, s)  y = Exp (e) }",
    "g (float[1,T,4] x) => (float[T,4] y) { a = Constant <value_ints = [0]> ()  q = Squeeze (x, a)  y = Softmax <axis = 0> (q) }",
    "g (float[1,1,H,8] x) => (float[1,U] y) <float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}> { c = Conv <strides = [2, 2]> (x, w)"
    "  p = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (c)  y = Flatten (p) }",
]  # fmt: skip


@pytest.mark.parametrize("text", DYNAMIC)
def test_other_sizes_stay_dynamic(text: str) -> None:
    model = parse(text)
    shape = [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    done = open_rows(load_own(model), [f"x.{shape.index(1)}"])
    assert not done.scanned
    rows, made = done.rows, to_proto(done.program)
    for size in (7, 12):
        feeds = [feeds_for(model, seed=seed, dims={"T": size, "H": size}) for seed in range(3)]
        got = run(made, rows.feeds(feeds))["y"]
        expected = rows.results([run(model, f) for f in feeds], 3, {"T": size, "H": size})["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
