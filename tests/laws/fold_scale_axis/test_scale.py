"""One factor per channel: its arithmetic, what takes it, and where an axis goes in a reshape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.laws.fold_scale_axis.scale import Scale, again, fixed, weight
from onnxgrad.rewrite.trace import Decline
from tests.helpers import parse
from tests.rewriting import emitted, model_of, weights

FACTORS = np.array([2, -3, 0.5], np.float32)


def values(text: str, **constants: Any) -> dict[str, Any]:
    return {v.name: v for v in load(model_of(text, constants)).main.vars()}


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3,), 0), ((3, 2), 0), ((2, 3), 1), ((2, 3, 4, 5), 1), ((2, 4, 3), 2)]
)
def test_times_lies_along_its_axis(shape: tuple[int, ...], axis: int, divide: bool) -> None:
    model = parse(
        f"g (float[{','.join(map(str, shape))}] x) => (float y) {{ y = ReduceSum <keepdims = 0> (x) }}"
    )
    x = weights(x=shape)["x"]
    (found,) = emitted(
        model, lambda v: [Scale(FACTORS, axis, divide).times(v["x"], axis)], {"x": x}
    )
    along = FACTORS.reshape([3 if i == axis else 1 for i in range(len(shape))])
    np.testing.assert_allclose(found, x / along if divide else x * along, rtol=1e-6)


def test_one_factor_lies_along_no_axis() -> None:
    model = parse("g (float[2,5] x) => (float[2,5] y) { y = Neg(x) }")
    x = weights(x=(2, 5))["x"]
    (found,) = emitted(
        model, lambda v: [Scale(np.float32(3).reshape(()), None).times(v["x"], 1)], {"x": x}
    )
    np.testing.assert_allclose(found, 3 * x, rtol=1e-6)


@pytest.mark.parametrize("shape", ["[2,4]", "[]"])
def test_what_does_not_have_these_channels_is_declined(shape: str) -> None:
    block = load(
        parse(f"g (float{shape.replace('[]', '')} x, float[] z) => (float[] y) {{ y = Add(x, z) }}")
    ).main
    v = next(v for v in block.inputs if v.name == ("z" if shape == "[]" else "x"))
    with emitting(block), pytest.raises(Decline, match="does not have 3 channels"):
        Scale(FACTORS, 1).times(v, 1 if shape != "[]" else 0)


@pytest.mark.parametrize(
    ("dtype", "value", "factor", "divide", "loses"),
    [
        (np.float32, 3e38, 10, False, True),
        (np.float32, 1e-44, 1e-3, False, True),
        (np.float32, 1e-44, 1e-3, True, False),
        (np.float16, 6e4, 2, False, True),
        (np.float16, 6e4, 2, True, False),
        (np.float64, 3e38, 10, False, False),
    ],
)
def test_a_constant_keeps_its_digits_or_is_left(
    dtype: Any, value: float, factor: float, divide: bool, loses: bool
) -> None:
    kind = {np.float16: "float16", np.float32: "float", np.float64: "double"}[dtype]
    model = model_of(
        f"g ({kind}[2] x) => ({kind}[2] y) {{ y = Mul(x, w) }}", {"w": np.full(2, value, dtype)}
    )
    block = load(model).main
    scale = Scale(np.full(2, factor, dtype), 0, divide)
    with emitting(block):
        if loses:
            with pytest.raises(Decline):
                scale.times(block.initializers["w"], 0)
        else:
            assert scale.times(block.initializers["w"], 0).definition is not None
        assert scale.times(block.inputs[0], 0).definition is not None, (
            "of an input nothing is known beforehand"
        )


def test_properties() -> None:
    scale = Scale(FACTORS, 1)
    assert not scale.positive and not scale.uniform and not scale.loses_digits
    assert Scale(np.abs(FACTORS), 1).positive and Scale(np.full(3, 2.0), 1).uniform
    assert (
        not Scale(np.array([1.0, 0.0]), 1).positive
        and not Scale(np.array([1.0, np.nan]), 1).positive
    )
    assert (scale.inverse.divide, scale.inverse.inverse.divide, scale.at(3).axis) == (
        True,
        False,
        3,
    )
    assert (
        Scale(np.array([1.0, 1e-4]), 0).loses_digits and Scale(np.array([1.0, 0.0]), 0).loses_digits
    )


def test_parts_of_it_and_it_among_others() -> None:
    scale = Scale(FACTORS, 1)
    assert [p.factors.tolist() for p in scale.parts([1, 2])] == [[2], [-3, 0.5]]
    assert scale.among(1, [2, 3, 1]).factors.tolist() == [1, 1, 2, -3, 0.5, 1]
    whole = scale.among(0, [3, 2])
    assert whole.parts([3, 2])[0].factors.tolist() == FACTORS.tolist() and whole.axis == 1


def test_each_group_has_its_own_part() -> None:
    found = np.asarray(Scale(np.array([1.0, 2, 3, 4]), 1).grouped(2, 3, 1))
    assert found.tolist() == [[[1], [2]]] * 3 + [[[3], [4]]] * 3


FIXED = """g (float[2,3] x, float[3] small) => (float[2,3] y) {
    t = Transpose(w)  s = Mul(t, k)  q = DequantizeLinear(i, k)  r = Relu(w)  m = Mul(x, k)  y = Add(x, m) }"""
CONSTANTS = {"w": np.ones((3, 2), np.float32), "k": np.float32(2), "i": np.ones((2, 3), np.int8)}


@pytest.mark.parametrize(
    ("name", "is_fixed"),
    [("w", True), ("t", True), ("s", True), ("q", False), ("r", False), ("x", False), ("m", False)],
)
def test_what_the_file_fixes(name: str, is_fixed: bool) -> None:
    assert fixed(values(FIXED, **CONSTANTS)[name]) is is_fixed


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("w", None),
        ("s", None),
        ("small", None),
        ("x", "is not constant and not smaller"),
        ("m", "is not constant and not smaller"),
        ("q", "is computed from other values"),
        ("r", "is computed from other values"),
    ],
)
def test_what_may_take_a_scale(name: str, reason: str | None) -> None:
    found = values(FIXED, **CONSTANTS)
    if reason is None:
        assert weight(found[name], found["y"]) is found[name]
    else:
        with pytest.raises(Decline, match=reason):
            weight(found[name], found["y"])


def test_nothing_and_an_unknown_rank_take_none() -> None:
    found = values("g (float[2] x, float[] u) => (float[] y) { y = Add(x, u) }")
    for v in (None, found["y"]):
        with pytest.raises(Decline, match="rank is unknown"):
            weight(v, found["x"])


def test_again_keeps_the_attributes_and_the_source() -> None:
    block = load(
        parse(
            "g (float[1,2,5,5] x, float[3,2,1,1] w) => (float[1,3,5,5] y) { y = Conv <pads = [0,0,0,0]> (x, w) }"
        )
    )
    b = block.main.outputs[0].definition
    with emitting(block.main, made_by="test") as at:
        out = again(b, b.inputs, {"group": 1})
        assert at.sources == ()
    assert out.definition is not None and out.definition.attr("pads") == (0, 0, 0, 0)


@pytest.mark.parametrize("name", ["pads", "strides", "dilations"])
def test_an_empty_attribute_is_not_repeated(name: str) -> None:
    text = "g (float[1,2,5,5] x, float[3,2,1,1] w) => (float[1,3,5,5] y) { y = Conv (x, w) }"
    block = load(parse(text)).main
    b = block.outputs[0].definition
    with emitting(block), pytest.raises(Decline, match="empty attribute"):
        again(b, b.inputs, {name: ()})


def test_an_attribute_of_the_enclosing_function_is_not_repeated() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "f" : 1]> g (float[2] x) => (float[2] y) { y = f.l <a = 0.5> (x) }
      <domain: "f", opset_import: ["" : 20]> l <a> (x) => (y) { y = LeakyRelu <alpha: float = @a> (x) }"""
    (function,) = load(parse(text)).functions.values()
    b = function.outputs[0].definition
    with emitting(function), pytest.raises(Decline, match="of the enclosing function"):
        again(b, b.inputs)
