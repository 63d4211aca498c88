from __future__ import annotations

from collections.abc import Callable

import pytest

from onnxgrad.passes.pipeline import PRESETS
from tests.helpers import parse
from tests.rewriting import Done, apply, model_of, weights

PASS = "combine-parallel-dense,remove-unused"


def test_the_example_of_the_specification(golden: Callable[[str, str], None]) -> None:
    text = """g (float[3,4] x, float[4,5] w1, float[4,5] w2) => (float[3,5] y, float[3,5] z)
      { y = MatMul(x, w1)  z = MatMul(x, w2) }"""
    done = apply(parse(text), PASS)
    (product,) = [b for b in done.program.main.bindings if b.op == "MatMul"]
    assert [v.shape for v in product.inputs if v is not None] == [(2, 3, 4), (2, 4, 5)]
    golden("combine_parallel_dense", done.text)
    done.prove()


def test_constant_weights_are_stacked_now() -> None:
    text = """g (float[N,4] x) => (float[N,5] y, float[N,5] z, float[N,5] u)
      { y = MatMul(x, a)  z = MatMul(x, b)  u = MatMul(x, c) }"""
    done = apply(model_of(text, weights(dict.fromkeys("abc", (4, 5)))), PASS)
    assert done.counts == {"Unsqueeze": 1, "Concat": 1, "MatMul": 1, "Split": 1, "Squeeze": 3}
    done.prove()


@pytest.mark.parametrize("opset", [9, 12, 13, 20])
def test_batched_products(opset: int) -> None:
    text = """g (float[2,3,4] x) => (float[2,3,5] y, float[2,3,5] z) { y = MatMul(x, a)  z = MatMul(x, b) }"""
    done = apply(
        model_of(text, weights({"a": (2, 4, 5), "b": (2, 4, 5)}), opset=opset, ir_version=8), PASS
    )
    assert done.counts["MatMul"] == 1
    done.prove()


@pytest.mark.parametrize(
    ("attrs", "x", "w"),
    [
        ("", "3,4", (4, 5)),
        ("<transB = 1>", "3,4", (5, 4)),
        ("<transA = 1, alpha = 0.5, beta = 2.0>", "4,3", (4, 5)),
    ],
)
@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (1, 5)])
def test_gemm(attrs: str, x: str, w: tuple[int, ...], bias: tuple[int, ...] | None) -> None:
    c1, c2 = ("", "") if bias is None else (", c1", ", c2")
    text = f"""g (float[{x}] x) => (float[3,5] y, float[3,5] z)
      {{ y = Gemm {attrs} (x, w1{c1})  z = Gemm {attrs} (x, w2{c2}) }}"""
    sizes = {"w1": w, "w2": w, **({} if bias is None else {"c1": bias, "c2": bias})}
    done = apply(model_of(text, weights(sizes)), PASS)
    assert done.counts["Gemm"] == 0 and done.counts["MatMul"] == 1
    done.prove()


@pytest.mark.parametrize(
    ("body", "sizes"),
    [
        ("y = MatMul(x, a)  z = MatMul(x, b)", {"a": (4, 5), "b": (4, 6)}),
        ("y = Gemm(x, a)  z = Gemm(x, b, c)", {"a": (4, 5), "b": (4, 5), "c": (5,)}),
        ("y = Gemm(x, a)  z = MatMul(x, b)", {"a": (4, 5), "b": (4, 5)}),
        ("y = Gemm(x, a)  z = Gemm <alpha = 2.0> (x, b)", {"a": (4, 5), "b": (4, 5)}),
        ("y = Gemm(x, a, c)  z = Gemm(x, b, c)", {"a": (4, 5), "b": (4, 5), "c": (3, 5)}),
        ("y = MatMul(x, a)  z = MatMul(y, b)", {"a": (4, 4), "b": (4, 4)}),
        ("n = Neg(x)  y = MatMul(x, a)  z = MatMul(n, b)", {"a": (4, 5), "b": (4, 5)}),
    ],
)
def test_what_stays_apart(body: str, sizes: dict[str, tuple[int, ...]]) -> None:
    text = f"g (float[3,4] x) => (float[3,A] y, float[3,B] z) {{ {body} }}"
    assert apply(model_of(text, weights(sizes)), PASS).counts["Split"] == 0


def _behind(a: str, b: str, inputs: str = "", **sizes: tuple[int, ...]) -> Done:
    """Two products p and q with a and b behind them."""
    text = f"""g (float[3,4] x{inputs}) => (float[3,5] a, float[3,5] b)
      {{ p = MatMul(x, w1)  q = MatMul(x, w2)  a = {a}  b = {b} }}"""
    done = apply(model_of(text, weights({"w1": (4, 5), "w2": (4, 5), **sizes})), PASS)
    assert done.counts["MatMul"] == 1
    done.prove()
    return done


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 1), (3, 5), ()])
@pytest.mark.parametrize("constant", [True, False])
def test_bias_and_activation_are_combined_too(shape: tuple[int, ...], constant: bool) -> None:
    """SPEC, added after a second reading, S4: behind parallel Dense, constant or not."""
    inputs = "" if constant else "".join(f", float{list(shape) or ''} {c}" for c in "cd")
    sizes = dict.fromkeys("cd", shape) if constant else {}
    done = _behind("Gelu(p2)  p2 = Add(p, c)", "Gelu(q2)  q2 = Add(d, q)", inputs, **sizes)
    assert (done.counts["Add"], done.counts["Gelu"], done.counts["Squeeze"]) == (1, 1, 2)


def test_bias_and_activation_golden(golden: Callable[[str, str], None]) -> None:
    text = """g (float[3,4] x, float[4,5] w1, float[4,5] w2, float[5] c, float[5] d) => (float[3,5] a, float[3,5] b)
      { p = MatMul(x, w1)  p2 = Add(p, c)  a = Relu(p2)  q = MatMul(x, w2)  q2 = Add(q, d)  b = Relu(q2) }"""
    done = apply(parse(text), PASS)
    golden("combine_parallel_dense_behind", done.text)
    done.prove()


def test_a_bias_on_one_branch_and_run_time_scales_on_all() -> None:
    one = _behind("Add(p, c)", "Relu(q)", c=(5,))
    assert (one.counts["Add"], one.counts["Relu"]) == (1, 1), "the other adds -0.0"
    assert _behind("Mul(p, s)", "Mul(q, t)", ", float[5] s, float[5] t").counts["Mul"] == 1
    assert _behind("Mul(p, s)", "Mul(q, s)", ", float s").counts["Mul"] == 1


@pytest.mark.parametrize(
    ("a", "b", "inputs"),
    [
        ("Add(p, s)", "Add(q, t)", ", float[5] s, float[3,5] t"),
        ("Mul(p, s)", "Relu(q)", ", float[5] s"),
        ("Relu(p)", "Tanh(q)", ""),
        ("Sub(p, s)", "Sub(s, q)", ", float[5] s"),
        ("Add(p, b)", "Relu(q)", ""),
    ],
)
def test_what_differs_or_depends_on_a_branch_stays_behind(a: str, b: str, inputs: str) -> None:
    done = _behind(a, b, inputs)
    assert {n.op_type for n in done.after.graph.node if set(n.output) & set("ab")} == {
        a.split("(")[0],
        b.split("(")[0],
    }


def test_the_softmax_of_each_stays_and_a_branch_that_is_an_output() -> None:
    assert _behind("Softmax(p)", "Softmax(q)").counts["Softmax"] == 2, (
        "it is no elementwise operator"
    )
    text = """g (float[3,4] x) => (float[3,5] a, float[3,5] b, float[3,5] p)
      { p = MatMul(x, w1)  q = MatMul(x, w2)  a = Relu(p)  b = Relu(q) }"""
    done = apply(model_of(text, weights({"w1": (4, 5), "w2": (4, 5)})), PASS)
    assert done.counts["Relu"] == 2
    done.prove()


def test_different_left_operands_on_request() -> None:
    text = """g (float[3,4] x) => (float[3,5] y, float[3,5] z) { n = Neg(x)  y = MatMul(x, a)  z = MatMul(n, b) }"""
    done = apply(
        model_of(text, weights({"a": (4, 5), "b": (4, 5)})),
        "combine-parallel-dense{share_left=false}",
    )
    assert done.counts["MatMul"] == 1
    done.prove()


def test_dependent_products_are_left_out() -> None:
    text = """g (float[3,4] x) => (float[3,4] y, float[3,4] z, float[3,4] u)
      { y = MatMul(x, a)  z = MatMul(x, b)  t = MatMul(y, a)  u = MatMul(t, b) }"""
    done = apply(
        model_of(text, weights({"a": (4, 4), "b": (4, 4)})),
        "combine-parallel-dense{share_left=false}",
    )
    done.prove()


def test_min_branches_and_presets() -> None:
    text = "g (float[3,4] x) => (float[3,5] y, float[3,5] z) { y = MatMul(x, a)  z = MatMul(x, b) }"
    model = model_of(text, weights({"a": (4, 5), "b": (4, 5)}))
    assert apply(model, "combine-parallel-dense{min_branches=3}").counts["MatMul"] == 2
    assert not any("combine-parallel-dense" in p for passes in PRESETS.values() for p in passes)
