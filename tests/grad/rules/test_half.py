"""Gradients in float16 and bfloat16 run wherever the forward runs: onnxruntime's CPU kernels lack some of both types."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from onnxgrad import gradient
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import run
from tests.grad.numeric import distinct, normal, op_model, positive
from tests.helpers import onnxruntime_version, parse

X = distinct(4, 6)
IMAGE = distinct(1, 2, 4, 4)
ROWS = np.array([[0, 2, 2], [3, 0, 0]])

OLD, NEW = (1, 31), (1, 32)
# nodes whose gradients add into places, their feeds, and since which onnxruntime its CPU runs them in bfloat16, if known
CASES = {
    "Gather": ("y = Gather (x, i)", {"x": X, "i": ROWS}, OLD),
    "Gather columns": ("y = Gather <axis = 1> (x, i)", {"x": X, "i": ROWS}, OLD),
    "GatherElements": ("y = GatherElements <axis = 0> (x, i)", {"x": X, "i": ROWS}, OLD),
    "GatherND": ("y = GatherND (x, i)", {"x": X, "i": np.array([[0, 1], [3, 2], [0, 1]])}, OLD),
    "Pad": ('y = Pad <mode = "reflect"> (x, i)', {"x": X, "i": np.array([0, 1, 2, 0])}, NEW),
    "Pad of a value": ("y = Pad (x, i, v)", {"x": X, "i": np.array([0, 1, -1, 2]), "v": positive(1)[0]}, NEW),
    "MaxPool": ("y = MaxPool <kernel_shape = [2, 2]> (x)", {"x": IMAGE}, None),
    "GlobalMaxPool": ("y = GlobalMaxPool (x)", {"x": IMAGE}, None),
    "TopK": ("y, i = TopK (x, k)", {"x": X, "k": np.array([2])}, None),
    "ScatterElements": ("y = ScatterElements <axis = 0> (x, i, u)", {"x": X, "i": ROWS, "u": normal(2, 3)}, OLD),
    "cross entropy": ("y = SoftmaxCrossEntropyLoss (x, i)", {"x": X, "i": np.array([0, 5, 5, 2])}, None),
    "weights of a cross entropy": (
        "y = SoftmaxCrossEntropyLoss (x, i, w)", {"x": X, "i": np.array([0, 5, 5, 2]), "w": positive(6)}, None,
    ),
    "GridSample": ("y = GridSample (x, p)", {"x": IMAGE, "p": 0.7 * normal(1, 3, 3, 2)}, None),
    "RotaryEmbedding": (
        "y = RotaryEmbedding (x, c, s, i)",
        {"x": normal(1, 2, 3, 4), "c": normal(5, 2), "s": normal(5, 2, seed=1), "i": np.array([[0, 2, 2]])}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_runs_where_the_forward_does(name: str, dtype: type) -> None:
    node, arrays, since = CASES[name]
    feeds = {k: v.astype(dtype) if v.dtype == np.float32 else v for k, v in arrays.items()}
    model = op_model(node, feeds, outputs=["y"], opset=23 if name == "RotaryEmbedding" else 21)
    try:
        y = np.asarray(run(model, feeds)["y"])
    except RunFailed:
        known = since is not None and since <= onnxruntime_version()
        assert dtype is not np.float16 and not known, "the forward ran in this version"
        pytest.skip(f"onnxruntime {onnxruntime_version()} has no kernel for it")
    graph = gradient(model, adjoint="input")
    given = {**feeds, "y_grad": np.random.default_rng(1).standard_normal(y.shape).astype(dtype)}
    found, exact = run(graph, given), reference(graph, given)
    for out in list(graph.graph.output)[1:]:
        assert out.type.tensor_type.elem_type == (
            TensorProto.FLOAT16 if dtype is np.float16 else TensorProto.BFLOAT16
        )
        a, b = (np.asarray(v[out.name], np.float64) for v in (found, exact))
        np.testing.assert_allclose(
            a, b, atol=(4e-3 if dtype is np.float16 else 3e-2) * np.abs(b).max()
        )


def test_many_addends_are_added_in_float32() -> None:
    """A row that is read 4096 times: float16 would stop counting at 2048."""
    feeds = {"x": np.ones((3, 2), np.float16), "i": np.zeros(4096, np.int64)}
    graph = gradient(op_model("y = Gather (x, i)", feeds), adjoint="input")
    found = run(graph, {**feeds, "y_grad": np.ones((4096, 2), np.float16)})
    np.testing.assert_array_equal(found["x_grad"], [[4096, 4096], [0, 0], [0, 0]])


@pytest.mark.parametrize("opset", [18, 19, 20])
def test_zeros_of_bfloat16(opset: int) -> None:
    """Before opset 20 no operator makes them."""
    feeds = {"x": X.astype(ml_dtypes.bfloat16)}
    graph = gradient(
        op_model("y = Slice (x, s, e, a, t)", feeds, constants=SLICE, opset=opset), adjoint="input"
    )
    u = np.ones((4, 2), ml_dtypes.bfloat16)
    found = run(graph, {**feeds, "y_grad": u})["x_grad"]
    np.testing.assert_array_equal(
        np.asarray(found, np.float32), np.tile([0, 0, 1, 0, 1, 0], (4, 1))
    )


SLICE = {"s": np.array([4]), "e": np.array([0]), "a": np.array([1]), "t": np.array([-2])}


def test_bounds_that_were_attributes() -> None:
    """onnx.version_converter writes them in float32 whatever the model's dtype."""
    for node in (
        "y = Clip <min = -0.5, max = 0.5> (x)",
        "y = Pad <pads = [0, 1, 0, 1], value = 2.0> (x)",
    ):
        feeds = {"x": X.astype(np.float16)}
        graph = gradient(op_model(node, feeds, opset=10), adjoint="input")
        y = reference(
            graph, {**feeds, "y_grad": np.ones((4, 8 if "Pad" in node else 6), np.float16)}
        )
        found = run(graph, {**feeds, "y_grad": np.ones((4, 8 if "Pad" in node else 6), np.float16)})
        np.testing.assert_array_equal(found["x_grad"], y["x_grad"])


# more elements than float16 has numbers: sizes known, and sizes known at run time only
COUNTED = {
    "ReduceMean": "g (float16[1,B] x) => (float16 y) { y = ReduceMean <keepdims = 0> (x) }",
    "ReduceMax of ties": "g (float16[1,B] x) => (float16 y) { z = Sub (x, x) y = ReduceMax <keepdims = 0> (z) }",
    "GlobalAveragePool": "g (float16[1,1,S,T] x) => (float16[1,1,1,1] y) { y = GlobalAveragePool (x) }",
    "AveragePool": "g (float16[1,1,S,T] x) => (float16[1,1,1,1] y) { y = AveragePool <kernel_shape = [300, 301]> (x) }",
    "AveragePool with pads": """g (float16[1,1,S,T] x) => (float16[1,1,C,D] y) {
        y = AveragePool <kernel_shape = [300, 301], pads = [0, 1, 0, 0]> (x) }""",
    "InstanceNormalization": """g (float16[1,1,S,T] x, float16[1] s) => (float16[1,1,S,T] y) {
        z = Sub (s, s) y = InstanceNormalization (x, s, z) }""",
    "SoftmaxCrossEntropyLoss": """g (float16[B,2] x, int64[B] l) => (float16 y) {
        y = SoftmaxCrossEntropyLoss <ignore_index = 7> (x, l) }""",
    "NegativeLogLikelihoodLoss": """g (float16[B,2] x, int64[B] l) => (float16 y) {
        y = NegativeLogLikelihoodLoss (x, l) }""",
}
SIZES = {"B": 70_000, "S": 300, "T": 301}


@pytest.mark.parametrize(
    ("kind", "open_sizes"),
    [
        pytest.param(kind, way, marks=pytest.mark.slow if "AveragePool" in kind[:11] else ())
        for kind in COUNTED
        for way in (False, True)
    ],
)
def test_counts_beyond_float16(kind: str, open_sizes: bool) -> None:
    text = COUNTED[kind]
    if not open_sizes:
        for symbol, size in SIZES.items():
            text = re.sub(rf"\b{symbol}\b", str(size), text)
    model = parse(text, opset=20)
    rng, feeds = np.random.default_rng(0), dict[str, Any]()
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [SIZES.get(d.dim_param, d.dim_value) for d in dims]
        integer = value.type.tensor_type.elem_type == 7
        feeds[value.name] = (
            rng.integers(0, 2, shape) if integer else rng.standard_normal(shape).astype(np.float16)
        )
    wrt = [name for name in feeds if name != "l"]
    graph = gradient(model, wrt, "y", adjoint="input")
    made = np.shape(run(model, feeds)["y"])
    feeds["y_grad"] = np.asarray(10 * rng.standard_normal(made), np.float16)
    wanted, got = reference(graph, feeds), run(graph, feeds)
    for name in wrt:
        exact = np.asarray(wanted[f"{name}_grad"])
        assert np.abs(exact).max() > 0 or kind.endswith("ties")
        np.testing.assert_allclose(
            np.asarray(got[f"{name}_grad"], np.float64), exact, rtol=0, atol=0.02 * abs(exact).max()
        )
