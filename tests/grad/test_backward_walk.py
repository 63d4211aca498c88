"""onnxgrad/grad/backward_walk.py: which adjoints are formed, where they add up, under which names they come back."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.grad import differentiate
from onnxgrad.ir.load import load
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, normal, positive


def parse(
    body: str, *, opset: str = '"" : 18', functions: str = "", **values: np.ndarray
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{opset}]> {body} {functions}")
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items())
    return model


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node if n.op_type not in ("Constant", "Identity"))


# ---- the transposes of products, and the sum of four products -------------------------------------------

PRODUCTS = {"a @ T(b)": (0, 1), "T(a) @ b": (1, 0), "T(a) @ T(b)": (1, 1)}
AFTER = {
    # (da, db) as (left is g, left transposed, right transposed) would say it; written out for reading
    "a @ T(b)": ("MatMul(g, b)", "MatMul(T(g), a)"),
    "T(a) @ b": ("MatMul(b, T(g))", "MatMul(a, g)"),
    "T(a) @ T(b)": ("MatMul(T(b), T(g))", "MatMul(T(g), T(a))"),
}


def expression(model: onnx.ModelProto, name: str, known: dict[str, str]) -> str:
    made = {out: n for n in model.graph.node for out in n.output}
    if name in known or name not in made:
        return known.get(name, name)
    node = made[name]
    if node.op_type == "Identity":
        return expression(model, node.input[0], known)
    if node.op_type == "Transpose":
        return f"T({expression(model, node.input[0], known)})"
    return f"{node.op_type}({', '.join(expression(model, i, known) for i in node.input)})"


@pytest.mark.parametrize("case", PRODUCTS)
def test_transposes_cancel_as_in_the_table(case: str) -> None:
    left, right = PRODUCTS[case]
    a = "ta = Transpose <perm = [1, 0]> (a)" if left else "ta = Identity (a)"
    b = "tb = Transpose <perm = [1, 0]> (b)" if right else "tb = Identity (b)"
    model = parse(
        f"m (float[3,3] a, float[3,3] b) => (float[3,3] out) {{ {a} {b} out = MatMul (ta, tb) }}"
    )
    graph = gradient(model, adjoint="input")
    known = {"out_grad": "g", "a": "a", "b": "b"}
    assert (expression(graph, "a_grad", known), expression(graph, "b_grad", known)) == AFTER[case]


def test_the_sum_of_the_four_products() -> None:
    body = """m (float[3,3] x, float[3,3] y) => (float s) {
        tx = Transpose <perm = [1, 0]> (x) ty = Transpose <perm = [1, 0]> (y)
        p = MatMul (x, y) q = MatMul (tx, y) r = MatMul (x, ty) t = MatMul (tx, ty)
        all = Sum (p, q, r, t) s = ReduceSum <keepdims = 0> (all) }"""
    model = parse(body)
    check_model(model, {"x": normal(3, 3), "y": normal(3, 3, seed=1)})
    graph = gradient(model)
    assert ops(graph)["MatMul"] <= 4 + 8  # no product twice
    feeds = {"x": normal(3, 3), "y": normal(3, 3, seed=1)}
    ones, x, y = np.ones((3, 3)), feeds["x"].astype(float), feeds["y"].astype(float)
    found = run(graph, feeds)
    expected = ones @ y.T + y @ ones + ones @ y + y.T @ ones
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-5)
    np.testing.assert_allclose(
        found["y_grad"], x.T @ ones + x @ ones + ones @ x + ones @ x.T, rtol=1e-5
    )


# ---- the walk -------------------------------------------------------------------------------------------------------


def test_original_outputs_stay_and_adjoints_follow_in_the_order_asked() -> None:
    model = parse(
        "m (float[2] x, float[2] y) => (float[2] z, float s) { z = Mul (x, y) s = ReduceSum <keepdims = 0> (z) }"
    )
    graph = gradient(model, ["y", "x"], "s")
    assert [v.name for v in graph.graph.output] == ["z", "s", "y_grad", "x_grad"]
    assert [v.name for v in graph.graph.input] == ["x", "y"]
    assert [n.name for n in graph.graph.node][:2] == [n.name for n in model.graph.node]


def test_only_what_a_requested_adjoint_needs_is_computed() -> None:
    model = parse("m (float[2,3] x) => (float s) { h = MatMul (x, w) t = Tanh (h) s = ReduceSum <keepdims = 0> (t) }",
                  w=normal(3, 4))  # fmt: skip
    assert ops(gradient(model, ["w"]))["MatMul"] == 2  # the forward one and that of w
    assert ops(gradient(model, ["h"]))["MatMul"] == 1


def test_a_value_that_does_not_reach_the_target_gets_zeros_and_a_warning() -> None:
    model = parse("m (float[2] x, float[N,3] y) => (float s) { s = ReduceSum <keepdims = 0> (x) }")
    graph = gradient(model)
    found = run(graph, {"x": normal(2), "y": normal(4, 3)})
    np.testing.assert_array_equal(found["y_grad"], np.zeros((4, 3)))
    with pytest.warns(UserWarning, match="no requested value reaches target 's'"):
        gradient(model, ["y"])


def test_partials_add_up_in_one_sum() -> None:
    model = parse("m (float[2] x) => (float s) { a = Exp (x) b = Sin (x) c = Mul (a, b) d = Mul (c, x) "
                  "s = ReduceSum <keepdims = 0> (d) }")  # fmt: skip
    check_model(model, {"x": normal(2)})
    assert ops(gradient(model))["Sum"] == 1


def test_intermediate_values_constants_and_the_target_itself() -> None:
    model = parse("m (float[2] x) => (float s) { c = Constant <value = float[2] {2, 3}> () h = Mul (x, c) "
                  "s = ReduceSum <keepdims = 0> (h) }")  # fmt: skip
    found = run(gradient(model, ["h", "c", "s", "x"]), {"x": np.array([5, 7], np.float32)})
    np.testing.assert_array_equal(found["h_grad"], [1, 1])
    np.testing.assert_array_equal(found["c_grad"], [5, 7])
    np.testing.assert_array_equal(found["x_grad"], [2, 3])
    assert found["s_grad"] == 1


def test_several_targets_add_up() -> None:
    model = parse("m (float[2] x) => (float s, float t) { s = ReduceSum <keepdims = 0> (x) e = Exp (x) "
                  "t = ReduceSum <keepdims = 0> (e) }")  # fmt: skip
    x = normal(2)
    found = run(gradient(model, ["x"], ["s", 1]), {"x": x})
    np.testing.assert_allclose(found["x_grad"], 1 + np.exp(x), rtol=1e-6)


def test_taken_names_get_a_number() -> None:
    model = parse(
        "m (float[2] x) => (float s) { x_grad = Exp (x) s = ReduceSum <keepdims = 0> (x_grad) }"
    )
    found = differentiate(load(model))
    assert found.adjoints == {"x": "x_grad_2"}
    assert any("'x_grad' is taken" in note for note in found.notes)


def test_second_derivative_with_a_symbolic_batch() -> None:
    model = parse("m (float[N,3] x) => (float s) { h = MatMul (x, w) t = Tanh (h) q = Mul (t, t) l = Exp (q) "
                  "s = ReduceMean <keepdims = 0> (l) }", w=normal(3, 4))  # fmt: skip
    first = gradient(model, ["x", "w"])
    second = gradient(first, ["x", "w"], ["x_grad", "w_grad"], adjoint="input")
    assert [v.name for v in second.graph.input] == ["x", "x_grad_grad", "w_grad_grad"]
    assert [v.name for v in second.graph.output][-2:] == ["x_grad_2", "w_grad_2"]
    check_model(first, {"x": normal(5, 3)}, ["x"], target="x_grad")


@pytest.mark.parametrize(("kind", "rtol"), [("float16", 3e-2), ("double", 1e-9)])
def test_other_float_types(kind: str, rtol: float) -> None:
    dtype = {"float16": np.float16, "double": np.float64}[kind]
    model = parse(
        f"m ({kind}[2,3] x) => ({kind}[2,4] y) {{ h = MatMul (x, w) y = Tanh (h) }}",
        w=normal(3, 4).astype(dtype),
    )
    # Richardson's step leaves 1e-8 in float64; the half-precision cotangent is exact in both checks
    check_model(model, {"x": normal(2, 3).astype(dtype)}, ["x", "w"], rtol=max(rtol, 1e-7))


def test_symbolic_sizes_stay_symbolic() -> None:
    model = parse("m (float[N,S,4] x, float[N,S,4] y) => (float[N,S,4] z) { z = Mul (x, y) }")
    graph = gradient(model, adjoint="input")
    shape = [d.dim_param or d.dim_value for d in graph.graph.output[1].type.tensor_type.shape.dim]
    assert shape == ["N", "S", 4]
    assert ops(graph) == {"Mul": 3}  # equal symbols are equal sizes: nothing is decided at run time


@pytest.mark.parametrize("size", [1, 4])
def test_an_undecided_broadcast_is_undone_at_run_time(size: int) -> None:
    model = parse("m (float[A,3] x, float[B,3] y) => (float[C,3] z) { z = Mul (x, y) }")
    check_model(model, {"x": normal(4, 3), "y": normal(size, 3)})


def test_metadata_survives_and_derived_nodes_carry_it() -> None:
    model = parse("m (float[2] x) => (float s) { e = Sin (x) s = ReduceSum <keepdims = 0> (e) }")
    model.metadata_props.add(key="alphabet", value="abc")
    model.graph.node[0].metadata_props.add(key="scope", value="layer1")
    graph = gradient(model)
    assert graph.metadata_props[0].value == "abc"
    scopes = [p.value for n in graph.graph.node for p in n.metadata_props if p.key == "scope"]
    assert scopes.count("layer1") >= 2


def test_an_old_model_is_raised_with_a_note() -> None:
    model = parse("m (float[2,3] x) => (float s) { a = Squeeze <axes = [0]> (y) "
                  "y = ReduceSum <axes = [0], keepdims = 1> (x) "
                  "s = ReduceMean <keepdims = 0> (a) }", opset='"" : 11')  # fmt: skip
    model.metadata_props.add(key="k", value="v")
    found = differentiate(load(onnx.ModelProto.FromString(model.SerializeToString())))
    assert found.program.opset == 18
    assert found.notes == ("opset raised from 11 to 18: the gradient needs its operators",)
    graph = gradient(model)
    assert graph.metadata_props[0].value == "v"
    np.testing.assert_allclose(
        run(graph, {"x": normal(2, 3)})["x_grad"], np.full((2, 3), 1 / 3), rtol=1e-6
    )


# ---- bodies ---------------------------------------------------------------------------------------------------------

FUNCTIONS = """
<domain: "my", opset_import: ["" : 18, "my" : 1]> scaled <factor: float = 1.5> (x, w) => (y)
{ a = Constant <value_float: float = @factor> () q = my.square (x) p = MatMul (q, w) y = Mul (p, a) }
<domain: "my", opset_import: ["" : 18]> square (x) => (y) { y = Mul (x, x) }"""


def test_local_functions_are_opened() -> None:
    body = ("m (float[N,3] x, float[3,4] w) => (float z) { h = my.scaled <factor = 2.0> (x, w) k = my.scaled (x, w) "
            "m = Add (h, k) z = ReduceSum <keepdims = 0> (m) }")  # fmt: skip
    model = parse(body, opset='"" : 18, "my" : 1', functions=FUNCTIONS)
    feeds = {"x": normal(2, 3), "w": normal(3, 4)}
    x, w = (feeds[n].astype(float) for n in "xw")
    found = run(gradient(model), feeds)
    np.testing.assert_allclose(found["z"], run(model, feeds)["z"], rtol=1e-6)
    np.testing.assert_allclose(found["x_grad"], 3.5 * 2 * x * w.sum(1), rtol=1e-5)
    np.testing.assert_allclose(
        found["w_grad"], 3.5 * np.repeat((x**2).sum(0)[:, None], 4, 1), rtol=1e-5
    )


def test_a_recursive_function_is_refused() -> None:
    functions = '<domain: "my", opset_import: ["" : 18, "my" : 1]> f (x) => (y) { h = Exp (x) y = my.f (h) }'
    model = parse(
        "m (float[2] x) => (float[2] y) { y = my.f (x) }",
        opset='"" : 18, "my" : 1',
        functions=functions,
    )
    with pytest.raises(InputError, match="my::f calls itself"):
        gradient(model, adjoint="input")


def test_a_schema_body_is_opened_and_its_shape_arithmetic_folded() -> None:
    model = parse("m (float[2,4,3,3] x, float[4] s, float[4] b) => (float[2,4,3,3] y) "
                  "{ y = GroupNormalization <num_groups = 2> (x, s, b) }", opset='"" : 21')  # fmt: skip
    check_model(model, {"x": normal(2, 4, 3, 3), "s": positive(4), "b": normal(4)})
    assert not set(ops(gradient(model, adjoint="input"))) & {"Shape", "Size", "Range", "NonZero"}
