"""A model mapped over a new axis: element i of each result is what the model computes from element i."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.batching import registry
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.open_batch import vmap
from onnxgrad.jobs.row_declarations import VmapOptions
from onnxgrad.transform.open_batch import Opened
from onnxgrad.transform.vmap import map_inputs
from onnxgrad.verify import feeds_for, run
from tests.batching.test_batching import IFS, IN_PLACE, SCANNED, SHIFTED, W
from tests.helpers import parse


def mapped(model: onnx.ModelProto, names: list[str] | None = None, axis: int = 0) -> Opened:
    """The mapped model, each row of which is what the model computes from that row."""
    done = map_inputs(load_own(model), names, axis=axis)
    made = to_proto(done.program)
    onnx.checker.check_model(made, full_check=True)
    runs = [feeds_for(model, seed=seed) for seed in range(3)]
    runs = [{n: v if n in done.inputs else runs[0][n] for n, v in feeds.items()} for feeds in runs]
    feeds = {
        n: np.stack([r[n] for r in runs], axis) if n in done.inputs else v
        for n, v in runs[0].items()
    }
    results = [run(model, each) for each in runs]
    for name, value in run(made, feeds).items():
        expected = np.stack([r[name] for r in results], axis)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=name)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("text", [*IN_PLACE, *SHIFTED, *SCANNED, *IFS])
def test_what_open_batch_does_to_a_batch_of_one(text: str) -> None:
    mapped(parse(text.replace(" W ", f" {W} ")))


MAPPED = [
    "g (float[2,3] x, float[3,4] w) => (float[2,4] y) { y = MatMul (x, w) }",
    "g (float x, float[2] z) => (float[2] y, float q) { y = Mul (x, z)  q = Exp (x) }",
    "g (float[2,3,5,5] x, float[4,3,3,3] w) => (float[2,4,3,3] y) { y = Conv (x, w) }",
    "g (float[4,3] x) => (float[3] y) { a = Constant <value_ints = [0]> ()  y = ReduceMean <keepdims = 0> (x, a) }",
    "g (float[4,3] x) => (float[4,3] y) { y = Softmax <axis = 0> (x) }",
    "g (float[5,2,3] x) => (float[15,2] y) { t = Transpose <perm = [0,2,1]> (x)  s = Constant <value_ints = [15, 2]> ()  y = Reshape (t, s) }",
    "g (float[4,3] x) => (float[4,3] y) { q, s, z = DynamicQuantizeLinear (x)  y = DequantizeLinear (q, s, z) }",
    "g (float[4,3] x, int64[2] i) => (float[2,3] y) { y = Gather (x, i) }",
    # sizes and axes that the run decides
    "g (float[4,3] x) => (float[4] y) <int64[1] a = {1}> { n = Neg (a)  y = ReduceSum <keepdims = 0> (x, n) }",
    "g (float[2,3] x, int64[2] r) => (float[1,1] y) { t = Tile (x, r)  y = ReduceMean (t) }",
    "g (float[2,3] x, int64[2] r) => (float[1,1] y) { t = Tile (x, r)  u = Transpose (t) y = ReduceMax (u) }",
    "g (float[T,3] x) => (float[T,3] y) { s = Constant <value_ints = [-1, 3]> ()  r = Reshape (x, s)  y = Tanh (r) }",
    "g (float[3] x) => (float[3] y, float[2] c) { y = Neg (x)  c = Constant <value_floats = [1.0, 2.0]> () }",
]  # fmt: skip


def test_the_rule_of_max_pool_with_rows_in_front_takes_one_result_or_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(registry.IN_PLACE, ("", "MaxPool"))
    for names, indices in (("y", ""), ("y, i", ", int64[2,2,2,2] i")):
        done = mapped(
            parse(f"""g (float[2,2,4,4] x) => (float[2,2,2,2] y{indices}) {{
            {names} = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }}""")
        )
        assert done.shifted and not done.scanned


@pytest.mark.parametrize("text", MAPPED)
def test_models_without_a_batch(text: str) -> None:
    mapped(parse(text))


DEEPER = [
    # weights of convolutions, scales, and slopes that differ from row to row, by formulas
    ("g (float[1,4,5,5] x, float[6,2,3,3] w, float[6] b) => (float[1,6,3,3] y) { y = Conv <group = 2, strides = [2, 2], auto_pad = \"SAME_LOWER\"> (x, w, b) }", None),
    ("g (float[1,4,3,3] x, float[4,2,2,2] w) => (float[1,4,6,6] y) { y = ConvTranspose <group = 2, strides = [2, 2]> (x, w) }", None),
    ("g (float[2,3,4] x, float[3] s, float[3] b) => (float[2,3,4] y) { y = InstanceNormalization (x, s, b) }", None),
    ("g (float[4,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[4,3] y, float[3] p, float[3] q) { y, p, q = BatchNormalization <training_mode = 1> (x, s, b, m, v) }", None),
    ("g (float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization (x, s) }", None),
    # bodies of schemas
    ("g (float[4,3] x) => (float y) <int64[4] t = {0, 2, 1, 1}> { y = SoftmaxCrossEntropyLoss (x, t) }", None),
    ("g (float[4,3] x) => (uint8[4,3] q, float s, uint8 z) { q, s, z = DynamicQuantizeLinear (x) }", None),
    # indices that differ from row to row
    ("g (float[4,3] x, float[2,3] u) => (float[4,3] y) <int64[2,1] i = {3, 1}> { y = ScatterND (x, i, u) }", None),
    ("g (float[3,4] x, float[2] f) => (float[3,2] y) { r = Sigmoid (f)  i = Cast <to = 7> (r)  y = Gather <axis = 1> (x, i) }", None),
    ("g (float[1,2,4,4] x) => (float[1,2,2,2] y, int64[1,2,2,2] i) { y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }", None),
    ("g (float[2,3] x) => (float[3,2,2] y) { y = Einsum <equation = \"i...,j...\"> (x, x) }", None),
    # nested graphs
    ("""g (float x, float[3] z) => (float[3] y) { o = Constant <value_float = 0.5> ()  c = Greater (x, o)  y = If (c) <
        then_branch = a () => (float[3] p) { p = Neg (z) }, else_branch = b () => (float[3] q) { q = Mul (z, x) }> }""", None),
    ("""g (float[2] x, float[2] s) => (float[2] y, float[4,2] t) <int64 n = {4}, bool c = {1}> { y, t = Loop (n, c, s) <
        body = b (int64 i, bool k, float[2] u) => (bool m, float[2] v, float[2] w) { m = Identity (k)  v = Add (u, x)  w = Exp (u) }> }""", ["x"]),
    ("""g (float[2] s, float[5,2] x) => (float[2] y, float[5,2] t) { y, t = Scan <num_scan_inputs = 1, body = b (float[2] u, float[2] e) => (float[2] v, float[2] w)
        { v = Add (u, e)  w = Tanh (v) }> (s, x) }""", ["x"]),
    # sequences, values without elements, sizes that only a run knows
    ("g (float[3] x, float[3] z) => (float[6] y) { s = SequenceConstruct (x, z)  y = ConcatFromSequence <axis = 0> (s) }", ["x"]),
    ("g (float[0,3] x) => (float[0,3] y, float[3] z) { y = Neg (x)  a = Constant <value_ints = [0]> ()  z = ReduceSum <keepdims = 0> (x, a) }", None),
    ("g (float[6] x, int64[1] k) => (float[K] y, int64[K] i) { n = Abs (k)  z = Constant <value_ints = [2]> ()  m = Mod (n, z)  p = Add (m, z)  y, i = TopK (x, p) }", ["x"]),
    ("g (float[3,4] x, int64[2] s) => (float[P,Q] y) { f = Constant <value_ints = [-1, 2]> ()  o = Mul (s, f)  t = Sub (f, o)  z = Add (t, o)  y = Reshape (x, z) }", ["x"]),
]  # fmt: skip


OLD_AND_RARE = [
    # operands with rows that meet on an axis, one of which broadcasts
    ("g (float[1,3] x, float[4,3] z) => (float[4] y) { y = Einsum <equation = \"...i,...i->...\"> (x, z) }", 20),
    ("g (float[2,1,3,4] q, float[1,1,3,3] m) => (float[2,1,3,4] y) { y = Attention (q, q, q, m) }", 23),
    ("g (float[1,4,3] x) => (float[1,4,3] y) <float[1,4,1] s = {1, 2, 3, 4}> { y = LayerNormalization (x, s) }", 20),
    # nothing is reduced, but the operator does more
    ("g (float x, float[2] z) => (float y, float u, float[2] v) { y = ReduceL2 (x)  u = ReduceSumSquare <keepdims = 0> (x)"
     "  v = ReduceL1 <noop_with_empty_axes = 1> (z) }", 20),
    # types that an operator of a rule does not have
    ("g (float[4,3] x, int64[2] f) => (float[4,2] y) { i = Cast <to = 6> (f)  z = Sub (i, i)  y = Gather <axis = 1> (x, z) }", 20),
    ("g (float[2] v) => (float[3,4] y) <int64[3] i = {0, 3, 7}, int64 d = {4}> { y = OneHot (i, d, v) }", 20),
    ("g (bool[2,3] x) => (bool[2,3] y) { y = Not (x) }", 1),
    ("g (float[1] x, float[1] z) => (float[1] y, float[1] u) { y = Sum (x, z)  u = Max (x, z) } ", 7),
    # samples that the rows must pass
    ("g (float[4,2,3] x, float[1,2,2] h) => (float[4,1,2,2] y, float[1,2,2] n) <float[1,6,3] w = {W}, float[1,6,2] r = {R}> { y, n = GRU <hidden_size = 2> (x, w, r, , , h) }", 20),
    ("g (float[4,2,3] x) => (float[4,2,3] y) <int64[2] l = {3, 2}> { y = ReverseSequence (x, l) }", 20),
    ("g (float[2] x, bool c, bool d) => (float[2] y) { y = If (c) < then_branch = a () => (float[2] p) { p = If (d) <"
     " then_branch = e () => (float[2] r) { r = Exp (x) }, else_branch = f () => (float[2] s) { s = Abs (x) }> },"
     " else_branch = b () => (float[2] q) { q = Neg (x) }> }", 20),
]  # fmt: skip


@pytest.mark.parametrize(("text", "opset"), OLD_AND_RARE)
def test_types_and_sizes_that_a_rule_must_see(text: str, opset: int) -> None:
    for key, size in (("W", 18), ("R", 12)):
        text = text.replace(f"{{{key}}}", f"{{{', '.join(map(str, np.linspace(-1, 1, size)))}}}")
    model = parse(text, opset=opset)
    assert not mapped(model).scanned
    assert not mapped(model, [model.graph.input[0].name]).scanned


def test_rows_that_only_a_refused_rule_counted() -> None:
    """A rule that repeats an operand, and then does not apply, leaves nothing behind that another reads."""
    text = "g (float[1,1,2,3] q, float[2,2] m) => (float[1,1,2,3] y, float[1,1,2,3] z) { y = Attention (q, q, q, m)  z = Exp (q) }"
    assert not mapped(parse(text, opset=23), ["m"]).scanned


EMPTY = [
    "g (float[N] x, float[N,3] w) => (float[N] y, float[3] z) { y = Exp (x)  z = MatMul (x, w) }",
    "g (float[3,N] x) => (float[N,3] y, float[3] s) <int64[1] a = {1}> { y = Transpose (x)  s = ReduceSum <keepdims = 0> (x, a) }",
    "g (float[1,2,N,4] x, float[1,2,1,4] k) => (float[1,2,M,4] y) { y = Concat <axis = 2> (x, k) }",
    "g (float[N,4] x) => (float[N,2,2] y) <int64[3] s = {-1, 2, 2}> { y = Reshape (x, s) }",
    """g (float[2] x, int64[N] i) => (float[2] y, float[T,2] t) <bool c = {1}> { n = Size (i)  y, t = Loop (n, c, x) <body = b (int64 k, bool a, float[2] u)
        => (bool d, float[2] v, float[2] w) { d = Identity (a)  v = Add (u, u)  w = Exp (v) }> }""",
]  # fmt: skip


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("text", EMPTY)
def test_sizes_that_are_0_in_a_run(text: str, opset: int) -> None:
    """The first step of a decoder has no past: a Reshape to the size 0 would copy another size."""
    model = parse(text, opset=opset)
    done = map_inputs(load_own(model), ["x"])
    assert not done.scanned
    for size in (0, 2):
        runs = [feeds_for(model, seed=seed, dims={"N": size}) for seed in range(3)]
        runs = [{**runs[0], "x": each["x"]} for each in runs]
        feeds = {**runs[0], "x": np.stack([each["x"] for each in runs])}
        results = [run(model, each) for each in runs]
        for name, value in run(to_proto(done.program), feeds).items():
            np.testing.assert_allclose(value, np.stack([r[name] for r in results]), rtol=1e-5)


@pytest.mark.parametrize(("text", "names"), DEEPER)
def test_formulas_and_nested_graphs(text: str, names: list[str] | None) -> None:
    assert not mapped(parse(text), names).scanned


SCANS = [
    ("g (float x, float[3] z) => (float[2] y) <int64[2] i = {0, 2}> { o = Constant <value_float = 0.5> ()  c = Greater (x, o)  y = If (c) <"
     " then_branch = a () => (float[2] p) { p = Gather (z, i) }, else_branch = b () => (float[2] q) { e = Constant <value_floats = [1.0, 2.0]> ()"
     "  q = Mul (e, x) }> }", "If"),  # a Gather may fail
    ("g (float[4] x) => (int64[1,1] y) { i = NonZero (x)  y = ReduceMax (i) }", "the size of 'i' may differ from row to row"),
    ("g (float[4,1] x, float[4,1] s) => (float[4,1] y) { y = LayerNormalization (x, s) }", "operand 1 differs"),  # the scale broadcasts
]  # fmt: skip


WHOLE = [
    # the rank of a value, and the number of steps, are known in a run
    "g (float[1,3] x, int64[1] n) => (float[3] y) { t = Tile (x, m)  s = Squeeze (t)  u = Exp (s)  y = Identity (u)  o = Constant <value_ints = [1]> ()  m = Concat <axis = 0> (n, o) }",
    """g (float x) => (float y) <bool c = {1}, float z = {0.0}> { p = Mul (x, z)  o = Constant <value_float = 2.5> ()  q = Add (p, o)  k = Cast <to = 7> (q)
        f, e = Loop (k, c, x) <body = b (int64 i, bool a, u) => (d, v, w) { d = Identity (a)  v = Add (u, u)  w = Exp (u) }> y = ReduceSum <keepdims = 0> (e) }""",
]  # fmt: skip


@pytest.mark.parametrize("text", WHOLE)
def test_a_whole_model_once_per_row(text: str) -> None:
    model = parse(text)
    done = map_inputs(load_own(model), ["x"])
    assert sum(done.scanned.values()) == 1
    rank = len(model.graph.input[0].type.tensor_type.shape.dim)
    last = map_inputs(load_own(model), {"x": rank})
    rows = np.random.default_rng(0).random((3, *feeds_for(model, seed=0)["x"].shape), np.float32)
    feeds = {**feeds_for(model, seed=0), "n": np.ones(1, np.int64)}
    feeds = {n: v for n, v in feeds.items() if n in {i.name for i in model.graph.input}}
    found = run(to_proto(done.program), {**feeds, "x": rows})["y"]
    np.testing.assert_allclose(
        found, [run(model, {**feeds, "x": row})["y"] for row in rows], rtol=1e-6
    )
    behind = run(to_proto(last.program), {**feeds, "x": np.moveaxis(rows, 0, -1)})["y"]
    np.testing.assert_array_equal(behind, found)


def test_a_scan_with_batches() -> None:
    """Scan-8 has an axis for a batch: it is a Scan over each at a newer opset."""
    text = """g (float[1,2] s, float[1,3,2] x) => (float[1,2] y, float[1,3,2] t) { y, t = Scan <num_scan_inputs = 1, body = b (float[2] u, float[2] e)
        => (float[2] v, float[2] w) { v = Add (u, e)  w = Identity (v) }> ("", s, x) }"""
    assert not mapped(parse(text, opset=8)).scanned


DRAWING = [
    ("[d] y, m = Dropout <seed = 3> (x, r, t)  z = Exp (y)", "Dropout: other random numbers"),
    ("[d] n = RandomNormal <shape = [40]> ()  z = Add (x, n)", "the whole model"),
]


@pytest.mark.parametrize(("nodes", "how"), DRAWING)
def test_each_row_draws_its_own_numbers(nodes: str, how: str) -> None:
    model = parse(
        f"g (float[40] x) => (float[40] z) <float r = {{0.5}}, bool t = {{1}}> {{ {nodes} }}"
    )
    done = vmap(model, VmapOptions(), Hooks())  # proved with the same draws in every row
    assert any(how in reason for reason in done.opened.scanned)
    assert done.report.ok and "same draws" in " ".join(done.report.notes)
    rows = run(to_proto(done.program), {"x": np.ones((3, 40), np.float32)})["z"]
    assert not (rows[0] == rows[1]).all() and not (rows[1] == rows[2]).all()


@pytest.mark.parametrize(("text", "reason"), SCANS)
def test_once_per_row(text: str, reason: str) -> None:
    done = mapped(parse(text))
    (why,) = done.scanned
    assert reason in why
    assert not done.warnings


# values whose sizes differ from row to row, on the way to results whose sizes do not
LOOP = """y0 = Constant <value_int = 9> () on = Constant <value = bool {1}> () h, s = Loop (y0, on, x) <body = b (int64 i, bool ci, float[2] st) => (bool co, float[2] so, float[2] yo)
    { k = Constant <value_float = 1.5> () so = Mul (st, k) q = ReduceSum <keepdims = 0> (so) l = Constant <value_float = 4.0> () co = Less (q, l) yo = Sin (so) }>"""
RAGGED = {
    "Expand": ("float[1] x, int64[1] n", "e = Expand (x, n) y = CumSum (e, zero) r = ReduceSum <keepdims = 0> (y)"),
    "NonZero": ("float[4] x", "i = NonZero (x) t = Transpose (i) y = GatherND (x, t) r = ReduceMean <keepdims = 0> (y)"),
    "Unique": ("float[4] x", "y = Unique (x) r = ReduceMean <keepdims = 0> (y)"),
    "Compress": ("float[4] x", "c = Cast <to = 9> (x) y = Compress <axis = 0> (x, c) r = ReduceMax <keepdims = 0> (y)"),
    "Range": ("float x, int64[1] n", "k = Squeeze (n) i = Range (zero, k, one) c = Cast <to = 1> (i) y = Mul (c, x) r = ReduceSum <keepdims = 0> (y)"),
    "Slice": ("float[4] x, int64[1] n", "y = Slice (x, first, n) r = ReduceSum <keepdims = 0> (y)"),
    "Loop": ("float[2] x", LOOP + " y = Exp (s) r = ReduceSum <keepdims = 0> (y)"),
}  # fmt: skip
ROWS_OF = {"float x": [1, 2, 3], "float[1] x": [[1], [2], [3]], "float[2] x": [[1, 1], [3, 3], [0.1, 0.1]],
           "float[4] x": [[1, 0, 0, 1], [0, 0, 0, 5], [1, 2, 3, 4]]}  # fmt: skip


def _ragged(name: str) -> onnx.ModelProto:
    inputs, nodes = RAGGED[name]
    return parse(
        f"g ({inputs}) => (float r) <int64 zero = {{0}}, int64 one = {{1}}, int64[1] first = {{0}}> {{ {nodes} }}"
    )


@pytest.mark.parametrize("name", RAGGED)
@pytest.mark.parametrize("derived", [False, True])
def test_rows_that_differ_in_size(name: str, derived: bool) -> None:
    """The whole model runs once per row: an operator alone could not stack its results."""
    model = _ragged(name)
    x = np.float32(ROWS_OF[RAGGED[name][0].split(", ")[0]])
    feeds = {"x": x, "n": np.int64([[1], [2], [3]])}
    feeds = {v.name: feeds[v.name] for v in model.graph.input}
    model = onnxgrad.gradient(model, "x", "r") if derived else model
    made = to_proto(map_inputs(load_own(model)).program)
    rows = [run(model, {k: v[i] for k, v in feeds.items()}) for i in range(3)]
    for result, value in run(made, feeds).items():
        np.testing.assert_allclose(value, np.stack([row[result] for row in rows]), rtol=1e-5)


@pytest.mark.parametrize("name", RAGGED)
def test_a_result_that_differs_in_size_is_refused(name: str) -> None:
    model = _ragged(name)
    model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="y"))
    model.graph.output[0].type.tensor_type.elem_type = 1
    with pytest.raises(InputError, match="the size of output 'y' may differ from row to row"):
        map_inputs(load_own(model))


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("text", [MAPPED[1], MAPPED[2], MAPPED[3], MAPPED[5]])
def test_no_rows_and_one_row(text: str, rows: int) -> None:
    model = parse(text)
    done = map_inputs(load_own(model))
    one = feeds_for(model, seed=0)
    found = run(to_proto(done.program), {n: np.repeat(v[None], rows, 0) for n, v in one.items()})
    for name, value in run(model, one).items():
        np.testing.assert_allclose(found[name], np.repeat(value[None], rows, 0), rtol=1e-5)


def test_places_and_weights() -> None:
    text = "g (float[2,3] x, float[2] z) => (float[2,4] y) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, int64[1] a = {1}> { p = MatMul (x, w)  q = Unsqueeze (z, a)  y = Add (p, q) }"
    model = parse(text)
    assert onnxgrad.vmap(model, {"x": 0}) == onnxgrad.vmap(model, "x")
    made = onnxgrad.vmap(model, {"x": 2, "w": 1, "z": None})
    shapes = {v.name: str(v.type) for v in load_own(made).main.inputs if not v.initializer}
    assert shapes == {"x": "f32[2,3,rows]", "z": "f32[rows,2]", "w": "f32[3,rows,4]"}
    weights = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    feeds = {"x": np.ones((2, 3, 2), np.float32), "z": np.zeros((2, 2), np.float32), "w": weights}
    np.testing.assert_allclose(run(made, feeds)["y"][1], np.ones((2, 3)) @ weights[:, 1])
    with pytest.raises(InputError, match=r"input 'x' f32\[2,3\] can have no new axis 3"):
        onnxgrad.vmap(model, {"x": 3})


def test_a_model_of_another_domain() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["ai.onnx.ml" : 3]>
        g (float[2,3] x) => (float[2,3] y) { y = ai.onnx.ml.Normalizer <norm = "L2"> (x) }""")
    assert not mapped(model).scanned


@pytest.mark.slow
def test_the_backend_suite() -> None:
    from scripts.bench_vmap import counted

    counts, reasons = counted()
    assert not counts["wrong"], reasons["wrong"]
    assert counts["rule"] >= 1280 and counts["refused"] <= 50
    # the scales of a Resize, for instance, decide the size of each row's result
    assert all("may differ from row to row" in reason for reason in reasons["refused"])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("names", [["x"], ["w"], None])
def test_axes_and_chosen_inputs(axis: int, names: list[str] | None) -> None:
    done = mapped(parse(MAPPED[0]), names, axis)
    assert not done.scanned and done.own


def test_the_interface() -> None:
    done = mapped(parse(MAPPED[-1]))
    assert [str(v.type) for v in done.program.main.outputs] == ["f32[rows,3]", "f32[rows,2]"]
    assert done.notes == ("output 'c' does not depend on the inputs that are mapped, and repeats",)
    model = onnxgrad.vmap(parse(MAPPED[0]), "x", symbol="n")
    assert [d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim] == ["n", "", ""]


@pytest.mark.parametrize(
    ("text", "names", "axis", "reason"),
    [
        (MAPPED[0], ["q"], 0, "'q' is not an input"),
        (MAPPED[1], ["x"], 1, "input 'x' f32\\[\\] can have no new axis 1"),
        ("g (float[] x, float[2] z) => (float[2] y) { s = ReduceSum <keepdims = 0> (x)  y = Add (z, s) }", None, 0, "input 'x' f32.* has no known rank.*declare the shape in the file, or map other inputs"),
        ("g (float[3] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }", ["x"], 1, "output 'y': it has no axis 1"),
        (MAPPED[0].replace("2,3]", "rows,3]").replace("2,4]", "rows,4]"), ["x"], 0, "the size 'rows' exists already"),
        ("g (float[3] x) => (seq(float[3]) y) { r = RandomNormal <shape = [3]> ()  z = Add (x, r)  y = SequenceConstruct (z) }", None, 0, "RandomNormal.*random numbers"),
        ("g (float[3] x, float[2] z) => (float[3] y, float[2] z) { y = Neg (x) }", ["x"], 0, "output 'z' is an input that is not mapped"),
        ("g (float[3] x) => (float[3] y) { y = Neg (x) }", ["x", "x"], 0, "input 'x' is named twice"),
    ],
)  # fmt: skip
def test_refused(text: str, names: list[str] | None, axis: int, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        map_inputs(load_own(parse(text)), names, axis=axis)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("x,x", "--map names 'x' twice"),
        ("x=0,x=1", "--map names 'x' twice"),
        ("x=1,x", "--map names 'x' twice"),
        ("", "--map is empty"),
        (",", "--map is empty"),
        ("x=2", "no new axis 2"),
        ("x=a", "'x=a' is not an input"),
    ],
)
def test_the_command_refuses(
    words: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(parse("g (float[3] x) => (float[3] y) { y = Neg (x) }"), model)
    assert main(["vmap", str(model), "--map", words, "-o", str(out)]) == 2
    assert reason in capsys.readouterr().err and not out.exists()


def test_the_command(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = f"{tmp_path}/m.onnx", f"{tmp_path}/o.onnx"
    onnx.save(parse(MAPPED[2]), model)
    assert main(["vmap", model, "--map", "x", "-o", out]) == 0
    printed = capsys.readouterr().out
    assert "input x: f32[rows,2,3,5,5]" in printed and "output y: f32[rows,2,4,3,3]" in printed
    assert "independence" in printed
    onnx.save(parse("g (float[3] x) => (float[3] y) { z = Sub (x, x)  y = Exp (z) }"), model)
    assert main(["vmap", model, "-o", out]) == 1
    assert "every row has the same y" in capsys.readouterr().err


@pytest.mark.parametrize("sets", [1, 2])
def test_the_proof_accepts_rows_of_the_caller(sets: int) -> None:
    model = parse("g (float[3] x, float[3] c) => (float[3] y) { y = Mul (x, c) }")
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = [{"x": rows + i, "c": rows[1]} for i in range(sets)]
    report = vmap(model, VmapOptions(inputs="x", feeds=given), Hooks()).report
    assert report is not None and report.ok


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_a_transposed_convolution_with_dilations_and_weights_per_row(spatial: int) -> None:
    image, kernel, out = ("".join(f",{n}" for _ in range(spatial)) for n in (4, 2, 6))
    model = parse(
        f"g (float[2,4{image}] x, float[4,1{kernel}] w) => (float[2,4{out}] y) "
        f"{{ y = ConvTranspose <group = 4, dilations = {[2] * spatial}> (x, w) }}"
    )
    report = vmap(model, VmapOptions(inputs="w"), Hooks()).report
    assert report is not None and report.ok


def test_python_warns_of_rows_that_run_one_after_the_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    onnxgrad.vmap(parse("g (float[3] x) => (float[3] y) { y = Relu (x) }"), "x")
    assert not caplog.records
    ragged = """g (float[3] x) => (float y) {
        r = Relu (x) n = NonZero (r) f = Cast <to = 1> (n) y = ReduceSum <keepdims = 0> (f) }"""
    onnxgrad.vmap(parse(ragged), "x")
    (record,) = caplog.records
    assert (
        record.levelname == "WARNING"
        and "once per row, in a Scan: the whole model: NonZero" in record.message
    )


def test_names_of_inputs_separated_by_commas() -> None:
    model = parse("g (float[3] x, float[3] n) => (float[3] y) { y = Mul (x, n) }")
    assert onnxgrad.vmap(model, "x,n") == onnxgrad.vmap(model, ["x", "n"])
    comma = parse("g (float[3] x, float[3] n) => (float[3] y) { y = Mul (x, n) }")
    comma.graph.input[0].name = comma.graph.node[0].input[0] = "x,n"
    assert (
        onnxgrad.vmap(comma, "x,n").graph.input[1].type == comma.graph.input[1].type
    )  # the name itself


@pytest.mark.filterwarnings("ignore:no requested value reaches")
@pytest.mark.parametrize(
    "nodes", ["z = Floor(x)", "z = Sign(x)", "o = Constant<value_float = 2.0>() z = Mul(x, o)"]
)
def test_derivatives_that_depend_on_no_value(nodes: str) -> None:
    """Their rows are equal wherever they are, so equal rows prove no less."""
    model = parse(
        f"g (float[3] x) => (float y) {{ {nodes} y = ReduceSum<keepdims = 0>(z) }}", opset=21
    )
    zero = onnxgrad.edit(onnxgrad.gradient(model, "x", "y"), drop_output="y", verify=False)
    made = onnxgrad.vmap(zero, "x")
    found = run(made, {v.name: np.ones((4, 3), np.float32) for v in made.graph.input})["x_grad"]
    assert found.tolist() == [[2.0 if "Mul" in nodes else 0.0] * 3] * 4


def test_rows_that_are_equal_by_chance_are_not_proved() -> None:
    model = parse(
        "g (float[3] x) => (float[3] y) { h = Tanh(x) y = Floor(h) z = Sub(y, y) }", opset=21
    )
    model.graph.output[0].name = "z"
    with pytest.raises(NotProved, match="every row has the same z"):
        onnxgrad.vmap(model, "x")


def test_a_loop_without_turns() -> None:
    model = parse(
        """g (float[3] x) => (float[3] y, float[T,3] s) {
      n = Constant<value_int = 0>() c = Constant<value = bool {1}>()
      y, s = Loop(n, c, x) <body = b (int64 i, bool k, float[3] h) => (bool kk, float[3] hh, float[3] o) {
        kk = Identity(k) hh = Tanh(h) o = Mul(hh, h) }> }""",
        opset=21,
    )
    made = onnxgrad.vmap(model, "x", allow_same="s")
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    found = run(made, {"x": x})
    assert np.array_equal(found["y"], x) and found["s"].shape == (4, 0, 3)
