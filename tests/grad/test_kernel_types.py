"""Gradients behind operators that onnx does not know: a kernel shows the types, or the error says what to declare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import check_gradient, gradient, kernel, vjp
from onnxgrad.errors import InputError
from onnxgrad.ir.protobufs import every_node
from onnxgrad.ir.types import type_from_proto
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.reference.user_operators import OWN

READERS = [
    "z = MatMul (c, w)",
    "z = Gemm (c, w)",
    "z = LayerNormalization (c, s)",
    "a = Constant <value_ints = [1]> () z = ReduceMean (c, a)",
    "i = Constant <value_ints = [0, 1]> () z = Gather <axis = 1> (c, i)",
    "z = Softmax (c)",
    "z = Add (c, s)",
]

# the other operand tells the dtype, and the partials need no rank
RANK_FREE = {"z = MatMul (c, w)", "z = Gemm (c, w)", "z = LayerNormalization (c, s)"}


@pytest.fixture
def rule() -> Iterator[None]:
    vjp("my.d::Cube", lambda g, y, x: g * 3.0 * x * x)
    yield
    OWN.pop(("my.d", "Cube"), None)


def behind(reader: str, rows: str = "2") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18, "my.d" : 1]>
            g (float[{rows},4] x, float[4,3] w, float[4] s) => (float y) {{
              c = my.d.Cube (x) {reader} q = Mul (z, z) y = ReduceSum <keepdims = 0> (q) }}"""
    )


def cube(x: Any) -> Any:
    return x**3


@pytest.mark.usefixtures("rule")
@pytest.mark.parametrize("reader", READERS)
def test_a_kernel_tells_the_type(reader: str) -> None:
    kernel("my.d::Cube")(cube)
    assert check_gradient(behind(reader), ["x"], "y")


@pytest.mark.usefixtures("rule")
@pytest.mark.parametrize("reader", READERS)
def test_without_a_kernel_the_gradient_is_right_or_says_what_to_declare(reader: str) -> None:
    model = behind(reader)
    try:
        graph = gradient(model, ["x", "s"], "y")
    except InputError as error:
        assert reader not in RANK_FREE
        said = str(error)
        assert "which is not known behind my.d::Cube: declare 'c' in the model's value_info" in said
        assert "or register what my.d::Cube computes with onnxgrad.kernel" in said
        model.graph.value_info.append(onnx.helper.make_tensor_value_info("c", 1, [2, 4]))
        graph = gradient(model, ["x", "s"], "y")
    casts = [n for n in every_node(graph.graph.node) if n.op_type == "Cast"]
    assert all(a.i for n in casts for a in n.attribute if a.name == "to")
    kernel("my.d::Cube")(cube)
    wanted = gradient(behind(reader), ["x", "s"], "y")
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("x", (2, 4)), ("w", (4, 3)), ("s", (4,)))
    }
    for name, value in reference(wanted, feeds).items():
        np.testing.assert_allclose(reference(graph, feeds)[name], value, rtol=1e-6, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.usefixtures("rule")
@pytest.mark.parametrize("rows", ["2", "N"])
def test_open_sizes_keep_their_symbols(rows: str) -> None:
    @kernel("my.d::Cube")
    def flat(x: Any) -> Any:
        return np.concatenate([x, x[:, :1]], axis=1)

    graph = gradient(behind("z = Tanh (c)", rows), ["c"], "y").graph
    (out,) = [v for v in graph.output if v.name == "c_grad"]
    assert str(type_from_proto(out.type)) == f"f32[{rows},5]"


@pytest.mark.usefixtures("rule")
@pytest.mark.parametrize("x", [(4,), (3, 4), (2, 3, 4)])
def test_a_matrix_beside_an_operand_of_unknown_rank(x: tuple[int, ...]) -> None:
    """Whatever rank it turns out to have."""
    sizes = ",".join(map(str, x))
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18, "my.d" : 1]>
            g (float[{sizes}] x, float[4,3] w, float[2,4] v) => (float y) {{
              c = my.d.Cube (x) p = MatMul (c, w) d = my.d.Cube (v) t = Transpose <perm = [1, 0]> (v)
              q = MatMul (c, t) a = ReduceSumSquare <keepdims = 0> (p) b = ReduceSumSquare <keepdims = 0> (q)
              y = Add (a, b) }}"""
    )
    graph = gradient(model, ["x", "w", "v"], "y")
    kernel("my.d::Cube")(cube)
    wanted = gradient(model, ["x", "w", "v"], "y")
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s) for n, s in (("x", x), ("w", (4, 3)), ("v", (2, 4)))}
    found = reference(graph, feeds)
    for name, value in reference(wanted, feeds).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, err_msg=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("reader", READERS)
def test_the_types_behind_operators_of_onnxruntime(reader: str) -> None:
    """A body, or a kernel of the reference, tells them where the call itself has no adjoint."""
    model = behind(reader)
    model.opset_import.add(domain="com.microsoft", version=1)
    bent = onnx.parser.parse_graph(
        "g () => () { k = com.microsoft.QuickGelu (x) c = com.microsoft.Inverse (k) }"
    )
    model.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", 1, [4, 4]))
    nodes = [*bent.node, *list(model.graph.node)[1:]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    s = next((name for name in ("w", "s") if any(name in n.input for n in nodes)), "z")
    graph = gradient(model, [s], "y")
    assert {"QuickGelu", "Inverse"} <= {n.op_type for n in graph.graph.node}
    (out,) = [v for v in graph.graph.output if v.name != "y"]
    assert "?" not in str(type_from_proto(out.type))


@pytest.mark.parametrize(
    ("node", "shapes"),
    [("com.microsoft.Inverse (a)", ("B, N, M", "1")), ("com.microsoft.CDist (a, b)", ("M, E", "N, F"))],
)  # fmt: skip
def test_a_kernel_that_needs_equal_sizes_shows_the_rank(node: str, shapes: tuple[str, str]) -> None:
    """Sizes of a matrix, or of rows that meet, may have different names."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        g (float[{shapes[0]}] a, float[{shapes[1]}] b) => (float y) {{
            c = {node}  d = Softmax (c)  e = Mul (d, d)  y = ReduceSum <keepdims = 0> (e)
        }}"""
    )
    graph = gradient(model, "a", "y")
    square = np.random.default_rng(0).uniform(0.5, 1.5, (3, 3)).astype(np.float32)
    feeds = {"a": square[None] if "B" in shapes[0] else square, "b": square[:2] + 1}
    if "Inverse" in node:
        feeds["b"] = square[0, :1]
    step = np.eye(3, dtype=np.float32).reshape(feeds["a"].shape) * np.float32(1e-3)
    ends = [reference(model, {**feeds, "a": feeds["a"] + s * step})["y"] for s in (1, -1)]
    slope = np.sum(reference(graph, feeds)["a_grad"] * step)
    assert abs(ends[0] - ends[1]) > 1e-6
    np.testing.assert_allclose(2 * slope, ends[0] - ends[1], rtol=1e-3)
