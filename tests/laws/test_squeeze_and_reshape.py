"""Squeeze, Unsqueeze and Reshape in a row, and beside a reduction."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewriting import assert_same_bits, assert_same_results, rewritten, special


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(("first", "second"), [((0, 2), (2, 0)), ((-1,), (2,)), ((1,), (-2,))])
def test_squeeze_of_unsqueeze(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    text = (
        "g (float[2,N] x) => (float[2,N] o) { y = Unsqueeze(x, a) z = Squeeze(y, b) o = Relu(z) }"
    )
    done = rewritten(text, "remove-noops", {"a": i64(*first), "b": i64(*second)})
    assert done.ops == ["Relu"]
    assert_same_bits(done, x=special(2, 3))


@pytest.mark.parametrize("opset", [9, 12])
def test_axes_as_attributes(opset: int) -> None:
    text = """g (float[2,N] x, float[N,1] w) => (float[2,N] o, float[N,1] p) {
        y = Unsqueeze<axes=[1]>(x) z = Squeeze<axes=[1]>(y) o = Relu(z)
        s = Squeeze<axes=[1]>(w) t = Unsqueeze<axes=[1]>(s) p = Relu(t)
      }"""
    done = rewritten(text, "remove-noops", opset=opset)
    assert done.ops == ["Relu", "Relu"]
    assert_same_bits(done, x=special(2, 3), w=special(3, 1))


def test_unsqueeze_of_squeeze() -> None:
    text = "g (float[1,N,1] x) => (float[1,N,1] o) { y = Squeeze(x, a) z = Unsqueeze(y, b) o = Relu(z) }"
    done = rewritten(text, "remove-noops", {"a": i64(0, -1), "b": i64(2, 0)})
    assert done.ops == ["Relu"]
    assert_same_bits(done, x=special(1, 3, 1))


@pytest.mark.parametrize("dtype", ["float16", "float", "double", "int32", "int64"])
def test_between_input_and_output_an_identity_is_enough(dtype: str) -> None:
    text = f"g ({dtype}[2,N] x) => ({dtype}[2,N] o) {{ y = Unsqueeze(x, a) o = Squeeze(y, a) }}"
    assert rewritten(text, "remove-noops", {"a": i64(1)}).ops == ["Identity"]


def test_the_inner_one_stays_for_its_other_reader() -> None:
    text = "g (float[2,N] x) => (float[2,N] o, float[2,1,N] p) { y = Unsqueeze(x, a) z = Squeeze(y, a) o = Relu(z) p = Neg(y) }"
    assert sorted(rewritten(text, "remove-noops", {"a": i64(1)}).ops) == [
        "Neg",
        "Relu",
        "Unsqueeze",
    ]


OTHERS = [
    # of (1, 1, N): axis 1 is x's own, which is as long
    ("Unsqueeze(x, a)", "Squeeze(y, b)", i64(0), i64(1), ["Relu"]),
    ("Squeeze(x, a)", "Unsqueeze(y, b)", i64(0), i64(1), ["Reshape", "Relu"]),
    # the first axis of x goes as well, and which else is unknown
    ("Unsqueeze(x, a)", "Squeeze(y)", i64(0), i64(0), ["Unsqueeze", "Squeeze", "Relu"]),
    ("Squeeze(x)", "Unsqueeze(y, b)", i64(0), i64(0), ["Squeeze", "Unsqueeze", "Relu"]),
]


@pytest.mark.parametrize(("first", "second", "a", "b", "left"), OTHERS)
def test_other_axes(first: str, second: str, a: np.ndarray, b: np.ndarray, left: list[str]) -> None:
    done = rewritten(
        f"g (float[1,N] x) => (float[] o) {{ y = {first} z = {second} o = Relu(z) }}",
        "remove-noops",
        {"a": a, "b": b},
    )
    assert done.ops == left
    assert_same_bits(done, x=special(1, 3))


def test_negative_axes_of_unknown_rank_stay() -> None:
    text = "g (float[N] n, int64[M] s) => (float[] o) { x = Reshape(n, s) y = Unsqueeze(x, a) z = Squeeze(y, b) o = Relu(z) }"
    assert len(rewritten(text, "remove-noops", {"a": i64(-1), "b": i64(1)}).ops) == 4
    assert len(rewritten(text, "remove-noops", {"a": i64(1), "b": i64(1)}).ops) == 2


def test_axes_that_a_caller_gives_stay() -> None:
    text = "g (float[2,N] x, int64[1] a) => (float[2,N] o) { y = Unsqueeze(x, a) z = Squeeze(y, a) o = Relu(z) }"
    assert len(rewritten(text, "remove-noops").ops) == 3


@pytest.mark.parametrize("opset", [11, 13, 20])
@pytest.mark.parametrize(
    ("first", "second"),
    [((0,), (0,)), ((0,), (1,)), ((1, -1), (2, 0)), ((-1,), (-1,)), ((2,), (0,))],
)
def test_unsqueeze_of_unsqueeze(
    opset: int, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    rank = 2 + len(first) + len(second)
    result = f"float[{','.join('ABCDEF'[:rank])}] o"
    if opset < 13:
        text = f"""g (float[2,N] x) => ({result}) {{
            y = Unsqueeze<axes = {[i % (2 + len(first)) for i in first]}>(x)
            z = Unsqueeze<axes = {[i % rank for i in second]}>(y) o = Relu(z) }}"""
    else:
        text = f"g (float[2,N] x) => ({result}) {{ y = Unsqueeze(x, a) z = Unsqueeze(y, b) o = Relu(z) }}"
    constants = {"a": i64(*first), "b": i64(*second)} if opset >= 13 else {}
    done = rewritten(text, "remove-noops", constants, opset=opset)
    assert done.ops == ["Unsqueeze", "Relu"]
    assert_same_bits(done, x=special(2, 3))


@pytest.mark.parametrize("opset", [12, 20])
@pytest.mark.parametrize("view", ["Reshape (t, m)", "Unsqueeze"])
def test_sizes_that_are_added(opset: int, view: str) -> None:
    """The length of a cache and of what is appended: squeezed, added, and a vector again."""
    axes, attributes = (", a", "") if opset >= 13 else ("", " <axes = [0]>")
    last = view if view != "Unsqueeze" else f"Unsqueeze{attributes} (t{axes})"
    text = f"""g (float[N,2] x, float[M,2] c) => (int64[1] o) {{ s = Shape (x) r = Shape (c)
        u = Slice (s, a, b) v = Slice (r, a, b) p = Squeeze{attributes} (u{axes}) q = Squeeze{attributes} (v{axes})
        t = Add (p, q) o = {last} }}"""
    done = rewritten(text, "remove-noops", {"a": i64(0), "b": i64(1), "m": i64(-1)}, opset=opset)
    assert done.ops == ["Shape", "Shape", "Slice", "Slice", "Add"]
    assert_same_bits(done, x=special(3, 2), c=special(5, 2))


@pytest.mark.parametrize("target", [[1, 1], [1]])
def test_sizes_of_another_shape_stay(target: list[int]) -> None:
    text = "g (int64[1,1] x, int64[1] c) => (int64[] o) { p = Squeeze (x) q = Squeeze (c) t = Add (p, q) o = Reshape (t, m) }"
    assert rewritten(text, "remove-noops", {"m": i64(*target)}).ops[-1] == "Reshape"


def test_an_unsqueeze_that_is_read_elsewhere_stays() -> None:
    text = """g (float[2,N] x) => (float[1,1,2,N] o, float[1,2,N] p)
        { y = Unsqueeze(x, a) o = Unsqueeze(y, a) p = Relu(y) }"""
    assert rewritten(text, "remove-noops", {"a": i64(0)}).ops == ["Unsqueeze", "Unsqueeze", "Relu"]


@pytest.mark.parametrize("opset", [11, 13, 20])
@pytest.mark.parametrize(
    ("first", "second"), [((0,), (0,)), ((1,), (1,)), ((-2, 0), (1,)), ((3,), (-3, 1))]
)
def test_squeeze_of_squeeze(opset: int, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = ("", "") if opset < 13 else (", a", ", b")
    one, other = (f"<axes = {list(k)}>" if opset < 13 else "" for k in (first, second))
    text = f"""g (float[1,1,1,1,N] x) => (float[] o)
        {{ y = Squeeze{one}(x{a}) z = Squeeze{other}(y{b}) o = Relu(z) }}"""
    constants = {"a": i64(*first), "b": i64(*second)} if opset >= 13 else {}
    done = rewritten(text, "remove-noops", constants, opset=opset)
    assert done.ops == ["Squeeze", "Relu"]
    assert_same_bits(done, x=special(1, 1, 1, 1, 3))


def test_squeeze_of_squeeze_of_unknown_rank() -> None:
    text = "g (float[N] n, int64[M] s) => (float[] o) { x = Reshape(n, s) y = Squeeze(x, a) z = Squeeze(y, b) o = Relu(z) }"
    done = rewritten(text, "remove-noops", {"a": i64(0), "b": i64(1)})
    assert done.ops == ["Reshape", "Squeeze", "Relu"]
    assert_same_bits(done, n=special(3), s=i64(1, 3, 1))
    for a, b in ((i64(-1), i64(0)), (i64(0), i64(-1))):
        assert len(rewritten(text, "remove-noops", {"a": a, "b": b}).ops) == 4


VIEWS = [
    ("Unsqueeze(x, k1)", "Reshape(y, flat)", ["Reshape"]),
    ("Reshape(x, s)", "Squeeze(y, k0)", ["Reshape"]),
    ("Reshape(x, s)", "Unsqueeze(y, k1)", ["Reshape"]),
    ("Flatten<axis = 2>(x)", "Unsqueeze(y, k1)", ["Reshape"]),
    ("Unsqueeze(x, k1)", "Flatten<axis = 2>(y)", ["Reshape"]),
    ("Squeeze(x, k0)", "Unsqueeze(y, k1)", ["Reshape"]),
    ("Unsqueeze(x, k1)", "Squeeze(y, k0)", []),  # axis 1 is as long
    ("Unsqueeze(x, k1)", "Reshape(y, copies)", ["Unsqueeze", "Reshape"]),  # a size of y
    ("Reshape(x, t)", "Unsqueeze(y, k1)", ["Reshape", "Unsqueeze"]),  # two sizes are open
]


@pytest.mark.parametrize("dtype", ["float", "int64", "bool"])
@pytest.mark.parametrize(("first", "second", "left"), VIEWS)
def test_a_view_of_a_view(first: str, second: str, left: list[str], dtype: str) -> None:
    text = f"""g ({dtype}[1,N,2] x, int64[4] t) => ({dtype}[] o)
        {{ y = {first} z = {second} o = Concat<axis = 0>(z, z) }}"""
    sizes = {"flat": i64(2, -1), "s": i64(1, 2, -1), "copies": i64(0, 0, -1)}
    done = rewritten(text, "remove-noops", {**sizes, "k0": i64(0), "k1": i64(1)})
    assert done.ops == [*left, "Concat"]
    for n in (3, 1, 0):
        x = np.arange(2 * n).reshape(1, n, 2) % 3
        kind = {"bool": bool, "int64": np.int64, "float": np.float32}[dtype]
        assert_same_bits(done, x=x.astype(kind), t=i64(1, n, 2, 1))


def test_views_that_are_read_elsewhere_stay() -> None:
    text = (
        "g (float[1,6] x) => (float[6,1] o, float[6] y) { y = Squeeze(x, a) o = Unsqueeze(y, b) }"
    )
    assert rewritten(text, "remove-noops", {"a": i64(0), "b": i64(1)}).ops == [
        "Squeeze",
        "Unsqueeze",
    ]


def test_a_size_of_zero_stays() -> None:
    text = "g (float[1,0,2] x) => (float[] o) { y = Squeeze(x, a) z = Unsqueeze(y, b) o = Relu(z) }"
    done = rewritten(text, "remove-noops", {"a": i64(0), "b": i64(1)})
    assert done.ops == ["Squeeze", "Unsqueeze", "Relu"] and "is 0" in done.declined


REDUCES = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"]


def reduced(name: str, axes: tuple[int, ...], keeps: int, opset: int) -> str:
    """y, of x, along axes that are an operand or an attribute."""
    if opset >= (13 if name == "ReduceSum" else 18):
        return f"y = {name}<keepdims = {keeps}>(x, a)"
    return f"y = {name}<keepdims = {keeps}, axes = {list(axes)}>(x)"


@pytest.mark.covering(2)
@pytest.mark.parametrize("opset", [11, 13, 18, 23])
@pytest.mark.parametrize("name", REDUCES)
@pytest.mark.parametrize(
    ("axes", "at"), [((1,), (1,)), ((-1,), (2,)), ((0, -1), (2, 0)), ((0, 1, 2), (2, 1, 0))]
)
@pytest.mark.parametrize("keeps", [0, 1])
def test_a_reduction_keeps_or_drops_its_axes(
    name: str, axes: tuple[int, ...], at: tuple[int, ...], keeps: int, opset: int
) -> None:
    move = "Squeeze" if keeps else "Unsqueeze"
    moved = f"z = {move}(y, b)" if opset >= 13 else f"z = {move}<axes = {list(at)}>(y)"
    text = f"g (float[2,N,4] x) => (float[] o) {{ {reduced(name, axes, keeps, opset)} {moved} o = Neg(z) }}"
    used = {"a": i64(*axes)} if ", a)" in text else {}
    done = rewritten(
        text, "remove-noops", {**used, **({"b": i64(*at)} if opset >= 13 else {})}, opset=opset
    )
    assert done.ops == [name, "Neg"]
    assert_same_bits(done, x=special(2, 3, 4))


def test_a_reduction_of_everything() -> None:
    for name in ("ReduceMax", "ReduceSum"):
        text = f"g (float[2,N] x) => (float[1,1] o) {{ y = {name}<keepdims = 0>(x) z = Unsqueeze(y, a) o = Neg(z) }}"
        done = rewritten(text, "remove-noops", {"a": i64(0, 1)})
        assert done.ops == [name, "Neg"]
        assert_same_bits(done, x=special(2, 3))


@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_the_axis_of_argmax(name: str) -> None:
    text = f"g (float[2,N] x) => (int64[2,1] o) {{ y = {name}<axis = -1, keepdims = 0, select_last_index = 1>(x) o = Unsqueeze(y, a) }}"
    done = rewritten(text, "remove-noops", {"a": i64(1)})
    assert done.ops == [name]
    assert_same_bits(
        done, x=np.round(np.random.default_rng(1).standard_normal((2, 9))).astype("f4")
    )


@pytest.mark.parametrize(
    "body",
    [
        "y = ReduceMax<keepdims = 0>(x, k0) z = Unsqueeze(y, k1)",  # another axis
        "y = ReduceMax<keepdims = 1>(x, k01) z = Squeeze(y, k0)",  # one of two
        "y = ReduceMax<keepdims = 0>(x, given) z = Unsqueeze(y, k0)",
        "y = ReduceSum<keepdims = 0, noop_with_empty_axes = 1>(x) z = Unsqueeze(y, k0)",  # no reduction
        "y = ReduceMax<keepdims = 0>(x, k0) z = Unsqueeze(y, k0) p = Neg(y)",
    ],
)
def test_other_reductions_stay(body: str) -> None:
    more = ", float[] p" if "p =" in body else ""
    text = f"g (float[2,N] x, int64[1] given) => (float[] o{more}) {{ {body} o = Relu(z) }}"
    done = rewritten(text, "remove-noops", {"k0": i64(0), "k1": i64(1), "k01": i64(0, 1)})
    assert {"Unsqueeze", "Squeeze"} & {*done.ops}


@pytest.mark.covering(2)
@pytest.mark.parametrize("opset", [11, 13, 18, 23])
@pytest.mark.parametrize("name", REDUCES)
@pytest.mark.parametrize(("axes", "moved"), [((0,), [2]), ((0, -1), [1, 2]), ((0, 1), [0, 2])])
def test_a_reduction_of_a_transpose(
    name: str, axes: tuple[int, ...], moved: list[int], opset: int
) -> None:
    body = reduced(name, axes, 0, opset).replace("(x", "(t")
    text = f"g (float[2,N,4] x) => (float[] o) {{ t = Transpose<perm = [2, 0, 1]>(x) {body} o = Neg(y) }}"
    used = {"a": i64(*axes)} if ", a)" in text else {}
    done = rewritten(text, "simplify-transpose", used, opset=opset)
    assert done.ops == [name, "Neg"] and done.fired("reduce_of_transpose") == 1
    made = next(b for b in done.block.bindings if b.op == name)
    assert list(made.attr("axes") or made.inputs[1].ints) == moved
    x = np.random.default_rng(3).standard_normal((2, 3, 4)).astype("f4")
    assert_same_results(done, feeds={"x": x})


def test_an_axis_that_is_written_twice_stays() -> None:
    """onnx's inference counts (1, -1) as one axis and (0, 0) as two."""
    text = "g (float[3,2] x) => (float[2] o) { y = Transpose<perm=[1,0]>(x) o = ReduceL2<keepdims=0>(y, a) }"
    assert rewritten(text, "simplify-transpose", {"a": i64(1, -1)}).ops == ["Transpose", "ReduceL2"]


@pytest.mark.parametrize("name", REDUCES)
def test_transposes_around_a_reduction(name: str) -> None:
    text = f"""g (float[2,N,4] x) => (float[] o) {{ t = Transpose<perm = [2, 0, 1]>(x)
        y = {name}<keepdims = 1>(t, a) o = Transpose<perm = [1, 2, 0]>(y) }}"""
    done = rewritten(text, "simplify-transpose", {"a": i64(0, 2)})
    assert done.ops == [name] and done.fired("transpose_through_reduce") == 1
    x = np.random.default_rng(3).standard_normal((2, 3, 4)).astype("f4")
    assert_same_results(done, feeds={"x": x})


@pytest.mark.parametrize(
    "body",
    [
        "y = ReduceMax<keepdims = 0>(t, k0)",  # (N, 2): the other order
        "y = ReduceMax<keepdims = 0>(t, given)",
        "u = ReduceMax<keepdims = 0>(t, k0) y = Add(u, u) p = Neg(t)",
        "u = ReduceMax<keepdims = 1>(t, k0) y = Transpose<perm = [1, 0, 2]>(u)",
    ],
)
def test_transposes_beside_other_reductions_stay(body: str) -> None:
    more = ", float[] p" if "p =" in body else ""
    text = f"g (float[2,N,4] x, int64[1] given) => (float[] y{more}) {{ t = Transpose<perm = [2, 1, 0]>(x) {body} }}"
    done = rewritten(text, "simplify-transpose", {"k0": i64(0)})
    assert "Transpose" in done.ops and "ReduceMax" in done.ops
    assert not done.fired("reduce_of_transpose") + done.fired("transpose_through_reduce")


@pytest.mark.parametrize(
    ("x", "first", "second", "left"),
    [
        ("N,6", "Reshape(x, s)", "Transpose<perm = [0, 2, 1, 3]>(y)", ["Reshape"]),
        ("N,1,3,2", "Transpose<perm = [1, 0, 2, 3]>(x)", "Reshape(y, flat)", ["Reshape"]),
        ("N,6", "Reshape(x, s)", "Transpose<perm = [0, 3, 2, 1]>(y)", ["Reshape", "Transpose"]),
        ("N,2,3,2", "Transpose<perm = [1, 0, 2, 3]>(x)", "Reshape(y, flat)", ["Transpose", "Reshape"]),
        ("N,K", "Reshape(x, s)", "Transpose<perm = [2, 0, 1, 3]>(y)", ["Reshape"]),
    ],
)  # fmt: skip
def test_a_transpose_that_moves_axes_of_size_1(
    x: str, first: str, second: str, left: list[str]
) -> None:
    text = f"g (float[{x}] x) => (float[] o) {{ y = {first} z = {second} o = Relu(z) }}"
    done = rewritten(text, "flatten-products", {"s": i64(-1, 3, 1, 2), "flat": i64(-1, 6)})
    assert done.ops == [*left, "Relu"]
    sizes = [{"N": 2, "K": 6}.get(d) or int(d) for d in x.split(",")]
    assert_same_bits(done, x=special(*sizes))
