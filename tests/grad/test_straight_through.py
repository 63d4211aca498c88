"""Straight-through gradients of quantised models: PyTorch's fake quantisation, learned step sizes for the scale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad
from onnxgrad import gradient
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal, op_model
from tests.passes.test_legalize import CASES

PAIR = "q = QuantizeLinear {} (x, s, z)\n d = DequantizeLinear {} (q, s, z)\n y = Mul (d, d)"


def straight_through(
    x: np.ndarray, s: np.ndarray, z: np.ndarray, low: int, high: int, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """By hand: g where nothing is clipped; for the scale (q - z) - x/s where nothing is, else q - z."""
    steps = np.round(x / s) + z
    inside = (steps >= low) & (steps <= high)
    q = np.clip(steps, low, high)
    return np.where(inside, g, 0), g * (q - z - np.where(inside, x / s, 0))


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.int8, -128, 127), (np.uint8, 0, 255)])
def test_one_scale(dtype: type, low: int, high: int) -> None:
    x = np.array([[-20.0, -1.03, 0.47, 0.2, 30.0]], np.float32)
    s, z = np.float32(0.1), dtype(3)
    graph = gradient(
        op_model(PAIR.format("", ""), {"x": x, "s": s}, constants={"z": z}),
        adjoint="input",
        ste=True,
    )
    onnx.checker.check_model(graph)
    found = run(graph, {"x": x, "s": s, "y_grad": np.ones_like(x)})
    d = (np.clip(np.round(x / s) + 3, low, high) - 3) * s
    to_x, to_s = straight_through(x, s, np.float32(z), low, high, 2 * d)
    np.testing.assert_allclose(found["x_grad"], to_x, rtol=1e-5)
    np.testing.assert_allclose(found["s_grad"], to_s.sum(), rtol=1e-4)


def test_a_scale_per_channel() -> None:
    x = 4 * normal(2, 3, 2)
    s, z = np.float32([0.01, 0.5, 0.1]), np.zeros(3, np.int8)
    text = PAIR.format("<axis = 1>", "<axis = 1>")
    graph = gradient(
        op_model(text, {"x": x, "s": s}, constants={"z": z}), adjoint="input", ste=True
    )
    found = run(graph, {"x": x, "s": s, "y_grad": np.ones_like(x)})
    wide = s.reshape(1, 3, 1)
    d = np.clip(np.round(x / wide), -128, 127) * wide
    to_x, to_s = straight_through(x, wide, np.float32(0), -128, 127, 2 * d)
    np.testing.assert_allclose(found["x_grad"], to_x, rtol=1e-5)
    np.testing.assert_allclose(found["s_grad"], to_s.sum(axis=(0, 2)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16])
def test_pairs_of_onnxruntime(dtype: type) -> None:
    """com.microsoft's pair is ONNX's, at opsets that know its integers not yet, too."""
    x = 4 * normal(2, 3, 2)
    values = {"x": x, "s": np.float32([0.01, 0.5, 0.1])}
    text = PAIR.format("<axis = 1>", "<axis = 1>")
    contrib = text.replace("Quant", "com.microsoft.Quant").replace("Dequ", "com.microsoft.Dequ")
    given = {**values, "y_grad": np.ones_like(x)}
    found = []
    for nodes, opset in ((text, 21), (contrib, 21), (contrib, 18)):
        model = op_model(
            nodes,
            values,
            constants={"z": np.full(3, 7, dtype)},
            outputs=["y"],
            opset=opset,
            domains={"com.microsoft": 1},
        )
        found.append(run(gradient(model, adjoint="input", ste=True), given))
    for name, value in found[0].items():
        for other in found[1:]:
            np.testing.assert_allclose(other[name], value, rtol=1e-5)


def test_the_forward_is_untouched() -> None:
    x, s = normal(2, 3), np.float32(0.1)
    model = op_model(PAIR.format("", ""), {"x": x}, constants={"s": s, "z": np.int8(0)})
    graph = gradient(model, adjoint="input", ste=True)
    assert [n.SerializeToString() for n in graph.graph.node[:3]] == [
        n.SerializeToString() for n in model.graph.node
    ]
    assert all(n.domain == "" for n in graph.graph.node)
    assert [o.domain for o in graph.opset_import] == [""]


@pytest.mark.filterwarnings("ignore:'y_grad' is taken")
def test_by_the_dequantised_value_itself() -> None:
    """A target that is the pair's own result, and an intermediate value behind it."""
    x = normal(2, 3)
    text = "q = QuantizeLinear (x, s, z)\n y = DequantizeLinear (q, s, z)"
    model = op_model(text, {"x": x}, constants={"s": np.float32(0.1), "z": np.int8(0)})
    found = run(gradient(model, ["x", "y"], adjoint="input", ste=True), {"x": x, "y_grad": x})
    np.testing.assert_array_equal(found["x_grad"], x)
    assert list(found) == ["y", "x_grad", "y_grad_2"]


def test_dynamic_quantisation() -> None:
    """Its range follows x, so nothing is clipped; scale and zero point depend on x too."""
    x = normal(3, 4)
    text = "q, s, z = DynamicQuantizeLinear (x)\n d = DequantizeLinear (q, s, z)\n y = Mul (d, c)"
    model = op_model(text, {"x": x}, constants={"c": np.float32(2)})
    found = run(gradient(model, adjoint="input", ste=True), {"x": x, "y_grad": np.ones_like(x)})
    ordinary = (x != x.max()) & (x != x.min())
    np.testing.assert_allclose(found["x_grad"][ordinary], 2, rtol=1e-6)


def test_different_scales_are_not_a_pair() -> None:
    x = normal(3)
    text = "q = QuantizeLinear (x, s, z)\n y = DequantizeLinear (q, t, z)"
    model = op_model(
        text, {"x": x}, constants={"s": np.float32(0.1), "t": np.float32(0.2), "z": np.int8(0)}
    )
    with pytest.raises(InputError, match="its integers go to DequantizeLinear, no DequantizeLin"):
        gradient(model, adjoint="input", ste=True)


def test_without_it_the_zero_is_explained() -> None:
    x = normal(3)
    model = op_model(
        PAIR.format("", ""), {"x": x}, constants={"s": np.float32(0.1), "z": np.int8(0)}
    )
    with pytest.warns(UserWarning, match=r"QuantizeLinear\(x, s, z\)' rounds; ste=True"):
        gradient(model, adjoint="input")


@pytest.mark.parametrize("ste", [False, True])
def test_weights_that_params_leaves_out_are_noted(
    ste: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, a quantised file would silently train the last bias alone."""
    text = f"""<ir_version: 10, opset_import: ["" : 20]> g (float[2,3] x) => (float l)
      <float s = {{0.1}}, int8 z = {{0}}, float[3,2] w = {{1, 2, 3, 4, 5, 6}}, float[2] b = {{1, 2}}> {{
      {PAIR.partition("y =")[0].format("", "").replace("(x, ", "(w, ")}
      p = MatMul (x, d) y = Add (p, b) l = ReduceSum <keepdims = 0> (y) }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    words = ["grad", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "g.onnx"), "--wrt", "params"]
    assert main([*words, "--no-verify", *["--ste"] * ste]) == 0
    note = "params leaves out 1 matrix before a QuantizeLinear, such as 'w': rounding passes no"
    assert (note in " ".join(capsys.readouterr().out.split())) != ste


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = normal(3)
    model = op_model(
        PAIR.format("", ""), {"x": x}, constants={"s": np.float32(0.1), "z": np.int8(0)}
    )
    onnx.save(model, tmp_path / "m.onnx")
    words = ["grad", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "g.onnx"), "--adjoint", "input"]
    assert main([*words, "--ste", "--json", str(tmp_path / "r.json")]) == 0
    assert "straight through 1 quantisation" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["check"] is None
    found = run(tmp_path / "g.onnx", {"x": x, "y_grad": np.ones_like(x)})
    np.testing.assert_allclose(
        found["x_grad"], 2 * np.round(x / np.float32(0.1)) * np.float32(0.1), rtol=1e-5
    )


CONSTANTS = {
    "xs": np.float32(0.02), "xz": np.uint8(128), "ws": np.float32(0.01), "wz": np.int8(0), "ys": np.float32(0.05),
    "yz": np.uint8(120), "vs": np.float32(0.1), "shape": np.array([2, -1]),
    "w": np.random.default_rng(0).integers(-100, 100, (4, 3, 3, 3)).astype(np.int8),
    "v": np.random.default_rng(1).integers(-100, 100, (64, 5)).astype(np.int8),
}  # fmt: skip
MOVES = "p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c) f = Reshape (p, shape)"
INTEGERS = f"""
    q = QuantizeLinear (x, xs, xz)
    c = QLinearConv <pads = [1, 1, 1, 1]> (q, xs, xz, w, ws, wz, ys, yz)
    {MOVES}
    m = QLinearMatMul (f, ys, yz, v, ws, wz, vs, yz)
    y = DequantizeLinear (m, vs, yz)"""
# the same as pairs, the moves on integers or on floats
PAIRS = """
    q = QuantizeLinear (x, xs, xz)
    xd = DequantizeLinear (q, xs, xz)
    wd = DequantizeLinear (w, ws, wz)
    vd = DequantizeLinear (v, ws, wz)
    k = Conv <pads = [1, 1, 1, 1]> (xd, wd)
    {between}
    mm = MatMul (fd, vd)
    m = QuantizeLinear (mm, vs, yz)
    y = DequantizeLinear (m, vs, yz)"""
ON_INTEGERS = f"c = QuantizeLinear (k, ys, yz) {MOVES} fd = DequantizeLinear (f, ys, yz)"
ON_FLOATS = (
    f"i = QuantizeLinear (k, ys, yz) c = DequantizeLinear (i, ys, yz) {MOVES} fd = Identity (f)"
)


def quantised(nodes: str) -> onnx.ModelProto:
    graph = onnx.parser.parse_graph(f"g (float[2,3,8,8] x) => (float[2,5] y) {{ {nodes} }}")
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(a), n) for n, a in CONSTANTS.items()
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


FEEDS = {"x": normal(2, 3, 8, 8), "y_grad": normal(2, 5)}


@pytest.mark.parametrize("ste", [False, True])
def test_the_note_says_which_pass_to_run(ste: bool) -> None:
    message = r"QLinearConv.* computes with integers: differentiate `optimize\(model, passes=\"legalize\"\)` with"
    told = pytest.raises(InputError, match=message) if ste else pytest.warns(match=message)
    with told:
        gradient(quantised(INTEGERS), ["x"], adjoint="input", ste=ste)
    with pytest.raises(InputError, match=message):
        gradient(quantised(INTEGERS), "params", adjoint="input", ste=ste)


def test_straight_through_after_legalize() -> None:
    legal = onnxgrad.optimize(quantised(INTEGERS), passes="legalize", verify=False)
    found = run(gradient(legal, ["x"], adjoint="input", ste=True), FEEDS)
    by_hand = run(
        gradient(quantised(PAIRS.format(between=ON_FLOATS)), ["x"], adjoint="input", ste=True),
        FEEDS,
    )
    np.testing.assert_allclose(found["x_grad"], by_hand["x_grad"], rtol=1e-4, atol=1e-5)
    assert np.count_nonzero(found["x_grad"]) > 50


def between_floats(name: str) -> onnx.ModelProto:
    """A case of `legalize` on integers that come from a float input, with a float result."""
    given, feeds = CASES[name]
    model = onnx.ModelProto()
    model.CopyFrom(given)
    graph = model.graph
    weights = {t.name for t in graph.initializer}
    kept = [n for n, v in feeds.items() if v.dtype in (np.uint8, np.int8)]
    inner, first = list(graph.node), []
    for value in [v for v in graph.input if v.name in kept]:
        scale, zero = f"s{value.name}", f"z{value.name}"
        if scale not in weights:
            graph.initializer.append(numpy_helper.from_array(np.float32(0.05), scale))
        operands = [f"{value.name}_float", scale, *([zero] if zero in weights else [])]
        kind = value.type.tensor_type.elem_type
        first.append(helper.make_node("QuantizeLinear", operands, [value.name]))
        if zero not in weights and kind != TensorProto.UINT8:
            raise AssertionError(f"{value.name} needs a zero point")
        value.name = operands[0]
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    out = graph.output[0]
    last = []
    if out.type.tensor_type.elem_type != TensorProto.FLOAT:
        last = [helper.make_node("DequantizeLinear", [out.name, "sy", "zy"], ["float_result"])]
        if "sy" not in weights:
            last = [helper.make_node("Cast", [out.name], ["float_result"], to=TensorProto.FLOAT)]
        out.name = "float_result"
        out.type.tensor_type.elem_type = TensorProto.FLOAT
    del graph.node[:], graph.output[1:]
    graph.node.extend([*first, *inner, *last])
    return model


@pytest.mark.parametrize("name", [n for n in CASES if "dynamic" not in n and "microsoft" not in n])
def test_after_legalize_straight_through_reaches_the_input_or_is_refused(name: str) -> None:
    """A gradient of zeros would train nothing, and say nothing."""
    model = between_floats(name)
    wrt = [v.name for v in model.graph.input if v.type.tensor_type.elem_type == TensorProto.FLOAT]
    legal = onnxgrad.optimize(model, passes="legalize", verify=False)
    try:
        graph = gradient(legal, wrt, "float_result", adjoint="input", ste=True)
    except InputError as error:
        assert "no gradient passes straight through" in str(error)
        assert name.startswith(("matmul integer", "conv integer"))
        return
    rng = np.random.default_rng(0)
    feeds = {}
    for v in graph.graph.input:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        kind = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        values = rng.standard_normal(shape)
        feeds[v.name] = values > 0 if kind == np.bool_ else values.astype(kind)
    found = run(graph, feeds)
    assert all(np.count_nonzero(found[f"{n}_grad"]) for n in wrt)


def test_integers_moved_about_between_the_roundings() -> None:
    """D(f(q)) = f(D(q)) for MaxPool and what moves elements: the same gradients as with the moves on floats."""
    graphs = [
        gradient(
            quantised(PAIRS.format(between=text)), ["x", "wd", "ys"], adjoint="input", ste=True
        )
        for text in (ON_INTEGERS, ON_FLOATS)
    ]
    assert not {n.domain for n in graphs[0].graph.node} - {""}
    found, expected = (run(graph, FEEDS) for graph in graphs)
    for name in ("x_grad", "wd_grad", "ys_grad", "y"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)
    assert np.count_nonzero(found["x_grad"]) > 50


def test_params_are_the_dequantised_weights() -> None:
    model = quantised(PAIRS.format(between=ON_INTEGERS))
    graph = gradient(model, "params", adjoint="input", ste=True)
    assert [v.name for v in graph.graph.output] == ["y", "wd_grad", "vd_grad"]
    with pytest.raises(InputError, match=r"'.*QuantizeLinear.*' rounds; ste=True passes"):
        gradient(model, "params", adjoint="input")
    weights_only = quantised("wd = DequantizeLinear (w, ws, wz) k = Conv <pads = [1, 1, 1, 1]> (x, wd) "
                             "h = GlobalAveragePool (k) y = Flatten (h)")  # fmt: skip
    weights_only.graph.output[0].type.CopyFrom(
        helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 4])
    )
    assert [v.name for v in gradient(weights_only, "params", adjoint="input").graph.output] == [
        "y",
        "wd_grad",
    ]


def test_the_true_stop_is_named() -> None:
    """Not a QuantizeLinear that passes straight through, but what stops behind it."""
    nodes = """q = QuantizeLinear (x, xs, xz) d = DequantizeLinear (q, xs, xz) r = Floor (d)
        h = ReduceMean <keepdims = 0> (r, axes) y = Concat <axis = 1> (h, h)"""
    model = quantised(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 3]), "axes"))
    model.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 6]))
    with pytest.warns(UserWarning, match=r"'r: f32\[2,3,8,8\] = Floor\(d\)' passes no gradient"):
        gradient(model, ["x"], adjoint="input", ste=True)
