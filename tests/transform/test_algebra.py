"""Laws of transformations on random small graphs: vmap, gradients and directional derivatives compose.

The graphs have elementwise operators, products, reductions, reshapes, softmax and normalisation, a Where and a Gather;
some ignore the mapped input in part, some return a value that does not depend on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import onnxgrad
from onnxgrad.verify.running.session import run
from tests.helpers import parse

ROWS = 3
# of values [2,3], `a` and `b`; smooth, so that rows may be compared closely
STEPS = [
    "{o} = Tanh ({a})",
    "{o} = Sin ({a})",
    "{o} = Add ({a}, {b})",
    "{o} = Mul ({a}, {b})",
    "{o} = Mul ({a}, c)",
    "{o} = MatMul ({a}, w)",
    "p{o} = MatMul (v, {a})  {o} = Tanh (p{o})",
    "{o} = Softmax <axis = 0> ({a})",
    "{o} = Softmax <axis = 1> ({a})",
    "{o} = LayerNormalization <axis = -1> ({a}, g)",
    "p{o} = ReduceMean <keepdims = 1> ({a}, one)  {o} = Sub ({a}, p{o})",
    "p{o} = ReduceSum <keepdims = 0> ({a}, zero)  {o} = Mul ({b}, p{o})",
    "p{o} = Reshape ({a}, turned)  q{o} = Transpose <perm = [1, 0]> (p{o})  {o} = Sigmoid (q{o})",
    "p{o} = Sigmoid ({a})  q{o} = Less (p{o}, half)  {o} = Where (q{o}, {a}, {b})",
    "{o} = Gather <axis = 1> ({a}, order)",
    "p{o} = Concat <axis = 0> ({a}, {b})  q{o} = Slice (p{o}, one, three, zero)  {o} = Sin (q{o})",
    "p{o} = Einsum <equation = \"ij,kj->ik\"> ({a}, {b})  {o} = MatMul (p{o}, {a})",
    "p{o} = CumSum ({a}, axis)  {o} = Tanh (p{o})",
]  # fmt: skip
CONSTANTS = (
    "float[3,3] w = {0.3,-0.2,0.5, 0.1,0.7,-0.6, -0.4,0.2,0.9}, float[2,2] v = {0.5,-0.3, 0.8,0.2}, float[3] g = {1,0.5,2}, "
    "int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}, int64 axis = {1}, int64[2] turned = {3, 2}, "
    "int64[3] order = {2, 0, 1}, float half = {0.52}"
)


@st.composite
def functions(draw: Any) -> onnx.ModelProto:
    """A function of x, mapped, and c, shared, to a scalar; the last value is returned as well."""
    values, lines = ["x", "c"], []
    for i in range(draw(st.integers(1, 6))):
        step = draw(st.sampled_from(STEPS))
        # recent values more often, so that graphs are deep
        a, b = (values[-1 - min(draw(st.integers(0, 4)), len(values) - 1)] for _ in range(2))
        lines.append(step.format(o=f"t{i}", a=a, b=b))
        values.append(f"t{i}")
    lines.append(
        f"u = Mul ({values[-1]}, x)  y = ReduceSum <keepdims = 0> (u)  z = Identity ({values[-1]})"
    )
    body = "  ".join(lines)
    return parse(
        f"f (float[2,3] x, float[2,3] c) => (float y, float[2,3] z) <{CONSTANTS}> {{ {body} }}"
    )


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, 2, 3)).astype(np.float32)


def same(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def mapped(model: onnx.ModelProto, names: Any) -> onnx.ModelProto:
    made: onnx.ModelProto = onnxgrad.vmap(model, names, verify=False)
    onnx.checker.check_model(made, full_check=True)
    return made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no requested value")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(functions(), st.integers(0, 9))
def test_laws(f: onnx.ModelProto, seed: int) -> None:
    x, c, u = rows(seed), rows(seed + 10)[0], rows(seed + 20)
    gradient = onnxgrad.gradient(f, ["x", "c"], "y")
    each = [run(gradient, {"x": row, "c": c}) for row in x]

    # vmap of grad: row i is the gradient of row i
    found = run(mapped(gradient, "x"), {"x": x, "c": c})
    for name in ("y", "z", "x_grad", "c_grad"):
        same(found[name], np.stack([one[name] for one in each]))

    # grad of vmap: the sum of the rows' gradients for what they share
    whole = onnxgrad.gradient(mapped(f, "x"), ["x", "c"], "y", adjoint="input")
    got = run(whole, {"x": x, "c": c, "y_grad": np.ones(ROWS, np.float32)})
    same(got["x_grad"], found["x_grad"])
    same(got["c_grad"], found["c_grad"].sum(0))

    # jvp of vmap is vmap of jvp
    one = run(onnxgrad.jvp(mapped(f, "x"), "x", "z"), {"x": x, "c": c, "x_tangent": u})
    two = run(
        mapped(onnxgrad.jvp(f, "x", "z"), ["x", "x_tangent"]), {"x": x, "c": c, "x_tangent": u}
    )
    same(one["z_tangent"], two["z_tangent"])

    # vmap of vmap: a grid of rows
    inner = onnxgrad.vmap(f, "x", symbol="inner", verify=False)
    grid = run(mapped(inner, "c"), {"x": x, "c": np.stack([c, -c])})
    for i, shared in enumerate((c, -c)):
        for j, row in enumerate(x):
            same(grid["z"][i, j], run(f, {"x": row, "c": shared})["z"])

    # the Jacobian is the vmap of the products, and the Hessian is symmetric
    jacobian = run(onnxgrad.jacobian(f, "x", "z"), {"x": x[0], "c": c})["z_by_x"]
    product = run(onnxgrad.jvp(f, "x", "z"), {"x": x[0], "c": c, "x_tangent": u[0]})["z_tangent"]
    same(np.tensordot(jacobian, u[0], 2), product)
    hessian = run(onnxgrad.hessian(f, "x", "y"), {"x": x[0], "c": c})["x_x_hessian"].reshape(6, 6)
    same(hessian, hessian.T)
