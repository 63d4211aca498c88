"""x @ w + c as a Gemm of all rows, and the Reshapes that meet then."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewriting import Done, apply, assert_same_results, model_of, weights

PASSES = "flatten-products,merge-equal,remove-unused"
SIZES = {"w": (4, 6), "c": (6,), "v": (6, 4), "d": (4,)}


def flattened(text: str, opset: int = 20, dtype: type = np.float32) -> Done:
    constants = {
        k: v.astype(dtype) for k, v in weights(SIZES).items() if f"{k})" in text or f"{k} )" in text
    }
    done = apply(model_of(text, constants, opset=opset), PASSES)
    assert_same_results(done)
    return done


@pytest.mark.parametrize("opset", [13, 14, 18, 20, 21])
@pytest.mark.parametrize("shape", ["2,3", "N,3", "2,N", "2,1,3", "1,1"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_a_batch_is_one_gemm(shape: str, opset: int, dtype: str) -> None:
    done = flattened(
        f"g ({dtype}[{shape},4] x) => ({dtype}[{shape},6] y) {{ m = MatMul(x, w) y = Add(m, c) }}",
        opset,
        np.float64 if dtype == "double" else np.float32,
    )
    assert done.ops == ["Reshape", "Gemm", "Reshape"]


@pytest.mark.parametrize("addend", ["c", "r"])
@pytest.mark.parametrize("rows", ["3", "N"])
def test_matrices_with_a_row_are_a_gemm(rows: str, addend: str) -> None:
    constants = weights(SIZES, r=(1, 6))
    text = f"g (float[{rows},4] x) => (float[{rows},6] y) {{ m = MatMul(x, w) y = Add(ADD, m) }}"
    model = model_of(text.replace("ADD", addend), {k: constants[k] for k in ("w", addend)})
    done = apply(model, PASSES)
    assert done.ops == ["Gemm"]
    assert_same_results(done)


def test_a_gemm_of_matrices_takes_what_is_computed() -> None:
    done = apply(
        "g (float[2,3] x, float[3,4] w, float[4] c) => (float[2,4] y) "
        "{ m = MatMul(x, w) y = Add(m, c) }",
        PASSES,
    )
    assert done.ops == ["Gemm"]
    assert_same_results(done)


@pytest.mark.parametrize("rows", ["1", "3", "N"])
@pytest.mark.parametrize("addend", ["", "1", "1,1"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_matrices_with_a_number_are_a_gemm(rows: str, addend: str, dtype: str) -> None:
    shape = f"[{addend}]" if addend else ""
    for order in ("m, c", "c, m"):
        done = apply(
            f"g ({dtype}[{rows},4] x, {dtype}[4,6] w, {dtype}{shape} c) => ({dtype}[{rows},6] y) "
            f"{{ m = MatMul(x, w) y = Add({order}) }}",
            PASSES,
        )
        assert done.ops == ["Gemm"]
        done.prove()


@pytest.mark.parametrize(
    ("dtype", "right", "addend"),
    [
        ("float", "3,4", "2,4"),  # no row
        ("float", "3,4", "2,1"),
        ("float", "3,4", "1,1,1"),
        ("float", "3,1", "2,4"),
        ("float", "3,1", "4"),  # the product is broadcast
        ("float", "K,4", "4"),  # perhaps K = 0
        ("float", "3", "4"),
        ("float16", "3,4", "4"),
        ("int32", "3,4", "4"),
    ],
)
def test_other_sums_stay(dtype: str, right: str, addend: str) -> None:
    columns = "3" if "3" in right else "K"
    done = apply(
        f"g ({dtype}[2,{columns}] x, {dtype}[{right}] w, {dtype}[{addend}] c) => ({dtype}[A,B] y) "
        "{ m = MatMul(x, w) y = Add(m, c) }",
        PASSES,
    )
    assert done.ops == ["MatMul", "Add"]


def test_a_product_that_others_read_stays() -> None:
    done = flattened(
        "g (float[2,4] x) => (float[2,6] y, float[2,6] m) { m = MatMul(x, w) y = Add(m, c) }"
    )
    assert done.ops == ["MatMul", "Add"]


def test_a_whole_layer() -> None:
    """Three products share the Reshape of what they read; what splits the heads takes the rows; a
    Gelu stays with the rows.
    """
    done = apply(
        model_of(
            """g (float[1,3,4] x) => (float[1,2,3,3] q, float[1,2,3,3] k, float[1,3,4] y)
            <int64[4] heads = {1, 3, 2, 3}> {
              a = MatMul(x, w) b = Add(a, c) h = Reshape(b, heads)
              q = Transpose<perm = [0, 2, 1, 3]>(h)
              e = MatMul(x, u) f = Add(e, c) i = Reshape(f, heads)
              k = Transpose<perm = [0, 2, 1, 3]>(i)
              m = MatMul(x, w) n = Add(m, c) o = Gelu(n) p = MatMul(o, v) y = Add(p, d)
            }""",
            weights(SIZES, u=(4, 6)),
        ),
        PASSES,
    )
    assert done.counts["Gemm"] == 3 and done.counts["Reshape"] == 4
    assert "MatMul" not in done.ops and "Add" not in done.ops
    assert_same_results(done)


def test_rows_through_an_activation() -> None:
    done = flattened(
        """g (float[2,3,4] x) => (float[2,3,4] y) {
          a = MatMul(x, w) b = Add(a, c) r = Relu(b) e = MatMul(r, v) y = Add(e, d)
        }"""
    )
    assert done.ops == ["Reshape", "Gemm", "Relu", "Gemm", "Reshape"]


LEFT = {
    "two unknown sizes": "g (float[N,M,4] x) => (float[N,M,6] y) { m = MatMul(x, w) y = Add(m, c) }",
    "no elements": "g (float[0,3,4] x) => (float[0,3,6] y) { m = MatMul(x, w) y = Add(m, c) }",
    "a weight that is computed": """g (float[2,3,4] x, float[4,6] u) => (float[2,3,6] y)
        { m = MatMul(x, u) y = Add(m, c) }""",
    "an addend that is computed": """g (float[2,3,4] x, float[6] b) => (float[2,3,6] y)
        { m = MatMul(x, w) y = Add(m, b) }""",
    "an addend of one number": """g (float[2,3,4] x) => (float[2,3,6] y) <float b = {1.5}>
        { m = MatMul(x, w) y = Add(m, b) }""",
    "an addend that widens": """g (float[1,3,4] x) => (float[2,3,6] y, float[6] z)
        <float[2,1,1] b = {1.5, 2.0}> { m = MatMul(x, w) y = Add(m, b) z = Neg(c) }""",
    "a product that is read elsewhere": """g (float[2,3,4] x) => (float[2,3,6] y, float[2,3,6] z)
        { m = MatMul(x, w) y = Add(m, c) z = Neg(m) }""",
    "a product that is an output": """g (float[2,3,4] x) => (float[2,3,6] y, float[2,3,6] m)
        { m = MatMul(x, w) y = Add(m, c) }""",
}


@pytest.mark.parametrize("why", LEFT)
def test_left_alone(why: str) -> None:
    text = LEFT[why]
    done = (
        flattened(text)
        if "0," not in text
        else apply(
            model_of(
                text,
                {k: v for k, v in weights(SIZES).items() if f"{k})" in text or f"{k} )" in text},
            ),
            PASSES,
        )
    )
    assert "MatMul" in done.ops and "Gemm" not in done.ops


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_dtypes_without_a_gemm_are_left_alone(dtype: str) -> None:
    kind = {"float16": np.float16, "int32": np.int32}[dtype]
    text = f"g ({dtype}[2,3,4] x) => ({dtype}[2,3,6] y) {{ m = MatMul(x, w) y = Add(m, c) }}"
    done = apply(model_of(text, {"w": np.ones((4, 6), kind), "c": np.ones(6, kind)}), PASSES)
    assert done.ops == ["MatMul", "Add"]


def test_an_output_keeps_its_name_and_inside_an_if() -> None:
    done = flattened(
        """g (bool t, float[2,3,4] x) => (float[2,3,6] y) {
          y = If (t) <
            then_branch = a () => (float[2,3,6] p) { m = MatMul(x, w) p = Add(m, c) },
            else_branch = b () => (float[2,3,6] q) { n = MatMul(x, w) q = Sub(n, c) }>
        }"""
    )
    assert done.counts["Gemm"] == 1 and done.counts["MatMul"] == 1


@pytest.mark.parametrize("target", ["-1, 4", "6, 4"])
def test_rows_of_rows(target: str) -> None:
    text = f"""g (float[6,4] x) => (float[6,4] y) <int64[2] t = {{{target}}}> {{
        r = Reshape(x, t) y = Neg(r) }}"""
    assert apply(text, PASSES).ops == ["Neg"]


@pytest.mark.parametrize("target", ["4, 6", "0, 4", "-1, 6"])
def test_other_reshapes_of_rows(target: str) -> None:
    text = f"""g (float[6,4] x) => (float[P,Q] y) <int64[2] t = {{{target}}}> {{
        r = Reshape(x, t) y = Neg(r) }}"""
    assert apply(text, PASSES).ops == ["Reshape", "Neg"]


def test_an_activation_that_others_read_stays_in_the_batch() -> None:
    text = """g (float[6,4] x) => (float[6,4] y, float[2,3,4] z)
        <int64[3] s = {2, 3, 4}, int64[2] t = {-1, 4}> {
        r = Reshape(x, s) a = Relu(r) y = Reshape(a, t) z = Neg(a) }"""
    assert apply(text, PASSES).ops == ["Reshape", "Relu", "Reshape", "Neg"]


def test_an_activation_with_constants_keeps_them() -> None:
    text = """g (float[6,4] x) => (float[6,4] y)
        <int64[3] s = {2, 3, 4}, int64[2] t = {-1, 4}, float lo = {0.0}> {
        r = Reshape(x, s) a = Clip(r, lo) y = Reshape(a, t) }"""
    done = apply(text, PASSES)
    assert done.ops == ["Clip"]
    assert_same_results(done)


GELU = """h = Mul(r, half) p = Pow(r, three) q = Mul(p, k) s = Add(r, q) u = Mul(s, l)
    th = Tanh(u) v = Add(th, one) a = Mul(h, v)"""
NUMBERS = "float half = {0.5}, float three = {3.0}, float k = {0.04}, float[1] l = {0.8}, float one = {1.0}"


@pytest.mark.parametrize("rows", ["6", "M"])
def test_an_activation_of_several_bindings(rows: str) -> None:
    text = f"""g (float[{rows},4] x, int64[3] s) => (float[{rows},4] y)
        <int64[2] t = {{-1, 4}}, {NUMBERS}> {{ r = Reshape(x, s) {GELU} y = Reshape(a, t) }}"""
    text = (
        text.replace("(float", "(float", 1)
        .replace(" s) =>", " z) =>")
        .replace("Reshape(x, s)", "Reshape(x, z)")
    )
    done = apply(text, PASSES)
    assert "Reshape" not in done.ops and len(done.ops) == 8
    feeds = {"x": np.linspace(-3, 3, 24, dtype=np.float32).reshape(6, 4)}
    assert_same_results(done, feeds={**feeds, "z": np.array([2, 3, 4])})


def test_a_product_of_two_activations() -> None:
    text = """g (float[6,4] x, float[6,4] u) => (float[6,4] y)
        <int64[3] s = {2, 3, 4}, int64[2] t = {-1, 4}> {
        r = Reshape(x, s) q = Reshape(u, s) g1 = Sigmoid(r) m = Mul(r, g1) a = Mul(m, q)
        y = Reshape(a, t) }"""
    done = apply(text, PASSES)
    assert done.ops == ["Sigmoid", "Mul", "Mul"]
    assert_same_results(done)


@pytest.mark.parametrize(
    ("operand", "goes"),
    [("float[4] k = {1.0, 2.0, 3.0, 4.0}", True), ("float[2,1,1] k = {1.0, 2.0}", False)],
)
def test_an_operand_along_the_columns_fits(operand: str, goes: bool) -> None:
    text = f"""g (float[6,4] x) => (float[6,4] y)
        <int64[3] s = {{2, 3, 4}}, int64[2] t = {{-1, 4}}, {operand}> {{
        r = Reshape(x, s) a = Add(r, k) y = Reshape(a, t) }}"""
    done = apply(text, PASSES)
    assert ("Reshape" not in done.ops) is goes
    assert_same_results(done)


def test_a_tower_of_squares_ends() -> None:
    squares = " ".join(f"v{i + 1} = Mul(v{i}, v{i})" for i in range(40))
    text = f"""g (float[6,4] x) => (float[6,4] y) <int64[3] s = {{2, 3, 4}}, int64[2] t = {{-1, 4}}>
        {{ v0 = Reshape(x, s) {squares} y = Reshape(v40, t) }}"""
    assert apply(text, PASSES).ops.count("Reshape") == 2


@pytest.mark.parametrize("row", [(8,), (1,), (), (32,), (4, 8), (4, 1), (1, 8)])
@pytest.mark.parametrize("op", ["Mul", "Add", "Pow"])
def test_a_row_of_heads_is_no_row_of_the_matrix(row: tuple[int, ...], op: str) -> None:
    """`linear(x).view(-1, 4, 8) * gain`, and back: the gain has a number for each element of a
    head.
    """
    heads = "2, 32" if row == (32,) else "4, 8"
    text = f"""g (float[6,32] x) => (float[6,32] y) <int64[3] heads = {{-1, {heads}}}, int64[2] rows = {{-1, 32}}>
        {{ h = Reshape(x, heads) a = Abs(h) z = {op}(a, gain) y = Reshape(z, rows) }}"""
    constants = {"gain": np.random.default_rng(0).uniform(0.5, 2, row).astype(np.float32)}
    done = apply(model_of(text, constants), PASSES)
    fires = row in ((), (1,), (32,))
    assert ("Reshape" not in done.ops) is fires
    assert fires or "broadcast along the rows" in done.declined
    assert_same_results(done)


@pytest.mark.parametrize("target", ["3, 8", "2, 3, 4", "24", None])
def test_reshapes_to_something_else(target: str | None) -> None:
    """The shape of x alone is undone; one that the run decides may be any."""
    given, known = (
        (", int64[2] t", "")
        if target is None
        else ("", f", int64[{target.count(',') + 1}] t = {{{target}}}")
    )
    text = f"""g (float[6,4] x{given}) => (float[] y) <int64[3] s = {{2, 3, 4}}{known}> {{
        r = Reshape(x, s) n = Neg(r) e = Exp(n) y = Reshape(e, t) }}"""
    assert apply(model_of(text), PASSES).ops == ["Reshape", "Neg", "Exp", "Reshape"]


@pytest.mark.parametrize(
    ("x", "rows", "z", "wide", "y"),
    [
        ("2,3,4", [1, 6, 4], "4,5", [1, 4, 5], [2, 3, 5]),
        ("2,3,4", [-1, 4], "4,5", None, [2, 3, 5]),
        ("N,3,4", [-1, 4], "4,5", None, [-1, 3, 5]),
        ("2,3,2,4", [12, 4], "4,5", None, [2, 3, 2, 5]),
    ],
)
def test_a_product_of_reshaped_rows(
    x: str, rows: list[int], z: str, wide: list[int] | None, y: list[int]
) -> None:
    right = "r = Reshape(z, wide)" if wide else "r = Identity(z)"
    text = f"g (float[{x}] x, float[{z}] z) => (float[] o) {{ p = Reshape(x, rows) {right} m = MatMul(p, r) o = Reshape(m, back) }}"
    sizes = {"rows": rows, "back": y, **({"wide": wide} if wide else {})}
    done = apply(
        model_of(text, {k: np.array(v, np.int64) for k, v in sizes.items()}),
        "remove-noops,merge-consecutive,remove-unused",
    )
    assert done.ops == ["MatMul"] and done.fired("product_of_rows") == 1
    assert_same_results(done)


@pytest.mark.parametrize(
    ("x", "rows", "back", "more"),
    [
        ("2,3,4", [3, 8], [3, 1, 5], ""),  # other columns
        ("2,3,4", [6, 4], [3, 2, 5], ""),  # other rows
        ("N,M,4", [-1, 4], [-1, 3, 5], ""),
        ("2,3,4", [6, 4], [2, 3, 5], ", float[6,5] m"),
    ],
)
def test_other_rows_of_a_product_stay(x: str, rows: list[int], back: list[int], more: str) -> None:
    text = f"g (float[{x}] x, float[{rows[-1]},5] z) => (float[] o{more}) {{ p = Reshape(x, rows) m = MatMul(p, z) o = Reshape(m, back) }}"
    sizes = {"rows": np.array(rows, np.int64), "back": np.array(back, np.int64)}
    done = apply(model_of(text, sizes), "merge-consecutive")
    assert done.ops == ["Reshape", "MatMul", "Reshape"]
