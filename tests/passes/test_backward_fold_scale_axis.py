from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from onnxgrad.ir.load import load
from onnxgrad.passes.rule_passes import backward_fold_scale_axis
from onnxgrad.rewrite.trace import Trace
from tests.helpers import parse, unindented
from tests.rewriting import apply, initializer, model_of, weights

PASS = "backward-fold-scale-axis"
FOLDED = f"{PASS},fold-constant,fold-bias,remove-unused"


def conv(
    body: str, channels: int = 2, out: str = "1,2,10,10", **sizes: tuple[int, ...]
) -> ModelProto:
    text = f"g (float[1,1,10,10] x) => (float[{out}] y) {{ c = Conv <pads = [1,1,1,1]> (x, w)  {body} }}"
    shapes = {"w": (channels, 1, 3, 3), "s": (channels, 1, 1), **sizes}
    return model_of(text, weights(shapes, positive="p"))


@pytest.mark.parametrize("body", ["y = Mul(c, s)", "y = Mul(s, c)"])
def test_the_example_of_the_specification(body: str) -> None:
    model = conv(body)
    moved = apply(model, PASS)
    assert moved.ops == ["Mul", "Conv"]
    assert moved.text == unindented("""
        g(x: f32[1,1,10,10], w: f32[2,1,3,3] const, s: f32[2,1,1] const = [[[-1.90122]], [[-1.28954]]], scale: f32[2,1,1,1] const = [[[[-1.90122]]], [[[-1.28954]]]]) {
          mul: f32[2,1,3,3] = Mul(w, scale)
          y: f32[1,2,10,10] = Conv(x, mul, pads=[1, 1, 1, 1])
          return y
        }
    """)
    moved.prove()
    done = apply(model, FOLDED)
    assert done.ops == ["Conv"]
    (folded,) = [v for v in done.program.main.initializers.values() if v.rank == 4]
    expected = initializer(model, "w") * initializer(model, "s")[..., None]
    np.testing.assert_array_equal(folded.const, expected)
    done.prove()


def test_a_weight_that_is_an_input() -> None:
    text = """g (float[1,1,10,10] x, float[2,1,3,3] w) => (float[1,2,10,10] y)
      { c = Conv <pads = [1,1,1,1]> (x, w)  y = Mul(c, s) }"""
    done = apply(model_of(text, weights({"s": (2, 1, 1)})), PASS)
    assert done.ops == ["Mul", "Conv"]
    done.prove()


def test_division() -> None:
    done = apply(conv("y = Div(c, p)", p=(2, 1, 1)), FOLDED)
    assert done.ops == ["Conv"]
    done.prove()


def fold(text: str, sizes: dict[str, tuple[int, ...]], ops: list[str], opset: int = 20) -> None:
    """`text` becomes `ops`, with the same results."""
    done = apply(model_of(text, weights(sizes, positive="p q"), opset=opset), FOLDED)
    assert done.ops == ops, f"{done.ops}\n{done.declined}"
    done.prove()


# product, sizes of data and result, of the weight and of the scale
BEHIND: list[tuple[str, str, str, tuple[int, ...], tuple[int, ...]]] = [
    ("Conv(x, w, b)", "2,3,9", "2,4,7", (4, 3, 3), (4, 1)),
    ("Conv(x, w, b)", "2,3,5,6", "2,4,4,5", (4, 3, 2, 2), (4, 1, 1)),
    ("Conv(x, w, b)", "1,3,4,5,6", "1,4,3,4,5", (4, 3, 2, 2, 2), (1, 4, 1, 1, 1)),
    ("Conv <group = 2> (x, w, b)", "2,4,5,5", "2,4,4,4", (4, 2, 2, 2), (4, 1, 1)),
    ("Conv <group = 4> (x, w, b)", "2,4,5,5", "2,4,4,4", (4, 1, 2, 2), (4, 1, 1)),
    ("ConvTranspose(x, w, b)", "2,3,5", "2,4,7", (3, 4, 3), (4, 1)),
    ("ConvTranspose <group = 2> (x, w, b)", "2,6,5,5", "2,4,6,6", (6, 2, 2, 2), (4, 1, 1)),
    ("ConvTranspose <group = 4> (x, w, b)", "2,4,5,5", "2,4,6,6", (4, 1, 2, 2), (4, 1, 1)),
    ("MatMul(x, w)", "2,5,3", "2,5,4", (3, 4), (4,)),
    ("MatMul(x, w)", "3", "4", (3, 4), (4,)),
    ("MatMul(w, x)", "3,5", "4,5", (4, 3), (4, 1)),
    ("Gemm(x, w, b)", "5,3", "5,4", (3, 4), (4,)),
    ("Gemm <transB = 1, alpha = 0.5, beta = 2.0> (x, w, b)", "5,3", "5,4", (4, 3), (1, 4)),
    ("Gemm <transA = 1> (x, w)", "3,5", "5,4", (3, 4), (4,)),
]


@pytest.mark.parametrize(("head", "x", "y", "w", "s"), BEHIND)
def test_every_product_takes_a_scale(
    head: str, x: str, y: str, w: tuple[int, ...], s: tuple[int, ...]
) -> None:
    text = f"g (float[{x}] x) => (float[{y}] y) {{ c = {head}  y = Mul(c, s) }}"
    sizes = {"w": w, "s": s, **({"b": (4,)} if ", b)" in head else {})}
    fold(text, sizes, [head.split("(")[0].split(" ")[0]])


@pytest.mark.parametrize("bias", [(), (1,), (4,), (1, 4), (5, 4), (5, 1)])
def test_every_bias_of_gemm(bias: tuple[int, ...]) -> None:
    text = "g (float[5,3] x) => (float[5,4] y) { c = Gemm <beta = 0.5> (x, w, b)  y = Mul(c, s) }"
    fold(text, {"w": (3, 4), "s": (4,), "b": bias}, ["Gemm"])


@pytest.mark.parametrize(
    ("between", "out", "kept"),
    [
        ("y = Mul(d, p)  d = Relu(c)", "1,2,10,10", ["Relu"]),
        ("d = LeakyRelu <alpha = 0.3> (c)  y = Mul(d, p)", "1,2,10,10", ["LeakyRelu"]),
        ("d = PRelu(c, slope)  y = Mul(d, p)", "1,2,10,10", ["PRelu"]),
        ("d = Clip(c, zero)  y = Mul(d, p)", "1,2,10,10", ["Clip"]),
        ("d = Clip(c, zero, six)  y = Mul(d, same)", "1,2,10,10", ["Clip"]),
        ("d = AveragePool <kernel_shape = [2, 2]> (c)  y = Mul(d, s)", "1,2,9,9", ["AveragePool"]),
        ("d = GlobalAveragePool(c)  y = Mul(d, s)", "1,2,1,1", ["GlobalAveragePool"]),
        (
            "d = MaxPool <kernel_shape = [2, 2], pads = [1,1,1,1]> (c)  y = Mul(d, p)",
            "1,2,11,11",
            ["MaxPool"],
        ),
        ("d = ReduceMean <keepdims = 0> (c, axes)  y = Mul(d, flat)", "1,2", ["ReduceMean"]),
        ("d = Transpose <perm = [0, 2, 3, 1]> (c)  y = Mul(d, flat)", "1,10,10,2", ["Transpose"]),
        ("d = Reshape(c, shape)  y = Mul(d, s2)", "1,2,100", ["Reshape"]),
        (
            "g0 = GlobalAveragePool(c)  d = Flatten(g0)  y = Mul(d, flat)",
            "1,2",
            ["GlobalAveragePool", "Flatten"],
        ),
        ("d = Pad(c, pads)  y = Mul(d, s)", "1,2,12,12", ["Pad"]),
        ("d = Neg(c)  y = Mul(d, s)", "1,2,10,10", ["Neg"]),
        ("d = Mul(c, full)  y = Mul(d, s)", "1,2,10,10", ["Mul"]),
        ("d = Add(c, full)  y = Mul(d, s)", "1,2,10,10", ["Add"]),
    ],
)
def test_what_a_scale_passes(between: str, out: str, kept: list[str]) -> None:
    constants = """<float zero = {0}, float six = {6}, int64[2] axes = {2, 3}, int64[3] shape = {1, 2, 100},
      int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, float[2,1,1] same = {0.7, 0.7}>"""
    text = f"g (float[1,1,10,10] x) => (float[{out}] y) {constants} {{ c = Conv <pads = [1,1,1,1]> (x, w)  {between} }}"
    sizes = {
        "w": (2, 1, 3, 3),
        "s": (2, 1, 1),
        "p": (2, 1, 1),
        "slope": (2, 1, 1),
        "flat": (2,),
        "s2": (2, 1),
    }
    fold(text, {**sizes, "full": (2, 10, 10)}, ["Conv", *kept])


def test_bounds_of_clip_that_are_attributes() -> None:
    text = """g (float[1,1,10,10] x) => (float[1,2,8,8] y) <float[2,1,1] same = {0.7, 0.7}>
      { c = Conv(x, w)  d = Clip <min = -1.0, max = 6.0> (c)  y = Mul(d, same) }"""
    fold(text, {"w": (2, 1, 3, 3)}, ["Conv", "Clip"], opset=10)


def test_branches_of_a_residual_addition_all_take_it() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,4,8,8] y)
      { a = Conv(x, w1, b1)  r = Relu(a)  b = Conv(x, w2)  t = Add(r, b)  u = Sub(t, k)  y = Mul(u, p) }"""
    sizes = {"w1": (4, 3, 1, 1), "b1": (4,), "w2": (4, 3, 1, 1), "k": (1, 4, 1, 1), "p": (4, 1, 1)}
    fold(text, sizes, ["Conv", "Relu", "Conv", "Add", "Sub"])


def test_one_branch_that_cannot_keeps_the_scale_where_it_is() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv(x, w)  t = Add(a, x)  y = Mul(t, s) }"""
    done = apply(model_of(text, weights({"w": (4, 4, 1, 1), "s": (4, 1, 1)})), FOLDED)
    assert done.ops == ["Conv", "Add", "Mul"]
    assert "x is an input" in done.declined


def test_concat_along_the_channels_parts_the_scale() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,5,8,8] y)
      { a = Conv(x, w1)  b = Conv(x, w2, b2)  t = Concat <axis = 1> (a, b)  y = Mul(t, s) }"""
    fold(
        text,
        {"w1": (2, 3, 1, 1), "w2": (3, 3, 1, 1), "b2": (3,), "s": (5, 1, 1)},
        ["Conv", "Conv", "Concat"],
    )


def test_concat_along_another_axis() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,2,16,8] y)
      { a = Conv(x, w1)  b = Conv(x, w2)  t = Concat <axis = 2> (a, b)  y = Mul(t, s) }"""
    fold(text, {"w1": (2, 3, 1, 1), "w2": (2, 3, 1, 1), "s": (2, 1, 1)}, ["Conv", "Conv", "Concat"])


def test_one_part_of_a_split_is_scaled_with_ones_beside_it() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,2,8,8] y, float[1,3,8,8] z) <int64[2] sizes = {2, 3}>
      { c = Conv(x, w)  a, b = Split <axis = 1> (c, sizes)  y = Mul(a, s)  z = Relu(b) }"""
    fold(text, {"w": (5, 3, 1, 1), "s": (2, 1, 1)}, ["Conv", "Split", "Relu"])


def test_a_shared_weight_is_copied() -> None:
    text = """g (float[1,1,8,8] x) => (float[1,2,6,6] y, float[1,2,6,6] z)
      { c = Conv(x, w)  y = Mul(c, s)  n = Neg(x)  z = Conv(n, w) }"""
    model = model_of(text, weights({"w": (2, 1, 3, 3), "s": (2, 1, 1)}))
    done = apply(model, FOLDED)
    assert done.counts == {"Conv": 2, "Neg": 1}
    np.testing.assert_array_equal(initializer(done.after, "w"), initializer(model, "w"))
    done.prove()


def test_inside_a_branch_of_if() -> None:
    text = """g (float[1,1,8,8] x, bool k) => (float[1,2,6,6] y) {
      y = If(k) <then_branch = t () => (float[1,2,6,6] a) { c = Conv(x, w)  a = Mul(c, s) },
                 else_branch = e () => (float[1,2,6,6] b) { b = Conv(x, w) }> }"""
    done = apply(model_of(text, weights({"w": (2, 1, 3, 3), "s": (2, 1, 1)})), PASS)
    assert len(done.trace.rewrites) == 1
    done.prove()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("d = Relu(c)  y = Mul(d, s)", "not positive"),
        ("d = MaxPool <kernel_shape = [1, 1]> (c)  y = Mul(d, s)", "not positive"),
        ("d = Clip(c, low)  y = Mul(d, p)", "differently in each channel"),
        ("d = Sigmoid(c)  y = Mul(d, p)", "Sigmoid does not commute"),
        ("d = Softmax <axis = 1> (c)  y = Mul(d, p)", "Softmax does not commute"),
        ("y = Mul(c, width)", "axis 3 of Conv"),
        ("d = Neg(c)  e = Mul(c, s)  y = Add(d, e)", "read elsewhere"),
        ("d = Add(c, c)  y = Mul(d, s)", "read elsewhere"),
        ("d = AveragePool <kernel_shape = [1, 1]> (c)  y = Mul(d, width)", "mixes the axis"),
        ("y = Mul(c, huge)", "not finite"),
        ("y = Div(c, null)", "not finite"),
        (
            "d = Reshape(c, shape)  e = Mul(d, s5)  y = Reshape(e, back)",
            "does not keep the channel axis",
        ),
    ],
)
def test_what_keeps_a_scale_in_place(body: str, reason: str) -> None:
    constants = """<float low = {-1}, int64[4] shape = {1, 5, 4, 10}, int64[4] back = {1, 2, 10, 10},
      float[2,1,1] huge = {3e38, 3e38}, float[2,1,1] null = {0, 1}>"""
    text = f"""g (float[1,1,10,10] x) => (float[1,2,10,10] y) {constants}
      {{ c = Conv <pads = [1,1,1,1]> (x, w)  {body} }}"""
    sizes = {"w": (2, 1, 3, 3), "s": (2, 1, 1), "p": (2, 1, 1), "width": (10,), "s5": (5, 1, 1)}
    model = model_of(text, weights(sizes, positive="p"))
    # one factor of each sign, and a weight that overflows under a factor of 3e38
    next(t for t in model.graph.initializer if t.name == "s").raw_data = np.array(
        [-2, 3], np.float32
    ).tobytes()
    if "huge" in body:
        next(t for t in model.graph.initializer if t.name == "w").raw_data = np.full(
            18, 9, np.float32
        ).tobytes()
    done = apply(model, PASS)
    assert done.trace.rewrites == []
    assert reason in done.declined
    assert done.after == model


def test_the_product_is_an_output() -> None:
    text = "g (float[1,1,8,8] x) => (float[1,2,6,6] c, float[1,2,6,6] y) { c = Conv(x, w)  y = Mul(c, s) }"
    done = apply(model_of(text, weights({"w": (2, 1, 3, 3), "s": (2, 1, 1)})), PASS)
    assert done.trace.rewrites == []
    assert "is an output" in done.declined


def test_a_scale_known_only_at_run_time_is_no_scale() -> None:
    text = "g (float[1,1,8,8] x, float[2,1,1] s) => (float[1,2,6,6] y) { c = Conv(x, w)  y = Mul(c, s) }"
    assert apply(model_of(text, weights({"w": (2, 1, 3, 3)})), PASS).trace.rewrites == []


def test_a_scale_that_widens_the_result_is_no_scale() -> None:
    text = "g (float[1,1,8,8] x) => (float[3,1,6,6] y) { c = Conv(x, w)  y = Mul(c, s) }"
    assert (
        apply(model_of(text, weights({"w": (1, 1, 3, 3), "s": (3, 1, 1, 1)})), PASS).trace.rewrites
        == []
    )


def test_scalars_only_on_request() -> None:
    text = """g (float[2,3] x) => (float[2,4] y) <float half = {0.5}>
      { c = MatMul(x, w)  d = Reshape(c, s)  e = Mul(d, half)  y = Reshape(e, t) }"""
    text = text.replace("<float half", "<int64[1] s = {8}, int64[2] t = {2, 4}, float half")
    model = model_of(text, weights({"w": (3, 4)}))
    assert apply(model, PASS).trace.rewrites == []
    done = apply(model, PASS + "{scalars=true},fold-constant,remove-unused")
    assert done.ops == ["MatMul", "Reshape", "Reshape"]
    done.prove()


def test_a_weight_in_a_constant_node_is_replaced_and_not_added() -> None:
    text = """g (float[1,1,4,4] x) => (float[1,2,4,4] y)
      { w = Constant <value = float[2,1,1,1] {1, 2}> ()  c = Conv(x, w)  y = Mul(c, s) }"""
    done = apply(
        model_of(text, weights({"s": (2, 1, 1)})),
        f"{PASS},fold-constant{{max_growth=0}},remove-unused",
    )
    assert done.ops == ["Conv"] and done.counts["Constant"] == 0
    done.prove()


@pytest.mark.parametrize(("noop", "kept"), [(0, "1,1,1,1"), (1, "1,2,8,8")])
def test_a_reduction_without_axes_is_over_all_of_them_or_none(noop: int, kept: str) -> None:
    """The scale passes a reduction that reduces no axis."""
    text = f"""g (float[1,1,10,10] x) => (float[1,2,8,8] y) <float[2,1,1] p, int64[0] axes = {{}}> {{
      c = Conv(x, w) d = ReduceMean <noop_with_empty_axes = {noop}> (c, axes) y = Mul(d, p) }}"""
    done = apply(
        model_of(
            text.replace("<float[2,1,1] p, ", "<"), weights({"w": (2, 1, 3, 3), "p": (2, 1, 1)})
        ),
        FOLDED,
    )
    assert done.ops == ["Conv", "ReduceMean", *([] if noop else ["Mul"])]
    done.prove()


def test_factors_that_cancel_stay() -> None:
    """A product with 1 would be left between the Casts: onnxruntime drops all three, and the If reads nothing."""
    model = parse(
        """<ir_version: 8, opset_import: ["" : 18]> g (float16[N,3] x, bool c) => (float16[M,3] y)
        <float f = {4}, float g = {4}> {
            a = Cast <to = 1> (x) b = Mul (a, f) d = Div (b, g) e = Cast <to = 10> (d)
            y = If (c) <then_branch = t () => (float16[M,3] p) { p = Transpose <perm = [0,1]> (e) },
                        else_branch = o () => (float16[M,3] q) { q = Identity (x) }> }"""
    )
    done = apply(model, PASS + "{scalars=true},fold-constant")
    assert done.ops == ["Cast", "Mul", "Div", "Cast", "If"]
    done.prove()


@pytest.mark.parametrize(("between", "folded"), [(2, True), (3, False)])
def test_how_far_a_scale_is_carried(
    between: int, folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "onnxgrad.laws.fold_scale_axis.backward.REACH", 3
    )  # operators, the product among them
    chain = "".join(f"n{i + 1} = Neg(n{i})  " for i in range(between))
    text = f"g (float[1,1,8,8] x) => (float[1,2,6,6] y) {{ n0 = Conv(x, w)  {chain}y = Mul(n{between}, s) }}"
    done = apply(model_of(text, weights({"w": (2, 1, 3, 3), "s": (2, 1, 1)})), PASS)
    assert bool(done.trace.rewrites) is folded
    done.prove()


@pytest.mark.parametrize(
    ("channels", "shape", "folded"), [(1, (1, 1, 1), True), (2, (1, 1, 1), False), (1, (1,), False)]
)
def test_one_number_is_a_vector_where_there_is_one_channel(
    channels: int, shape: tuple[int, ...], folded: bool
) -> None:
    done = apply(conv("y = Mul(c, one)", channels, f"1,{channels},10,10", one=shape), PASS)
    assert bool(done.trace.rewrites) is folded
    done.prove()


def test_a_scale_that_is_computed_says_why_it_stays() -> None:
    model = parse(
        """g (float[1,1,10,10] x, float[2,1,1] s) => (float[1,2,8,8] y)
        <float[2,1,3,3] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9}> { c = Conv(x, w) y = Mul(c, s) }"""
    )
    program, trace = load(model), Trace(explain=True)
    backward_fold_scale_axis().run(program, trace)
    assert [b.op for b in program.main.bindings] == ["Conv", "Mul"]
    assert any("s is computed at run time" in reason for _, _, reason in trace.declined)
