"""x 1, x / 1, x - 0, x + -0.0 and x ^ 1 go where nothing at all changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewriting import NUMPY, assert_same_bits, rewritten, special

GONE = [
    ("Mul(x, c)", 1.0),
    ("Mul(c, x)", 1.0),
    ("Div(x, c)", 1.0),
    ("Sub(x, c)", 0.0),
    ("Add(x, c)", -0.0),
]
GONE += [("Add(c, x)", -0.0), ("Pow(x, c)", 1.0)]


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("opset", [7, 12, 13, 14, 20])
@pytest.mark.parametrize(("binding", "number"), GONE)
def test_gone_bit_for_bit(binding: str, number: float, opset: int, dtype: str) -> None:
    kind = NUMPY[dtype]
    for shape in ((), (1,)):
        text = f"g ({dtype}[N] x) => ({dtype}[N] o) {{ y = {binding} o = Identity(y) }}"
        done = rewritten(text, "remove-noops", {"c": np.full(shape, number, kind)}, opset=opset)
        assert done.ops == ["Identity"]
        if dtype != "float16":
            for seed in range(4):
                assert_same_bits(done, x=special(37, dtype=kind, seed=seed))


@pytest.mark.parametrize(("binding", "number"), [*GONE[:4], ("Add(x, c)", 0)])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(binding: str, number: float, dtype: str) -> None:
    text = f"g ({dtype}[3] x) => ({dtype}[3] o) {{ y = {binding} o = Identity(y) }}"
    done = rewritten(text, "remove-noops", {"c": np.array(int(number), dtype)})
    assert done.ops == ["Identity"]
    assert_same_bits(done, x=np.array([np.iinfo(dtype).min, -1, np.iinfo(dtype).max], dtype))


@pytest.mark.parametrize(("binding", "number"), GONE[:-1])
@pytest.mark.parametrize("dtype", ["float", "float16", "double", "int32"])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 1), (2, 3)])
def test_vectors(binding: str, number: float, dtype: str, shape: tuple[int, ...]) -> None:
    text = f"g ({dtype}[2,3] x) => ({dtype}[2,3] o) {{ y = {binding} o = Identity(y) }}"
    kind = NUMPY.get(dtype, dtype)
    done = rewritten(text, "remove-noops", {"c": np.full(shape, number).astype(kind)})
    assert done.ops == ["Identity"]
    if dtype in NUMPY and dtype != "float16":
        assert_same_bits(done, x=special(6, dtype=kind, seed=0).reshape(2, 3))


NORMALISATIONS = {
    "a mean and a variance": """m = ReduceMean(x, k) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, k)
      w = Add(v, e) s = Sqrt(w) n = Div(d, s)""",
    "a root of a mean": "q = Mul(x, x) v = ReduceMean(q, k) w = Add(v, e) s = Sqrt(w) r = Reciprocal(s) n = Mul(x, r)",
}


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_the_scale_of_a_normalisation_stays(name: str) -> None:
    """onnxruntime looks for it, and so do the rules that raise the chain to one operator."""
    constants = {"k": np.array([-1]), "e": np.float32(1e-5), "c": np.ones(3, np.float32)}
    text = (
        f"g (float[2,3] x) => (float[2,3] o) {{ {NORMALISATIONS[name]} y = Mul(n, c) o = Relu(y) }}"
    )
    assert rewritten(text, "remove-noops", constants).ops[-2:] == ["Mul", "Relu"]
    plain = text.replace("Mul(n, c)", "Mul(t, c)").replace("y =", "t = Tanh(n) y =")
    assert rewritten(plain, "remove-noops", constants).ops[-2:] == ["Tanh", "Relu"]


def test_vectors_that_may_be_trained_stay() -> None:
    text = "g (float[3] x) => (float[3] o) { y = Mul(x, c) o = Relu(y) }"
    ones = {"c": np.ones(3, np.float32)}
    assert rewritten(text, "remove-noops{floats=false}", ones).ops == ["Mul", "Relu"]


STAYS = [
    ("float[3]", "Add(x, c)", np.float32(0)),  # -0.0 + 0.0 is 0.0
    ("float[3]", "Sub(x, c)", np.float32(-0.0)),  # -0.0 - -0.0 is 0.0
    ("float[3]", "Sub(c, x)", np.float32(0)),
    ("float[3]", "Div(c, x)", np.float32(1)),
    ("float[3]", "Pow(c, x)", np.float32(1)),
    ("float[3]", "Mul(x, c)", np.float32(2)),
    ("float[3]", "Mul(x, c)", np.float32(np.nan)),
    ("float[3]", "Mul(x, c)", np.float32([1, 1, 2])),
    ("float[3]", "Add(x, c)", np.float32([-0.0, -0.0, 0])),
    ("float[3]", "Sub(x, c)", np.float32([0, -0.0, 0])),
    ("float[3]", "Div(c, x)", np.ones(3, np.float32)),
    ("float[1]", "Mul(x, c)", np.ones(3, np.float32)),  # more elements
    ("float[N]", "Mul(x, c)", np.ones(3, np.float32)),  # N may be 1
    ("float[3]", "Mul(x, c)", np.ones((1, 3), np.float32)),
    ("float[]", "Mul(x, c)", np.ones(3, np.float32)),
    ("float[3]", "Mul(x, c)", np.ones((1, 1), np.float32)),  # one axis more
    ("float[]", "Mul(x, c)", np.ones(1, np.float32)),
    ("float", "Mul(x, c)", np.ones(1, np.float32)),
    ("int64[3]", "Pow(x, c)", np.int64(1)),  # onnxruntime rounds large ones
]


@pytest.mark.parametrize(("type_", "binding", "constant"), STAYS)
def test_stays(type_: str, binding: str, constant: Any) -> None:
    dtype = type_.split("[")[0]
    done = rewritten(
        f"g ({type_} x) => ({dtype}[] o) {{ y = {binding} o = Identity(y) }}",
        "remove-noops",
        {"c": constant},
    )
    assert done.ops[0] == binding.split("(")[0]


@pytest.mark.parametrize("constant", [np.float32(0), np.zeros(3, np.float32)])
def test_explain_says_why_a_positive_zero_stays(constant: Any) -> None:
    text = "g (float[3] x) => (float[3] o) { y = Add(x, c) o = Relu(y) }"
    done = rewritten(text, "remove-noops", {"c": constant})
    assert (done.ops, done.declined) == (["Add", "Relu"], "a zero of this sign turns -0.0 into 0.0")
    for other in (np.full_like(constant, -0.0), np.ones_like(constant)):
        assert not rewritten(text, "remove-noops", {"c": other}).declined


def test_a_number_that_a_caller_may_replace_stays() -> None:
    text = "g (float[3] x, float c = {1}) => (float[3] o) { y = Mul(x, c) o = Relu(y) }"
    assert rewritten(text, "remove-noops").ops == ["Mul", "Relu"]


def test_an_output_that_would_need_an_identity_stays() -> None:
    one = {"c": np.float32(1)}
    assert rewritten(
        "g (float[3] x) => (float[3] o) { o = Mul(x, c) }", "remove-noops", one
    ).ops == ["Mul"]
    done = rewritten(
        "g (float[3] x) => (float[3] o) { y = Relu(x) o = Mul(y, c) }", "remove-noops", one
    )
    assert done.ops == ["Relu"]
    assert done.after.graph.output[0].name == "o"
    assert rewritten(
        "g (float[3] x) => (float[3] y, float[3] o) { y = Relu(x) o = Mul(y, c) }",
        "remove-noops",
        one,
    ).ops[1:]


def test_a_number_that_may_be_trained_stays() -> None:
    text = (
        "g (float[3] x, bool[3] b) => (float[3] o) { y = Mul(x, c) z = Where(t, y, x) o = Relu(z) }"
    )
    done = rewritten(text, "remove-noops{floats=false}", {"c": np.float32(1), "t": np.array(True)})
    assert done.ops == ["Mul", "Where", "Relu"]


def test_before_opset_7_only_where_the_result_is_known_to_have_the_shape() -> None:
    text = "g (float[2,3] x) => (float[2,3] o) { y = Mul<broadcast=1>(x, c) o = Relu(y) }"
    assert rewritten(text, "remove-noops", {"c": np.float32([1])}, opset=6).ops == ["Relu"]
    text = "g (float[N,3] x, int64[2] s) => (float[] o) { w = Reshape(x, s) y = Sub<broadcast=1>(w, c) o = Relu(y) }"
    assert rewritten(text, "remove-noops", {"c": np.float32([0])}, opset=6).ops == [
        "Reshape",
        "Sub",
        "Relu",
    ]


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("opset", [11, 13, 20])
@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (3,), ()])
@pytest.mark.parametrize("order", ["x, c", "c, x"])
def test_a_softmax_of_a_mask_of_zeros(
    dtype: str, opset: int, shape: tuple[int, ...], order: str
) -> None:
    zeros = np.zeros(shape, NUMPY[dtype])
    zeros.reshape(-1)[:1] *= -1
    text = f"g ({dtype}[2,3] x) => ({dtype}[2,3] y) {{ s = Add({order}) y = Softmax<axis = 1>(s) }}"
    done = rewritten(text, "remove-noops", {"c": zeros}, opset=opset)
    assert done.ops == ["Softmax"]
    if dtype != "float16":
        for x in ([[0.0, -0.0, 1.0], [-0.0, -0.0, -0.0]], [[-np.inf, 0.0, 2.0], [1.0, 5.0, -3.0]]):
            assert_same_bits(done, x=np.array(x, NUMPY[dtype]))


@pytest.mark.parametrize(
    ("mask", "result", "more"),
    [
        (np.array([0.0, 0.0, 1e-30]), "[2,3]", ""),
        (np.zeros((4, 2, 3)), "[4,2,3]", ""),
        (np.zeros(3), "[2,3]", "z = Neg(s)"),
    ],
)
def test_a_softmax_of_another_sum(mask: object, result: str, more: str) -> None:
    outputs = f"float{result} y" + (", float[2,3] z" if more else "")
    text = f"g (float[2,3] x) => ({outputs}) {{ s = Add(x, c) y = Softmax(s) {more} }}"
    done = rewritten(text, "remove-noops", {"c": np.asarray(mask, np.float32)})
    assert "Add" in done.ops


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize(
    ("binding", "number", "gone"),
    [
        ("And(x, c)", True, True),
        ("And(c, x)", True, True),
        ("Or(x, c)", False, True),
        ("And(x, c)", False, False),
        ("Or(c, x)", True, False),
        ("Xor(x, c)", True, False),
    ],
)
def test_truths(binding: str, number: bool, gone: bool, shape: tuple[int, ...]) -> None:
    text = f"g (bool[N,3] x) => (bool[N,3] o) {{ y = {binding} o = Not(y) }}"
    done = rewritten(text, "remove-noops", {"c": np.full(shape, number)})
    assert done.ops == (["Not"] if gone else [binding.partition("(")[0], "Not"])
    assert_same_bits(done, x=np.array([[True, False, True]]))


def test_a_truth_that_widens_stays() -> None:
    text = "g (bool[3] x) => (bool[1,3] o) { y = And(x, c) o = Not(y) }"
    assert "And" in rewritten(text, "remove-noops", {"c": np.full((1, 1), True)}).ops
