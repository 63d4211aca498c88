"""Shape arithmetic and the shapes that it gives: every claim about a size against what onnxruntime computes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.type_inference.shape_arithmetic import KnownElements, sizes
from onnxgrad.ir.var import Var
from onnxgrad.passes.pipeline import Pipeline
from tests.helpers import parse
from tests.ir.type_inference.shape_graphs import INPUTS, SIZES, Graph


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def feeds(env: dict[str, int]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal([d if isinstance(d, int) else env[d] for d in shape]).astype(
            np.float32
        )
        for name, shape in INPUTS.items()
    }


def run(model: onnx.ModelProto, env: dict[str, int]) -> dict[str, Any] | None:
    try:
        opened = session(model)
        names = [o.name for o in opened.get_outputs()]
        return dict(zip(names, opened.run(names, feeds(env)), strict=True))
    except Exception:  # noqa: BLE001 # whatever onnxruntime says about sizes that do not fit
        return None


def number(d: int | str | None, env: dict[str, int]) -> int | None:
    """What an expression is at these sizes; None for what is not known, or only by onnx's name."""
    if d is None or isinstance(d, int):
        return d
    if "unk__" in d:
        return None
    return int(eval(d.replace("y.2", "M"), {"max": max, "min": min, "__builtins__": {}}, env))


def check_claims(seed: int) -> int:
    """How many claims about the sizes and elements of a random graph held, over all sizes."""
    graph, held = Graph(seed), 0
    values = {v.name: v for v in load(graph.model()).main.vars()}
    known = KnownElements()
    for env in SIZES:
        # the longest part of the graph that runs at these sizes
        found = next(
            (r for n in range(len(graph.nodes), 0, -1) if (r := run(graph.model(n), env))), {}
        )
        for name, array in found.items():
            var = values[name]
            if var.shape is not None:
                claimed = [number(d, env) for d in var.shape]
                assert len(claimed) == array.ndim, (name, env)
                wrong = [
                    d is not None and d != n for d, n in zip(claimed, array.shape, strict=True)
                ]
                assert not any(wrong), (name, var.type, array.shape, env)
                held += len(claimed) - claimed.count(None)
            elements = known.of(var)
            if elements is not None:
                assert elements.shape == array.shape, (name, env)
                pairs = zip(elements.reshape(-1).tolist(), array.reshape(-1).tolist(), strict=True)
                for d, n in pairs:
                    assert number(d, env) in (None, n), (name, d, n, env)
                    held += d is not None
    return held


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1 << 30))
@example(5632)  # a difference of sizes is 0, and a size beside it
def test_every_claim_holds_in_onnxruntime(seed: int) -> None:
    check_claims(seed)


@pytest.mark.slow
def test_every_claim_of_400_graphs_holds_in_onnxruntime() -> None:
    assert sum(map(check_claims, range(400))) > 60_000


def check_optimised(seed: int) -> int:
    """At how many sizes a random graph and its optimised form agree."""
    graph, agreed = Graph(seed), 0
    model = graph.model(outputs=graph.ends[-3:])
    runs = [(env, results) for env in SIZES if (results := run(model, env)) is not None]
    if not runs:
        return 0  # it is no model that could be rewritten
    program = load(model)
    Pipeline.of().run(program)
    after = to_proto(program)
    for env, expected in runs:
        found = run(after, env)
        assert found is not None, env
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name].shape, array.shape)
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
        agreed += 1
    return agreed


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 30))
def test_optimised_shape_arithmetic_computes_the_same(seed: int) -> None:
    check_optimised(seed)


@pytest.mark.slow
def test_400_optimised_graphs_compute_the_same() -> None:
    assert sum(map(check_optimised, range(400))) > 1000


# ---- what is evaluated, and what is not ----------------------------------------------------------


def value(body: str, inputs: str = "float[N,3,M] x") -> Var:
    model = parse(f"g ({inputs}) => (int64[K] y) {{ {body} }}", opset=18)
    return load(model).main.outputs[0]


C = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] open = {-1}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = Shape(x)", ("N", 3, "M")),
        ("n = Size(x) r = Constant<value = int64[1] {-1}>() y = Reshape(n, r)", ("3*M*N",)),
        ("s = Shape(x) i = Constant<value = int64[2] {2, 0}>() y = Gather(s, i)", ("M", "N")),
        ("s = Shape<start = 0, end = 1>(x) y = Mul(s, s)", ("N*N",)),
        ("s = Shape<start = 2>(x) t = Constant<value = int64[1] {2}>() y = Div(s, t)", ("M//2",)),
        ("s = Shape<start = 2>(x) t = Constant<value = int64[1] {2}>() y = Mod(s, t)", ("M - 2*(M//2)",)),
        ("s = Shape<start = 2>(x) t = Constant<value = int64[1] {5}>() y = Min(s, t)", ("min(M, 5)",)),
        ("s = Shape(x) y = ReduceProd<keepdims = 1>(s)", ("3*M*N",)),
        ("s = Shape(x) f = Cast<to = 1>(s) y = Cast<to = 7>(f)", (None, None, None)),  # through a float
        ("s = Shape<start = 2>(x) t = Constant<value = int64[1] {1}>() d = Sub(s, t) u = Add(t, t) y = Div(d, u)", (None,)),
        ("y = Identity(k)", (None, None)),
        ("i = NonZero(x) y = Shape<start = 0, end = 1>(i)", (3,)),
    ],
)  # fmt: skip
def test_elements(body: str, found: tuple[Any, ...]) -> None:
    assert sizes(value(body, "float[N,3,M] x, int64[2] k")) == found


def shape(
    node: str, inputs: str = "float[N,3,M] x, int64[1] k, float[4,3,3] w"
) -> tuple[Any, ...] | None:
    """The shape of `y`, with the sizes of `x` as vectors n and m."""
    text = f"""g ({inputs}) => (float[A] y) <{C}> {{
      n = Shape<start = 0, end = 1>(x)  m = Shape<start = -1>(x)  {node}  }}"""
    model = parse(text, opset=18)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return load(model).main.outputs[0].shape


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ("t = Concat<axis = 0>(n, open) y = Reshape(x, t)", ("N", "3*M")),
        ("t = Concat<axis = 0>(m, open) y = Reshape(x, t)", (None, None)),  # at M = 0 it copies N
        ("t = Concat<axis = 0>(open, m) y = Reshape(x, t)", (None, None)),
        ("t = Concat<axis = 0>(zero, open, m) y = Reshape(x, t)", ("N", 3, "M")),
        ("d = Sub(n, one) t = Concat<axis = 0>(d, open) y = Reshape(x, t)", (None, None)),  # -1 itself
        ("t = Concat<axis = 0>(m, n) y = Reshape<allowzero = 1>(x, t)", ("M", "N")),
        ("t = Concat<axis = 0>(k, m) y = Reshape<allowzero = 1>(x, t)", (None, "M")),
        ("t = Concat<axis = 0>(n, m, open) y = Reshape<allowzero = 1>(x, t)", ("N", "M", 3)),  # no 0 beside a -1
        ("t = Concat<axis = 0>(open, two) y = Reshape<allowzero = 1>(x, t)", ("(M*N)//2 + M*N", 2)),
        ("t = Concat<axis = 0>(n, one, m) y = Expand(x, t)", ("N", 3, "M")),
        ("t = Concat<axis = 0>(m, one, m) y = Expand(x, t)", (None, 3, "M")),  # N is M, or one is 1
        ("y = ConstantOfShape(n)", ("N",)),
        ("a = Squeeze(n) b = Squeeze(one) r = Range(b, a, b) y = Cast<to = 1>(r)", ("max(N - 1, 0)",)),
        ("y = Slice(x, zero, m, zero)", ("min(M, N)", 3, "M")),
        ("y = Slice(x, one, m, two)", ("N", 3, "max(M - min(M, 1), 0)")),
        ("y = Slice(x, zero, k, two)", ("N", 3, None)),
        ("y = Concat<axis = 2>(x, x)", ("N", 3, "2*M")),
        ("y = Flatten<axis = 1>(x)", ("N", "3*M")),
        ("y = Tile(x, k)", (None, None, None)),
        ("y = Conv<strides = [2], pads = [1, 1]>(x, w)", ("N", 4, "max((M + 1)//2, 1)")),
        ("y = Conv(x, w)", ("N", 4, "max(M - 2, 0)")),
        ('y = Conv<auto_pad = "SAME_UPPER", strides = [2]>(x, w)', ("N", 4, "(M + 1)//2")),
        ("y = MaxPool<kernel_shape = [2], strides = [2], ceil_mode = 1>(x)", ("N", 3, None)),
        ("s = Concat<axis = 0>(n, two, m) y = Resize(x, , , s)", ("N", 2, "M")),
        (
            "a = Constant<value = float[2] {1, 1}>() b = Constant<value = float[1] {2}>() "
            "s = Concat<axis = 0>(a, b) y = Resize(x, , s)",
            ("N", 3, "2*M"),
        ),
        (
            "a = Constant<value = float[2] {1, 1}>() b = Cast<to = 1>(two) "
            "s = Concat<axis = 0>(a, b) y = Resize(x, , s)",
            (None, None, None),
        ),
    ],
)  # fmt: skip
def test_shapes(node: str, found: tuple[Any, ...] | None) -> None:
    known = shape(node)
    if known is not None:
        known = tuple(None if isinstance(d, str) and "unk__" in d else d for d in known)
    assert known == found


def test_unnamed_sizes_of_inputs_have_names_of_their_own() -> None:
    model = parse("g (float[N,?] x, float[N,?] z) => (float[N,K] y) { y = Concat<axis = 1>(x, z) }")
    block = load(model).main
    assert [str(v.type) for v in (*block.inputs, *block.outputs)] == [
        "f32[N,x.1]", "f32[N,z.1]", "f32[N,x.1 + z.1]"
    ]  # fmt: skip
    assert to_proto(load(model)).graph.input == model.graph.input  # the file keeps what it says
    model = parse(
        "g (float[N,?] x, float[x.1] z) => (float[N,K] y) { y = Neg(x) }".replace("x.1", "K")
    )
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "x.1"
    assert str(load(model).main.inputs[0].type) == "f32[N,?]"  # the name is taken


def test_long_vectors_and_deep_chains_end() -> None:
    grown = "s = Shape(x) " + " ".join(
        f"s{i} = Mul({'s' if not i else f's{i - 1}'}, {'s' if not i else f's{i - 1}'})"
        for i in range(70)
    )
    found = sizes(value(f"{grown} y = Identity(s69)"))
    assert found == (None, None, None)
    wide = "s = Shape(x) t = Constant<value = int64[1] {500000000000}>() y = Tile(s, t)"
    assert sizes(value(wide)) is None


def test_sizes_through_control_flow() -> None:
    model = parse(
        """g (bool c, float[N,M] x, float[T,4] s, float[4] h) => (float[A,B] y, float[C,D] z) {
          y = If (c) <then_branch = t () => (float[?,?] p) { p = Concat<axis = 1>(x, x) },
                      else_branch = e () => (float[?,?] q) { d = Concat<axis = 1>(x, x) q = Neg(d) }>
          o, z = Scan <num_scan_inputs = 1, body = b (float[4] i, float[4] j) => (float[4] k, float[?] l) {
            k = Add(i, j) l = Concat<axis = 0>(j, j) }> (h, s)
        }""",
        opset=18,
    )
    assert [str(v.type) for v in load(model).main.outputs] == ["f32[N,2*M]", "f32[T,8]"]


# a value `p` of an open shape, by each operator that A1 of the shape arithmetic names
EVERY_OPERATOR = {
    "Shape": ("s = Shape(x) p = ConstantOfShape(s)", "N,3,M"),
    "Size": ("e = Size(x) s = Reshape(e, open) p = ConstantOfShape(s)", "3*M*N"),
    "Gather": ("s = Shape(x) e = Gather(s, zero) p = ConstantOfShape(e)", "N"),
    "Slice": ("s = Shape(x) e = Slice(s, two, three) p = ConstantOfShape(e)", "M"),
    "Concat": ("t = Concat<axis = 0>(n, m, two) p = ConstantOfShape(t)", "N,M,2"),
    "Split": ("s = Shape(x) a, b, d = Split<axis = 0, num_outputs = 3>(s) p = ConstantOfShape(d)", "M"),
    "Squeeze, Unsqueeze": ("a = Squeeze(n) b = Unsqueeze(a, zero) p = ConstantOfShape(b)", "N"),
    "Cast": ("a = Cast<to = 6>(n) b = Cast<to = 7>(a) p = ConstantOfShape(b)", "N"),
    "Add": ("a = Add(n, m) p = ConstantOfShape(a)", "M + N"),
    "Sub": ("a = Add(n, two) b = Sub(a, one) p = ConstantOfShape(b)", "N + 1"),
    "Mul": ("a = Mul(n, m) p = ConstantOfShape(a)", "M*N"),
    "Div": ("a = Div(n, two) p = ConstantOfShape(a)", "N//2"),
    "Mod": ("a = Mod(n, two) p = ConstantOfShape(a)", "N - 2*(N//2)"),
    "Min": ("a = Min(n, m) p = ConstantOfShape(a)", "min(M, N)"),
    "Max": ("a = Max(n, m) p = ConstantOfShape(a)", "max(M, N)"),
    "Equal, Where": ("e = Equal(n, open) a = Where(e, one, n) p = ConstantOfShape(a)", "N"),
    "Range": ("a = Squeeze(n) b = Squeeze(zero) d = Squeeze(one) r = Range(b, a, d) p = Cast<to = 1>(r)", "N"),
    "Reshape": ("t = Concat<axis = 0>(zero, open) p = Reshape(x, t)", "N,3*M"),
    "Expand": ("t = Concat<axis = 0>(two, n, one, m) p = Expand(x, t)", "2,N,3,M"),
    "Tile": ("t = Concat<axis = 0>(one, two, n) p = Tile(x, t)", "N,6,M*N"),
    "Resize": ("t = Concat<axis = 0>(n, two, m) p = Resize(x, , , t)", "N,2,M"),
    "Pad": ("t = Concat<axis = 0>(zero, zero, one, zero, zero, two) p = Pad(x, t)", "N,3,M + 3"),
    "MaxPool": ("p = MaxPool<kernel_shape = [2], strides = [2]>(x)", "N,3,max(M//2, min(M, 1))"),
    "Conv": ("p = Conv<strides = [2], pads = [1, 1]>(x, w)", "N,4,max((M + 1)//2, 1)"),
    "ConvTranspose": ("p = ConvTranspose<strides = [2]>(x, v)", "N,4,2*M"),
}  # fmt: skip
AROUND = {
    "main graph": ("{body} y = Identity(p)", "f32[{size}]"),
    "If": (
        """y = If (k) <then_branch = t () => (float[?] p) {{ {body} }},
           else_branch = u () => (float[?] q) {{ {body} q = Neg(p) }}>""",
        "f32[{size}]",
    ),
    "Loop": (
        """kk = Identity(k) y = Loop (trips, kk) <body = u (int64 i, bool before) => (bool after, float[?] p) {{
           after = Identity(before) {body} }}>""",
        "f32[?,{size}]",
    ),
    "Scan": (
        "y = Scan <num_scan_inputs = 1, body = u (float[2] i) => (float[?] p) {{ {body} }}> (z)",
        "f32[T,{size}]",
    ),
}


def _without_shapes(graph: Any) -> None:
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for a in node.attribute:
            if a.HasField("g"):
                _without_shapes(a.g)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("operator", EVERY_OPERATOR)
def test_every_operator_in_every_graph(operator: str, around: str) -> None:
    body, size = EVERY_OPERATOR[operator]
    graph, found = AROUND[around]
    model = parse(
        f"""g (float[N,3,M] x, float[4,3,3] w, float[3,4,2] v, bool k, int64 trips, float[T,2] z) => (float y)
        <{C}, int64[1] three = {{3}}> {{
          n = Shape<start = 0, end = 1>(x)  m = Shape<start = -1>(x)  {graph.format(body=body)} }}""",
        opset=18,
    )
    _without_shapes(model.graph)
    known = re.sub(r"unk__\d+", "?", str(load(model).main.outputs[0].type))
    assert known == found.format(size=size)
