"""simplify-sizes, and what becomes of exported size arithmetic with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.rewriting import Done, apply, bits

CONSTANTS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, int64[1] open = {-1},
  int64 first = {0}, int64 second = {1}, int64[3] minus = {-1, -1, -1}, int64[3] ones = {1, 1, 1}"""
PASSES = "remove-noops,fold-constant,simplify-sizes,merge-equal,merge-consecutive"


def done(body: str, inputs: str, result: str, passes: str = PASSES, *, opset: int = 18) -> Done:
    text = f"g ({inputs}) => ({result}) <{CONSTANTS}> {{ {body} }}"
    return apply(parse(text, opset=opset), f"{passes},{passes},remove-unused")


@pytest.mark.parametrize(
    ("body", "inputs", "result", "left"),
    [
        ("q = Relu(x) y = Shape(q)", "float[N] x", "int64[1] y", ["Shape"]),
        ("q = Relu(x) r = Softmax(q) s = Shape(r) y = Neg(s)", "float[?,?] x", "int64[2] y", ["Shape", "Neg"]),
        ("q = Add(x, x) s = Shape(q) y = Neg(s)", "float[N,4] x", "int64[2] y", ["Shape", "Neg"]),
        ("q = MatMul(x, z) y = Shape(q)", "float[N,M] x, float[M,4] z", "int64[2] y", ["MatMul", "Shape"]),
        # an output of known size
        ("q = Relu(x) y = Shape(q)", "float[4,2] x", "int64[2] y", []),
        ("q = Relu(x) s = Shape(q) y = ReduceProd<keepdims = 0>(s)", "float[4,2] x", "int64 y", []),
        # sizes of an input, however they are computed
        ("q = Transpose<perm = [1, 0]>(x) s = Shape(q) y = Gather(s, second)", "float[N,M] x", "int64 y", ["Shape", "Gather"]),
        ("q = Transpose<perm = [1, 0]>(x) s = Shape(q) a = Gather(s, one) y = Concat<axis = 0>(a, four)", "float[N,M] x", "int64[2] y", ["Shape", "Concat"]),
        ("s = Shape(x) a = Gather(s, first) b = Gather(s, second) c = Unsqueeze(a, zero) d = Unsqueeze(b, zero) y = Concat<axis = 0>(c, d)", "float[N,M] x", "int64[2] y", ["Shape"]),
        ("q = Relu(x) s = Shape(q) a = Gather(s, zero) b = Slice(s, zero, one) c = Concat<axis = 0>(a, four) d = Concat<axis = 0>(b, four) y = Add(c, d)", "float[N,M] x", "int64[2] y", ["Shape", "Concat", "Add"]),
    ],
)  # fmt: skip
def test_sizes_come_from_the_inputs(body: str, inputs: str, result: str, left: list[str]) -> None:
    found = done(body, inputs, result)
    assert found.ops == left
    found.prove()


@pytest.mark.parametrize(
    ("body", "inputs", "result", "left"),
    [
        # an element of a Shape that stays costs nothing
        ("q = MatMul(x, z) s = Shape(q) a = Gather(s, first) b = Unsqueeze(a, zero) y = Concat<axis = 0>(s, b)", "float[N,M] x, float[M,K] z", "int64[3] y", ["MatMul", "Shape", "Shape", "Concat"]),
        # two names, two sizes
        ("a = Shape(x) b = Shape(z) y = Concat<axis = 0>(a, b)", "float[N] x, float[M] z", "int64[2] y", ["Shape", "Shape", "Concat"]),
        ("a = Shape(x) b = Shape(z) y = Concat<axis = 0>(a, b)", "float[?] x, float[?] z", "int64[2] y", ["Shape", "Shape", "Concat"]),
        # another dtype, another rank
        ("a = Shape(x) b = Cast<to = 6>(a) c = Cast<to = 1>(b) y = Cast<to = 7>(c)", "float[N] x", "int64[1] y", ["Shape", "Cast", "Cast", "Cast"]),
        # both are outputs
        ("y = Shape(x) q = Relu(x) z = Shape(q)", "float[N] x", "int64[1] y, int64[1] z", ["Shape", "Shape"]),
        # not the size of what it reads
        ("q = NonZero(x) y = Shape(q)", "float[N] x", "int64[2] y", ["NonZero", "Shape"]),
        ("q, r = TopK(x, two) y = Shape(r)", "float[N] x", "int64[1] y", []),
    ],
)  # fmt: skip
def test_what_stays(body: str, inputs: str, result: str, left: Sequence[str]) -> None:
    found = done(body, inputs, result)
    assert sorted(found.ops) == sorted(left)
    found.prove()


@pytest.mark.parametrize(
    ("body", "source"),
    [
        ("r = Neg(q) t = Shape(q)", "q"),
        ("r = Neg(q) u = Abs(r) t = Shape(u)", "r"),  # an output; nothing else reads u
        ("r = Neg(q) v = Abs(q) t = Shape(r) w = Exp(r) a = Add(v, w) o = ReduceSum(a)", "q"),
        ("v = Abs(p) r = Neg(q) t = Shape(r) w = Exp(r) a = Add(v, w) o = ReduceSum(a)", "p"),
        ("r = Neg(q) t = Shape(r) w = Exp(r) o = ReduceSum(w)", "r"),
    ],
)
def test_shape_reads_no_value_between_two_that_fuse(body: str, source: str) -> None:
    """It would be a second reader of p = MatMul(x, z), which onnxruntime fuses with a sole one."""
    outputs = "float o, int64[2] y" if "o =" in body else "float[N,4] r, int64[2] y"
    text = f"p = MatMul(x, z) q = Relu(p) {body} y = Neg(t)"
    found = done(text, "float[N,M] x, float[M,4] z", outputs)
    (shape,) = [b for b in found.program.main.bindings if b.op == "Shape"]
    assert shape.inputs[0] is not None and shape.inputs[0].name == source
    found.prove()


def test_below_opset_15_a_part_of_a_shape_has_no_operator() -> None:
    body = "q = Relu(x) s = Shape(q) a = Gather(s, zero) y = Concat<axis = 0>(a, four)"
    assert done(body, "float[N,M] x", "int64[2] y", opset=14).ops == ["Shape", "Gather", "Concat"]


def test_below_opset_9_no_constant_holds_sizes() -> None:
    assert done("q = Relu(x) y = Shape(q)", "float[4,2] x", "int64[2] y", opset=8).ops == ["Shape"]


EXPAND = """s = Shape(x) b = Gather(s, zero) t = Gather(s, one) c = Concat<axis = 0>(b, t, four)
  e = Equal(c, minus) w = Where(e, ones, c) y = Expand(z, w)"""


def test_expand_as_exporters_write_it() -> None:
    """Where(Equal(sizes, -1), 1, sizes) = sizes, for no size is -1; here they are a whole Shape."""
    found = done(EXPAND, "float[B,S,4] x, float[B,1,4] z", "float[B,S,4] y")
    assert found.ops == ["Shape", "Expand"]
    found.prove()
    given = done(EXPAND, "int64[3] x, float[1,1,4] z", "float[B,S,4] y".replace("B,S", "1,1"))
    assert "Expand" in given.ops
    open_ = EXPAND.replace(
        "s = Shape(x) b = Gather(s, zero) t = Gather(s, one)", "b = Identity(x) t = Identity(x)"
    )
    stays = done(open_, "int64[1] x, float[1,1,4] z", "float[B,S,4] y")  # a caller may give -1
    assert {"Equal", "Where"} <= set(stays.ops)


@pytest.mark.parametrize(
    ("body", "inputs", "result"),
    [
        ("s = Shape(x) a = Gather(s, zero) b = Gather(s, one) t = Concat<axis = 0>(a, b, four) y = Expand(x, t)", "float[B,S,4] x", "float[B,S,4] y"),
        ("s = Shape<start = 2>(x) y = Slice(x, zero, s, two)", "float[B,S,L] x", "float[B,S,L] y"),
        ("s = Shape(x) y = Reshape(x, s)", "float[B,S,L] x", "float[B,S,L] y"),
        ("a = Shape<end = 2>(x) t = Concat<axis = 0>(a, open) y = Reshape(x, t)", "float[B,S,L] x", "float[B,S,L] y"),
    ],
)  # fmt: skip
def test_what_changes_nothing_at_any_size(body: str, inputs: str, result: str) -> None:
    found = done(
        f"q = Relu(x) {body.replace('(x', '(q')} r = Neg(y)", inputs, result.replace("y", "r")
    )
    assert [o for o in found.ops if o != "Shape"] == ["Relu", "Neg"]
    found.prove()


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ("a = Gather(s, zero) t = Concat<axis = 0>(a, open)", [0, -1]),
        ("a = Gather(s, zero) b = Gather(s, one) t = Concat<axis = 0>(a, b, two, four)", [0, 0, 2, 4]),
        ("a = Gather(s, zero) b = Gather(s, one) t = Concat<axis = 0>(a, b, open, four)", [0, 0, 2, 4]),
        ("a = Gather(s, zero) b = Gather(s, one) c = Mul(a, b) e = Add(four, four) t = Concat<axis = 0>(c, e)", [-1, 8]),
        ("a = Gather(s, zero) b = Gather(s, one) c = Mul(b, four) d = Mul(c, two) t = Concat<axis = 0>(a, d)", None),  # -1 would fail where B is 0
        ("a = Gather(s, zero) b = Gather(s, one) t = Concat<axis = 0>(b, a, open)", None),
    ],
)  # fmt: skip
def test_reshape_copies_what_stays(body: str, target: list[int] | None) -> None:
    text = f"s = Shape(x) {body} y = Reshape(x, t)"
    found = done(text, "float[B,S,8] x", "float[A] y".replace("[A]", ""))
    reshape = next(b for b in found.program.main.bindings if b.op == "Reshape")
    assert reshape.inputs[1] is not None
    assert reshape.inputs[1].ints == (None if target is None else tuple(target))
    for sizes in ((2, 3), (1, 1), (0, 3), (2, 0)):
        given = {"x": np.arange(np.prod(sizes) * 8, dtype=np.float32).reshape(*sizes, 8)}
        try:
            expected = bits(found.before, given)
        except RunFailed:
            assert 0 in sizes
            continue
        assert bits(found.after, given) == expected


def test_an_open_size_beside_zeros_that_mean_zero_stays() -> None:
    """onnxruntime runs -1 beside a 0 with allowzero; no constant target does the same."""
    body = """s = Shape(x) a = Gather(s, zero) t = Concat<axis = 0>(a, open, two)
      y = Reshape<allowzero = 1>(x, t)"""
    found = done(body, "float[B,S,8] x", "float y")
    found.before.graph.output[0].type.tensor_type.ClearField("shape")
    found.after.graph.output[0].type.tensor_type.ClearField("shape")
    for sizes in ((2, 3), (1, 1), (0, 3), (2, 0)):
        given = {"x": np.arange(np.prod(sizes) * 8, dtype=np.float32).reshape(*sizes, 8)}
        assert bits(found.after, given) == bits(found.before, given)


def test_a_size_in_a_branch_reads_the_input_outside() -> None:
    body = """y = If (c) <then_branch = t () => (int64[1] p) { q = Relu(x) s = Shape(q) p = Gather(s, zero) },
      else_branch = e () => (int64[1] r) { r = Identity(one) }>"""
    found = done(body, "bool c, float[N,M] x", "int64[1] y")
    then = next(b for b in found.block.bindings if b.op == "If").blocks["then_branch"]
    assert [b.op for b in then.bindings] == ["Shape"]
    found.prove()


LYING = """g (float[B,S,8] x) => (float[2,6,8] y) <int64[2] split = {2,4}, int64[1] eight = {8}, float[2,6,2,4] less> {
  flat = Flatten <axis = 2> (x)  at = Shape <start = 0, end = 2> (x)  same = Concat <axis = 0> (at, eight)
  rows = Reshape (flat, same)  sizes = Concat <axis = 0> (at, split)  halves = Reshape (rows, sizes)
  less = Neg (halves)  y = Reshape (less, same) }"""


def test_numbers_declared_for_open_sizes_become_the_sizes() -> None:
    """TorchScript declares the sizes of its trace; onnxruntime fuses the Reshapes by them."""
    found = apply(parse(LYING, opset=18), f"{PASSES},{PASSES},remove-unused")
    graph = found.after.graph
    shapes = [
        [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*graph.output, *graph.value_info)
        if v.name in ("y", "less")
    ]
    assert shapes == [["B", "S", 8], ["B", "S", 2, 4]] and "Concat" not in found.ops
    for sizes in ((2, 6), (3, 1), (1, 4)):
        given = {"x": np.arange(np.prod(sizes) * 8, dtype=np.float32).reshape(*sizes, 8)}
        expected = run(found.before, given, optimize=False)["y"]
        assert np.array_equal(run(found.after, given)["y"], expected)
    assert not apply(found.after, PASSES).trace.rewrites


@pytest.mark.parametrize(
    "text",
    [
        "g (float[N] x) => (float[6] y) { y = Neg(x) }",  # nothing to rewrite: as it was read
        """g (float[B] x, bool[B] c) => (int64[1,2] y, float[3] z) {
          twice = Identity (x)  y = NonZero (twice)  z = Compress (x, c) }""",
    ],
)
def test_a_declared_number_stays_unless_its_size_is_known_and_the_graph_changed(text: str) -> None:
    model = parse(text)
    assert list(apply(model, PASSES).after.graph.output) == list(model.graph.output)


@pytest.mark.parametrize("name", ["N + M", "2*N", "N + 4"])
def test_a_size_that_is_named_like_a_formula_is_a_symbol(name: str) -> None:
    """onnx gives such a name no meaning: 3 was read from an input where 3 + 4 was computed."""
    model = parse("""g (float[N] a, float[M] b, float[K] x, float[K] z) => (int64[1] y, int64[1] w) <int64[1] two = {2}> {
        s = Shape (a) t = Shape (b) u = Shape (x) v = Shape (z) p = Add (s, t) q = Mul (s, two)
        y = Concat <axis = 0> (p, q, u) w = Sub (u, v) }""")
    for value in model.graph.input[2:]:
        value.type.tensor_type.shape.dim[0].dim_param = name
    made = apply(model, PASSES).after
    feeds = {n: np.zeros(size, np.float32) for n, size in (("a", 3), ("b", 4), ("x", 5), ("z", 5))}
    assert run(model, feeds)["y"].tolist() == run(made, feeds)["y"].tolist() == [7, 6, 5]
    # inputs with the same name have the same size
    assert [n.op_type for n in made.graph.node].count("Shape") == 3
