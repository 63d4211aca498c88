"""Decisions about windows: true claims are exact, and no wrong claim is, at tolerance 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, load, numpy_helper, parser

from onnxgrad import optimize
from onnxgrad.verify.exact.decide import decide
from onnxgrad.verify.exact.sizes import plans
from onnxgrad.verify.exact.window import Premise, Window
from tests.helpers import ROOT

HEAD = '<ir_version: 8, opset_import: ["": %d]> g (%s) => (%s) '
X = "float[N,4] x"
Y = "float[N,4] y"


def window(
    old: str, new: str, inputs: str = X, outputs: str = Y, opset: int = 18, **more: Any
) -> Window:
    head = HEAD % (opset, inputs, outputs)
    sides = [parser.parse_model(head + text) for text in (old, new)]
    claims = tuple((o.name, o.name) for o in sides[0].graph.output)
    return Window(sides[0], sides[1], claims, **more)


# laws: (old, new, other arguments)
TRUE: list[tuple[str, str, dict[str, Any]]] = [
    ("{ y = Add(x, x) }", "<float[1] c = {2}> { y = Mul(x, c) }", {}),
    ("{ a = Transpose(x) b = Exp(a) y = Transpose(b) }", "{ y = Exp(x) }", {}),
    ("{ y = Softmax<axis = 0>(x) }",
     "{ a = Transpose(x) b = Softmax<axis = 1>(a) y = Transpose(b) }", {}),
    ("{ a = Relu(x) y = Relu(a) }", "{ y = Relu(x) }", {}),
    ("<float[1] c = {2}> { a = Relu(x) y = Mul(a, c) }",
     "<float[1] c = {2}> { a = Mul(x, c) y = Relu(a) }", {}),
    ("<float[1] o = {1}> { n = Neg(x) e = Exp(n) f = Add(e, o) y = Div(x, f) }",
     "{ s = Sigmoid(x) y = Mul(x, s) }", {}),
    ("{ a = Cast<to = 11>(x) y = Cast<to = 1>(a) }", "{ y = Identity(x) }", {}),
    ("{ a = Cast<to = 10>(x) b = Cast<to = 1>(a) c = Cast<to = 10>(b) y = Cast<to = 1>(c) }",
     "{ a = Cast<to = 10>(x) y = Cast<to = 1>(a) }", {}),
    ("{ y = Mul(i, i) }", "{ a = Neg(i) y = Mul(a, a) }",
     {"inputs": "int32[N] i", "outputs": "int32[N] y"}),
    ("{ c = And(a, b) y = Not(c) }", "{ c = Not(a) d = Not(b) y = Or(c, d) }",
     {"inputs": "bool[N] a, bool[N] b", "outputs": "bool[N] y"}),
    ("{ c = Less(x, z) y = Where(c, x, z) }", "{ c = Greater(z, x) y = Where(c, x, z) }",
     {"inputs": X + ", float[N,4] z"}),
    ("{ y = Max(x, z) }", "{ y = Max(z, x) }", {"inputs": X + ", float[N,4] z"}),
    ("{ p = MatMul(x, a) q = MatMul(x, b) y = Concat<axis = 1>(p, q) }",
     "{ w = Concat<axis = 1>(a, b) y = MatMul(x, w) }",
     {"inputs": X + ", float[4,2] a, float[4,2] b"}),
    ("{ y = Add(x, z) }", "{ s = Shape(x) e = Expand(z, s) y = Add(x, e) }",
     {"inputs": X + ", float[1,4] z"}),
    ("<float h = {1}, float l = {-1}> { a = Tanh(x) y = Clip(a, l, h) }", "{ y = Tanh(x) }", {}),
    ("{ a = Exp(x) y = Relu(a) }", "{ y = Exp(x) }", {}),
    ("{ a = Exp(x) b = Cast<to = 11>(a) c = Cast<to = 1>(b) y = Add(c, c) }",
     "{ a = Exp(x) y = Add(a, a) }", {}),
    ("{ y = Abs(x) }", "{ y = Identity(x) }",
     {"premises": (Premise("positive", "x"),)}),
    ("{ y = Add(x, z) }", "{ y = Add(z, x) }",
     {"inputs": X + ", float[M,4] z", "premises": (Premise("equal sizes", "x", "z"),)}),
    ("{ y = Mul(x, m) }", "{ y = Identity(x) }",
     {"inputs": X + ", float[N,4] m", "premises": (Premise("ones", "m"),)}),
    # a value that a narrower dtype holds is not rounded again
    ("{ a = Cast<to = 10>(x) b = Cast<to = 1>(a) n = Neg(b) c = Cast<to = 10>(n) y = Cast<to = 1>(c) }",
     "{ a = Cast<to = 10>(x) b = Cast<to = 1>(a) y = Neg(b) }", {}),
    ("<float z = {0}> { b = Cast<to = 1>(x) n = Max(b, z) c = Cast<to = 10>(n) y = Cast<to = 1>(c) }",
     "<float z = {0}> { b = Cast<to = 1>(x) y = Max(b, z) }", {"inputs": "float16[N,4] x"}),
    ("{ y = Cast<to = 10>(x) }",
     "{ a = Transpose(x) b = Cast<to = 10>(a) y = Transpose(b) }", {"outputs": "float16[N,4] y"}),
    ("<float h = {0.5}> { a = Cast<to = 10>(h) b = Cast<to = 1>(a) y = Mul(x, b) }",
     "<float h = {0.5}> { y = Mul(x, h) }", {}),
    ("{ a = Cast<to = 1>(i) b = Cast<to = 10>(a) y = Cast<to = 1>(b) }", "{ y = Cast<to = 1>(i) }",
     {"inputs": "int8[N] i", "outputs": "float[N] y"}),
    ("{ i = Cast<to = 3>(x) a = Cast<to = 1>(i) y = Cast<to = 3>(a) }", "{ y = Cast<to = 3>(x) }",
     {"outputs": "int8[N,4] y"}),
    # products of integers wrap
    ("{ y = Einsum<equation = \"ij,jk\">(i, j) }", "{ y = MatMul(i, j) }",
     {"inputs": "int64[N,4] i, int64[4,5] j", "outputs": "int64[N,5] y"}),
    ("{ y = Gemm<transB = 1>(i, j) }", "{ t = Transpose(j) y = MatMul(i, t) }",
     {"inputs": "int32[N,4] i, int32[5,4] j", "outputs": "int32[N,5] y"}),
]  # fmt: skip

# wrong claims: (old, new, other arguments, what may be said)
WRONG: list[tuple[str, str, dict[str, Any], str]] = [
    ("{ y = Identity(x) }", "<float[1] c = {4.656612873077392578125e-10}> { y = Mul(x, c) }", {}, "refuted"),
    ("{ y = Identity(x) }", "<float[1] c = {2147483648}> { y = Mul(x, c) }", {}, "refuted"),
    ("<float[1] c = {0.10000000149011612}> { y = Mul(x, c) }",
     "<float[1] c = {0.10000000894069672}> { y = Mul(x, c) }", {}, "refuted"),
    ("<float[1] c = {-2}> { a = Relu(x) y = Mul(a, c) }",
     "<float[1] c = {-2}> { a = Mul(x, c) y = Relu(a) }", {}, "refuted"),
    ("{ y = Relu(x) }", "<float l = {0}, float h = {6}> { y = Clip(x, l, h) }", {}, "refuted"),
    ("{ y = Sub(x, z) }", "{ y = Sub(z, x) }", {"inputs": X + ", float[N,4] z"}, "refuted"),
    ("{ y = Transpose<perm = [0, 1]>(x) }", "{ y = Transpose<perm = [1, 0]>(x) }",
     {"inputs": "float[4,4] x", "outputs": "float[4,4] y"}, "refuted"),
    ("{ y = Transpose(x) }", "<int64[2] s = {3, 2}> { y = Reshape(x, s) }",
     {"inputs": "float[2,3] x", "outputs": "float[3,2] y"}, "refuted"),
    ("<int64[2] i = {0, 2}> { y = Gather<axis = 1>(x, i) }",
     "<int64[2] i = {1, 2}> { y = Gather<axis = 1>(x, i) }", {"outputs": "float[N,2] y"}, "refuted"),
    ("{ y = Softmax<axis = 0>(x) }", "{ y = Softmax<axis = 1>(x) }", {}, "sampled"),
    ("{ y = Exp(x) }", "{ y = Erf(x) }", {}, "sampled"),
    ("{ a = Cast<to = 10>(x) y = Cast<to = 1>(a) }", "{ y = Identity(x) }", {}, "sampled"),
    ("{ a = Cast<to = 16>(x) y = Cast<to = 1>(a) }", "{ a = Cast<to = 10>(x) y = Cast<to = 1>(a) }", {}, "sampled"),
    ("{ a = Cast<to = 7>(x) y = Cast<to = 1>(a) }", "{ y = Identity(x) }", {}, "refuted"),
    ("{ y = Add(x, x) }", "{ a = Cast<to = 10>(x) b = Add(a, a) y = Cast<to = 1>(b) }", {}, "sampled"),
    ("<int64[1] c = {7}> { y = Mod(i, c) }", "{ y = Identity(i) }",
     {"inputs": "int64[N] i", "outputs": "int64[N] y"}, "refuted"),
    ("<int64[1] c = {4096}> { y = Mod(i, c) }", "<int64[1] c = {8192}> { y = Mod(i, c) }",
     {"inputs": "int64[N] i", "outputs": "int64[N] y"}, "refuted"),
    ("<int8[1] c = {100}> { y = Max(i, c) }", "<int8[1] c = {127}> { y = Max(i, c) }",
     {"inputs": "int8[N] i", "outputs": "int8[N] y"}, "refuted"),
    ("{ y = Round(x) }", "{ y = Floor(x) }", {}, "refuted"),
    ("{ c = Less(x, z) y = Where(c, x, z) }", "{ c = LessOrEqual(x, z) y = Where(c, z, x) }",
     {"inputs": X + ", float[N,4] z"}, "refuted"),
    ("{ c = Less(x, z) y = Cast<to = 1>(c) }", "{ c = LessOrEqual(x, z) y = Cast<to = 1>(c) }",
     {"inputs": X + ", float[N,4] z"}, "refuted"),
    ("{ y = LayerNormalization<epsilon = 0.001>(x, g) }",
     "{ y = LayerNormalization<epsilon = 0.002>(x, g) }", {"inputs": X + ", float[4] g"}, "sampled"),
    ("{ y = Add(x, z) }", "{ y = Identity(x) }", {"inputs": X + ", float[N,4] z"}, "refuted"),
    ("{ y = ReduceMax<axes = [1]>(x) }", "{ y = ReduceMin<axes = [1]>(x) }",
     {"outputs": "float[N,1] y", "opset": 17}, "refuted"),
    ("{ y = ReduceSum(x) }", "{ y = ReduceMean(x) }", {"outputs": "float[1,1] y"}, "refuted"),
    ("{ y = CumSum<reverse = 1>(x, a) }", "{ y = CumSum(x, a) }",
     {"inputs": X + ", int64 a"}, "sampled"),
    ("{ y = Gather(x, i) }", "<int64 z = {0}> { y = Gather(x, z) }",
     {"inputs": X + ", int64 i", "outputs": "float[4] y"}, "sampled"),
    # casts that round, that overflow, or whose result ONNX does not say
    ("<float l = {0}, float h = {0.1}> { b = Cast<to = 1>(x) n = Clip(b, l, h) c = Cast<to = 10>(n) y = Cast<to = 1>(c) }",
     "<float l = {0}, float h = {0.1}> { b = Cast<to = 1>(x) y = Clip(b, l, h) }",
     {"inputs": "float16[N,4] x"}, "sampled"),
    ("<float h = {0.1}> { a = Cast<to = 10>(h) b = Cast<to = 1>(a) y = Mul(x, b) }",
     "<float h = {0.1}> { y = Mul(x, h) }", {}, "refuted"),
    ("{ a = Cast<to = 1>(i) y = Cast<to = 6>(a) }", "{ y = Identity(i) }",
     {"inputs": "int32[N] i", "outputs": "int32[N] y"}, "sampled"),
    ("{ a = Cast<to = 1>(i) n = Neg(a) y = Cast<to = 3>(n) }", "{ y = Neg(i) }",
     {"inputs": "int8[N] i", "outputs": "int8[N] y"}, "sampled"),
    ("{ b = Cast<to = 1>(i) y = Cast<to = 3>(b) }", "{ y = Cast<to = 3>(i) }",
     {"inputs": "int16[N] i", "outputs": "int8[N] y"}, "sampled"),
    ("{ i = Cast<to = 3>(x) a = Cast<to = 1>(i) y = Cast<to = 2>(a) }", "{ y = Cast<to = 2>(x) }",
     {"outputs": "uint8[N,4] y"}, "sampled"),
    ("{ a = Cast<to = 10>(x) b = Cast<to = 1>(a) n = Add(b, b) c = Cast<to = 10>(n) y = Cast<to = 1>(c) }",
     "{ a = Cast<to = 10>(x) b = Cast<to = 1>(a) y = Add(b, b) }", {}, "sampled"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "more"), TRUE, ids=lambda v: str(v)[:50])
def test_laws(old: str, new: str, more: dict[str, Any]) -> None:
    found = decide(window(old, new, **more))
    assert (found.verdict, found.stopped_by) == ("exact", "")
    assert 0 < found.bound < 0.1 and found.sizes


@pytest.mark.parametrize(("old", "new", "more", "verdict"), WRONG, ids=lambda v: str(v)[:50])
def test_wrong_laws(old: str, new: str, more: dict[str, Any], verdict: str) -> None:
    found = decide(window(old, new, **more))
    assert found.verdict in (verdict, "refuted") and found.stopped_by


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_wrong_laws_of_other_draws(seed: int) -> None:
    for old, new, more, _ in WRONG:
        assert not decide(window(old, new, **more), seed=seed)


# what a draw that is too tame would call exact
TAME: list[tuple[str, str, dict[str, Any]]] = [
    ("<float l = {-6}, float h = {6}> { a = Log(x) y = Clip(a, l, h) }", "{ y = Log(x) }", {}),
    ("<float l = {-1}, float h = {1}> { a = Atan(x) y = Clip(a, l, h) }", "{ y = Atan(x) }", {}),
    ("<float l = {0}, float h = {4}> { a = Exp(x) y = Clip(a, l, h) }", "{ y = Exp(x) }", {}),
    ("{ a = Max(x, m) y = Relu(a) }", "{ y = Max(x, m) }",
     {"constants": {"m": np.array(-np.inf, np.float32)}}),
    ("{ y = Where(c, x, z) }", "{ y = Identity(x) }", {"inputs": X + ", float[N,4] z, bool c"}),
    ("{ c = Cast<to = 9>(i) y = Where(c, x, z) }", "{ y = Identity(x) }",
     {"inputs": X + ", float[N,4] z, int64 i"}),
    ("{ n = NonZero(c) s = Shape(n) y = Expand(z, s) }", "<int64[2] s = {1, 1}> { y = Expand(z, s) }",
     {"inputs": "bool[2] c, float[1,1] z", "outputs": "float[A,B] y"}),
    ("{ d, m, v = DynamicQuantizeLinear(x) y = Identity(v) }",
     "{ v, m, d = DynamicQuantizeLinear(x) y = Identity(v) }", {"outputs": "uint8[N,4] y"}),
    ("{ y = Cast<to = 10>(x) }", "{ a = Cast<to = 16>(x) y = Cast<to = 10>(a) }",
     {"outputs": "float16[N,4] y"}),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "more"), TAME, ids=lambda v: str(v)[:50])
def test_wild_values(old: str, new: str, more: dict[str, Any]) -> None:
    constants: dict[str, Any] = more.get("constants", {})
    made = window(old, new, **{k: v for k, v in more.items() if k != "constants"})
    for side in (made.old, made.new):
        side.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    for seed in range(2):
        assert not decide(made, seed=seed)


def test_new_divisors_roots_logarithms_and_exponentials_are_listed() -> None:
    found = decide(window("{ y = Identity(x) }", "{ a = Mul(x, x) y = Div(a, x) }"))
    assert (found.verdict, found.partial) == ("exact", ("divisor",))
    both = "{ e = Exp(x) y = Add(e, e) }", "<float[1] c = {2}> { e = Exp(x) y = Mul(e, c) }"
    assert decide(window(*both)).partial == ()


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("{ y = If(c) <then_branch = t () => (float[N,4] r) { r = Neg(x) }, "
         "else_branch = e () => (float[N,4] r) { r = Abs(x) }> }", "If"),
        ("<float z = {0}> { d = Div(x, z) y = Add(d, x) }", "Div"),
    ],
)  # fmt: skip
def test_undecided_windows_name_the_operator(body: str, word: str) -> None:
    found = decide(window(body, body, X + ", bool c"))
    assert found.verdict == "sampled" and word in found.stopped_by


def test_rows_that_no_draw_reads_prove_nothing() -> None:
    inputs, outputs = "int64[2] i", "float[2,1] y"
    body = "{ y = Gather(t, i) }"
    made = window(body, body, inputs, outputs)
    rng = np.random.default_rng(0)
    table = rng.standard_normal((1000, 1)).astype(np.float32)
    for side, end in ((made.old, 1.0), (made.new, 2.0)):
        table[-1] = end
        side.graph.initializer.append(numpy_helper.from_array(table, "t"))
    assert decide(made).stopped_by == "rows of a table that no draw read"
    made.new.graph.initializer[0].CopyFrom(made.old.graph.initializer[0])
    assert decide(made).verdict == "exact"


def test_sizes_are_coprime_and_once_one() -> None:
    rows = [list(p.values()) for p, _ in zip(plans(window("{ y = Exp(x) }", "{ y = Exp(x) }",
            "float[A,B] x", "float[A,B] y")), range(3), strict=False)]  # fmt: skip
    assert all(np.gcd.reduce(row) == 1 for row in rows) and any(1 in row for row in rows)
    assert [list(p) for p in plans(window("{ y = Exp(x) }", "{ y = Exp(x) }", "float[4] x",
                                          "float[4] y"))] == [[]]  # fmt: skip


MS = '<ir_version: 8, opset_import: ["": 23, "com.microsoft": 1]> g (%s) => (float[N,4] y) '
CONTRIB = [
    (X, "{ y = com.microsoft.FastGelu(x) }", '{ y = Gelu<approximate = "tanh">(x) }'),
    (X + ", float[4] b", "{ y = com.microsoft.FastGelu(x, b) }",
     '{ a = Add(x, b) y = Gelu<approximate = "tanh">(a) }'),
    (X + ", float[N,4] s, float[4] g, float[4] b, float[4] c",
     "{ y = com.microsoft.SkipLayerNormalization<epsilon = 0.5>(x, s, g, b, c) }",
     "{ t = Add(x, s) u = Add(t, c) y = LayerNormalization<epsilon = 0.5>(u, g, b) }"),
    (X + ", float[N,4] s, float[4] g",
     "{ y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.5>(x, s, g) }",
     "{ t = Add(x, s) y = RMSNormalization<epsilon = 0.5>(t, g) }"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "old", "new"), CONTRIB)
def test_operators_of_onnxruntime(inputs: str, old: str, new: str) -> None:
    sides = [parser.parse_model(MS % inputs + text) for text in (old, new)]
    assert decide(Window(sides[0], sides[1], (("y", "y"),))).verdict == "exact"
    for node in sides[1].graph.node:
        node.input[:] = [*reversed(node.input[:2]), *node.input[2:]]
        for a in node.attribute:
            a.CopyFrom(helper.make_attribute("approximate", "none") if a.s else
                       helper.make_attribute("epsilon", 0.25))  # fmt: skip
    assert not decide(Window(sides[0], sides[1], (("y", "y"),)))


def test_an_attribute_next_to_a_sixth() -> None:
    old = ("<float h = {3}, float l = {0}, float s = {6}> "
           "{ a = Add(x, h) b = Clip(a, l, s) y = Div(b, s) }")  # fmt: skip
    found = decide(window(old, "{ y = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x) }"))
    assert (found.verdict, found.rounded) == ("rounded", ("alpha of y",))
    assert (
        decide(window(old, "{ y = HardSigmoid<alpha = 0.1666, beta = 0.5>(x) }")).verdict
        == "refuted"
    )


def test_sizes_that_weights_require() -> None:
    """A window that is cut out of a model may not know how many channels its operand has."""
    old = "{ c = Conv(x, w) y = Mul(c, s) }"
    made = window(old, old.replace("c, s", "s, c"), "float[N,C,3,3] x", "float[N,4,3,3] y")
    for side in (made.old, made.new):
        side.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "C + 2"
    for side in (made.old, made.new):
        for name, shape in (("w", (4, 9, 1, 1)), ("s", (4, 1, 1))):
            side.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    assert [plan["C"] for plan in plans(made)][:3] == [7, 7, 7]
    assert decide(made).verdict == "exact"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "vit", "t5"])
def test_an_ulp_in_a_model(name: str) -> None:
    model = load(ROOT / "models" / f"{name}.onnx")
    passes = "combine-parallel-matmul{merge=always},combine-parallel-gemm{merge=always}"
    merged = optimize(model, passes=passes, verify=False, allow_growth=True)
    claims = tuple((o.name, o.name) for o in model.graph.output)
    assert decide(Window(model, merged, claims), seconds=100).verdict == "exact"
    weight = max((i for i in merged.graph.initializer if i.data_type == TensorProto.FLOAT),
                 key=lambda i: int(np.prod(i.dims)))  # fmt: skip
    array = numpy_helper.to_array(weight).copy()
    array.flat[7] = np.nextafter(array.flat[7], np.float32(9))
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    found = decide(Window(model, merged, claims), seconds=100)
    assert found.verdict == "sampled" and "differs" in found.stopped_by
