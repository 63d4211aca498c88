"""Jacobians against those of numpy, in both modes, whole and by sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import jacobian
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.verify.running.session import run
from tests.helpers import parse

W = np.array([[1, -2], [0.5, 0.3], [-0.4, 0.7]])
TEXT = """g (TYPE[N,3] x) => (TYPE[N,2] y) <float[3,2] v = {1,-2, 0.5,0.3, -0.4,0.7}> {
  w = CastLike (v, x)  h = MatMul (x, w)  y = Tanh (h) }"""
TYPES = {"double": (np.float64, 1e-12), "float": (np.float32, 1e-5), "float16": (np.float16, 1e-2)}
MODES = ("forward", "reverse")


def model(kind: str = "float", opset: int = 20) -> onnx.ModelProto:
    return parse(TEXT.replace("TYPE", kind), opset=opset)


def by_sample(x: np.ndarray) -> np.ndarray:
    return (1 - np.tanh(x @ W) ** 2)[:, :, None] * W.T[None]


def whole(x: np.ndarray) -> np.ndarray:
    found = np.zeros((len(x), 2, len(x), 3))
    found[np.arange(len(x)), :, np.arange(len(x))] = by_sample(x)
    return found


def sample(count: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 3)).astype(dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", TYPES)
def test_against_the_formula(kind: str, mode: Any) -> None:
    dtype, within = TYPES[kind]
    for count in (1, 4):
        x = sample(count, dtype)
        exact = x.astype(np.float64)
        found = run(jacobian(model(kind), mode=mode), {"x": x})["y_by_x"]
        assert found.dtype == dtype
        np.testing.assert_allclose(found, whole(exact), atol=within)
        found = run(jacobian(model(kind), mode=mode, per_sample=True), {"x": x})["y_by_x"]
        np.testing.assert_allclose(found, by_sample(exact), atol=within)


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_is_lost_on_the_way(mode: Any) -> None:
    """onnxruntime wants the shape of whatever a Scan's body returns; here axes are summed that only a run knows."""
    text = "g (float[N,3] x, float[M,3] c) => (float[K,3] y) { y = Mul (x, c) }"
    feeds = {"x": sample(2), "c": sample(1) + 1}
    found = run(jacobian(parse(text), mode=mode), feeds)
    eye = np.eye(6).reshape(2, 3, 2, 3)
    np.testing.assert_allclose(found["y_by_x"], eye * feeds["c"], atol=1e-6)
    expected = (eye * feeds["x"]).sum(2, keepdims=True)
    np.testing.assert_allclose(found["y_by_c"], expected, atol=1e-6)


@pytest.mark.parametrize("opset", [15, 18, 22])
def test_every_opset(opset: int) -> None:
    graph = jacobian(model(opset=opset), per_sample=True)
    onnx.checker.check_model(graph, full_check=True)
    np.testing.assert_allclose(
        run(graph, {"x": sample(3)})["y_by_x"], by_sample(sample(3).astype(float)), atol=1e-5
    )


def test_all_products_at_once_and_in_turn_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [jacobian(model(), per_sample=each) for each in (False, True)]
    assert not any(n.op_type == "Scan" for graph in made for n in graph.graph.node)
    monkeypatch.setattr("onnxgrad.grad.derivatives.jacobian._MOST", 0)
    feeds = {"x": sample(4)}
    for graph, each in zip(made, (False, True), strict=True):
        scans = jacobian(model(), per_sample=each)
        assert any(n.op_type == "Scan" for n in scans.graph.node)
        for name, value in run(scans, feeds).items():
            np.testing.assert_allclose(run(graph, feeds)[name], value, rtol=1e-6, err_msg=name)


def test_the_interface_and_the_types(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = jacobian(model(), per_sample=True).graph.output[1].type.tensor_type.shape
    assert [d.dim_param or d.dim_value for d in shape.dim] == ["N", 2, 3]
    monkeypatch.setattr("onnxgrad.grad.derivatives.jacobian._MOST", 0)
    graph = jacobian(model(), per_sample=True)
    assert [v.name for v in graph.graph.input] == ["x"]
    assert [v.name for v in graph.graph.output] == ["y", "y_by_x"]
    assert str(load(graph).main.outputs[1].type) == "f32[N,2,3]"
    outside = [n.op_type for n in graph.graph.node]
    assert (
        outside.count("Scan") == 1 and outside.count("Tanh") == 1 and "MatMul" in outside
    )  # the model runs once


def steps_of(graph: onnx.ModelProto) -> list[Any]:
    """How many products each Scan takes, where that is known."""
    block = load(graph).main
    return [b.outputs[0].shape[0] for b in block.bindings if b.op == "Scan"]


def test_the_mode_with_fewer_products_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxgrad.grad.derivatives.jacobian._MOST", 0)
    wide = parse(
        """g (float[2] x, float[3] z) => (float[7] y) <float[2,7] w = {1,2,3,4,5,6,7,1,2,3,4,5,6,7}> {
        h = MatMul (x, w)  s = ReduceSum <keepdims = 0> (z)  p = Mul (h, s)  y = Tanh (p) }"""
    )
    assert steps_of(jacobian(wide, mode="reverse")) == [7]
    assert steps_of(jacobian(wide)) == [2, 3]  # columns of two values: 5 against 7 rows
    narrow = parse("g (float[5] x) => (float y) { y = ReduceSumSquare <keepdims = 0> (x) }")
    assert steps_of(jacobian(narrow)) == [1]
    assert steps_of(jacobian(narrow, mode="forward")) == [5]
    assert steps_of(jacobian(model(), per_sample=True)) == [2]  # of one sample: 2 rows, 3 columns
    assert not isinstance(steps_of(jacobian(model()))[0], int)  # N x 2 of N x 3: not known, so rows


def test_the_values_of_both_modes_are_the_same_for_several_values() -> None:
    several = parse(
        """g (float[2] x, float[3] z, float[4] unused) => (float[2,3] y) {
        a = Unsqueeze (x, one)  p = Mul (a, z)  y = Exp (p) one = Constant <value_ints = [1]> () }"""
    )
    rng = np.random.default_rng(1)
    feeds = {n: rng.standard_normal(k).astype(np.float32) for n, k in (("x", 2), ("z", 3))}
    feeds["unused"] = np.ones(4, np.float32)
    rows, columns = (run(jacobian(several, mode=m), feeds) for m in ("reverse", "forward"))
    y = np.exp(np.outer(feeds["x"], feeds["z"]))
    by_x = np.einsum("ij,ik,j->ijk", y, np.eye(2), feeds["z"])
    by_z = np.einsum("ij,jk,i->ijk", y, np.eye(3), feeds["x"])
    for found in (rows, columns):
        np.testing.assert_allclose(found["y_by_x"], by_x, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["y_by_z"], by_z, rtol=1e-5, atol=1e-6)
        assert found["y_by_unused"].shape == (2, 3, 4) and not found["y_by_unused"].any()


@pytest.mark.parametrize("mode", MODES)
def test_scalars_parts_and_values_between(mode: Any) -> None:
    text = """g (float[3] x) => (float y, float[3] e) {
        e = Exp (x)  s = Mul (e, e)  y = ReduceSum <keepdims = 0> (s) }"""
    x = np.array([0.1, -0.2, 0.3], np.float32)
    double = 2 * np.exp(2 * x)
    found = run(jacobian(parse(text), "x", "y", mode=mode), {"x": x})
    np.testing.assert_allclose(found["y_by_x"], double, rtol=1e-5)
    found = run(jacobian(parse(text), "e", "s", mode=mode), {"x": x})
    np.testing.assert_allclose(found["s_by_e"], np.diag(2 * np.exp(x)), rtol=1e-5)
    found = run(jacobian(parse(text), "x", "e[1:]", mode=mode), {"x": x})
    assert list(found) == ["y", "e", "e_slice_by_x"]
    np.testing.assert_allclose(found["e_slice_by_x"], np.diag(np.exp(x))[1:], rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_no_samples_have_no_jacobians(mode: Any) -> None:
    found = run(jacobian(model(), mode=mode, per_sample=True), {"x": sample(0)})["y_by_x"]
    assert found.shape == (0, 2, 3)


@pytest.mark.parametrize("mode", MODES)
def test_through_control_flow(mode: Any) -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        two = Constant <value = int64 {2}> ()
        p = If (c) <then_branch = t () => (float[2] a) { a = Mul (x, x) },
                    else_branch = f () => (float[2] b) { b = Sin (x) }>
        yes = Constant <value = bool {1}> ()
        y = Loop (two, yes, p) <body = l (int64 i, bool k, float[2] s) => (bool m, float[2] n) {
          m = Identity (k)  n = Exp (s) }> }"""
    x = np.array([0.3, -0.5], np.float32)
    for c, inner, slope in ((True, x * x, 2 * x), (False, np.sin(x), np.cos(x))):
        found = run(jacobian(parse(text), "x", mode=mode), {"x": x, "c": np.array(c)})["y_by_x"]
        expected = np.diag(np.exp(np.exp(inner)) * np.exp(inner) * slope)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_weights_of_a_model() -> None:
    feeds = {"x": sample(2)}
    text = TEXT.replace("TYPE", "float").replace("w = CastLike (v, x)  ", "").replace("w)", "v)")
    found = run(jacobian(parse(text), "v"), feeds)["y_by_v"]
    slope = 1 - np.tanh(feeds["x"] @ W) ** 2
    expected = np.einsum("ni,nj,jk->njik", feeds["x"], slope, np.eye(2))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_samples_that_influence_each_other_are_differentiated_alone() -> None:
    """A mean over the batch is that of one sample, so that y is the square of x."""
    mixed = parse(
        """g (float[4,3] x) => (float[4,3] y) { m = ReduceMean <keepdims = 1> (x, zero)
        y = Mul (x, m)  zero = Constant <value_ints = [0]> () }"""
    )
    assert onnxgrad.check_product(mixed, of="jacobian").ok
    made, x = jacobian(mixed, per_sample=True), sample(5)
    found = run(made, {"x": x})["y_by_x"]
    np.testing.assert_allclose(found, 2 * x[:, None] * np.eye(3), rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TEXT, {"mode": "sideways"}, "mode must be one of auto, forward, reverse"),
        (TEXT, {"names": "{}"}, "names must hold {} twice"),
        (TEXT, {"target": ["y", "h"]}, "a Jacobian is of one target; given are y, h"),
        (
            "g (TYPE[3] x) => (TYPE y) { y = ReduceSum <keepdims = 0> (x) }", {"per_sample": True},
            r"the inputs share no batch \(x f32\[3\]\)",
        ),
    ],
)  # fmt: skip
def test_what_has_no_jacobian_is_refused(text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        jacobian(parse(text.replace("TYPE", "float")), **options)


def test_the_kind_that_was_given_comes_back() -> None:
    assert isinstance(jacobian(load(model())), type(load(model())))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", ["N", "3", "1"])
def test_weights_inputs_without_samples_and_parts_by_sample(batch: str, mode: Any) -> None:
    given = parse(
        f"g (float[{batch},3] x, float[2] b) => (float[{batch},2] y) <float[3,2] w = {{1,-2, 0.5,0.3, -0.4,0.7}}> {{"
        "s = ReduceSum <keepdims = 0> (b) p = MatMul (x, w) h = Tanh (p) y = Mul (h, s) }"
    )
    x, b = sample(3), np.array([0.5, 1], np.float32)
    h = np.tanh(x @ W)
    slope = 1.5 * (1 - h**2)
    wanted = {
        "x": slope[:, :, None] * W.T[None], "b": np.repeat(h[:, :, None], 2, 2),
        "w": np.einsum("ni,nj,jk->njik", x, slope, np.eye(2)), "p": slope[:, :, None] * np.eye(2),
    }  # fmt: skip
    made = jacobian(given, list(wanted), "y", mode=mode, per_sample=True)
    found = run(made, {"x": x, "b": b})
    for name, value in wanted.items():
        np.testing.assert_allclose(found[f"y_by_{name}"], value, rtol=1e-5, atol=1e-6)
    found = run(
        jacobian(given, ["x", "w"], "y[:,1:]", mode=mode, per_sample=True), {"x": x, "b": b}
    )
    assert list(found) == ["y", "y_slice_by_x", "y_slice_by_w"]
    np.testing.assert_allclose(found["y_slice_by_w"], wanted["w"][:, 1:], rtol=1e-5, atol=1e-6)


def test_an_operator_without_a_batching_rule_leaves_what_the_scan_reads() -> None:
    """The rows of a shared sequence cannot be stacked: the steps stay when that attempt is undone."""
    model = parse("""g (float[2,3] x) => (float[3,3] y) {
        z = Constant <value_int = 0> ()  q = SplitToSequence <axis = 0, keepdims = 0> (x)  a = SequenceAt (q, z)
        b = Sin (a)  r = SequenceInsert (q, b)  y = ConcatFromSequence <axis = 0, new_axis = 1> (r) }""")
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    found = run(jacobian(model, "x", "y"), {"x": x})["y_by_x"]
    expected = np.zeros((3, 3, 2, 3))
    for i, j in np.ndindex(2, 3):
        expected[i, j, i, j] = 1
    expected[2, range(3), 0, range(3)] = np.cos(x[0])
    np.testing.assert_allclose(found, expected, atol=1e-6)
