"""Islands of dequantized and quantized values on integers: equal to the bit, or off by one quantum where that is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.verify import run
from tests.helpers import unindented
from tests.rewriting import Done, apply, assert_same_bits, model_of

EXACT = "fake-quantization-to-integer,remove-unused"
NEAREST = "fake-quantization-to-integer{exact=false},remove-unused"
RNG = np.random.default_rng(5)
LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}


def every(dtype: str = "uint8", shape: tuple[int, ...] = (2, 8, 4, 4)) -> Any:
    """All 256 values, in no order."""
    low, high = LIMITS[dtype]
    return RNG.permutation(np.arange(low, high + 1)).astype(dtype).reshape(shape)


def scaled(dtype: str = "uint8", scale: float = 0.03, zero: int = 7) -> dict[str, Any]:
    return {"s": np.float32(scale), "z": np.array(zero, dtype)}


def island(body: str, dtype: str = "uint8", more: str = "", shape: str = "2,8,4,4") -> str:
    """x dequantized as d; y is the body's result r quantized again."""
    return f"""g ({dtype}[{shape}] x{more}) => ({dtype}[] y) {{
      d = DequantizeLinear(x, s, z) {body} y = QuantizeLinear(r, s, z) }}"""


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


SIZES = {"a0": i64(0), "a4": i64(4), "sh": i64(2, -1), "one": i64(1), "big": i64(2, 1, 1, 1, 1),
         "rep": i64(1, 2, 1, 1), "pads": i64(0, 0, 1, 1, 0, 0, 1, 2), "zero": np.float32(0),
         "idx": i64(1, 0, -1), "at": np.zeros((2, 8, 4, 1), np.int64)}  # fmt: skip
MOVES = {
    "Reshape": "r = Reshape(d, sh)", "Transpose": "r = Transpose<perm=[0,2,3,1]>(d)", "Flatten": "r = Flatten(d)",
    "Squeeze": "u = Unsqueeze(d, a0) r = Squeeze(u, a0)", "Unsqueeze": "r = Unsqueeze(d, a4)",
    "Expand": "r = Expand(d, big)", "Slice": "r = Slice(d, a0, one)", "Gather": "r = Gather<axis=1>(d, idx)",
    "GatherElements": "r = GatherElements<axis=3>(d, at)", "Tile": "r = Tile(d, rep)",
    "GatherND": "r = GatherND(d, one)",
    "DepthToSpace": "r = DepthToSpace<blocksize=2>(d)", "SpaceToDepth": "r = SpaceToDepth<blocksize=2>(d)",
    "MaxPool": "r = MaxPool<kernel_shape=[2,2], pads=[1,1,0,0]>(d)", "Relu": "r = Relu(d)",
    "Pad": "r = Pad(d, pads)", "Pad of zero": "r = Pad(d, pads, zero)",
    "Pad by edges": 'r = Pad<mode="edge">(d, pads)', "Concat": "e = DequantizeLinear(w, s, z) r = Concat<axis=1>(d, e)",
    "several": "t = Transpose<perm=[0,2,3,1]>(d) u = Relu(t) r = Reshape(u, sh)",
}  # fmt: skip


@pytest.mark.covering(2)
@pytest.mark.parametrize("opset", [13, 17, 20, 21])
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("what", MOVES)
def test_what_moves_or_compares_is_equal_to_the_bit(what: str, dtype: str, opset: int) -> None:
    x, w = every(dtype), every(dtype)
    given = {**scaled(dtype), **SIZES, "w": w}
    done = apply(model_of(island(MOVES[what], dtype), given, opset=opset), EXACT)
    assert "QuantizeLinear" not in done.counts and "DequantizeLinear" not in done.counts
    assert not done.trace.inexact and not done.trace.rounded
    assert_same_bits(done, x=x)


def test_text_of_an_island() -> None:
    body = "a = Relu(d) m = MaxPool<kernel_shape=[2,2]>(a) r = Transpose<perm=[0,2,3,1]>(m)"
    done = apply(model_of(island(body), scaled()), EXACT)
    assert done.text == unindented("""
        g(x: u8[2,8,4,4], bound: u8[] const = 7) {
          max: u8[2,8,4,4] = Max(x, bound)
          maxpool: u8[2,8,3,3] = MaxPool(max, kernel_shape=[2, 2])
          y: u8[2,3,3,8] = Transpose(maxpool, perm=[0, 2, 3, 1])
          return y
        }
    """)


@pytest.mark.parametrize("scale", [1.2e-38, 1e-20, 0.003921569, 0.1, 1 / 3, 1.0, 7.77, 1e30])
@pytest.mark.parametrize(
    ("dtype", "zero"), [("uint8", 0), ("uint8", 255), ("int8", -128), ("int8", 3)]
)
def test_back_and_forth_is_nothing(scale: float, dtype: str, zero: int) -> None:
    """For every integer and any ordinary scale."""
    model = model_of(island("r = Identity(d)", dtype), scaled(dtype, scale, zero))
    done = apply(model, f"remove-noops,{EXACT}")
    assert done.ops in ([], ["Identity"]) and done.fired("quantize_of_dequantize") == 1
    assert_same_bits(done, x=every(dtype))


@pytest.mark.parametrize("scale", [0.0, -0.1, 1e-39, 1e38, np.inf, np.nan])
def test_scales_that_are_not_ordinary_stay(scale: float) -> None:
    done = apply(model_of(island("r = Relu(d)"), scaled(scale=scale)), EXACT)
    assert not done.fired("quantize_of_dequantize") and done.count("DequantizeLinear") == 1


@pytest.mark.parametrize(
    ("low", "high"),
    [("0.0", "6.0"), ("-0.1", "0.1"), ("-100.0", "100.0"), ("0.015", "0.0449"), ("-50.0", "0.0")],
)
@pytest.mark.parametrize("dtype", LIMITS)
def test_clip_between_numbers_that_no_integer_means(low: str, high: str, dtype: str) -> None:
    given = {**scaled(dtype), "low": np.float32(low), "high": np.float32(high)}
    done = apply(model_of(island("r = Clip(d, low, high)", dtype), given), EXACT)
    assert done.ops in (["Clip"], ["Identity"], [])
    assert_same_bits(done, x=every(dtype))


@pytest.mark.parametrize(("low", "high", "gone"), [("-0.2", "8.0", True), ("0.0", "8.0", False)])
def test_bounds_where_quantizing_saturates_by_itself(low: str, high: str, gone: bool) -> None:
    text = "g (float[9] x) => (uint8[9] y) { r = Clip(x, low, high) y = QuantizeLinear(r, s, z) }"
    given = {**scaled(), "low": np.float32(low), "high": np.float32(high)}
    done = apply(model_of(text, given), EXACT)
    assert (done.ops == ["QuantizeLinear"]) is gone
    x = np.array([-np.inf, -9, -0.21, -0.0, 0.0, 0.1, 7.99, 9, np.inf], np.float32)
    assert_same_bits(done, x=x)


def test_relu_goes_where_the_zero_point_is_the_least() -> None:
    text = "g (float[5] x) => (uint8[5] y) { r = Relu(x) y = QuantizeLinear(r, s, z) }"
    done = apply(model_of(text, scaled(zero=0)), EXACT)
    assert done.ops == ["QuantizeLinear"]
    assert_same_bits(done, x=np.array([-1, -0.0, 0.015, 3, 9], np.float32))
    assert apply(model_of(text, scaled(zero=3)), EXACT).ops == ["Relu", "QuantizeLinear"]


OTHER = {"s2": np.float32(0.04), "z2": np.uint8(8), "sv": np.full(8, 0.03, np.float32),
         "zv": np.full(8, 7, np.uint8), "half": np.float32(0.5), "w": every()}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        island("r = Reshape(d, sh)").replace("(r, s, z)", "(r, s2, z)"),  # other scales
        island("r = Reshape(d, sh)").replace("(r, s, z)", "(r, s, z2)"),
        island("r = Reshape(d, sh)", more=", float t").replace("(x, s, z)", "(x, t, z)"),
        island("r = Relu(d)").replace("(x, s, z)", "(x, sv, zv)"),  # one for each channel
        island("e = DequantizeLinear(w, s2, z) r = Concat<axis=1>(d, e)"),
        island("r = Concat<axis=1>(d, f)", more=", float[2,8,4,4] f"),
        island("r = Pad(d, pads, half)"),
        island("r = MaxPool<kernel_shape=[2,2], ceil_mode=1, strides=[3,3]>(d)"),
        island("r = MaxPool<kernel_shape=[2,2], dilations=[2,2]>(d)"),
        island("r, i = MaxPool<kernel_shape=[2,2]>(d)"),
        island("r = AveragePool<kernel_shape=[2,2]>(d)"),
        island("r = Sigmoid(d)"),
        island("r = Clip(d, t)", more=", float t"),
        island("r = Clip(d, half, zero)"),  # in no order
    ],
)
def test_what_stays(text: str) -> None:
    done = apply(model_of(text, {**scaled(), **SIZES, **OTHER}), EXACT)
    assert done.count("QuantizeLinear") == 1 and done.count("DequantizeLinear") >= 1


def test_what_others_read_stays() -> None:
    text = island("r = Transpose(d)").replace("(uint8[] y)", "(uint8[] y, float[] d)")
    assert not apply(model_of(text, scaled()), EXACT).trace.rewrites
    text = island("r = Relu(d)").replace("(uint8[] y)", "(uint8[] y, float[] r)")
    done = apply(model_of(text, scaled()), EXACT)  # the Relu is one of integers, r what it means
    assert done.ops == ["Max", "DequantizeLinear"]
    assert_same_bits(done, x=every())


def test_an_embedding_is_dequantized_row_by_row() -> None:
    text = "g (int64[3] i) => (float[3,16] y) { d = DequantizeLinear(w, s, z) y = Gather(d, i) }"
    done = apply(model_of(text, {**scaled(), "w": every(shape=(16, 16))}), EXACT)
    assert done.ops == ["Gather", "DequantizeLinear"]
    assert_same_bits(done, i=i64(0, 15, -3))


def test_inside_branches() -> None:
    text = """g (bool k, uint8[2,8,4,4] x) => (uint8[2,8,4,4] o) {
      e = DequantizeLinear(x, s, z)
      o = If (k) <
        then_branch = t () => (uint8[2,8,4,4] a) { d = DequantizeLinear(x, s, z) r = Relu(d) a = QuantizeLinear(r, s, z) },
        else_branch = f () => (uint8[2,8,4,4] b) { v = Neg(e) b = QuantizeLinear(v, s, z) }> }"""
    done = apply(model_of(text, scaled()), EXACT)
    assert done.count("QuantizeLinear") == 1 and done.count("Max") == 1
    for k in (True, False):
        assert_same_bits(done, x=every(), k=np.array(k))


# ---- products --------------------------------------------------------------------------------------------------------

CONV = """g (uint8[1,3,6,6] x) => (uint8[1,4,O,O] y) {
  d = DequantizeLinear(x, s, z) dw = DequantizeLinear<axis=0>(w, sw, zw) db = DequantizeLinear<axis=0>(b, sb)
  r = Conv<ATTRS>(d, dw, db) y = QuantizeLinear(r, sy, zy) }"""
MATMUL = """g (uint8[B,5,16] x) => (uint8[B,5,8] y) {
  d = DequantizeLinear(x, s, z) dw = DequantizeLinear<axis=1>(w, sw, zw) r = MatMul(d, dw) y = QuantizeLinear(r, sy, zy) }"""


def products(
    scale: float, weight: float, result: float, *, columns: bool = False
) -> dict[str, Any]:
    channels, shape = (8, (16, 8)) if columns else (4, (4, 3, 3, 3))
    sw = np.full(channels, weight, np.float32)
    if not np.log2(weight).is_integer():
        sw = sw * RNG.uniform(0.5, 1.5, channels).astype(np.float32)
    return {
        "s": np.float32(scale), "z": np.uint8(120), "w": RNG.integers(-127, 128, shape).astype(np.int8),
        "sw": sw, "zw": np.zeros(channels, np.int8), "sy": np.float32(result), "zy": np.uint8(99),
        "b": RNG.integers(-3000, 3000, channels).astype(np.int32), "sb": np.float32(scale) * sw,
    }  # fmt: skip


def conv_text(attrs: str = "pads=[1,1,1,1]", out: int = 6) -> str:
    return CONV.replace("ATTRS", attrs).replace("O,O", f"{out},{out}")


def on_random_images(done: Done, shape: tuple[int, ...] = (1, 3, 6, 6)) -> int:
    """The largest difference over many feeds, in quanta."""
    worst = 0
    for _ in range(20):
        x = RNG.integers(0, 256, shape).astype(np.uint8)
        want = run(done.before, {"x": x}, optimize=False)["y"].astype(int)
        got = run(done.after, {"x": x})["y"].astype(int)
        worst = max(worst, int(np.abs(want - got).max()))
    return worst


@pytest.mark.parametrize(
    ("attrs", "out"),
    [
        ("pads=[1,1,1,1]", 6),
        ("strides=[2,2]", 2),
        ('auto_pad="SAME_UPPER"', 6),
        ("dilations=[2,2]", 2),
    ],
)
@pytest.mark.exact8
def test_conv_of_powers_of_two_is_equal_to_the_bit(attrs: str, out: int) -> None:
    done = apply(model_of(conv_text(attrs, out), products(2**-5, 2**-7, 2**-1)), EXACT)
    assert done.ops == ["QLinearConv"] and not done.trace.inexact
    assert on_random_images(done) == 0
    done.prove()


@pytest.mark.exact8
def test_matmul_of_powers_of_two_is_equal_to_the_bit() -> None:
    done = apply(model_of(MATMUL, products(2**-5, 2**-7, 2**-1, columns=True)), EXACT)
    assert done.ops == ["QLinearMatMul"] and on_random_images(done, (2, 5, 16)) == 0
    done.prove()


@pytest.mark.parametrize(("text", "op"), [(conv_text(), "QLinearConv"), (MATMUL, "QLinearMatMul")])
@pytest.mark.exact8
def test_other_scales_are_off_by_one_quantum_where_that_is_allowed(text: str, op: str) -> None:
    matmul = op == "QLinearMatMul"
    given = products(0.03, 0.01, 0.4, columns=matmul)
    kept = apply(model_of(text, given), EXACT)
    assert not kept.count(op) and "exact=false allows it" in kept.declined
    done = apply(model_of(text, given), NEAREST)
    assert done.ops == [op] and on_random_images(done, (2, 5, 16) if matmul else (1, 3, 6, 6)) <= 1
    assert [(i.error, "one quantum" in i.reason) for i in done.trace.inexact] == [(1.0, True)]
    done.prove()


def test_ties_are_where_they_may_differ() -> None:
    """x 0.3 0.1 / 0.06 is x / 2, in float32 not quite: half of all results stand at a tie."""
    text = """g (uint8[1,256] x) => (uint8[1,256] y) { d = DequantizeLinear(x, s) dw = DequantizeLinear(w, sw)
      r = MatMul(d, dw) y = QuantizeLinear(r, sy, zy) }"""
    given = {"s": np.float32(0.3), "sw": np.float32(0.1), "sy": np.float32(0.06), "zy": np.uint8(0),
             "w": np.eye(256, dtype=np.int8)}  # fmt: skip
    done = apply(model_of(text, given), NEAREST)
    x = {"x": np.arange(256, dtype=np.uint8)[None]}
    want, got = (run(m, x, optimize=False)["y"].astype(int) for m in (done.before, done.after))
    assert done.ops == ["QLinearMatMul"] and np.abs(want - got).max() <= 1


@pytest.mark.parametrize("bounds", ["Relu(v)", "Clip(v, low, high)"])
@pytest.mark.exact8
def test_what_holds_a_product_holds_its_integers(bounds: str) -> None:
    text = conv_text().replace("r = Conv", "v = Conv").replace("y = Q", f"r = {bounds} y = Q")
    given = {**products(2**-5, 2**-7, 2**-1), "low": np.float32(0), "high": np.float32(6)}
    done = apply(model_of(text, given), EXACT)
    assert done.ops == ["QLinearConv", "Clip"] and on_random_images(done) == 0
    done = apply(model_of(text, {**given, "zy": np.uint8(0), "high": np.float32(999)}), EXACT)
    assert done.ops == ["QLinearConv"] and on_random_images(done) == 0


@pytest.mark.exact8
def test_a_float_bias_of_whole_quanta() -> None:
    text = conv_text().replace("db = DequantizeLinear<axis=0>(b, sb)", "")
    given = products(2**-5, 2**-7, 2**-1)
    given["db"] = given.pop("b").astype(np.float32) * np.float32(2**-12)
    done = apply(model_of(text, given), EXACT)
    assert done.ops == ["QLinearConv"] and on_random_images(done) == 0
    given["db"] = given["db"] + np.float32(2**-13)
    assert "not a multiple" in apply(model_of(text, given), NEAREST).declined


@pytest.mark.exact8
def test_no_bias_and_no_zero_points() -> None:
    text = conv_text().replace("db = DequantizeLinear<axis=0>(b, sb)", "").replace(", db)", ")")
    text = text.replace("(x, s, z)", "(x, s)").replace("(w, sw, zw)", "(w, sw)")
    done = apply(model_of(text, products(2**-5, 2**-7, 2**-1)), EXACT)
    assert done.ops == ["QLinearConv"] and on_random_images(done) == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sb": np.full(4, 0.1, np.float32)}, "another scale than the products"),
        ({"zy": np.int8(3)}, "other integers than the left operand"),
        ({"sy": np.full(4, 0.5, np.float32), "zy": np.zeros(4, np.uint8)}, "other integers"),
        ({"sy": np.float32(1e-9)}, "quanta"),  # every rounding shows
    ],
)
def test_convs_that_stay(change: dict[str, Any], reason: str) -> None:
    text = (
        conv_text().replace("(uint8[1,4", "(int8[1,4")
        if "zy" in change and reason.startswith("other integers than")
        else conv_text()
    )
    done = apply(model_of(text, {**products(0.03, 0.01, 0.4), **change}), NEAREST)
    assert not done.count("QLinearConv") and reason in done.declined


@pytest.mark.parametrize(
    ("left", "right", "fires"),
    [
        ("uint8", "uint8", True),
        ("uint8", "int8", True),
        ("int8", "int8", True),
        ("int8", "uint8", False),
    ],
)
def test_signs_of_integers(left: str, right: str, fires: bool) -> None:
    text = f"""g ({left}[5,16] x) => ({left}[5,8] y) {{ d = DequantizeLinear(x, s) dw = DequantizeLinear(w, s)
      r = MatMul(d, dw) y = QuantizeLinear(r, s, zy) }}"""
    w = RNG.integers(0, 100, (16, 8)).astype(right)
    given = {"s": np.float32(0.5), "w": w, "zy": np.array(3, left)}
    done = apply(model_of(text, given), EXACT)
    assert bool(done.count("QLinearMatMul")) is fires
    assert_same_bits(done, x=RNG.integers(0, 60, (5, 16)).astype(left))


def test_sums_that_overflow_stay() -> None:
    text = """g (uint8[1,40000] x) => (uint8[1,1] y) { d = DequantizeLinear(x, s) dw = DequantizeLinear(w, s)
      r = MatMul(d, dw) y = QuantizeLinear(r, big, zy) }"""
    given = {"s": np.float32(1), "w": np.full((40000, 1), 255, np.uint8), "zy": np.uint8(0)}
    done = apply(model_of(text, {**given, "big": np.float32(2**20)}), NEAREST)
    assert not done.count("QLinearMatMul") and "32 bits do not hold" in done.declined


@pytest.mark.exact8
def test_a_product_that_stays_float() -> None:
    text = """g (uint8[B,5,16] x) => (float[B,5,8] y) { d = DequantizeLinear(x, s, z)
      dw = DequantizeLinear<axis=1>(w, sw, zw) y = MatMul(d, dw) }"""
    model = model_of(text, products(0.03, 0.01, 0.4, columns=True))
    assert not apply(model, EXACT).trace.rewrites or apply(model, EXACT).count("MatMul") == 1
    done = apply(model, NEAREST)
    assert done.ops == ["MatMulInteger", "Cast", "Mul"]
    done.prove()


def test_products_that_others_read_stay() -> None:
    text = conv_text().replace("(uint8[1,4,6,6] y)", "(uint8[1,4,6,6] y, float[1,4,6,6] r)")
    done = apply(model_of(text, products(2**-5, 2**-7, 2**-1)), EXACT)
    assert done.count("Conv") == 1 and "read elsewhere" in done.declined


@pytest.mark.exact8
def test_the_way_there_and_back() -> None:
    """`legalize` makes the island again, with the same scales."""
    done = apply(
        model_of(conv_text(), products(2**-5, 2**-7, 2**-1)),
        "fake-quantization-to-integer,legalize,fold-constant,fake-quantization-to-integer,remove-unused",
    )
    assert "QLinearConv" in done.ops and on_random_images(done) == 0
