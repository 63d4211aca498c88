"""onnxgrad/laws/float16: which bindings go, with which numbers, and what is left around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.laws.float16.forms import Halved, halved
from onnxgrad.laws.float16.keeping import plan
from onnxgrad.passes.float16 import Float16
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import run, verify
from tests.helpers import parse, unindented
from tests.rewriting import Done, apply, initializer, model_of, weights

INFINITY = np.float32(np.finfo(np.float32).min)


def half(
    text: str, constants: dict[str, Any] | None = None, keep: str = "", **options: Any
) -> Done:
    return apply(model_of(text, constants, **options), Float16(keep=keep))


def proved(done: Done, bound: str = "worst=0.005") -> None:
    report = verify(done.before, done.after, metric=bound)
    assert report.verdict == "within bounds" and report.checks["onnxruntime"].ran, str(report)


# ---- numbers -------------------------------------------------------------------------------------


def test_numbers_that_fit_are_rounded() -> None:
    made = halved(np.array([1, 1 / 3, -65504, np.inf, np.nan], np.float32), masking=False)
    assert isinstance(made, Halved) and made.array.dtype == np.float16 and not made.notes
    assert (
        made.array[1] == np.float16(1 / 3) and np.isinf(made.array[3]) and np.isnan(made.array[4])
    )


def test_what_stands_for_infinity_becomes_the_largest_number() -> None:
    made = halved(np.array([0, INFINITY, 1e9], np.float32), masking=True)
    assert isinstance(made, Halved) and made.array.tolist() == [0, -65504, 65504] and made.far == 2
    assert (
        halved(np.array([1e9], np.float32), masking=False)
        == "1e+09 of its constants is beyond 65504"
    )


@pytest.mark.parametrize("masking", [True, False])
def test_a_weight_that_is_too_large_stays(masking: bool) -> None:
    assert halved(np.array([1, 1e5], np.float32), masking=masking) == (
        "100000 of its constants is beyond 65504"
    )


def test_an_epsilon_does_not_become_nothing() -> None:
    made = halved(np.array(-1e-12, np.float32), masking=False)
    assert isinstance(made, Halved) and made.raised and made.array == -np.float16(2.0**-24)
    assert made.array.shape == () and "instead of 0" in made.notes[0]


def test_of_several_numbers_the_smallest_may() -> None:
    made = halved(np.array([1, 1e-9, -1e-9, 0], np.float32), masking=False)
    assert isinstance(made, Halved) and made.lost == 2
    assert made.notes == ["2 of 4 numbers are below 3e-08 and became 0"]
    assert "all of its 2 weights" in str(halved(np.full(2, 1e-9, np.float32), masking=False))


# ---- what stays ----------------------------------------------------------------------------------


def test_a_product_goes_and_its_edges_are_casts() -> None:
    done = half("g (float[2,4] x) => (float[2,3] y) { y = MatMul (x, w) }", weights(w=(4, 3)))
    assert done.text == unindented(
        """
        g(x: f32[2,4], w: f16[4,3] const) {
          cast: f16[2,4] = Cast(x, to=10)
          y_float16: f16[2,3] = MatMul(cast, w)
          y: f32[2,3] = Cast(y_float16, to=1)
          return y
        }
        """
    )
    assert initializer(done.after, "w").dtype == np.float16
    proved(done)


def test_a_variance_keeps_its_digits_and_its_epsilon() -> None:
    text = """g (float[2,64] x) => (float[2,64] y) {
        s = Mul (x, x)  v = ReduceMean <axes = [1]> (s)  e = Add (v, eps)  d = Sqrt (e)  y = Div (x, d) }"""
    done = half(text, {"eps": np.float32(1e-12)}, opset=13)
    kinds = {b.op: b.out.dtype for b in done.block.bindings}
    assert kinds["Mul"] == kinds["Div"] == TensorProto.FLOAT16
    assert kinds["ReduceMean"] == kinds["Add"] == kinds["Sqrt"] == TensorProto.FLOAT
    assert done.reasons("in_float16") == ["its sums pass 65504"] + 2 * ["all its operands stay"]
    assert initializer(done.after, "eps") == np.float32(1e-12)
    zeros = run(done.after, {"x": np.zeros((2, 64), np.float32)})["y"]
    assert (zeros == 0).all()  # and not 0 / 0


def test_a_mask_of_integers_is_bounded_before_it_is_rounded() -> None:
    text = """g (float[2,3] x, int64[2,3] m) => (float[2,3] y) {
        f = Cast <to = 1> (m)  r = Sub (one, f)  b = Mul (r, low)  z = Add (x, b)  y = Softmax (z) }"""
    done = half(text, {"one": np.float32(1), "low": INFINITY})
    assert done.ops.count("Clip") == 1
    feeds = {
        "x": np.array([[1, 2, 3], [1, 2, 3]], np.float32),
        "m": np.array([[1, 1, 0], [0, 0, 0]]),
    }
    want, found = (run(m, feeds)["y"] for m in (done.before, done.after))
    np.testing.assert_allclose(found[0], want[0], atol=0.001, rtol=0)
    assert np.isfinite(found[1]).all()  # a row of nothing but masks


def test_positions_keep_their_digits() -> None:
    text = """g (int64[1,N] p, float[1,N] x) => (float[1,N] y) {
        f = Cast <to = 1> (p)  a = Mul (f, w)  c = Cos (a)  y = Mul (x, c) }"""
    done = half(text, {"w": np.float32(0.37)})
    position = np.array([[4001, 60001]])
    x = np.ones((1, 2), np.float32)
    found = run(done.after, {"p": position, "x": x})["y"]
    np.testing.assert_allclose(found, np.cos(position * np.float32(0.37)), atol=2e-3)


@pytest.mark.parametrize("keep", ["MatMul", "Mat*", "y", "first", "fi?st"])
def test_what_is_kept_keeps_its_weights(keep: str) -> None:
    text = "g (float[2,4] x) => (float[2,3] y) { t = Tanh (x)  [first] y = MatMul (t, w) }"
    done = half(text, weights(w=(4, 3)), keep=keep)
    assert done.reasons("in_float16") == [f"it is to be kept ({keep})"]
    assert initializer(done.after, "w").dtype == np.float32


def test_a_name_that_meets_nothing() -> None:
    with pytest.raises(InputError, match=r"keep 'MatMull' matches nothing.*did you mean 'MatMul'"):
        half("g (float[2,2] x) => (float[2,2] y) { y = MatMul (x, x) }", keep="MatMull")


def test_a_weight_too_large_leaves_its_reader() -> None:
    text = "g (float[2] x) => (float[2] z) { y = Mul (x, w)  z = Tanh (y) }"
    done = half(text, {"w": np.array([1e5, 1e-5], np.float32)})
    assert done.reasons("in_float16")[0] == "100000 of its constants is beyond 65504"
    assert initializer(done.after, "w").dtype == np.float32
    proved(done)


def test_what_has_no_form_or_no_type_stays() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my.domain" : 1]>
    g (float[2] x) => (float[2] y) { t = my.domain.Own (x)  u = Add (t, x)  y = Tanh (x) }"""
    found = plan(load(onnx.parser.parse_model(text)), ())
    assert [b.op for b in found.forms] == ["Tanh"]
    assert list(found.staying.values()) == [
        "no schema says whether it accepts float16",
        "not all that it reads and computes is known to be a tensor",
    ]


# ---- how it is written ---------------------------------------------------------------------------


def test_a_constant_that_somebody_reads_in_float32_is_there_twice() -> None:
    text = "g (float[2] x) => (float[2] y, float z) { y = Mul (x, w)  s = Mul (w, w)  z = ReduceSum <keepdims = 0> (w) }"
    done = half(text, {"w": np.array([1, 3], np.float32)})
    assert initializer(done.after, "w").dtype == np.float32
    assert initializer(done.after, "w_float16").dtype == np.float16
    proved(done)


def test_a_weight_that_is_an_output() -> None:
    done = half("g (float[2] x) => (float[2] y, float[2] w) { y = Mul (x, w) }", weights(w=(2,)))
    assert initializer(done.after, "w").dtype == np.float32
    proved(done)


def test_nested_graphs_agree_in_float32_and_compute_in_float16() -> None:
    text = """g (float[2,2] x, bool c) => (float[2,2] y) {
        t = Tanh (x)
        y = If (c) <
            then_branch = a () => (float[2,2] p) { q = MatMul (t, w)  p = Relu (q) },
            else_branch = b () => (float[2,2] r) { r = Identity (t) }> }"""
    done = half(text, weights(w=(2, 2)))
    inner = next(iter(next(b for b in done.block.bindings if b.op == "If").blocks.values()))
    assert [b.op for b in inner.bindings] == ["MatMul", "Relu", "Cast"]
    for c in (True, False):
        feeds = {"x": np.array([[1, 2], [3, 4]], np.float32), "c": np.array(c)}
        want, found = (run(m, feeds)["y"] for m in (done.before, done.after))
        np.testing.assert_allclose(found, want, atol=0.003, rtol=0)


def test_a_loop_carries_float32() -> None:
    text = """g (float[2] x, int64 n) => (float[2] y) {
        go = Constant <value = bool {1}> ()
        y = Loop (n, go, x) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2) {
            k2 = Identity (k)  t = Mul (s, w)  s2 = Tanh (t) }> }"""
    done = half(text, {"w": np.array([0.5, 2], np.float32)})
    feeds = {"x": np.array([1, -1], np.float32), "n": np.array(5)}
    want, found = (run(m, feeds)["y"] for m in (done.before, done.after))
    np.testing.assert_allclose(found, want, atol=0.003, rtol=0)


def test_functions_with_floats_are_opened() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[2] x) => (float[2] y) { y = my.f (x) }
    <domain: "my", opset_import: ["" : 20]> f (a) => (b) { t = Tanh (a)  b = Mul (t, t) }"""
    model = onnx.parser.parse_model(text)
    done = apply(model, Float16())
    assert [b.op for b in done.block.bindings] == ["Cast", "Tanh", "Mul", "Cast"]
    assert not done.after.functions
    kept = apply(model, Float16(keep="f"))
    assert [b.op for b in kept.block.bindings] == ["f"] and kept.after == model


def test_declared_types_follow() -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) { t = Tanh (x)  u = ReduceSum (t)  y = Add (t, u) }"
    )
    model = onnx.shape_inference.infer_shapes(model)
    done = apply(model, Float16())
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(done.after, strict_mode=True))
    said = {v.name: v.type.tensor_type.elem_type for v in done.after.graph.value_info}
    assert said["t"] == TensorProto.FLOAT16 and said["u"] == TensorProto.FLOAT


def test_what_fills_and_what_casts() -> None:
    text = """g (int64[1] n, bool[N] m) => (float[N] y) {
        f = ConstantOfShape <value = float[1] {-1e30}> (n)  o = ConstantOfShape (n)
        b = Cast <to = 1> (m)  c = Where (m, f, b)  y = Add (c, o) }"""
    done = half(text)
    kinds = {b.out.name: b.out.dtype for b in done.block.bindings}
    assert [kinds[n] for n in "fobc"] == [TensorProto.FLOAT16] * 4
    found = run(done.after, {"n": np.array([2]), "m": np.array([True, False])})["y"]
    assert found.tolist() == [-65504, 0]


def test_a_weight_of_old_that_is_listed_as_an_input() -> None:
    model = model_of(
        "g (float[2] x, float[2] w) => (float[2] y) { y = Mul (x, w) }", weights(w=(2,)), ir_version=3, opset=11
    )  # fmt: skip
    program = load(model)
    Float16().run(program, Trace())
    made = to_proto(program)
    assert initializer(made, "w").dtype == np.float16
    assert made.graph.input[1].type.tensor_type.elem_type == TensorProto.FLOAT16
    assert verify(model, made, metric="worst=0.005").verdict == "within bounds"


# ---- what onnxruntime dies of ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        ("t = Transpose <perm = [1,0,2]> (x) y = MatMul (t, w)", 1),
        ("t = Transpose <perm = [1,2,0]> (x) y = MatMul (t, v)", 1),
        ("t = Transpose <perm = [1,0,2]> (x) u = Identity (t) y = MatMul (u, w)", 1),
        ("t = Transpose <perm = [1,0,2]> (x) u = Concat <axis = 0> (t, t) y = MatMul (u, w)", 1),
        (
            "t = Transpose <perm = [1,2,0]> (x) u = Transpose <perm = [0,2,1]> (t) y = MatMul (u, w)",
            2,
        ),
        ("t = Transpose <perm = [0,2,1]> (x) y = MatMul (t, v4)", 0),
        ("t = Transpose <perm = [1,0,2]> (x) y = MatMul (t, m)", 0),
        ("t = Transpose <perm = [1,0,2]> (x) y = Tanh (t)", 0),
    ],
)
def test_transposes_that_onnxruntime_dies_of_before_a_product(body: str, stays: int) -> None:
    """It loads `MatMul(Transpose(x), W)` in float16 with fewer optimisations alone: the first axis
    moves, and the ranks differ.
    """
    text = f"g (float[5,4,2] x) => (float[A,B,C] y) {{ {body} }}"
    sizes = {"w": (2, 3), "v": (5, 3), "v4": (4, 3), "m": (4, 2, 3)}
    used = {name: shape for name, shape in sizes.items() if f", {name})" in body}
    done = half(text, weights(**used))
    kept = [why for b, why in plan(load(done.before), []).staying.items() if b.is_op("Transpose")]
    assert len(kept) == stays and all(why.startswith("onnxruntime may crash") for why in kept[:1])
    proved(done)
