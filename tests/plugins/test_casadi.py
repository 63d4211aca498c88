"""Derivatives in CasADi's names and layout: against ours in one direction each, and in CasADi itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.types import type_from_proto
from onnxgrad.plugins import casadi
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal
from tests.helpers import parse

# operands and results of every rank
RANKS = """f (double scale, double[3] x, double[2,3] w, double[2,2,3] v, int64[1] i) =>
  (double[2,3] p, double[2,2,3] q, double[2] r, double s) {
  wx = Mul (w, x)  t = Tanh (wx)  p = Mul (t, scale)
  vx = Mul (v, x)  q = Sin (vx)  r = MatMul (w, x)
  one = Gather (x, i)  low = Squeeze (one)  s = Mul (low, scale) }"""
INPUTS = {"scale": (), "x": (3,), "w": (2, 3), "v": (2, 2, 3)}
OUTPUTS = {"p": (2, 3), "q": (2, 2, 3), "r": (2,), "s": ()}


def feeds() -> dict[str, Any]:
    given = {n: np.float64(normal(*s, seed=k)) for k, (n, s) in enumerate(INPUTS.items())}
    return {**given, "i": np.array([1])}


def matrix(directions: np.ndarray) -> np.ndarray:
    """As CasADi has them: matrices side by side, all else a column each."""
    if directions.ndim == 3:
        return np.concatenate(list(directions), axis=1)
    return directions.reshape(len(directions), -1).T


def draw(shapes: dict[str, tuple[int, ...]], count: int) -> dict[str, np.ndarray]:
    return {n: np.float64(normal(count, *s, seed=k + 9)) for k, (n, s) in enumerate(shapes.items())}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["adj", "fwd"])
def test_every_direction_is_the_derivative_in_it(kind: Any, count: int) -> None:
    model = parse(RANKS)
    made = onnxgrad.casadi_derivative(model, kind)
    onnx.checker.check_model(made, full_check=True)
    read, written = (INPUTS, OUTPUTS) if kind == "fwd" else (OUTPUTS, INPUTS)
    assert [v.name for v in made.graph.input][5:] == [f"{kind}_{n}" for n in read]
    assert [v.name for v in made.graph.output] == [f"{kind}_{n}" for n in written]
    seeds = draw(read, count)
    found = run(made, {**feeds(), **{f"{kind}_{n}": matrix(s) for n, s in seeds.items()}})
    if kind == "fwd":
        one, given, result = onnxgrad.jvp(model, list(INPUTS), list(OUTPUTS)), "tangent", "tangent"
    else:
        one = onnxgrad.gradient(model, list(INPUTS), list(OUTPUTS), adjoint="input")
        given = result = "grad"
    each = [
        run(one, {**feeds(), **{f"{n}_{given}": s[k] for n, s in seeds.items()}})
        for k in range(count)
    ]
    for name in written:
        expected = matrix(np.stack([e[f"{name}_{result}"] for e in each]))
        np.testing.assert_allclose(found[f"{kind}_{name}"], expected, atol=1e-14, err_msg=name)


def test_of_a_derivative_the_next_one() -> None:
    """fwd_adj_f.onnx, for two directions of each, against differences of adj_f.onnx."""
    adjoint = onnxgrad.casadi_derivative(parse(RANKS), "adj")
    second = onnxgrad.casadi_derivative(adjoint, "fwd")
    onnx.checker.check_model(second, full_check=True)
    at = {**feeds(), **{f"adj_{n}": matrix(s) for n, s in draw(OUTPUTS, 2).items()}}
    moved = {n: np.float64(normal(*np.shape(v), seed=77)) for n, v in at.items() if n != "i"}
    still = {n: 0 * v for n, v in moved.items()}
    found = run(
        second,
        {**at, **{f"fwd_{n}": matrix(np.stack([still[n], v])) for n, v in moved.items()}},
    )
    h = 1e-6
    there, back = (
        run(adjoint, {n: v + sign * h * moved[n] if n in moved else v for n, v in at.items()})
        for sign in (1, -1)
    )
    for name, value in there.items():
        slope = (value - back[name]) / (2 * h)
        expected = matrix(np.stack([0 * slope, slope]))
        np.testing.assert_allclose(found[f"fwd_{name}"], expected, atol=1e-7, err_msg=name)


def test_symbolic_sizes() -> None:
    model = parse("f (float[N,3] x, float[3] b) => (float[N,3] y) { s = Add (x, b) y = Sin (s) }")
    made = onnxgrad.casadi_derivative(model, "adj")
    types = {v.name: str(type_from_proto(v.type)) for v in (*made.graph.input, *made.graph.output)}
    assert types["adj_y"] == types["adj_x"] == "f32[N,nadj_x_3]" and types["adj_b"] == "f32[3,nadj]"
    at = {"x": normal(4, 3), "b": normal(3), "adj_y": normal(4, 6, seed=2)}
    found = run(made, at)
    expected = np.tile(np.cos(at["x"] + at["b"]), 2) * at["adj_y"]
    np.testing.assert_allclose(found["adj_x"], expected, atol=1e-6)
    both = np.stack([expected[:, :3].sum(0), expected[:, 3:].sum(0)], 1)
    np.testing.assert_allclose(found["adj_b"], both, atol=1e-5)


def test_a_rank_that_is_lost_on_the_way() -> None:
    """onnxruntime wants the shape of whatever a Scan's body returns; here axes are summed that only a run knows."""
    model = parse("f (float[N,3] x, float[M,3] c) => (float[K,3] y) { y = Mul (x, c) }")
    made = onnxgrad.casadi_derivative(model, "adj")
    at = {"x": normal(4, 3), "c": normal(1, 3, seed=1), "adj_y": normal(4, 6, seed=2)}
    found = run(made, at)
    np.testing.assert_allclose(found["adj_x"], at["adj_y"] * np.tile(at["c"], 2), atol=1e-6)
    expected = (at["adj_y"] * np.tile(at["x"], 2)).sum(0, keepdims=True)
    np.testing.assert_allclose(found["adj_c"], expected, atol=1e-6)


def test_prefixes_count_on() -> None:
    model = parse(
        "f (double[2] adj_x, double[2] adjacent_x) => (double[2] y) { y = Mul (adj_x, adjacent_x) }"
    )
    block = onnxgrad.load(model).main
    assert casadi.prefix_of(block, "adj") == "adj2_" and casadi.prefix_of(block, "fwd") == "fwd_"
    made = onnxgrad.casadi_derivative(onnxgrad.casadi_derivative(model, "adj"), "adj")
    assert [v.name for v in made.graph.output][:2] == ["adj3_adj_x", "adj3_adjacent_x"]
    assert casadi.seed_sizes(onnxgrad.load(made)) == {"nadj2": 2, "nadj3_x_nadj2": 4}


def test_some_of_the_inputs_and_outputs() -> None:
    made = onnxgrad.casadi_derivative(parse(RANKS), "adj", ["x", "w"], "r")
    assert [v.name for v in made.graph.input][5:] == ["adj_r"]
    assert [v.name for v in made.graph.output] == ["adj_x", "adj_w"]


@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        (RANKS, {"kind": "jac"}, "kind must be one of adj, fwd"),
        (RANKS, {"wrt": "t"}, "'t' is neither an input nor an output: choose one of those"),
        ("f (double[2] x) => (double[2] y) { adj_y = Neg (x) y = Sin (adj_y) }", {}, "the model has a 'adj_y'"),
        ("f (double x) => (double[N] y) <int64[1] k = {3}> { y = Expand (x, k) }", {"target": "z"}, "'z'"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        onnxgrad.casadi_derivative(parse(text), **{"kind": "adj", **asked})


def test_an_unknown_rank_is_refused() -> None:
    model = parse("f (double[2] x) => (double[2] y) { y = Sin (x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InputError, match="of unknown rank: CasADi asks for a matrix"):
        onnxgrad.casadi_derivative(model, "adj")


@pytest.fixture
def ca(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """CasADi with our onnxruntime, in an empty folder."""
    found = pytest.importorskip("casadi", reason="needs CasADi 3.8: pip install casadi")
    import onnxruntime

    capi = Path(onnxruntime.__file__).parent / "capi"
    monkeypatch.setitem(
        os.environ, "CASADI_ONNXRUNTIME_LIB", str(next(capi.glob("libonnxruntime.so.*")))
    )
    monkeypatch.chdir(tmp_path)
    yield found


NETWORK = """f (double[3] x, double[2,3] z) => (double[2] y, double[2,3] q) {
  zx = MatMul (z, x)  y = Tanh (zx)  q = Mul (z, x) }"""


def write_family() -> None:
    model = parse(NETWORK)
    adjoint = onnxgrad.casadi_derivative(model, "adj")
    onnx.save(model, "f.onnx")
    onnx.save(adjoint, "adj_f.onnx")
    onnx.save(onnxgrad.casadi_derivative(model, "fwd"), "fwd_f.onnx")
    onnx.save(onnxgrad.casadi_derivative(adjoint, "fwd"), "fwd_adj_f.onnx")
    onnx.save(onnxgrad.casadi_derivative(adjoint, "adj"), "adj_adj_f.onnx")


@pytest.mark.peers
def test_casadi_takes_them_for_its_own(ca: Any) -> None:
    """Forward, reverse, Jacobians, Hessians and reverse over reverse against CasADi's own of the same formulas."""
    write_family()
    x, z = ca.MX.sym("x", 3), ca.MX.sym("z", 2, 3)
    own = [ca.tanh(z @ x), z * ca.repmat(x.T, 2, 1)]
    theirs = ca.Function("g", [x, z], own, ["x", "z"], ["y", "q"])
    ours = ca.GraphBuilder("f.onnx").create("f")
    at = [normal(3), normal(2, 3)]
    values = theirs(*at)

    def same(a: Any, b: Any, *given: Any) -> None:
        for one, other in zip(a(*given), b(*given), strict=True):
            np.testing.assert_allclose(np.array(one), np.array(other), atol=1e-12)

    for n in (1, 3):
        onto = [normal(2, n, seed=5), normal(2, 3 * n, seed=6)]
        same(ours.reverse(n), theirs.reverse(n), *at, *values, *onto)
        along = [normal(3, n, seed=7), normal(2, 3 * n, seed=8)]
        same(ours.forward(n), theirs.forward(n), *at, *values, *along)

    def second(f: Any) -> Any:
        y, q = f(x, z)
        energy = ca.sumsqr(y) + ca.sum(ca.vec(q) ** 3)
        (gradient,) = f.reverse(1)(x, z, y, q, ca.sin(y), q)[:1]
        return ca.Function(
            "second",
            [x, z],
            [
                ca.jacobian(y, x), ca.jacobian(q, z), *ca.hessian(energy, x), *ca.hessian(energy, z),
                ca.gradient(ca.sumsqr(gradient), z),
            ],
        )  # fmt: skip

    same(second(ours), second(theirs), *at)


@pytest.mark.peers
def test_jacobians_of_every_rank(ca: Any) -> None:
    """Higher ranks lie in CasADi's columns as they lie in memory; an integer is no variable."""
    onnx.save(parse(RANKS), "f.onnx")
    onnx.save(onnxgrad.casadi_derivative(parse(RANKS), "adj"), "adj_f.onnx")
    f = ca.GraphBuilder("f.onnx").create("f")
    assert list(f.is_diff_in()) == [True, True, True, True, False]
    symbols = f.mx_in()
    at = [v.reshape(-1) if v.ndim == 3 else v for v in feeds().values()]
    for row, (target, shape) in enumerate(OUTPUTS.items()):
        exact = run(onnxgrad.jacobian(parse(RANKS), list(INPUTS), target), feeds())
        for column, name in enumerate(INPUTS):
            found = ca.Function("J", symbols, [ca.jacobian(f(*symbols)[row], symbols[column])])
            expected = exact[f"{target}_by_{name}"]
            # CasADi counts a matrix by columns
            order = [*range(len(shape))[::-1]] if len(shape) == 2 else [*range(len(shape))]
            rest = [*range(len(shape), expected.ndim)]
            order += rest[::-1] if len(rest) == 2 else rest
            matrix = expected.transpose(order).reshape(np.prod(shape, dtype=int), -1)
            np.testing.assert_allclose(np.array(found(*at)), matrix, atol=1e-14)


@pytest.mark.peers
def test_some_outputs_are_asked_for_alone(ca: Any) -> None:
    onnx.save(parse(RANKS), "f.onnx")
    onnx.save(onnxgrad.casadi_derivative(parse(RANKS), "adj", ["x", "w"], "r"), "adj_f.onnx")
    f = ca.GraphBuilder("f.onnx").create("f", ["scale", "x", "w", "v", "i"], ["r"], {})
    assert list(f.is_diff_in()) == [False, True, True, False, False]
    symbols = f.mx_in()
    found = ca.Function("J", symbols, [ca.jacobian(f(*symbols), symbols[1])])
    at = [v.reshape(-1) if v.ndim == 3 else v for v in feeds().values()]
    np.testing.assert_allclose(np.array(found(*at)), feeds()["w"], atol=1e-15)


@pytest.mark.peers
def test_a_batch_that_casadi_binds(ca: Any) -> None:
    model = parse("f (float[N,3] x, float[3] b) => (float[N,3] y) { s = Add (x, b) y = Sin (s) }")
    onnx.save(model, "f.onnx")
    onnx.save(onnxgrad.casadi_derivative(model, "adj"), "adj_f.onnx")
    builder = ca.GraphBuilder("f.onnx")
    builder.bind_dim("N", 4)
    f = builder.create("f")
    x, b = ca.MX.sym("x", 4, 3), ca.MX.sym("b", 3)
    jacobian = ca.Function("j", [x, b], [ca.jacobian(f(x, b), b)])
    at = [normal(4, 3), normal(3)]
    expected = np.zeros((12, 3))
    for column in range(3):
        expected[4 * column : 4 * column + 4, column] = np.cos(at[0][:, column] + at[1][column])
    np.testing.assert_allclose(np.array(jacobian(*at)), expected, atol=1e-6)
