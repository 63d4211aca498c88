"""A derived file depends on the value of a weight only through that weight.

The judge is the same network whose weights are graph inputs: nothing can be computed from those ahead of time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import onnxgrad
from onnxgrad import InputError
from onnxgrad.ir.origins import VALUES_USED as KEY
from onnxgrad.verify.running.session import run
from tests.helpers import parse

W = Callable[..., np.ndarray[Any, Any]]


def _f(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape).astype(np.float32)


# each family of rules once: the nodes from x to y, the shape of x, the weights
NETS: dict[str, tuple[str, tuple[int, ...], dict[str, np.ndarray[Any, Any]]]] = {
    "matmul": ("a = MatMul (x, W) b = Tanh (a) y = MatMul (b, V)", (2, 3), {"W": _f(3, 4), "V": _f(4, 2)}),
    "gemm": ("a = Gemm <transB = 1> (x, W, c) b = Tanh (a) y = Gemm <transB = 1> (b, V)", (2, 3), {"W": _f(4, 3), "V": _f(2, 4), "c": _f(4)}),
    "transposed": ("t = Transpose <perm = [1, 0]> (W) a = MatMul (x, t) b = Tanh (a) y = MatMul (b, V)", (2, 3, 3), {"W": _f(4, 3), "V": _f(4, 2)}),
    "conv": ("a = Conv (x, W, c) b = Tanh (a) y = Conv (b, V)", (1, 2, 6, 6), {"W": _f(3, 2, 3, 3), "c": _f(3), "V": _f(2, 3, 2, 2)}),
    "depthwise": ("a = Conv <group = 3, strides = [2, 2], pads = [1, 1, 1, 1]> (x, W) y = Tanh (a)", (1, 3, 7, 7), {"W": _f(3, 1, 3, 3)}),
    "conv transpose": ("a = ConvTranspose <strides = [2, 2]> (x, W) y = Tanh (a)", (1, 2, 4, 4), {"W": _f(2, 3, 3, 3)}),
    "layer norm": ("z = LayerNormalization (x, s, c) y = Tanh (z)", (2, 4), {"s": _f(4), "c": _f(4) + 1}),
    "batch norm": ("a = BatchNormalization (x, s, c, m, v) y = Tanh (a)", (2, 3, 4), {"s": _f(3), "c": _f(3) + 1, "m": _f(3) - 1, "v": np.abs(_f(3)) + 1}),
    "group norm": ("a = GroupNormalization <num_groups = 2> (x, s, c) y = Tanh (a)", (2, 4, 3), {"s": _f(4), "c": _f(4) + 1}),
    "prelu": ("a = PRelu (x, s) y = Tanh (a)", (2, 4), {"s": _f(4)}),
    "lstm": ("y = LSTM <hidden_size = 2> (x, W, R)", (3, 1, 2), {"W": _f(1, 8, 2), "R": _f(1, 8, 2) / 2}),
    "einsum": ('a = Einsum <equation = "bi,ijk->bjk"> (x, W) y = Tanh (a)', (2, 3), {"W": _f(3, 2, 2)}),
    "exponential": ("e = Exp (s) a = Mul (x, e) y = Tanh (a)", (2, 3), {"s": _f(3)}),
    "attention": (
        "q = MatMul (x, Q) k = MatMul (x, K) t = Transpose <perm = [1, 0]> (k) s = MatMul (q, t) p = Softmax (s) v = MatMul (x, V) y = MatMul (p, v)",
        (2, 3), {"Q": _f(3, 4), "K": _f(3, 4) / 2, "V": _f(3, 2)},
    ),
    "divisor": ("a = Div (x, s) y = Tanh (a)", (2, 3), {"s": np.abs(_f(3)) + 1}),
    "powers": ("q = Abs (x) a = Pow (q, s) y = Tanh (a)", (2, 3), {"s": np.array([2, 1, 3], np.float32)}),
    "scale of ones": ("a = Mul (x, s) b = Mul (a, a) y = Mul (b, a)", (2, 3), {"s": np.ones(3, np.float32)}),
    "equal weights": ("a = MatMul (x, W) b = MatMul (x, V) c = Tanh (a) d = Tanh (b) y = Mul (c, d)", (2, 3), {"W": np.eye(3, dtype=np.float32), "V": np.eye(3, dtype=np.float32)}),
    "branches": (
        "h = Constant <value_float = 0.5> () r = ReduceMax <keepdims = 0> (x) o = Greater (r, h) a = If (o) <then_branch = t () => (float[2,4] p) { p = MatMul (x, W) }, else_branch = e () => (float[2,4] q) { q = MatMul (x, V) }> y = Tanh (a)",
        (2, 3), {"W": _f(3, 4), "V": _f(3, 4)},
    ),
    "loop": (
        "n = Constant <value_int = 2> () y = Loop (n, , x) <body = b (int64 i, bool c, float[2,3] h) => (bool d, float[2,3] o) { d = Identity (c) a = MatMul (h, W) o = Tanh (a) }>",
        (2, 3), {"W": _f(3, 3)},
    ),
}  # fmt: skip

DERIVED: dict[str, tuple[Callable[[ModelProto], ModelProto], str]] = {
    "gradient": (lambda m: onnxgrad.gradient(m, "x", "u"), "x_grad"),
    "small gradient": (lambda m: onnxgrad.gradient(m, "x", "u", form="small"), "x_grad"),
    "jvp": (lambda m: onnxgrad.jvp(m, "x", "u"), "u_tangent"),
    "hvp": (lambda m: onnxgrad.hessian_vector_product(m, "x", "u"), "x_hvp"),
    "jacobian": (lambda m: onnxgrad.jacobian(m, "x", "u"), "u_by_x"),
    "hessian": (lambda m: onnxgrad.hessian(m, "x", "u"), "x_x_hessian"),
    "vmap": (lambda m: onnxgrad.vmap(m, "x", verify=False), "u"),
}


def _written(net: str, stored: str = "initializer") -> ModelProto:
    """Returns the network with its weights as `stored`: input, initializer or Constant."""
    nodes, shape, weights = NETS[net]
    sizes = ",".join(map(str, shape))
    model = parse(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[{sizes}] x) => (float u) {{ {nodes} u = ReduceSum <keepdims = 0> (y) }}'
    )
    tensors = [numpy_helper.from_array(w, k) for k, w in weights.items()]
    if stored == "initializer":
        model.graph.initializer.extend(tensors)
    elif stored == "input":
        model.graph.input.extend(
            helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in tensors
        )
    for t in tensors if stored == "Constant" else ():
        model.graph.node.insert(0, helper.make_node("Constant", [], [t.name], value=t))
    return model


def _fed(
    model: ModelProto, given: dict[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    rows = {"rows": 2}
    return {
        v.name: given[v.name] if v.name in given else _f(*(d.dim_value or rows[d.dim_param] for d in v.type.tensor_type.shape.dim))
        for v in model.graph.input
    }  # fmt: skip


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore:no requested value reaches")
@pytest.mark.parametrize("stored", ["initializer", "Constant"])
@pytest.mark.parametrize("derived", DERIVED)
@pytest.mark.parametrize("net", NETS)
def test_a_derivative_of_a_derivative_by_weights(net: str, derived: str, stored: str) -> None:
    transform, target = DERIVED[derived]
    weights = NETS[net][2]
    results = []
    for kind in (stored, "input"):
        once = transform(_written(net, kind))
        twice = onnxgrad.gradient(once, list(weights), target, adjoint="input")
        results.append(run(twice, _fed(twice, weights)))
    found, expected = results
    scale = max(float(np.abs(expected[f"{w}_grad"]).max()) for w in weights) or 1.0
    for w in weights:
        np.testing.assert_allclose(found[f"{w}_grad"], expected[f"{w}_grad"], atol=2e-5 * scale)


@pytest.mark.parametrize("derived", ["gradient", "hvp", "jacobian"])
def test_a_replaced_weight_counts(derived: str) -> None:
    """The file with another weight is the derivative of the model with that weight."""
    transform, target = DERIVED[derived]
    model = _written("matmul")
    once = transform(model)
    other = numpy_helper.from_array(_f(3, 4) * 3, "W")
    for changed in (model, once):
        (w,) = (t for t in changed.graph.initializer if t.name == "W")
        w.CopyFrom(other)
    feeds = _fed(once, {})
    np.testing.assert_allclose(
        run(once, feeds)[target], run(transform(model), feeds)[target], rtol=1e-5
    )


@pytest.mark.parametrize(
    ("weights", "node"),
    [("<float val_1 = {3.0}>", ""), ("", "val_1 = Constant <value = float {3.0}> ()")],
)
def test_a_number_that_decided_a_form_cannot_be_differentiated_later(
    weights: str, node: str
) -> None:
    model = parse(f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[3] x) => (float u) {weights} {{ {node} q = Pow (x, val_1) u = ReduceSum <keepdims = 0> (q) }}""")
    once = onnxgrad.gradient(model, "x", "u")
    assert {p.key: p.value for p in once.metadata_props}[KEY] == "val_1"
    with pytest.raises(
        InputError, match="the gradient by 'val_1' would be wrong: its value decided the form"
    ):
        onnxgrad.gradient(once, "val_1", "x_grad", adjoint="input")
    refusal = "'val_1' is not an input" if node else "mapping over 'val_1' would be wrong"
    with pytest.raises(InputError, match=refusal):
        onnxgrad.vmap(once, "val_1")
    # d/dp of p x^(p-1), summed: x^(p-1) (1 + p ln x)
    both = onnxgrad.gradient(
        onnxgrad.gradient(model, ["x", "val_1"], "u"),
        "val_1",
        "x_grad",
        adjoint="input",
        names="{}_again",
    )
    x = np.array([0.5, 1.0, 2.0], np.float32)
    found = run(both, {"x": x, "x_grad_again": np.ones(3, np.float32)})["val_1_again"]
    np.testing.assert_allclose(found, (x**2 * (1 + 3 * np.log(x))).sum(), rtol=1e-5)


def test_weights_of_branches_are_not_copied() -> None:
    model = parse("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,3] x, bool c) => (float u) {
      y = If (c) <then_branch: graph = t () => (float[2,2] p) <float[3,2] w = {1,2,3,4,5,6}> { p = MatMul (x, w) },
                  else_branch: graph = e () => (float[2,2] q) <float[3,2] v = {2,0,1,0,1,0}> { q = MatMul (x, v) }>
      t = Tanh (y) u = ReduceSum <keepdims = 0> (t) }""")
    made = onnxgrad.gradient(model, "x", "u")
    assert {t.name for t in made.graph.initializer} >= {"w", "v"}
    held = [
        t.name
        for n in made.graph.node
        for a in n.attribute
        if a.HasField("g")
        for t in a.g.initializer
    ]
    assert not held
    again = onnxgrad.gradient(made, ["w", "v"], "x_grad", adjoint="input")
    x, g = _f(2, 3), _f(2, 3) + 1
    found = run(again, {"x": x, "c": np.array(True), "x_grad_grad": g})
    w = np.arange(1, 7, dtype=np.float64).reshape(3, 2)

    def penalty(w: np.ndarray[Any, Any]) -> float:
        return float((((1 - np.tanh(x.astype(np.float64) @ w) ** 2) @ w.T) * g).sum())

    slopes = np.array(
        [(penalty(w + d) - penalty(w - d)) / 2e-6 for d in 1e-6 * np.eye(6).reshape(6, 3, 2)]
    ).reshape(3, 2)
    np.testing.assert_allclose(found["w_grad"], slopes, rtol=1e-4, atol=1e-5)
    assert not found["v_grad"].any()


def test_a_final_file_has_constants_of_weights() -> None:
    model = _written("matmul")
    plain, final = (onnxgrad.gradient(model, "x", "u", final=final) for final in (False, True))
    assert len(final.graph.node) < len(plain.graph.node)
    feeds = {"x": _f(2, 3)}
    np.testing.assert_allclose(run(final, feeds)["x_grad"], run(plain, feeds)["x_grad"], rtol=1e-5)
