"""Bindings that return their operand go; those that only look like it stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.verify import run
from tests.helpers import parse, unindented
from tests.rewriting import Done, apply, assert_same_results, model_of

PASSES = "remove-noops,remove-unused"


def cleaned(text: str, constants: dict[str, Any] | None = None, **options: Any) -> Done:
    return apply(model_of(text, constants, **options), PASSES)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def test_what_is_left_of_a_graph() -> None:
    text = """g (float[2,3] x) => (float[2,3] o) <int64[2] s = {2, 3}, int64[1] zero = {0}, int64[1] far = {9223372036854775807}> {
        a = Identity(x)
        b = Cast<to=1>(a)
        c = CastLike(b, x)
        d = Expand(c, s)
        e = Reshape(d, s)
        f = Transpose<perm=[0,1]>(e)
        g1 = Slice(f, zero, far)
        h = Concat<axis=0>(g1)
        i = Sum(h)
        j = Flatten(i)
        o = Relu(j)
      }"""
    assert apply(parse(text), PASSES).text == unindented("""
        g(x: f32[2,3]) {
          o: f32[2,3] = Relu(x)
          return o
        }
    """)


# (operand's type, the binding, constants): Relu(f(x)) becomes Relu(x)
GONE = [
    ("float[N]", "Identity(x)", {}),
    ("float[N]", "Cast<to=1>(x)", {}),
    ("float[N]", "CastLike(x, x)", {}),
    ("float[2,3]", "Expand(x, c)", {"c": i64(2, 3)}),
    ("float[2,3]", "Expand(x, c)", {"c": i64(1)}),
    ("float[0,3]", "Expand(x, c)", {"c": i64(1, 3)}),
    ("float[2,3]", "Tile(x, c)", {"c": i64(1, 1)}),
    ("float[2,3]", "Reshape(x, c)", {"c": i64(0, 0)}),
    ("float[N,3]", "Reshape(x, c)", {"c": i64(-1, 3)}),
    ("float[2,3]", "Flatten(x)", {}),
    ("float[N,M]", "Flatten<axis=1>(x)", {}),
    ("float[2,3]", "Squeeze(x)", {}),
    ("float[N,3]", "Transpose<perm=[0,1]>(x)", {}),
    ("float[3]", "Transpose(x)", {}),
    (
        "float[4,N]",
        "Slice(x, a, b, c, d)",
        {"a": i64(0, 0), "b": i64(4, 2**31 - 1), "c": i64(-2, 1), "d": i64(1, 1)},
    ),
    ("float[4,N]", "Slice(x, a, b)", {"a": i64(0), "b": i64(2**63 - 1)}),
    ("float[N]", "Concat<axis=0>(x)", {}),
    ("float[N]", "Sum(x)", {}),
    ("float[N]", "Max(x)", {}),
    ("float[N]", "Min(x)", {}),
    ("float[N]", "Mean(x)", {}),
    ("float[N]", "Pad(x, c)", {"c": i64(0, 0)}),
    ("float[N]", 'Pad<mode="reflect">(x, c)', {"c": i64(0, 0)}),
]


@pytest.mark.parametrize(
    ("type_", "binding", "constants"), GONE, ids=[f"{t} {b}" for t, b, _ in GONE]
)
def test_gone(type_: str, binding: str, constants: dict[str, Any]) -> None:
    done = cleaned(f"g ({type_} x) => ({type_} o) {{ y = {binding} o = Relu(y) }}", constants)
    assert done.ops == ["Relu"]
    assert_same_results(done, exact=True)


STAYS = [
    ("float[N]", "Cast<to=11>(x)", "double[N]", {}),
    ("float[1,3]", "Expand(x, c)", "float[2,3]", {"c": i64(2, 3)}),
    ("float[N,3]", "Expand(x, c)", "float[N,3]", {"c": i64(2, 3)}),  # N may be 1
    ("float[N,M]", "Reshape(x, s)", "float[N,M]", {}),  # any two sizes with this product
    ("float[2,3]", "Reshape(x, c)", "float[3,2]", {"c": i64(3, 2)}),
    ("float[0,N]", "Reshape(x, s)", "float[0,N]", {}),  # nothing in it says what N is
    ("float[2,3,1]", "Flatten(x)", "float[2,3]", {}),
    ("float[N,3]", "Squeeze(x)", "float[N,3]", {}),  # N may be 1
    ("float[3,3]", "Transpose<perm=[1,0]>(x)", "float[3,3]", {}),
    ("float[4]", "Slice(x, a, b)", "float[3]", {"a": i64(1), "b": i64(4)}),
    ("float[4]", "Slice(x, a, b)", "float[3]", {"a": i64(0), "b": i64(3)}),
    ("float[4]", "Slice(x, a, b)", "float[3]", {"a": i64(0), "b": i64(-1)}),
    ("float[N]", "Slice(x, a, b)", "float[M]", {"a": i64(0), "b": i64(4)}),
    (
        "float[4]",
        "Slice(x, a, b, c, d)",
        "float[4]",
        {"a": i64(-1), "b": i64(-9), "c": i64(0), "d": i64(-1)},
    ),
    (
        "float[4]",
        "Slice(x, a, b, c, d)",
        "float[4]",
        {"a": i64(-1), "b": i64(-(2**63)), "c": i64(0), "d": i64(-1)},
    ),
    (
        "float[4]",
        "Slice(x, a, b, c, d)",
        "float[2]",
        {"a": i64(0), "b": i64(9), "c": i64(0), "d": i64(2)},
    ),
    ("float[4]", "Pad(x, c)", "float[5]", {"c": i64(0, 1)}),
    ("float[4]", "Pad(x, c)", "float[4]", {"c": i64(-1, 1)}),
    ("float[N]", "Sum(x, x)", "float[N]", {}),
]


@pytest.mark.parametrize(
    ("type_", "binding", "result", "constants"), STAYS, ids=[f"{t} {b}" for t, b, *_ in STAYS]
)
def test_stays(type_: str, binding: str, result: str, constants: dict[str, Any]) -> None:
    inputs = f"{type_} x" + (", int64[2] s" if "s)" in binding else "")
    dtype = result.split("[")[0]
    done = cleaned(f"g ({inputs}) => ({dtype}[] o) {{ y = {binding} o = Relu(y) }}", constants)
    assert done.ops == [binding.split("<")[0].split("(")[0], "Relu"]


def test_an_overridable_operand_says_nothing() -> None:
    """Another value may be passed for the pads, the shape, the bounds."""
    text = "g (float[4] x, int64[2] c = {0, 0}) => (float[] o) { y = Pad(x, c) o = Relu(y) }"
    assert cleaned(text).ops == ["Pad", "Relu"]
    text = "g (float[4] x, int64[1] a = {0}, int64[1] b = {9}) => (float[] o) { y = Slice(x, a, b) o = Relu(y) }"
    assert cleaned(text).ops == ["Slice", "Relu"]
    text = "g (float[1,3] x, int64[2] c = {1, 3}) => (float[] o) { y = Expand(x, c) o = Relu(y) }"
    done = cleaned(text)
    assert done.ops == ["Expand", "Relu"]
    assert_same_results(done, feeds={"x": np.ones((1, 3), np.float32), "c": i64(2, 3)})
    text = "g (float[2,6] x, int64[2] c = {2, 6}) => (float[] o) { y = Reshape(x, c) o = Relu(y) }"
    assert cleaned(text).ops == ["Reshape", "Relu"]


def test_old_forms_with_attributes() -> None:
    slice_1 = "g (float[4] x) => (float[4] o) { y = Slice<starts=[0], ends=[4]>(x) o = Relu(y) }"
    assert_same_results(cleaned(slice_1, opset=9, ir_version=7))
    squeeze = "g (float[1,4] x) => (float[4] o) { y = Squeeze<axes=[0]>(x) o = Relu(y) }"
    assert cleaned(squeeze, opset=11, ir_version=7).ops == ["Squeeze", "Relu"]
    pad = "g (float[4] x) => (float[5] o) { y = Pad<pads=[0,1]>(x) o = Relu(y) }"
    assert cleaned(pad, opset=10, ir_version=7).ops == ["Pad", "Relu"]


def test_castlike_becomes_a_cast_and_keeps_saturate() -> None:
    done = cleaned(
        "g (float[2] x, float8e4m3fn[1] like) => (float8e4m3fn[2] o) { o = CastLike<saturate=0>(x, like) }"
    )
    assert str(done.block.outputs[0].definition).endswith("Cast(x, saturate=0, to=17)")
    feeds = {"x": np.array([1e6, -3.0], np.float32), "like": np.zeros(1, "float8_e4m3fn")}
    assert_same_results(done, feeds=feeds)


@pytest.mark.parametrize(
    ("narrow", "wide", "gone"),
    [("float16", 1, True), ("float", 11, True), ("bool", 7, True), ("int32", 7, True), ("int32", 1, False),
     ("int64", 6, False), ("float", 10, False), ("int64", 11, False), ("uint8", 3, False)],
)  # fmt: skip
def test_there_and_back(narrow: str, wide: int, gone: bool) -> None:
    codes = {"float16": 10, "float": 1, "bool": 9, "int32": 6, "int64": 7, "uint8": 2}
    text = f"g ({narrow}[3] x) => ({narrow}[3] o) {{ y = Cast<to={wide}>(x) z = Cast<to={codes[narrow]}>(y) o = Identity(z) }}"
    done = cleaned(text)
    assert ("Cast" not in done.ops) is gone
    assert_same_results(done, exact=True)


def test_reshape_of_reshape() -> None:
    def both(first: Any, second: Any, options: str = "") -> list[str]:
        done = cleaned(
            f"g (float[2,6] x) => (float[] o) {{ y = Reshape(x, a) z = Reshape{options}(y, b) o = Relu(z) }}",
            {"a": first, "b": second},
        )
        assert_same_results(done, exact=True)
        return done.ops

    assert both(i64(3, 4), i64(4, -1)) == ["Reshape", "Relu"]
    assert both(i64(3, 4), i64(0, 2, 2)) == ["Reshape", "Reshape", "Relu"], (
        "0 copies a size of the inner result"
    )
    text = "g (float[2,0] x) => (float[] o) { y = Reshape(x, a) z = Reshape<allowzero=1>(y, b) o = Relu(z) }"
    done = cleaned(text, {"a": i64(0, 0), "b": i64(0, 3)})
    assert_same_results(done)
    assert str(done.block.outputs[0].definition.inputs[0].definition).endswith(
        "Reshape(x, b, allowzero=1)"
    )
    shared = "g (float[2,6] x) => (float[] o, float[3,4] y) { y = Reshape(x, a) o = Reshape(y, b) }"
    assert cleaned(shared, {"a": i64(3, 4), "b": i64(12)}).ops == ["Reshape", "Reshape"]


@pytest.mark.parametrize(
    ("sizes", "options", "left"),
    [
        ("a, b, m", "", 1),
        ("a, b, n, c", "", 0),  # the shape of x
        ("a, b, c", "", 2),  # where C is 0 it copies a size
        ("a, b, c", "<allowzero = 1>", 1),
        ("a, d, m", "", 1),
    ],
)
def test_reshape_of_reshape_to_open_sizes(sizes: str, options: str, left: int) -> None:
    """As BERT's mask is indexed: (B, 1, S, 1) to (B S) to (B, 1, S)."""
    done = cleaned(
        f"""g (float[A,B,1,C] x) => (float[] o) {{ s = Shape(x) a = Gather(s, zero) b = Gather(s, n)
          c = Gather(s, three) d = Add(b, zero) y = Reshape(x, m) t = Concat<axis = 0>({sizes})
          z = Reshape{options}(y, t) o = Relu(z) }}""",
        {"zero": i64(0), "n": i64(1), "three": i64(3), "m": i64(-1)},
    )
    assert done.ops.count("Reshape") == left
    assert_same_results(done, exact=True)


@pytest.mark.parametrize(
    ("sizes", "options", "left"),
    [
        ("a, b, m", "", 0),
        ("a, b, m", "<allowzero = 1>", 0),  # fails where a size beside -1 is 0
        ("zero, zero, m", "", 0),
        ("zero, zero, m", "<allowzero = 1>", 1),
        ("m, b, m", "<allowzero = 1>", 1),
        ("b, a, m", "<allowzero = 1>", 1),
    ],
)
def test_reshape_to_its_own_open_sizes(sizes: str, options: str, left: int) -> None:
    """As exporters write x.reshape(b, c, -1)."""
    text = f"""g (float[A,B,C] x) => (float[] o) {{ s = Shape(x) a = Gather(s, zero) b = Gather(s, n) h = Neg(x)
      t = Concat<axis = 0>({sizes}) z = Reshape{options}(h, t) o = Relu(z) }}"""
    done = apply(
        model_of(text, {"zero": i64(0), "n": i64(1), "m": i64(-1)}), "remove-noops,remove-unused"
    )
    assert done.ops.count("Reshape") == left
    if left == 0:
        assert_same_results(done, exact=True)


def test_outputs_keep_their_names_and_types() -> None:
    for text in (
        "g (float[2] x) => (float[2] o) { o = Identity(x) }",
        "g (float[2] x) => (float[2] r, float[2] o) { r = Relu(x) o = Identity(r) }",
        "g (float[2] x) => (float[2] o, float[2] p) { r = Relu(x) o = Identity(r) p = Identity(r) }",
        "g (float[2] x) => (float[2] o) <float[2] w = {1, 2}> { o = Identity(w) }",
        "g (float[2] x) => (float[2] o, float[2] o) { r = Relu(x) o = Identity(r) }",
    ):
        done = cleaned(text)
        assert_same_results(done, exact=True) if "o, float[2] o" not in text else None
        assert [o.name for o in done.after.graph.output] == [
            o.name for o in done.before.graph.output
        ]


def test_a_branch_that_returns_an_outer_value_keeps_its_identity() -> None:
    text = """g (bool k, float[2] x) => (float[2] o) {
      r = Relu(x)
      o = If (k) <then_branch = t () => (float[2] u) { u = Identity(r) }, else_branch = e () => (float[2] v) { v = Neg(r) }> }"""
    done = cleaned(text)
    assert_same_results(done)
    assert done.count("Identity") == 1


def test_values_captured_by_nested_blocks_are_replaced_there_too() -> None:
    text = """g (bool k, float[2] x) => (float[2] o) {
      r = Relu(x) i = Identity(r)
      o = If (k) <then_branch = t () => (float[2] u) { u = Neg(i) }, else_branch = e () => (float[2] v) { j = Identity(i) v = Abs(j) }> }"""
    done = cleaned(text)
    assert_same_results(done, exact=True)
    assert done.count("Identity") == 0


def test_a_pinned_value_keeps_its_name() -> None:
    """Quantization annotations name values of the graph."""
    model = parse("g (float[2] x) => (float[2] o) { r = Relu(x) i = Identity(r) o = Neg(i) }")
    model.graph.quantization_annotation.add(tensor_name="i")
    done = apply(model, PASSES)
    assert "i" in {name for node in done.after.graph.node for name in node.output}


def test_a_function_body_and_its_attribute_references() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[2] x) => (float[2] o) { o = my.f<to=1>(x) }
    <domain: "my", opset_import: ["" : 20]> f <to> (u) => (w) { i = Identity(u) w = Cast<to: int = @to>(i) }"""
    done = apply(parse(text), PASSES)
    (function,) = done.program.functions.values()
    assert [b.op for b in function.bindings] == ["Cast"]
    assert_same_results(done)


def test_the_wrong_declaration_of_a_shape_is_not_believed_against_inference() -> None:
    text = "g (float[2,3] x) => (float[] o) { y = Reshape(x, c) o = Relu(y) }"
    model = model_of(text, {"c": i64(3, 2)})
    y = model.graph.value_info.add(name="y")
    y.type.CopyFrom(model.graph.input[0].type)
    assert apply(model, PASSES).ops == ["Reshape", "Relu"]


def test_a_range_reads_scalars() -> None:
    """onnxruntime runs a Range of vectors unless one is a constant, as a branch that is opened leaves them."""
    done = cleaned(
        "g (int64[1] n) => (int64[K] o) { o = Range(a, n, c) }",
        {"a": i64(2), "c": np.array([[3]], np.int64)},
    )
    assert done.ops == ["Range"] and done.fired("range_of_scalars") == 1
    (result,) = run(done.after, {"n": i64(12)}).values()
    np.testing.assert_array_equal(result, [2, 5, 8, 11])


@pytest.mark.parametrize("constants", [{}, {"a": np.int64(2)}, {"a": i64(2, 3)}])
def test_a_range_that_stays(constants: dict[str, Any]) -> None:
    given = "" if constants else ", int64[1] a"
    text = f"g (int64[1] n, int64[1] c{given}) => (int64[K] o) {{ o = Range(a, n, c) }}"
    assert not cleaned(text, constants).fired("range_of_scalars")


def test_a_range_behind_an_if() -> None:
    """onnxruntime opens the If by itself once its condition is constant."""
    text = """g (int64[1] n, bool c) => (int64[K] o) {
        a = If(c) <then_branch = t () => (int64[1] u) { u = Constant<value_ints = [2]>() },
                   else_branch = e () => (int64[1] v) { v = Neg(n) }>
        z = Constant<value_int = 0>()
        s = Constant<value_int = 1>()
        o = Range(z, a, s)
    }"""
    done = cleaned(text)
    assert done.ops == ["If", "Squeeze", "Range"]
    for taken in (False, True):
        assert_same_results(done, feeds={"n": i64(-3), "c": np.bool_(taken)})
