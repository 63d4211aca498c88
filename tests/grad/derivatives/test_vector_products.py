"""jvp against central differences, and against the vjp: <u, J v> = <J'u, v>."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import gradient, jvp
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.backend_suite import case, clamp_ir
from tests.grad import test_suite
from tests.grad.numeric import check_model, normal, op_model, positive
from tests.helpers import parse
from tests.suite_table import any_opset

MODELS = {
    "mlp": """g (float[B,4] x, float[4,5] w, float[5] b) => (float[B,5] y) {
        p = MatMul (x, w)  q = Add (p, b)  t = Tanh (q)  y = Softmax <axis = -1> (t) }""",
    "conv": """g (float[1,2,5,5] x, float[3,2,3,3] w) => (float[K] y) {
        p = Conv <pads = [1,1,0,1], strides = [2,1]> (x, w)  q = Relu (p)
        s = Constant <value_ints = [-1]> ()  y = Reshape (q, s) }""",
    "gather": """g (float[6,3] x, int64[4] i) => (float[4,3] y) { p = Gather (x, i)  q = Exp (p)  y = Mul (q, p) }""",
}


@pytest.mark.parametrize("name", MODELS)
def test_jvp_agrees_with_differences_and_with_the_vjp(name: str) -> None:
    model = parse(MODELS[name])
    sizes = {"B": 3}
    feeds: dict[str, np.ndarray] = {}
    for v in model.graph.input:
        shape = [d.dim_value or sizes.get(d.dim_param, 1) for d in v.type.tensor_type.shape.dim]
        integer = v.type.tensor_type.elem_type == onnx.TensorProto.INT64
        feeds[v.name] = np.array([0, 5, 2, 5]) if integer else normal(*shape)
    wrt = [n for n, v in feeds.items() if v.dtype == np.float32]
    graph = jvp(model)
    onnx.checker.check_model(graph, full_check=True)
    assert [v.name for v in graph.graph.input] == [*feeds, *(f"{w}_tangent" for w in wrt)]
    assert [v.name for v in graph.graph.output] == ["y", "y_tangent"]
    v = {w: normal(*feeds[w].shape, seed=7) for w in wrt}
    tangent = run(graph, {**feeds, **{f"{w}_tangent": v[w] for w in wrt}})["y_tangent"]
    step = 1e-6
    ends = [
        reference(model, {**feeds, **{w: feeds[w].astype(np.float64) + s * v[w] for w in wrt}})["y"]
        for s in (step, -step)
    ]
    np.testing.assert_allclose(tangent, (ends[0] - ends[1]) / (2 * step), rtol=1e-3, atol=1e-4)
    u = normal(*tangent.shape, seed=9)
    pulled = run(gradient(model, adjoint="input"), {**feeds, "y_grad": u})
    expected = sum(float((pulled[f"{w}_grad"].astype(np.float64) * v[w]).sum()) for w in wrt)
    assert float((u.astype(np.float64) * tangent).sum()) == pytest.approx(
        expected, rel=1e-4, abs=1e-4
    )


def test_nothing_of_the_first_vjp_is_left() -> None:
    graph = jvp(parse("g (float[3] x) => (float[3] y) { y = Tanh (x) }"))
    ops = sorted(n.op_type for n in graph.graph.node)
    assert ops == ["Mul", "Mul", "Sub", "Tanh"]


def test_no_derivative_leaves_constants_that_nothing_reads() -> None:
    """onnxruntime warns of each when it loads the file; what the model itself leaves unread stays."""
    text = """g (float[2,4] x) => (float y) <float[2] unread = {1, 2}> {
        a = Tanh (x) z = Softmax (a) y = ReduceSum <keepdims = 0> (z) }"""
    made = [
        onnxgrad.jvp(parse(text), "x", "y"),
        onnxgrad.gradient(parse(text), "x", "y"),
        onnxgrad.hessian_vector_product(parse(text), "x", "y"),
        onnxgrad.jacobian(parse(text), "x", "z", mode="forward"),
        onnxgrad.jacobian(parse(text), "x", "z", mode="reverse"),
    ]
    for model in made:
        block = load(model).main
        assert [v.name for v in block.initializers.values() if not v.use_count] == ["unread"]


def test_hessian_vector_product_of_a_quadratic_form() -> None:
    """y = sum(x (A x)): the seed of the gradient's gradient is the vector, and the Hessian is A + A^T."""
    a, x, v = normal(4, 4), normal(4), normal(4, seed=1)
    model = op_model(
        "p = MatMul (A, x)\n q = Mul (x, p)\n y = ReduceSum <keepdims = 0> (q)",
        {"x": x},
        constants={"A": a},
    )
    second = gradient(gradient(model, ["x"], "y"), ["x"], "x_grad", adjoint="input")
    assert [o.name for o in second.graph.output] == ["y", "x_grad", "x_grad_2"]
    found = run(second, {"x": x, "x_grad_grad": v})
    np.testing.assert_allclose(found["x_grad_2"], (a + a.T) @ v, rtol=1e-4, atol=1e-5)


NETWORK = (
    "h = MatMul (x, w)\n t = Tanh (h)\n n = LayerNormalization (t, s)\n l = Softmax (n)\n"
    " r = ReduceLogSumExp <keepdims = 0> (l, k)\n y = ReduceMean <keepdims = 0> (r)"
)


@pytest.mark.parametrize("of", ["hvp", "hessian"])
def test_a_value_and_what_it_depends_on_are_refused(of: str) -> None:
    """The formula of Tanh's gradient reads t: it would move with t, and its part of x's gradient be another."""
    model = parse("""g (float[3,4] x, float[4,5] w) => (float y) {
        p = MatMul (x, w)  t = Tanh (p)  q = Mul (t, t)  y = ReduceSum <keepdims = 0> (q) }""")
    with pytest.raises(InputError, match=r"t depends on other values of wrt: .* or stop at t"):
        onnxgrad.check_product(model, ["x", "t"], "y", of=of)
    for wrt, stop in ((["t"], None), (["x", "t"], "t")):
        assert onnxgrad.check_product(model, wrt, "y", of=of, stop=stop).verdict == "agrees"
    assert onnxgrad.check_product(model, ["x", "t"], "y", of="jacobian").verdict == "agrees"


@pytest.mark.parametrize("checkpoint", [None, "auto"])
def test_a_network_with_a_symbolic_batch(checkpoint: str | None) -> None:
    """Against differences of the first gradient, at two batches; by inputs and weights, mixed derivatives included."""
    weights = {"w": normal(3, 5), "s": normal(5, seed=2), "k": np.array([-1])}
    model = op_model(NETWORK, {"x": normal(2, 3)}, constants=weights, symbolic=True)
    first = gradient(model, ["x", "w", "s"], "y", checkpoint=checkpoint)
    for batch in (1, 4):
        check_model(
            first, {"x": normal(batch, 3)}, ["x", "w", "s"], target=["x_grad", "w_grad", "s_grad"]
        )


def test_third_order() -> None:
    """y = x^4 by products: 24 x."""
    model = op_model("q = Mul (x, x)\n y = Mul (q, q)", {"x": normal()})
    for name in ("y", "x_grad", "x_grad_2"):
        model = gradient(model, ["x"], name)
    x = np.float32(1.5).reshape(())
    assert run(model, {"x": x})[model.graph.output[-1].name] == pytest.approx(24 * 1.5)


def with_zeros(count: int) -> np.ndarray:
    """Three rows of five factors: `count` zeros in the first, fewer in the others."""
    x = normal(3, 5)
    for row in range(3):
        x[row, [3, 0, 2][: max(0, count - row)]] = 0
    return x


AXIS = {"a": np.array([1])}
PLACES = {"i": np.array([[0, 0, 0, 0, 0], [1, 1, 2, 2, 2], [0, 0, 1, 1, 1]])}
ROWS = {"j": np.array([[0], [0], [0]])}
PRODUCTS: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "ReduceProd": ("q = ReduceProd (x, a)", AXIS),
    "CumProd": ("q = CumProd (x, c)", {"c": np.array(1)}),
    "CumProd backwards": ("q = CumProd <exclusive = 1, reverse = 1> (x, c)", {"c": np.array(-1)}),
    "ScatterElements": ('q = ScatterElements <reduction = "mul"> (d, i, x)', {**PLACES, "d": normal(3, 5, seed=1)}),
    "ScatterElements in zeros": ('q = ScatterElements <reduction = "mul"> (x, i, x)', PLACES),
    "ScatterND": ('q = ScatterND <reduction = "mul"> (d, j, x)', {**ROWS, "d": normal(1, 5, seed=1)}),
    "Pow": ("q = Pow (k, x)", {"k": positive(3, 5)}),
    "Pow of zeros": ("q = Pow (x, k)", {"k": np.tile(np.float32([0, 1, 2, 3, 2]), (3, 1))}),
    "Mul": ("p = Mul (x, k)\n r = Mul (p, x)\n q = Mul (r, p)", {"k": normal(3, 5, seed=1)}),
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("zeros", [1, 2, 3])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_factors_that_are_zero(name: str, zeros: int) -> None:
    body, constants = PRODUCTS[name]
    feeds = {"x": with_zeros(zeros)}
    model = op_model(
        f"{body}\n e = Exp (q)\n y = ReduceSum <keepdims = 0> (e)",
        feeds,
        constants=constants,
        opset=26,
    )
    first = gradient(model, ["x"], "y")
    runs = not name.startswith("CumProd")
    check_model(first, feeds, ["x"], target="x_grad", onnxruntime=runs, seeds=(zeros,))


def test_the_power_zero_by_both_operands() -> None:
    """d2(x^e)/dx de at e = 0 is 1/x, which a Where on the exponent alone would cut off."""
    x, e = np.array([0.5, 2, 3, 1.5], np.float32), np.array([0, 0, 2, 1], np.float32)
    model = op_model("p = Pow (x, e)\n y = ReduceSum <keepdims = 0> (p)", {"x": x, "e": e})
    first = gradient(model, ["x", "e"], "y")
    check_model(first, {"x": x, "e": e}, ["x", "e"], target=["x_grad", "e_grad"])


# not smooth at 0: a kink of the first derivative, of the function, or no number on one side
NOT_SMOOTH = (
    "abs", "celu", "elu_default", "l1normalization", "lppool", "min_example", "operator_max",
    "operator_min", "pow_bcast_array", "pow_example", "reduce_l1", "reduce_l2", "scatternd_max", "scatternd_min",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no requested value reaches", "ignore::RuntimeWarning")
def test_every_operator_at_zeros_by_second_derivatives() -> None:
    """Each case of the backend suite whose gradient is right with a quarter of its inputs at 0."""
    tried, wrong = 0, []
    with any_opset():
        for name in test_suite.cases([*test_suite.RUNS, *test_suite.REFERENCE_ONLY]):
            found = at_zeros(name)
            if found is None:
                continue
            tried += 1
            try:
                check_model(*found[:3], target=found[3], onnxruntime=False, seeds=(0,), reference_rtol=1e-4)  # fmt: skip
            except AssertionError as error:
                wrong.append(f"{name}: {error}"[:150])
    assert tried > 700
    assert not [w for w in wrong if not w.removeprefix("test_").startswith(NOT_SMOOTH)]


def at_zeros(name: str) -> tuple[Any, dict[str, np.ndarray], list[str], list[str]] | None:
    """The gradient of a case, feeds with zeros, what to differentiate it by and its adjoints; None
    where its inputs are large or no floats, or its gradient itself is no limit of differences.
    """
    found = case(name)
    model, rng = clamp_ir(found.model), np.random.default_rng(0)
    operand = test_suite.WRT.get(model.graph.node[0].op_type)
    only = None if operand is None else model.graph.node[0].input[operand]
    feeds = dict(found.inputs)
    wrt = [
        n
        for n, v in feeds.items()
        if isinstance(v, np.ndarray) and v.dtype in (np.float32, np.float64) and only in (None, n)
    ]
    if not wrt or any(np.size(v) > 3000 for v in feeds.values()):
        return None
    for n in wrt:
        zeros = rng.random(feeds[n].shape) < 0.25
        feeds[n] = np.where(zeros, 0, feeds[n]).astype(feeds[n].dtype)
    try:
        check_model(model, feeds, wrt, onnxruntime=False, seeds=(0,), reference_rtol=1e-5)
    except (AssertionError, InputError):
        return None
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    targets = [o.name for o in model.graph.output if o.type.tensor_type.elem_type in floats]
    graph = gradient(model, wrt, targets, adjoint="input")
    for output, value in zip(model.graph.output, found.outputs, strict=True):
        if output.name in targets:
            feeds[f"{output.name}_grad"] = rng.standard_normal(value.shape).astype(value.dtype)
    return graph, feeds, wrt, [o.name for o in graph.graph.output][-len(wrt) :]
