"""Each kernel against the float64 reference, on numbers that both compute without rounding."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from onnx import parser

from onnxgrad.verify.exact.evaluate import evaluate, sides_inputs
from onnxgrad.verify.exact.field import Field
from onnxgrad.verify.exact.kernels import (
    arithmetic,
    functions,
    indexing,
    moves,
    order,
    products,
    registry,
)
from onnxgrad.verify.exact.rational import Rationals
from onnxgrad.verify.exact.side import Side
from onnxgrad.verify.exact.values import BITS, Known, Num, Value
from onnxgrad.verify.reference.evaluate import Reference

HEAD = '<ir_version: 8, opset_import: ["": %d]> '
F = "float[2,3,4] x"
IMAGE = "float[2,4,6,5] x"

# what both arithmetics compute: (opset, inputs, result, body)
ALGEBRA = [
    (17, "float[2,3] x, float[3] z", "y", "y = Add(x, z)"),
    (17, "float[2,3] x, float[3] z", "y", "y = Sub(x, z)"),
    (17, "float[2,3] x, float[2,1] z", "y", "y = Mul(x, z)"),
    (17, "float[2,3] x", "y", "y = Neg(x)"),
    (17, "float[2,3] x, float[3] z, float[1] w", "y", "y = Sum(x, z, w)"),
    (17, "float[2,3] x, float[3] z", "y", "y = Mean(x, z)"),
    (17, "float[2,3] x", "y", "e = Constant<value_float = 3.0>() y = Pow(x, e)"),
    (17, "float[2,3] x", "y", "e = Constant<value_float = 4.0>() y = Div(x, e)"),
    (17, "float[2,3,4] x, float[4,5] z", "y", "y = MatMul(x, z)"),
    (17, "float[4] x, float[2,4,5] z", "y", "y = MatMul(x, z)"),
    (17, "float[3,4] x, float[5,3] z, float[5] c", "y",
     "y = Gemm<transA = 1, transB = 1, alpha = 0.5, beta = 2.0>(x, z, c)"),
    (17, "float[2,3,4] x, float[2,4,5] z", "y", 'y = Einsum<equation = "bij,bjk->bki">(x, z)'),
    (17, "float[3,3] x, float[3,2] z", "y", 'y = Einsum<equation = "ii,ij->j">(x, z)'),
    (17, F, "y", "a = Constant<value_ints = [1]>() y = ReduceSum<keepdims = 0>(x, a)"),
    (17, F, "y", "y = ReduceMean<axes = [2]>(x)"),
    (17, F, "y", "y = ReduceSumSquare<axes = [0, 2], keepdims = 0>(x)"),
    (17, "float[2,3] x", "y", "y = ReduceProd<axes = [1]>(x)"),
    (17, F, "y", "a = Constant<value_int = 1>() y = CumSum<reverse = 1, exclusive = 1>(x, a)"),
    (17, IMAGE + ", float[6,2,3,2] w, float[6] b", "y",
     "y = Conv<group = 2, strides = [2, 1], dilations = [1, 2], pads = [1, 0, 2, 1]>(x, w, b)"),
    (17, IMAGE + ", float[3,4,3,3] w", "y", 'y = Conv<auto_pad = "SAME_LOWER">(x, w)'),
    (17, IMAGE + ", float[4,3,3,2] w", "y",
     "y = ConvTranspose<group = 2, strides = [2, 2], pads = [1, 0, 0, 1], output_padding = [1, 0]>(x, w)"),
    (17, IMAGE, "y", "y = AveragePool<kernel_shape = [2, 2], strides = [2, 1]>(x)"),
    (17, "float[2,4,8,4] x", "y", "y = GlobalAveragePool(x)"),
    (17, F, "y", "y = Transpose<perm = [2, 0, 1]>(x)"),
    (17, F, "y", "s = Constant<value_ints = [0, -1]>() y = Reshape(x, s)"),
    (17, F, "y", "y = Flatten<axis = 2>(x)"),
    (17, "float[2,1,3] x", "y", "a = Constant<value_ints = [1]>() y = Squeeze(x, a)"),
    (17, "float[2,3] x", "y", "a = Constant<value_ints = [0, -1]>() y = Unsqueeze(x, a)"),
    (17, F, "y", "s = Constant<value_ints = [3, 1]>() e = Constant<value_ints = [-9, 9]>() "
     "a = Constant<value_ints = [2, 1]>() t = Constant<value_ints = [-2, 1]>() y = Slice(x, s, e, a, t)"),
    (17, F, "y", "i = Constant<value_ints = [2, -3]>() y = Gather<axis = 1>(x, i)"),
    (17, F, "y", "y = Concat<axis = 1>(x, x)"),
    (17, F, "y", "s = Constant<value_ints = [1, 3]>() a, y = Split<axis = 2>(x, s)"),
    (17, "float[3,1] x", "y", "s = Constant<value_ints = [2, 1, 4]>() y = Expand(x, s)"),
    (17, "float[3,2] x", "y", "r = Constant<value_ints = [2, 3]>() y = Tile(x, r)"),
    (17, "float[3,4] x", "y", "p = Constant<value_ints = [1, -1, 0, 2]>() "
     "v = Constant<value_float = 0.5>() y = Pad(x, p, v)"),
    (17, "float[3,4] x", "y", 'p = Constant<value_ints = [1, 0, 2, 2]>() y = Pad<mode = "reflect">(x, p)'),
    (17, "float[1,8,2,3] x", "y", 'y = DepthToSpace<blocksize = 2, mode = "CRD">(x)'),
    (17, "float[1,2,4,6] x", "y", "y = SpaceToDepth<blocksize = 2>(x)"),
    (17, "float[4,4] x", "y", "y = Trilu<upper = 0>(x)"),
    (17, "float[3,4] x", "y", "i = Constant<value = int64[2,2] {2, 0, 1, 1}>() y = GatherND(x, i)"),
    (17, "float[3,4] x", "y", "i = Constant<value = int64[3,2] {0, 3, 1, 1, 2, 0}>() y = GatherElements<axis = 1>(x, i)"),
    (18, "float[3,4] x, float[2,4] u", "y", "i = Constant<value = int64[2,1] {2, 0}>() y = ScatterND(x, i, u)"),
    (18, "float[3,4] x, float[2,4] u", "y",
     'i = Constant<value = int64[2,4] {0, 1, 2, 0, 0, 0, 1, 0}>() y = ScatterElements<reduction = "add">(x, i, u)'),
    (17, F, "y", "s = Shape<start = 1>(x) y = ConstantOfShape<value = float[1] {2.5}>(s)"),
    (17, "float[4,3] x", "y", "l = Constant<value_ints = [2, 4, 1]>() y = ReverseSequence(x, l)"),
]  # fmt: skip

# what only rationals compute, because it follows the order of numbers
ORDERED = [
    (17, F, "y", "y = Relu(x)"),
    (17, F, "y", "y = Abs(x)"),
    (17, F, "y", "y = Sign(x)"),
    (17, F, "y", "y = LeakyRelu<alpha = 0.25>(x)"),
    (17, F + ", float[4] s", "y", "y = PRelu(x, s)"),
    (17, F + ", float[4] z", "y", "y = Max(x, z)"),
    (17, F + ", float[4] z", "y", "y = Min(x, z)"),
    (17, F, "y", "l = Constant<value_float = -0.5>() h = Constant<value_float = 1.0>() y = Clip(x, l, h)"),
    (17, F, "y", "y = ThresholdedRelu<alpha = 0.5>(x)"),
    (17, F, "y", "y = HardSigmoid<alpha = 0.5, beta = 0.25>(x)"),
    (17, F, "y", "y = Floor(x)"),
    (17, F, "y", "y = Ceil(x)"),
    (17, F, "y", "y = Round(x)"),
    (17, F + ", float[4] z", "y", "c = Less(x, z) y = Where(c, x, z)"),
    (17, F + ", float[4] z", "y", "c = GreaterOrEqual(x, z) d = Not(c) y = Where(d, x, z)"),
    (17, F, "y", "y = ReduceMax<axes = [1], keepdims = 0>(x)"),
    (17, F, "y", "y = ReduceMin<axes = [0, 2]>(x)"),
    (17, F, "y", "y = ReduceL1<axes = [1]>(x)"),
    (17, IMAGE, "y", "y = MaxPool<kernel_shape = [3, 2], pads = [1, 0, 1, 1]>(x)"),
    (17, F, "y", "k = Constant<value_ints = [2]>() y, i = TopK<axis = 1>(x, k)"),
    (17, F, "y", "i = ArgMax<axis = 2>(x) y = Cast<to = 1>(i)"),
]  # fmt: skip


def _run(opset: int, inputs: str, body: str, ring: Any) -> tuple[Value, Any]:
    """The result in `ring`, and in float64, of a graph on multiples of 1/4."""
    model = parser.parse_model(HEAD % opset + f"g ({inputs}) => (float y) {{ {body} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(3)
    feeds, values = {}, {}
    for i in sides_inputs(model):
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        feeds[i.name] = (rng.integers(-8, 9, shape) / 4).astype(np.float32)
        values[i.name] = Num(ring.embed(feeds[i.name]), i.type.tensor_type.elem_type)
    found = evaluate(model, Side(ring), values, {}, 1e18)["y"]
    return found, Reference(model).run(feeds)["y"]


def test_every_file_of_kernels_is_registered() -> None:
    files = (arithmetic, functions, indexing, moves, order, products)
    homes = {kernel.__module__ for kernel in registry.KERNELS.values()}
    assert homes == {file.__name__ for file in files}


@pytest.mark.parametrize(("opset", "inputs", "result", "body"), ALGEBRA, ids=lambda v: str(v)[:40])
def test_algebra(opset: int, inputs: str, result: str, body: str) -> None:
    for ring in (Field(5), Rationals(5)):
        found, expected = _run(opset, inputs, body, ring)
        assert isinstance(found, Num) and found.dtype in BITS
        assert found.shape == expected.shape
        for a, b in zip(found.parts, ring.embed(np.asarray(expected)), strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize(("opset", "inputs", "result", "body"), ORDERED, ids=lambda v: str(v)[:40])
def test_order(opset: int, inputs: str, result: str, body: str) -> None:
    ring = Rationals(5)
    found, expected = _run(opset, inputs, body, ring)
    numbers = Side(ring).lift(found)
    assert numbers.shape == expected.shape
    assert [Fraction(v) for v in numbers.parts[0].reshape(-1)] == [
        Fraction(float(v)) for v in np.asarray(expected).reshape(-1)
    ]


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ("y = Add(x, x)", [100, -128, 127, 64]),
        ("y = Mul(x, x)", [100, -128, 16, 3]),
        ("y = Neg(x)", [-128, 1, 0, 127]),
        ("s = Constant<value = int8[1] {-3}>() y = Div(x, s)", [7, -7, 127, -128]),
        ("s = Constant<value = int8[1] {-3}>() y = Mod(x, s)", [7, -7, 127, -128]),
        ("s = Constant<value = int8[1] {3}>() y = Mod<fmod = 1>(x, s)", [7, -7, 5, -128]),
    ],
)
def test_integers_wrap(body: str, values: list[int]) -> None:
    model = parser.parse_model(HEAD % 17 + f"g (int8[4] x) => (int8[4] y) {{ {body} }}")
    x = np.array(values, np.int8)
    found = evaluate(model, Side(Field(1)), {"x": Known(x, 3)}, {}, 1e18)["y"]
    assert isinstance(found, Known)
    wide = x.astype(int)
    expected = {
        "Add": wide + wide, "Mul": wide * wide, "Neg": -wide,
        "Div": np.trunc(wide / -3).astype(int), "fmod": np.fmod(wide, 3),
        "Mod": np.mod(wide, -3),
    }  # fmt: skip
    name = next(n for n in expected if n in body)
    if "fmod" in body:
        name = "fmod"
    assert found.array.tolist() == expected[name].astype(np.int8).tolist()
