"""Loop: the states, tapes and captures of onnxgrad/grad/control_flow/loop.py against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient, hessian_vector_product, vmap
from tests.grad.numeric import check_model, normal
from tests.helpers import parse

LOOP = """g (float[3] x, float[3] w, int64 n) => (float[3] y, float[K,3] s) {
    go = Constant <value = bool {1}> ()
    y, s = Loop (n, go, x) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] u, float[3] o) {
        d = Identity (c)
        p = Mul (v, w)
        t = Tanh (p)
        f = Cast <to = 1> (i)
        o = Mul (t, f)
        u = Add (t, x)
    }>
}"""


@pytest.mark.parametrize("n", [0, 1, 4])
def test_loop_with_state_capture_and_scan_output(n: int) -> None:
    # the shape of no steps stacked is not the oracle's to know
    target = None if n else "y"
    check_model(
        parse(LOOP), {"x": normal(3), "w": normal(3, seed=1), "n": np.array(n)}, target=target
    )


def test_loop_that_ends_by_its_condition() -> None:
    model = parse(
        """g (float x, float w) => (float y) {
            m = Constant <value_int = 100> ()
            go = Constant <value = bool {1}> ()
            limit = Constant <value_float = 4.0> ()
            y = Loop (m, go, x) <body = b (int64 i, bool c, float v) => (bool d, float u) {
                u = Mul (v, w)
                d = Less (u, limit)
            }>
        }"""
    )
    check_model(model, {"x": np.float32(1.1), "w": np.float32(1.3)})


def test_loop_whose_state_grows() -> None:
    model = parse(
        """g (float[K] x, int64 n) => (float y) {
            go = Constant <value = bool {1}> ()
            z = Loop (n, go, x) <body = b (int64 i, bool c, float[M] v) => (bool d, float[L] u) {
                d = Identity (c)
                t = Sin (v)
                u = Concat <axis = 0> (t, x)
            }>
            q = Mul (z, z)
            y = ReduceSum <keepdims = 0> (q)
        }"""
    )
    check_model(model, {"x": normal(2), "n": np.array(3)})


KEYS = """g (float[2,3] x, float[3,3] w) => (float[K,3] y, float[S,2,2] z) {
    n = Constant <value_int = 3> ()
    y, z = Loop (n, "", x) <body = b (int64 i, bool c, float[R,3] h) => (bool d, float[Q,3] u, float[2,2] o) {
        d = Identity (c)
        k = MatMul (h, w)
        s = MatMul (x, w)
        t = Transpose (k)
        a = MatMul (s, t)
        p = Softmax (a)
        v = MatMul (p, h)
        e = Tanh (v)
        u = Concat <axis = 0> (h, e)
        f = Transpose (e)
        o = MatMul (e, f)
    }>
}"""


def test_loop_whose_state_grows_and_keeps_its_rank() -> None:
    """A cache of keys: one axis changes from step to step, the others are known, so a product in the body has a rank."""
    feeds = {"x": normal(2, 3), "w": normal(3, 3)}
    check_model(parse(KEYS), feeds)
    graph = gradient(parse(KEYS), ["w"], ["y", "z"], adjoint="input")
    assert [d.dim_value for d in graph.graph.output[-1].type.tensor_type.shape.dim] == [3, 3]


def test_the_second_derivative_of_a_loop_whose_state_grows() -> None:
    """Its tape is a sequence, which is a state of the forward Loop."""
    model = parse(
        """g (float[2] x) => (float y) {
            n = Constant <value_int = 2> ()
            z = Loop (n, "", x) <body = b (int64 i, bool c, float[M] v) => (bool d, float[L] u) {
                d = Identity (c)
                t = Sin (v)
                u = Concat <axis = 0> (t, x)
            }>
            q = Mul (z, z)
            y = ReduceSum <keepdims = 0> (q)
        }"""
    )
    check_model(gradient(model), {"x": normal(2)}, target="x_grad")


SEQUENCES = """g (float[3] x, seq(float[3]) first, int64 n) => (float[3] y) {{
    s = Loop (n, "", first) <body = b (int64 i, bool c, seq(float[3]) v) => (bool d, seq(float[3]) u) {{
        d = Identity (c)
        l = SequenceAt (v, i)
        t = Sin (l)
        p = Mul (t, x)
        {body}
    }}>
    h = ConcatFromSequence <axis = 0, new_axis = 1> (s)
    m = Mul (h, h)
    zero = Constant <value_ints = [0]> ()
    y = ReduceSum <keepdims = 0> (m, zero)
}}"""


@pytest.mark.parametrize(
    "body",
    [
        "u = SequenceInsert (v, p)",
        "o = SequenceErase (v, i) u = SequenceInsert (o, p, i)",
        "k = SequenceInsert (v, p) u = SequenceErase (k)",
    ],
)
def test_loop_with_a_sequence_as_state(body: str) -> None:
    feeds = {"x": normal(3), "first": [normal(3, seed=1), normal(3, seed=2)], "n": np.array(2)}
    check_model(parse(SEQUENCES.format(body=body)), feeds, ["x"])


def test_loop_with_integer_state_and_nested_if() -> None:
    model = parse(
        """g (float[4] x, int64 n) => (float[4] y) {
            go = Constant <value = bool {1}> ()
            zero = Constant <value_int = 0> ()
            two = Constant <value_int = 2> ()
            y, k = Loop (n, go, x, zero) <body = b (int64 i, bool c, float[4] v, int64 j) => (bool d, float[4] u, int64 h) {
                d = Identity (c)
                odd = Mod (j, two)
                even = Equal (odd, zero)
                u = If (even) <
                    then_branch = t () => (float[4] a) { a = Mul (v, x) },
                    else_branch = e () => (float[4] b) { b = Sin (v) }>
                one = Constant <value_int = 1> ()
                h = Add (j, one)
            }>
        }"""
    )
    check_model(model, {"x": normal(4), "n": np.array(3)})


def test_loop_within_a_loop_accumulates_the_captured_weight() -> None:
    model = parse(
        """g (float[2] x, float[2] w) => (float[2] y) {
            go = Constant <value = bool {1}> ()
            two = Constant <value_int = 2> ()
            y = Loop (two, go, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) {
                d = Identity (c)
                u = Loop (two, c, v) <body = b2 (int64 i2, bool c2, float[2] v2) => (bool d2, float[2] u2) {
                    d2 = Identity (c2)
                    p = Mul (v2, w)
                    u2 = Tanh (p)
                }>
            }>
        }"""
    )
    check_model(model, {"x": normal(2), "w": normal(2, seed=2)})


def test_second_derivative_through_a_loop() -> None:
    model = parse(
        """g (float x, int64 n) => (float y) {
            go = Constant <value = bool {1}> ()
            y = Loop (n, go, x) <body = b (int64 i, bool c, float v) => (bool d, float u) {
                d = Identity (c)
                p = Sin (v)
                u = Mul (p, x)
            }>
        }"""
    )
    first = gradient(model, ["x"])
    check_model(first, {"x": np.float32(0.7), "n": np.array(3)}, ["x"], target="x_grad")


def test_states_that_no_step_changes_have_the_sizes_of_their_first_values() -> None:
    """So does the adjoint of what is computed from them."""
    body = "<body = b (int64 i, bool c, float[2,3] h) => (bool d, float[2,3] o) { d = Identity (c) o = Sin (h) }>"
    model = parse(f"""g (float[2,3] x) => (float u) {{
        n = Constant <value_int = 2> () y = Loop (n, , x) {body} u = ReduceSum <keepdims = 0> (y) }}""")
    rows = vmap(model, "x", verify=False)
    product = hessian_vector_product(model, "x", "u")
    for made, target in ((rows, "u"), (product, "x_hvp")):
        second = gradient(made, "x", target, adjoint="input")
        (adjoint,) = (v for v in second.graph.input if v.name == f"{target}_grad")
        (result,) = (v for v in made.graph.output if v.name == target)
        assert adjoint.type == result.type
