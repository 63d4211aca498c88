from __future__ import annotations

from collections.abc import Callable

import pytest

from onnxgrad.pipeline.pipeline import PRESETS
from tests.helpers import parse
from tests.passes.proving import ran, with_weights

PASS = "combine-parallel-dense,remove-unused"


def test_the_example_of_the_specification(golden: Callable[[str, str], None]) -> None:
    text = """g (float[3,4] x, float[4,5] w1, float[4,5] w2) => (float[3,5] y, float[3,5] z)
      { y = MatMul(x, w1)  z = MatMul(x, w2) }"""
    done = ran(parse(text), PASS)
    (product,) = [b for b in done.program.main.bindings if b.op == "MatMul"]
    assert [v.shape for v in product.inputs if v is not None] == [(2, 3, 4), (2, 4, 5)]
    golden("passes/combine_parallel_dense", done.text)
    done.prove()


def test_constant_weights_are_stacked_now() -> None:
    text = """g (float[N,4] x) => (float[N,5] y, float[N,5] z, float[N,5] u)
      { y = MatMul(x, a)  z = MatMul(x, b)  u = MatMul(x, c) }"""
    done = ran(with_weights(parse(text), dict.fromkeys("abc", (4, 5))), PASS)
    assert done.count == {"Unsqueeze": 1, "Concat": 1, "MatMul": 1, "Split": 1, "Squeeze": 3}
    done.prove()


@pytest.mark.parametrize("opset", [9, 12, 13, 20])
def test_batched_products(opset: int) -> None:
    text = """g (float[2,3,4] x) => (float[2,3,5] y, float[2,3,5] z) { y = MatMul(x, a)  z = MatMul(x, b) }"""
    done = ran(with_weights(parse(text, opset=opset, ir_version=8), {"a": (2, 4, 5), "b": (2, 4, 5)}), PASS)
    assert done.count["MatMul"] == 1
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
    done = ran(with_weights(parse(text), sizes), PASS)
    assert done.count["Gemm"] == 0 and done.count["MatMul"] == 1
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
    assert ran(with_weights(parse(text), sizes), PASS).count["Split"] == 0


def test_different_left_operands_on_request() -> None:
    text = """g (float[3,4] x) => (float[3,5] y, float[3,5] z) { n = Neg(x)  y = MatMul(x, a)  z = MatMul(n, b) }"""
    done = ran(with_weights(parse(text), {"a": (4, 5), "b": (4, 5)}), "combine-parallel-dense{share_left=false}")
    assert done.count["MatMul"] == 1
    done.prove()


def test_dependent_products_are_left_out() -> None:
    text = """g (float[3,4] x) => (float[3,4] y, float[3,4] z, float[3,4] u)
      { y = MatMul(x, a)  z = MatMul(x, b)  t = MatMul(y, a)  u = MatMul(t, b) }"""
    done = ran(with_weights(parse(text), {"a": (4, 4), "b": (4, 4)}), "combine-parallel-dense{share_left=false}")
    done.prove()


def test_min_branches_and_presets() -> None:
    text = "g (float[3,4] x) => (float[3,5] y, float[3,5] z) { y = MatMul(x, a)  z = MatMul(x, b) }"
    model = with_weights(parse(text), {"a": (4, 5), "b": (4, 5)})
    assert ran(model, "combine-parallel-dense{min_branches=3}").count["MatMul"] == 2
    assert not any("combine-parallel-dense" in p for passes in PRESETS.values() for p in passes)
