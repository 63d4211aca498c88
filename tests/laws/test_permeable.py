"""Every permeable operator between two transposes that cancel: none is left, and the results are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.domains import REDUCTIONS
from onnxgrad.laws import permeable
from tests.rewriting import apply, assert_same_results, model_of, weights

IN, OUT = "Transpose<perm=[0,2,3,1]>", "Transpose<perm=[0,3,1,2]>"
W = {**weights(row=(5,), wide=(1, 1, 1, 5), image=(3, 4, 5), one=(), w=(2, 3, 4, 5)),
     "ones": np.ones((1, 1), np.float32), "one32": np.array([1], np.int32), "two32": np.array([2], np.int32)}  # fmt: skip
I = {k: np.array(v, np.int64) for k, v in {"spatial": [1, -2], "channel": [-1], "pads": [0, 1, 2, 0, 0, 1, 0, 3],
     "two": [1, 2], "starts": [1, 0], "ends": [3, 4], "steps": [2, 1], "four": [0, 0, 1, 0], "five": [2, 3, 4, 5],
     "parts": [2, 3], "few": [1, 0, 2, 3]}.items()}  # fmt: skip

SAME_RANK = {
    **{f"{f} of one": f"r = {f}(a)" for f in permeable._UNARY if f not in ("Not", "Cast", "Clip", "Swish")},
    "Clip": "r = Clip(a, one)", "Cast": "c = Cast<to=11>(a) r = Cast<to=1>(c)",
    "Not": "m = Less(a, one) n = Not(m) r = Where(n, a, one)",
    **{f"{f} of a row": f"r = {f}(a, row)" for f in ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Sum", "Mean")},
    "Pow": "b = Abs(a) r = Pow(b, one)", "Add of a wide constant": "r = Add(wide, a)",
    "Add of three axes": "r = Add(a, image)", "Sub of a number": "r = Sub(one, a)", "Add of ones": "r = Add(a, ones)",
    "Add of itself": "r = Add(a, a)", "Mul of a gate": f"z = {IN}(gate) r = Mul(a, z)",
    "Where": "m = Greater(a, row) r = Where(m, a, wide)",
    "Concat": "r = Concat<axis=3>(a, a)", "Concat of a constant": "r = Concat<axis=-3>(a, w)",
    "Pad": "r = Pad(a, pads)", "Pad by edges": 'r = Pad<mode="reflect">(a, pads)',
    "Pad of some axes": "r = Pad(a, few, , spatial)", "Slice": "r = Slice(a, starts, ends, spatial, steps)", "Slice of all": "r = Slice(a, four, five)",
    "Slice of int32": "r = Slice(a, one32, two32, two32)",
    "Softmax": "r = Softmax<axis=2>(a)", "LogSoftmax": "r = LogSoftmax<axis=1>(a)",
    "ReduceSum": "s = ReduceSum(a, spatial) r = Mul(a, s)",
    "Split": "u, v = Split<axis=3>(a, parts) r = Concat<axis=3>(v, u)",
    "quantized": "q = QuantizeLinear(a, half) r = DequantizeLinear(q, half)",
}  # fmt: skip
LOWER = {
    "ReduceSum": "y = ReduceSum<keepdims=0>(a, spatial)",
    "ReduceSum of channels": "y = ReduceSum<keepdims=0>(a, channel)",
    "Squeeze": "s = ReduceSum(a, spatial) y = Squeeze(s, two)",
}
REDUCE_18 = {f: f"y = {f}<keepdims=0>(b, spatial)" for f in REDUCTIONS if f not in ("ReduceSum",)}


def text_of(body: str, out: str) -> str:
    return (
        f"g (float[2,5,3,4] x, float[2,5,3,4] gate) => (float[] y) {{ a = {IN}(x) {body} {out} }}"
    )


def check(body: str, out: str, opset: int) -> None:
    constants: dict[str, Any] = {**W, **I, "half": np.float32(0.5)}
    done = apply(
        model_of(text_of(body, out), constants, opset=opset), "convert-layout,remove-unused"
    )
    assert done.count("Transpose") == 0 and done.fired("convert_layout") == 1
    assert_same_results(done)


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("what", SAME_RANK)
def test_nothing_is_transposed(what: str, opset: int) -> None:
    since = {"HardSwish": 14, "Mish": 18, "Gelu": 20, "Pad of some axes": 18}
    if since.get(what if what in since else what.partition(" ")[0], 0) > opset:
        pytest.skip("a later operator, or operand")
    check(SAME_RANK[what], f"y = {OUT}(r)", opset)


@pytest.mark.parametrize("axes", ["", ", axes=[0,2]"])
def test_a_slice_by_attributes(axes: str) -> None:
    check(f"r = Slice<starts=[0,1], ends=[1,3]{axes}>(a)", f"y = {OUT}(r)", 9)


def test_an_operator_of_opset_24() -> None:
    check("r = Swish(a)", f"y = {OUT}(r)", 24)


@pytest.mark.parametrize("what", LOWER)
@pytest.mark.parametrize("opset", [13, 18, 21])
def test_what_drops_axes(what: str, opset: int) -> None:
    check(LOWER[what], "", opset)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("what", REDUCE_18)
def test_reductions_by_attribute_and_by_operand(what: str, opset: int) -> None:
    body = REDUCE_18[what]
    if opset < 18:
        body = body.replace("<keepdims=0>(b, spatial)", "<keepdims=0, axes=[1,-2]>(b)")
    check(f"b = Abs(a) {body}", "", opset)


@pytest.mark.parametrize(
    "body",
    [
        "r = CumSum(a, at)",  # not among them
        "r = Softmax(a)",  # along the last axis it is fastest
        "r = Add(a, free)",  # a row that is no constant
        "r = Slice(a, starts, ends, any)",
        "r = Pad(a, any)",
        "r = ReduceSum(a)",  # all of them, not said
        "s = Shape(a) r = Reshape(a, s)",
    ],
)
def test_what_is_opaque(body: str) -> None:
    text = f"""g (float[2,5,3,4] x, float[5] free, int64[2] any) => (float[2,5,3,4] y, float[2,3,4,5] b) <int64 at = {{1}}> {{
      a = {IN}(x) b = Neg(a) {body} y = {OUT}(r) }}"""
    done = apply(model_of(text, I), "convert-layout")
    assert done.count("Transpose") >= 2


def test_what_drops_other_axes_and_so_their_order() -> None:
    """(N, C, W) is not (N, W, C)."""
    text = f"g (float[2,5,3,4] x) => (float[2,4,5] y) {{ a = {IN}(x) y = ReduceSum<keepdims=0>(a, one) }}"
    done = apply(model_of(text, {"one": np.array([1])}), "convert-layout")
    assert not done.trace.rewrites


def test_axes_that_occur_twice_are_not_moved() -> None:
    text = f"g (float[2,5,3,4] x) => (float[2,5,3,4] y) {{ a = {IN}(x) b = ReduceMax<axes=[1,1]>(a) y = {OUT}(b) }}"
    done = apply(model_of(text, opset=13), "convert-layout,simplify-transpose")
    assert done.count("Transpose") == 2
