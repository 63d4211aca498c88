"""Small models with bytes changed, through `grad`: a gradient or an error of the input, never one of ours."""

from __future__ import annotations

import random
import warnings

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.grad import differentiate
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.verify.running.session import run
from tests.helpers import parse

HEADER = '<ir_version: 10, opset_import: ["" : 20, "my" : 1, "com.microsoft" : 1]> '
TEXTS = [
    """g (float[2,3] x, float[3,4] w, float[4] b) => (float y) {
       p = Gemm (x, w, b) t = Relu (p) s = Softmax <axis = -1> (t) y = ReduceMean <keepdims = 0> (s) }""",
    """g (float[1,2,6,6] x, float[2,2,3,3] w) => (float y) {
       c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w) m = MaxPool <kernel_shape = [2, 2]> (c)
       a = AveragePool <kernel_shape = [2, 2]> (m) y = ReduceSum <keepdims = 0> (a) }""",
    """g (float[N,4] x, int64[2] i) => (float[2,4] y) <float[4] s = {1, 2, 3, 4}> {
       q = Gather (x, i) z = LayerNormalization (q, s) c = Greater (z, q) y = Where (c, z, q) }""",
    """g (float[3] x, bool c) => (float[3] y) {
       y = If (c) <then_branch: graph = t () => (float[3] p) { p = Sin (x) },
                   else_branch: graph = e () => (float[3] q) { q = my.twice <k = 0.5> (x) }> }
    <domain: "my", opset_import: ["" : 20]> twice <k> (a) => (b) {
       o = Constant <value_float = 2.0> () p = Mul (a, o) b = LeakyRelu <alpha : float = @k> (p) }""",
    """g (float[3] x) => (float[3] y, float[2,3] z) <int64 n = {2}> {
       y, z = Loop (n, "", x) <body: graph = b (int64 i, bool go, float[3] s) => (bool on, float[3] t, float[3] u) {
          on = Identity (go) t = Sin (s) u = Mul (s, s) }> }""",
    """g (float[2,3] x, float[4,3] v) => (float[2,4] y)
       <int64[2] shape = {2, 3}, int64[1] axis = {0}, int64[2] start = {0, 0}, int64[2] end = {2, 3}> {
       t = Transpose <perm = [1, 0]> (v) r = Reshape (x, shape) u = Unsqueeze (r, axis) q = Squeeze (u, axis)
       sl = Slice (q, start, end) c = Concat <axis = 1> (sl, q) p, k = Split <axis = 1, num_outputs = 2> (c)
       e = Expand (p, shape) f = com.microsoft.FusedMatMul (e, t) y = Tanh (f) }""",
]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bytes set, flipped, deleted, inserted: one place, sometimes more."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        i = rng.randrange(len(changed))
        kind = rng.randrange(4)
        if kind == 0:
            changed[i] = rng.randrange(256)
        elif kind == 1:
            changed[i] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del changed[i : i + rng.choice([1, 1, 2, 8])]
        else:
            changed[i:i] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 1, 2, 4])))
    return bytes(changed)


def sweep(count: int, seed: int) -> tuple[int, int]:
    """How many mutants were models at all, and of how many a gradient was formed; whatever else is raised passes."""
    rng = random.Random(seed)
    sources = [parse(HEADER + text).SerializeToString() for text in TEXTS]
    read = formed = 0
    while read < count:
        data = mutated(rng.choice(sources), rng)
        try:
            onnx.ModelProto.FromString(data)
        except DecodeError:
            continue
        read += 1
        wrt, checkpoint = rng.choice([None, ["*"], "params"]), rng.choice([None, None, "auto"])
        try:
            found = differentiate(
                load(data), wrt, rng.choice([None, 0]), adjoint="input", checkpoint=checkpoint
            )
            to_proto(found.program).SerializeToString()
            formed += 1
        except InputError:
            pass
    return read, formed


def test_mutants() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read, formed = sweep(400, seed=1)
    assert read == 400
    assert 20 < formed < 380


@pytest.mark.slow
def test_many_mutants() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sweep(4000, seed=2)[0] == 4000


# ---- the smallest of each kind --------------------------------------------------------------------------------------


def test_names_that_are_no_text() -> None:
    """protobuf hands out bytes where a string is not UTF-8."""
    data = parse("g (float[3] x) => (float[3] y) { y = Tanh (x) }").SerializeToString()
    for old, new in (
        (b"Tanh", b"Ta\xffh"),
        (b"\n\x01x", b"\n\x01\xff"),
        (b"\x12\x01y", b"\x12\x01\xff"),
    ):
        assert old in data, old
        with pytest.raises(InputError):
            gradient(data.replace(old, new), adjoint="input")


@pytest.mark.parametrize(
    "types", [("bfloat16", "float"), ("float", "bfloat16"), ("bfloat16", "bfloat16")]
)
def test_a_convolution_of_types_that_it_does_not_take(types: tuple[str, str]) -> None:
    x, w = types
    model = parse(
        f"g ({x}[1,2,4,4] x, {w}[2,2,3,3] w) => (bfloat16[1,2,2,2] y) {{ y = Conv (x, w) }}"
    )
    for wrt in ("x", "w"):
        with pytest.raises(InputError, match=r"this is not a valid ONNX model: .*Conv"):
            gradient(model, wrt, adjoint="input")


def test_an_axis_beyond_32_bits() -> None:
    """onnx's inference looks at its last 32 bits."""
    model = parse(
        f"g (float[2,3] x) => (float[2,3] y) {{ y = Softmax <axis = {-(2**40) - 1}> (x) }}"
    )
    with pytest.raises(InputError, match=r"Softmax '': the attribute 'axis' is \[-1099511627777\]"):
        gradient(model, adjoint="input")


def test_a_pool_without_windows() -> None:
    model = parse(
        "g (float[1,1,1,4] x) => (float[1,1,0,3] y) { y = AveragePool <kernel_shape = [2, 2]> (x) }"
    )
    with pytest.warns(UserWarning, match="no requested value reaches"):
        graph = gradient(model, adjoint="input")
    assert [v.name for v in graph.graph.output] == ["y", "x_grad"]


@pytest.mark.parametrize("declared", ["[2,4]", "[2,2,4]", "[4]"])
def test_a_product_whose_declared_shape_is_wrong(declared: str) -> None:
    """onnx does not know FusedMatMul, so what the file declares is not found out to be wrong on reading."""
    model = parse(
        f"{HEADER} g (float[2,2,3] a, float[3,4] b) => (float{declared} y) {{ y = com.microsoft.FusedMatMul (a, b) }}"
    )
    graph = gradient(model, adjoint="input")
    seed = next(v for v in graph.graph.input if v.name == "y_grad")
    assert [d.dim_value for d in seed.type.tensor_type.shape.dim] == [2, 2, 4]


@pytest.mark.parametrize("wrt", [None, ["w"]])
@pytest.mark.parametrize("kind", ["initializer", "Constant"])
def test_sparse_weights(kind: str, wrt: list[str] | None) -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    places = helper.make_tensor("places", TensorProto.INT64, [2], [0, 5])
    sparse = helper.make_sparse_tensor(values, places, [3, 4])
    model = parse("g (float[2,3] x) => (float[2,4] y) { y = MatMul (x, w) }")
    if kind == "Constant":
        model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    else:
        model.graph.sparse_initializer.append(sparse)
    dense = np.zeros(12, np.float32)
    dense[[0, 5]] = 1, 2
    plain = parse("g (float[2,3] x) => (float[2,4] y) { y = MatMul (x, w) }")
    plain.graph.initializer.append(numpy_helper.from_array(dense.reshape(3, 4), "w"))
    x, u = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    found, expected = (
        run(gradient(m, wrt, adjoint="input"), {"x": x, "y_grad": u}) for m in (model, plain)
    )
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name])


def test_a_call_with_more_results_than_its_function() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 21, "my" : 1]> g (float[3] x) => (float[3] y) { y = my.f(x) }
        <domain: "my", opset_import: ["" : 21]> f (a) => (b) { b = Neg(a) }"""
    )
    model.functions[0].output.pop()
    with pytest.raises(InputError, match="has 1 results, its function 0"):
        gradient(model, adjoint="input")


def test_a_state_declared_without_a_dtype() -> None:
    """It has that of what the Loop is given."""
    model = parse(
        """g (float[3] x) => (float[3] y) <int64 n = {2}> {
        y = Loop (n, "", x) <body: graph = b (int64 i, bool c, float[3] s) => (bool d, float[3] t) { d = Identity (c) t = Sin (s) }>
    }"""
    )
    state = model.graph.node[0].attribute[0].g.input[2]
    state.type.tensor_type.elem_type = 0
    assert [v.name for v in gradient(model, adjoint="input").graph.output] == ["y", "x_grad"]


@pytest.mark.parametrize("node", ["Conv (x, w)", "ConvTranspose (x, w)"])
@pytest.mark.parametrize("wrt", ["x", "w"])
def test_channels_that_contradict_each_other(node: str, wrt: str) -> None:
    """Shape inference lets them pass."""
    model = parse(
        f"g (float[1,2,6,6] x, float[63,63,3,3] w) => (float y) {{ c = {node} y = ReduceSum <keepdims = 0> (c) }}"
    )
    with pytest.raises(InputError, match="x has 2 channels, but w accepts 63"):
        differentiate(load(model.SerializeToString()), [wrt])
