from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import unindented
from tests.rewriting import apply, model_of, weights

PASS = "forward-fold-scale-axis"
FOLDED = f"{PASS},fold-constant,remove-unused"
TWO = np.array([2, 0.5], np.float32).reshape(2, 1, 1)


@pytest.mark.parametrize("product", ["Mul(s, x)", "Mul(x, s)"])
def test_the_example_of_the_specification(product: str) -> None:
    text = f"g (float[1,2,10,10] x) => (float[1,3,8,8] y) {{ m = {product}  y = Conv(m, w) }}"
    model = model_of(text, {**weights(w=(3, 2, 3, 3)), "s": TWO})
    moved = apply(model, PASS)
    assert moved.ops == ["Mul", "Conv"]
    assert moved.text == unindented("""
        g(x: f32[1,2,10,10], w: f32[3,2,3,3] const, s: f32[2,1,1] const = [[[2]], [[0.5]]], scale: f32[2,1,1] const = [[[2]], [[0.5]]]) {
          mul: f32[3,2,3,3] = Mul(w, scale)
          y: f32[1,3,8,8] = Conv(x, mul)
          return y
        }
    """)
    moved.prove()
    done = apply(model, FOLDED)
    assert done.ops == ["Conv"]
    done.prove()


def fold(text: str, sizes: dict[str, tuple[int, ...]], ops: list[str]) -> None:
    """`text` becomes `ops`, with the same results."""
    done = apply(model_of(text, weights(sizes, positive="p")), FOLDED)
    assert done.ops == ops, f"{done.ops}\n{done.declined}"
    done.prove()


# product, sizes of data and result, of the weight and of the scale
IN_FRONT: list[tuple[str, str, str, tuple[int, ...], tuple[int, ...]]] = [
    ("Conv(m, w, b)", "2,4,9", "2,6,7", (6, 4, 3), (4, 1)),
    ("Conv <pads = [1,1,1,1]> (m, w, b)", "2,4,5,6", "2,6,6,7", (6, 4, 2, 2), (4, 1, 1)),
    ("Conv(m, w, b)", "1,4,4,5,6", "1,6,3,4,5", (6, 4, 2, 2, 2), (4, 1, 1, 1)),
    ("Conv <group = 2> (m, w, b)", "2,4,5,5", "2,6,4,4", (6, 2, 2, 2), (4, 1, 1)),
    ("Conv <group = 4> (m, w, b8)", "2,4,5,5", "2,8,4,4", (8, 1, 2, 2), (4, 1, 1)),
    ("ConvTranspose(m, w, b)", "2,4,5", "2,6,7", (4, 6, 3), (4, 1)),
    ("ConvTranspose <group = 2> (m, w, b)", "2,4,5,5", "2,6,6,6", (4, 3, 2, 2), (1, 4, 1, 1)),
    ("MatMul(m, w)", "2,5,3", "2,5,4", (3, 4), (3,)),
    ("MatMul(m, w)", "3", "4", (3, 4), (3,)),
    ("MatMul(m, w)", "5,3", "5", (3,), (3,)),
    ("MatMul(w, m)", "3,5", "4,5", (4, 3), (3, 1)),
    ("Gemm(m, w, b)", "5,3", "5,6", (3, 6), (3,)),
    ("Gemm <transB = 1, alpha = 0.5, beta = 2.0> (m, w, b)", "5,3", "5,6", (6, 3), (3,)),
    ("Gemm <transA = 1> (m, w)", "3,5", "5,4", (3, 4), (3, 1)),
]


@pytest.mark.parametrize(("tail", "x", "y", "w", "s"), IN_FRONT)
def test_every_product_takes_a_scale(
    tail: str, x: str, y: str, w: tuple[int, ...], s: tuple[int, ...]
) -> None:
    text = f"g (float[{x}] x) => (float[{y}] y) {{ m = Mul(x, s)  y = {tail} }}"
    bias: dict[str, tuple[int, ...]] = (
        {"b8": (8,)} if "b8" in tail else {"b": (6,)} if ", b)" in tail else {}
    )
    fold(text, {"w": w, "s": s, **bias}, [tail.split("(")[0].split(" ")[0]])


@pytest.mark.parametrize(
    ("between", "kept"),
    [
        ("m = Mul(x, p)  d = Relu(m)", ["Relu"]),
        ("m = Div(x, p)  d = Relu(m)", ["Relu"]),
        ("m = Mul(x, p)  a = Add(m, c)  d = Relu(a)", ["Add", "Relu"]),
        ("m = Mul(x, p)  a = Sub(c, m)  d = LeakyRelu(a)", ["Sub", "LeakyRelu"]),
        ("m = Mul(x, s)  a = Add(m, one)  d = Neg(a)", ["Add", "Neg"]),
        ("m = Mul(x, same)  d = Clip(m, low, high)", ["Clip"]),
        ("m = Mul(x, p)  d = MaxPool <kernel_shape = [1, 1]> (m)", ["MaxPool"]),
        ("m = Mul(x, s)  d = AveragePool <kernel_shape = [1, 1]> (m)", ["AveragePool"]),
        ("m = Mul(x, s)  d = Concat <axis = 1> (m)", ["Concat"]),
    ],
)
def test_what_a_scale_passes(between: str, kept: list[str]) -> None:
    constants = (
        "<float low = {-1}, float high = {2}, float one = {1}, float[2,1,1] same = {0.7, 0.7}>"
    )
    text = f"g (float[1,2,6,6] x) => (float[1,3,4,4] y) {constants} {{ {between}  y = Conv(d, w) }}"
    fold(
        text,
        {"w": (3, 2, 3, 3), "p": (2, 1, 1), "s": (2, 1, 1), "c": (1, 2, 1, 1)},
        [*kept, "Conv"],
    )


def test_pre_activation_batch_norm_folds_where_gamma_is_positive() -> None:
    text = """g (float[1,4,6,6] x) => (float[1,3,6,6] y)
      { b = BatchNormalization(x, gp, beta, mean, vp)  r = Relu(b)  y = Conv(r, w) }"""
    sizes = {"gp": (4,), "beta": (4,), "mean": (4,), "vp": (4,), "w": (3, 4, 1, 1)}
    passes = f"simplify-inference,fold-constant,{FOLDED}"
    done = apply(model_of(text, weights(sizes, positive="gp vp")), passes)
    assert done.ops == ["Add", "Relu", "Conv"]
    done.prove()
    blocked = apply(
        model_of(text.replace("gp", "gamma"), weights({**sizes, "gamma": (4,)}, positive="vp")),
        passes,
    )
    assert blocked.ops == ["Mul", "Add", "Relu", "Conv"]
    assert "not positive, so it does not pass Relu" in blocked.declined


def test_every_reader_takes_it_or_none() -> None:
    text = """g (float[2,5,3] x) => (float[2,5,4] y, float[2,5,2] z)
      { m = Mul(x, s)  y = MatMul(m, w1)  z = MatMul(m, w2) }"""
    sizes = {"s": (3,), "w1": (3, 4), "w2": (3, 2)}
    fold(text, sizes, ["MatMul", "MatMul"])
    refused = apply(model_of(text.replace("MatMul(m, w2)", "Softmax(m)"), weights(sizes)), FOLDED)
    assert refused.ops == ["Mul", "MatMul", "Softmax"]
    assert "Softmax does not commute" in refused.declined


def test_a_split_hands_each_part_its_own() -> None:
    text = """g (float[2,5] x) => (float[2,4] y, float[2,6] z) <int64[2] sizes = {2, 3}>
      { m = Mul(x, s)  a, b = Split <axis = 1> (m, sizes)  y = MatMul(a, w1)  z = MatMul(b, w2) }"""
    fold(text, {"s": (5,), "w1": (2, 4), "w2": (3, 6)}, ["Split", "MatMul", "MatMul"])


def test_a_concat_puts_ones_beside_it() -> None:
    text = """g (float[1,2,4,4] x, float[1,3,4,4] z) => (float[1,4,4,4] y)
      { m = Mul(x, s)  c = Concat <axis = 1> (m, z)  y = Conv(c, w) }"""
    fold(text, {"s": (2, 1, 1), "w": (4, 5, 1, 1)}, ["Concat", "Conv"])


def test_flatten_of_single_pixels_keeps_the_channels() -> None:
    text = """g (float[N,4,1,1] x) => (float[N,3] y) { m = Mul(x, s)  f = Flatten(m)  y = Gemm(f, w) }"""
    fold(text, {"s": (4, 1, 1), "w": (4, 3)}, ["Flatten", "Gemm"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("m = Mul(x, s)  d = Relu(m)  y = Conv(d, w)", "not positive"),
        ("m = Mul(x, s)  d = Sigmoid(m)  y = Conv(d, w)", "Sigmoid does not commute"),
        ("m = Mul(x, s)  d = Add(m, x)  y = Conv(d, w)", "with another scale"),
        ("m = Mul(x, s)  d = Add(m, m)  y = Conv(d, w)", "cannot absorb the scale"),
        ("m = Mul(x, width)  y = Conv(m, w)", "axis 3 of Conv"),
        ("m = Mul(x, tiny)  d = Add(m, one)  y = Conv(d, w)", "lose digits"),
        (
            "m = Mul(x, s)  d = Concat <axis = 2> (m, x)  y = Conv(d, w)",
            "operand without the scale",
        ),
    ],
)
def test_what_keeps_a_scale_in_place(body: str, reason: str) -> None:
    constants = "<float one = {1}, float[2,1,1] s = {-2, 3}, float[2,1,1] tiny = {1e-6, 3}>"
    text = f"g (float[1,2,6,6] x) => (float[1,3,A,6] y) {constants} {{ {body} }}"
    done = apply(model_of(text, weights({"w": (3, 2, 1, 1), "width": (6,)})), PASS)
    assert done.trace.rewrites == []
    assert reason in done.declined


def test_a_reshape_to_an_unknown_number_of_axes_keeps_a_scale_in_place() -> None:
    text = "g (float[2,4,6] x, int64[R] to) => (float[A,3] y) { m = Mul(x, s)  r = Reshape(m, to)  y = MatMul(r, w) }"
    done = apply(model_of(text, weights({"s": (6,), "w": (6, 3)})), PASS)
    assert done.trace.rewrites == []
    assert "rank is unknown" in done.declined


def test_the_scaled_value_is_an_output() -> None:
    text = "g (float[1,2,6,6] x) => (float[1,2,6,6] m, float[1,3,6,6] y) { m = Mul(x, s)  y = Conv(m, w) }"
    done = apply(model_of(text, weights({"w": (3, 2, 1, 1), "s": (2, 1, 1)})), PASS)
    assert done.trace.rewrites == []
    assert "m is an output" in done.declined


def test_a_product_that_feeds_another_reader_closes_no_cycle() -> None:
    """The second product's shape operand comes from the first: both replaced at once would wait for each other."""
    text = """g (float[4,3] x) => (float[4,3] y, float[4,2] z)
      { m = Mul(x, s)  y = MatMul(m, w1)  n = Shape(y)  r = Reshape(m, n)  z = MatMul(r, w2) }"""
    model = model_of(text, weights({"s": (3,), "w1": (3, 3), "w2": (3, 2)}))
    done = apply(model, PASS)
    assert "feeds another" in done.declined
    done.prove()


def test_an_activation_is_no_weight() -> None:
    text = """g (float[2,5,3] x, float[2,3,4] q) => (float[2,5,4] y)
      { k = Tanh(q)  m = Mul(x, s)  y = MatMul(m, k) }"""
    done = apply(model_of(text, weights({"s": (3,)})), PASS)
    assert done.trace.rewrites == []
    assert "computed from other values" in done.declined


def test_names_of_the_outputs_survive() -> None:
    text = "g (float[1,2,6,6] x) => (float[1,3,6,6] y) { m = Mul(x, s)  y = Conv(m, w) }"
    done = apply(model_of(text, weights({"w": (3, 2, 1, 1), "s": (2, 1, 1)})), FOLDED)
    assert [o.name for o in done.after.graph.output] == ["y"]
    assert len(done.after.graph.node) == 1
