"""Parallel Gemms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.passes.combine_parallel import combine_parallel_gemm
from tests.helpers import parse, unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

MERGE = "combine-parallel-gemm{merge=always},remove-unused"
X = "float[3,4] x"


def merged(text: str, constants: dict[str, Any] | None = None, **options: Any) -> Done:
    done = apply(model_of(text, constants, **options), MERGE)
    assert_same_results(done)
    return done


def test_what_is_left_of_a_graph() -> None:
    text = """g (float[3,4] x, float[2,4] w1, float[5,4] w2, float[2] c1) => (float[3,2] a, float[3,5] b) {
        a = Gemm<transB=1>(x, w1, c1)
        b = Gemm<transB=1>(x, w2)
      }"""
    assert merged(text).text == unindented("""
        g(x: f32[3,4], w1: f32[2,4], w2: f32[5,4], c1: f32[2], no_bias: f32[5] const = [-0, -0, -0, -0, -0], const: i64[2] const = [2, 5]) {
          concat: f32[7] = Concat(c1, no_bias, axis=0)
          concat_2: f32[7,4] = Concat(w1, w2, axis=0)
          gemm: f32[3,7] = Gemm(x, concat_2, concat, alpha=1, beta=1, transA=0, transB=1)
          a: f32[3,2], b: f32[3,5] = Split(gemm, const, axis=1)
          return a, b
        }
    """)


@pytest.mark.parametrize("opset", [9, 11, 13, 18, 20])
@pytest.mark.parametrize(("trans_b", "shapes"), [(0, ((4, 2), (4, 5))), (1, ((2, 4), (5, 4)))])
def test_every_opset_and_transposed_weights(
    opset: int, trans_b: int, shapes: tuple[tuple[int, int], ...]
) -> None:
    text = f"""g ({X}) => (float[3,2] a, float[3,5] b) {{
      a = Gemm<transB={trans_b}, alpha=0.5, beta=2.0>(x, w1, c1) b = Gemm<alpha=0.5, beta=2.0, transB={trans_b}>(x, w2, c2) }}"""
    done = merged(
        text, weights(w1=shapes[0], w2=shapes[1], c1=(2,), c2=(5,)), opset=opset, ir_version=8
    )
    assert (done.count("Gemm"), done.count("Split")) == (1, 1)


@pytest.mark.parametrize("n", [2, 12, 13, 40])
def test_any_number_of_branches(n: int) -> None:
    outs = ", ".join(f"float[3,2] y{i}" for i in range(n))
    body = " ".join(f"y{i} = Gemm(x, w{i}, c{i % 2})" for i in range(n))
    constants = weights(**{f"w{i}": (4, 2) for i in range(n)}, c0=(2,), c1=(1, 2))
    assert len(merged(f"g ({X}) => ({outs}) {{ {body} }}", constants).after.graph.node) == 2


@pytest.mark.parametrize("shape", [(), (1,), (2,), (1, 1), (1, 2)])
@pytest.mark.parametrize("constant", [True, False])
def test_biases_that_are_rows(shape: tuple[int, ...], constant: bool) -> None:
    constants = weights(w1=(4, 2), w2=(4, 5), c2=(5,))
    inputs = X
    if constant:
        constants |= weights(c1=shape)
    else:
        inputs += f", float[{','.join(map(str, shape))}] c1" if shape else ", float c1"
    text = f"g ({inputs}) => (float[3,2] a, float[3,5] b, float[3,5] d) {{ a = Gemm(x, w1, c1) b = Gemm(x, w2, c2) d = Gemm(x, w2) }}"
    done = merged(text, constants)
    assert done.count("Gemm") == 1
    assert done.count("Expand") == (
        not constant and shape in [(), (1,), (1, 1)]
    )  # N values need none


@pytest.mark.parametrize("shape", [(3, 1), (3, 2)])
def test_a_bias_with_rows_of_its_own_stays(shape: tuple[int, int]) -> None:
    text = f"g ({X}) => (float[3,2] a, float[3,2] b) {{ a = Gemm(x, w1, c1) b = Gemm(x, w2) }}"
    done = merged(text, weights(w1=(4, 2), w2=(4, 2), c1=shape))
    assert done.count("Gemm") == 2 and "the bias is not one row of N values" in done.reasons(
        "combine_parallel_gemm"
    )


@pytest.mark.parametrize("other", ["alpha=0.5", "beta=0.5", "transB=1", "transA=1"])
def test_other_scalars_or_transpositions_of_computed_weights_stay_apart(other: str) -> None:
    text = f"g (float[4,4] x, float[4,4] w1) => (float[4,4] a, float[4,4] b) {{ a = Gemm(x, w1, c) b = Gemm<{other}>(x, w2, c) }}"
    assert merged(text, weights(w2=(4, 4), c=(4,))).count("Gemm") == 2


TWO = f"g ({X}) => (float[3,2] a, float[3,5] b)"


@pytest.mark.parametrize(
    "second",
    [
        "b = Gemm<alpha=0.5>(x, w2, c2)",
        "b = Gemm<beta=-4.0>(x, w2, c2)",
        "b = Gemm<transB=1>(x, v2, c2)",
        "b = Gemm<transB=1, alpha=-0.25, beta=2.0>(x, v2)",
        "b = MatMul(x, w2)",
        "m = MatMul(x, w2) b = Add(m, c2)",
        "m = MatMul(x, w2) b = Add(c, m)",
        "m = MatMul(x, w2) b = Add(m, c1)",
    ],
)
@pytest.mark.parametrize("first", ["Gemm<alpha=2.0>(x, w1, c)", "Gemm<transB=1>(x, v1)"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_constant_weights_are_read_in_one_form(first: str, second: str, dtype: str) -> None:
    """Scalars that are powers of two, transB, and MatMul beside Gemm, in either order."""
    constants = weights(w1=(4, 2), w2=(4, 5), c=(1,), c1=(1, 1), c2=(1, 5))
    constants |= {f"v{n}": constants[f"w{n}"].T.copy() for n in "12"}
    constants = {
        n: v.astype(np.float64 if dtype == "double" else np.float32) for n, v in constants.items()
    }
    for body in (f"a = {first} {second}", f"{second} a = {first}"):
        done = merged(f"{TWO} {{ {body} }}".replace("float", dtype), constants)
        assert sorted(done.ops) == ["Gemm", "Split"]
        done.prove()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Gemm(x, w1) b = Gemm<alpha=0.3>(x, w2)", "scalars"),
        ("a = Gemm(x, w1) b = Gemm<alpha=0.0>(x, w2)", "scalars"),
        ("a = Gemm(x, tiny) b = Gemm<alpha=0.5>(x, w2)", ""),
        ("a = Gemm<alpha=0.5>(x, tiny) b = Gemm(x, w2)", "leaves the range"),
        ("a = Gemm<alpha=1e38>(x, w1) b = MatMul(x, w2)", ""),
        ("a = MatMul(x, w1) b = MatMul(x, w2)", ""),
        ("a = MatMul(x, w1) b = Gemm(x, w2, u)", ""),
    ],
)
def test_what_is_not_read_in_one_form(body: str, reason: str) -> None:
    """Factors that round, elements that would vanish, and MatMuls alone, which have their own pass."""
    constants = weights(w1=(4, 2), w2=(4, 5), u=(3, 5)) | {
        "tiny": np.full((4, 2), 1e-45, np.float32)
    }
    done = apply(model_of(f"{TWO} {{ {body} }}", constants), MERGE)
    merges = body.startswith("a = Gemm(x, tiny)")  # its own factor is 1
    assert (done.count("Gemm", "MatMul") == 1) is merges
    assert reason in done.declined


def test_a_computed_weight_among_them_leaves_today_s_groups() -> None:
    text = f"""g ({X}, float[4,2] u) => (float[3,2] a, float[3,5] b, float[3,2] d) {{
      a = Gemm(x, u) b = Gemm<transB=0>(x, w2) d = MatMul(x, w1) }}"""
    done = merged(text, weights(w1=(4, 2), w2=(4, 5)))
    assert (done.count("Gemm"), done.count("MatMul")) == (1, 1)


def test_a_sum_with_a_reader_beside_it_is_no_bias() -> None:
    text = f"g ({X}) => (float[3,2] a, float[3,5] b, float[3,5] d) {{ a = Gemm(x, w1) m = MatMul(x, w2) b = Add(m, c) d = Neg(m) }}"
    done = merged(text, weights(w1=(4, 2), w2=(4, 5), c=(5,)))
    assert (done.count("Gemm"), done.count("MatMul"), done.count("Add")) == (1, 0, 1)
    rows = f"g ({X}) => (float[3,2] a, float[3,5] b) {{ a = Gemm(x, w1) m = MatMul(x, w2) b = Add(m, c) }}"
    done = merged(rows, weights(w1=(4, 2), w2=(4, 5), c=(3, 1)))
    assert (done.count("Gemm"), done.count("MatMul"), done.count("Add")) == (1, 0, 1)


def test_the_default_preset_merges_them_where_it_merges_gemms() -> None:
    names = [f"y{i}" for i in range(12)]
    text = f"g (float[1,8] x) => ({', '.join(f'float[1,4] {n}' for n in names)}) {{ "
    forms = [
        "Gemm(x, {w}, c)",
        "Gemm<transB=1>(x, {v})",
        "MatMul(x, {w})",
        "Gemm<alpha=0.5>(x, {w})",
    ]
    text += (
        " ".join(f"{n} = {forms[i % 4].format(w=f'w{i}', v=f'v{i}')}" for i, n in enumerate(names))
        + " }"
    )
    constants = weights(
        {f"w{i}": (8, 4) for i in range(12)} | {f"v{i}": (4, 8) for i in range(12)}, c=(4,)
    )
    done = apply(model_of(text, constants), "default")
    assert sorted(done.ops) == ["Gemm", "Split"]
    done.prove()


def test_a_right_operand_of_unknown_shape_stays() -> None:
    text = f"g ({X}, int64[R] s, float[N] u) => (float[3,M] a, float[3,2] b) {{ w1 = Reshape(u, s) a = Gemm(x, w1) b = Gemm(x, w2) }}"
    done = apply(model_of(text, weights(w2=(4, 2))), MERGE)
    assert done.count("Gemm") == 2
    assert "the right operand's shape is unknown" in done.reasons("combine_parallel_gemm")


def test_a_transposed_left_operand() -> None:
    text = "g (float[4,N] x) => (float[N,2] a, float[N,5] b) { a = Gemm<transA=1>(x, w1) b = Gemm<transA=1>(x, w2) }"
    assert merged(text, weights(w1=(4, 2), w2=(4, 5))).count("Gemm") == 1


def test_widths_unknown_until_run_time() -> None:
    text = f"g ({X}, float[4,N] u, float[4,M] v) => (float[3,N] a, float[3,M] b) {{ a = Gemm(x, u) b = Gemm(x, v) }}"
    done = merged(text)
    assert (done.count("Gemm"), done.count("Shape")) == (1, 2)
    biased = merged(
        text.replace("u)", "u, c)")
        .replace("float[4,N] u, c)", "float[4,N] u)")
        .replace("v) =>", "v, float[N] c) =>")
    )
    assert (
        biased.count("Gemm") == 2
        and "unknown number of columns" in biased.reasons("combine_parallel_gemm")[0]
    )


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_other_dtypes(dtype: str) -> None:
    text = f"g ({dtype}[3,4] x, {dtype}[4,2] u, {dtype}[4,5] v, {dtype}[2] c) => ({dtype}[3,2] a, {dtype}[3,5] b) {{ a = Gemm(x, u, c) b = Gemm(x, v) }}"
    assert merged(text).count("Gemm") == 1


def test_a_common_activation_and_dependent_branches() -> None:
    text = f"g ({X}) => (float[3,2] a, float[3,5] b) {{ p = Gemm(x, w1) a = Relu(p) q = Gemm(x, w2) b = Relu(q) }}"
    done = merged(text, weights(w1=(4, 2), w2=(4, 5)))
    assert (done.count("Gemm"), done.count("Relu")) == (1, 1)
    chain = "g (float[4,4] x) => (float[4,4] b) { a = Gemm(x, w) r = Relu(a) b = Gemm(x, r) }"
    assert merged(chain, weights(w=(4, 4))).count("Gemm") == 2
    bias = "g (float[1,4] x) => (float[1,4] b) { a = Gemm(x, w) r = Relu(a) b = Gemm(x, v, r) }"
    assert merged(bias, weights(w=(4, 4), v=(4, 4))).count("Gemm") == 2


def test_before_opset_7_gemm_broadcasts_by_an_attribute() -> None:
    text = "g (float[1,4] x) => (float[1,2] a, float[1,2] b) { a = Gemm<broadcast=1>(x, w1, c) b = Gemm<broadcast=1>(x, w2, c) }"
    done = apply(
        model_of(text, weights(w1=(4, 2), w2=(4, 2), c=(2,)), opset=6, ir_version=7), MERGE
    )
    assert done.count("Gemm") == 2


def test_the_check_and_the_merge_rule() -> None:
    model = parse(
        "g (float[3,4] x, float[4,2] u, float[4,2] v) => (float[3,2] a, float[3,2] b) { a = Gemm(x, u) b = Gemm(x, v) }"
    )
    assert (
        apply(model, combine_parallel_gemm(merge="always", check=lambda group: False)).count("Gemm")
        == 2
    )
    assert apply(model, combine_parallel_gemm(merge="auto")).count("Gemm") == 2
    assert apply(model, combine_parallel_gemm(merge="auto", provider="cuda")).count("Gemm") == 1
    assert np.all(
        [b.op != "Split" for b in apply(model, combine_parallel_gemm(merge="never")).block.bindings]
    )
