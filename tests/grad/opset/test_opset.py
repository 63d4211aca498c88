"""onnxgrad/grad/opset/raising.py: older models mean the same after they were raised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxgrad
from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.grad.inlining import MAX_BINDINGS
from onnxgrad.grad.opset.converter_gaps import separate_names
from onnxgrad.ir.load import load
from onnxgrad.ir.save import save
from onnxgrad.ir.storage.external_data import outside
from tests.grad.numeric import check_model, normal, run


def test_slopes_per_channel_of_opset_6() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 6]> m (float[2,3,4,3] x, float[3] s) => (float[2,3,4,3] y) '
        "{ y = PRelu (x, s) }"
    )
    check_model(model, {"x": normal(2, 3, 4, 3), "s": normal(3, seed=1)}, onnxruntime=False)


def test_weights_below_ir_4_stay_constants() -> None:
    """They are listed as inputs there, and would become run-time operands: this Reshape would not type."""
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 11]> m (float[2,3] x, float[3,2] w, int64[1] shape) => (float[4] y) '
        "{ p = MatMul (x, w) y = Reshape (p, shape) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(normal(3, 2), "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "shape"))
    graph = gradient(model, "params", adjoint="input")
    assert [v.name for v in graph.graph.input] == ["x", "y_grad"]
    assert [v.name for v in graph.graph.output] == ["y", "w_grad"]
    feeds = {"x": normal(2, 3), "y_grad": normal(4, seed=1)}
    found = run(graph, feeds)
    np.testing.assert_allclose(
        found["w_grad"], feeds["x"].T @ feeds["y_grad"].reshape(2, 2), rtol=1e-5
    )


SCAN = (
    '<ir_version: 3, opset_import: ["" : 8]> m (float[2,2] a, float[2,3,1,2] x, int64[2] n) => (float[2,2] y, float[2,3,2] z) '
    "{{ y, z = Scan <num_scan_inputs = 1, directions = [{}], body = b (float[2] s, float[1,2] e) => (float[2] t, float[2] o) "
    "{{ f = Squeeze <axes = [0]> (e) p = Mul (s, f) t = Tanh (p) o = Sin (t) }}> ({}, a, x) }}"
)


@pytest.mark.parametrize("direction", [0, 1])
def test_the_batch_axis_of_scan_is_kept(direction: int) -> None:
    """onnx.version_converter drops it; the body is raised as well, and what the graph declares stays."""
    feeds = {"a": normal(2, 2), "x": normal(2, 3, 1, 2), "n": np.array([1, 2])}
    model = onnx.parser.parse_model(SCAN.format(direction, '""'))
    check_model(model, feeds, ["a", "x"], onnxruntime=True)
    graph = gradient(model, ["a"], 0, adjoint="input")
    assert list(graph.graph.input)[:2] == list(model.graph.input)[:2]
    assert list(graph.graph.output)[:2] == list(model.graph.output)


def test_a_batched_scan_with_lengths_is_refused() -> None:
    with pytest.raises(InputError, match="batch axis and lengths"):
        gradient(onnx.parser.parse_model(SCAN.format(0, "n")), "x", 0, adjoint="input")


def test_a_model_without_the_default_domain() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["ai.onnx.ml" : 1]> m (float[3,4] x, int64[2] at) => (float[3,2] y) '
        "{ y = ai.onnx.ml.ArrayFeatureExtractor (x, at) }"
    )
    graph = gradient(model, "x", adjoint="input")
    assert {o.domain: o.version for o in graph.opset_import} == {"": 18, "ai.onnx.ml": 1}
    assert onnxgrad.check_gradient(model, "x").ok
    check_model(model, {"x": normal(3, 4), "at": np.array([2, 0])}, ["x"])


# `f` takes an attribute, `h` calls it twice, `off` is not differentiated through; a call in a branch
FUNCTIONS = """<ir_version: 8, opset_import: ["" : {opset}, "my" : 1]>
m (float[2,3] x, float[2,3] u, bool c) => (float[2,3] y, float[2,3] z) {{
    a = my.h <slope = 0.25> (x)
    y = If (c) <then_branch = t () => (float[2,3] p) {{ p = my.f (a) }}, else_branch = e () => (float[2,3] q) {{ q = Sin (a) }}>
    z = my.off (u)
}}
<domain: "my", opset_import: ["" : {own}]> f <alpha: float = 0.5> (v) => (w) {{ k = LeakyRelu <alpha: float = @alpha> (v) w = Tanh (k) }}
<domain: "my", opset_import: ["" : {own}, "my" : 1]> h <slope> (v) => (w) {{ k = my.f <alpha: float = @slope> (v) l = my.f (k) w = Mul (l, v) }}
<domain: "my", opset_import: ["" : {own}]> off (v) => (w) {{ w = Exp (v) }}"""


@pytest.mark.parametrize(
    ("opset", "own"), [*((v, v) for v in range(13, 26)), (13, 15), (17, 15), (17, 19), (24, 22)]
)
def test_functions_stay_at_every_opset(opset: int, own: int) -> None:
    """onnx.version_converter drops them: the calls had no rule, or were written without their functions."""
    text = FUNCTIONS.format(opset=opset, own=own).replace(
        "LeakyRelu", "Elu" if own != opset else "LeakyRelu"
    )
    model = onnx.parser.parse_model(text)
    feeds = {"x": normal(2, 3), "u": normal(2, 3, seed=1), "c": np.array(True)}
    check_model(model, feeds, ["x"], target="y", seeds=(0,))
    graph = gradient(model, ["x"], "y", adjoint="input")
    calls = {n.op_type for n in graph.graph.node if n.domain == "my"}
    assert {f.name for f in graph.functions} >= calls >= {"off"}
    assert {o.domain: o.version for o in graph.opset_import}[""] == max(opset, 18)
    kept = next(f for f in graph.functions if f.name == "off")
    assert {o.domain: o.version for o in kept.opset_import}[""] == max(own, 18)
    asked = gradient(model, ["u"], "z", adjoint="input")
    assert {f.name for f in asked.functions} == {"f", "h"}
    found = run(asked, {**feeds, "z_grad": normal(2, 3, seed=2)})
    np.testing.assert_allclose(
        found["u_grad"], np.exp(feeds["u"]) * normal(2, 3, seed=2), rtol=1e-5
    )


CHANGED = """<ir_version: 8, opset_import: ["" : {opset}, "my" : 1]>
m (float[4,3] x, float[4,3] u) => (float[4,1] y, float[4,1] z) {{ y = my.h (x) z = my.h (u) }}
<domain: "my", opset_import: ["" : {opset}]> f <keep: int = 1> (v) => (w) {{ {body} }}
<domain: "my", opset_import: ["" : {opset}, "my" : 1]> h (v) => (w) {{ k = Tanh (v) w = my.f (k) }}
<domain: "my", opset_import: ["" : {opset}]> unused (v) => (w) {{ w = Tanh (v) }}"""


@pytest.mark.parametrize(
    ("opset", "body"),
    [
        *((v, "w = ReduceMean <axes = [1], keepdims: int = @keep> (v)") for v in range(13, 18)),
        (12, "s = Softmax <axis = 0> (v) w = ReduceSum <axes = [1]> (s)"),
        (13, "p, q, w = Split <axis = 1> (v)"),
    ],
)
def test_a_function_whose_operators_changed_is_opened(opset: int, body: str) -> None:
    model = onnx.parser.parse_model(CHANGED.format(opset=opset, body=body))
    feeds = {"x": normal(4, 3), "u": normal(4, 3, seed=1)}
    check_model(model, feeds, ["x"], target="y", seeds=(0,))
    graph = gradient(model, ["x"], "y", adjoint="input")
    assert [f.name for f in graph.functions] == ["unused"]
    before, after = run(model, feeds), run(graph, {**feeds, "y_grad": normal(4, 1)})
    for name in ("y", "z"):
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6)


@pytest.mark.parametrize("opset", [13, 21])
def test_a_bomb_of_calls_is_refused_before_it_is_opened(opset: int) -> None:
    calls = "".join(
        f'<domain: "my", opset_import: ["" : {opset}, "my" : 1]> f{i} (v) => (w) {{ k = my.f{i + 1} (v) w = my.f{i + 1} (k) }}\n'
        for i in range(20)
    )
    last = f'<domain: "my", opset_import: ["" : {opset}]> f20 (v) => (w) {{ w = Exp (v) }}'
    text = f'<ir_version: 8, opset_import: ["" : {opset}, "my" : 1]> m (float[2] x, float[2] u) => (float[2] y, float[2] z) '
    model = onnx.parser.parse_model(text + "{ y = my.f0 (x) z = Tanh (u) }" + calls + last)
    with pytest.raises(InputError, match=f"{2**20 + 1} nodes, more than {MAX_BINDINGS}"):
        gradient(model, ["x"], "y", adjoint="input")
    assert (
        len(gradient(model, ["u"], "z", adjoint="input").functions) == 21
    )  # what is not passed is not opened


def test_large_weights_in_external_files_stay_there(tmp_path: Path) -> None:
    """No conversion reads them, so that a model of any size can be raised; a small one beside them decides a shape."""
    text = "m (float[2,512] x) => (float loss) { p = MatMul (x, w) q = Reshape (p, s) loss = ReduceSum <keepdims = 0> (q) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 11]> {text}')
    model.graph.initializer.append(numpy_helper.from_array(normal(512, 256), "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([4, 128]), "s"))
    inside = gradient(model, "params")
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    (tmp_path / "out").mkdir()
    program = gradient(load(tmp_path / "m.onnx"), "params")
    assert "w" in [t.name for t in outside(program.proto)] and program.opset == 18
    save(program, tmp_path / "out" / "g.onnx")
    again = onnx.load(tmp_path / "out" / "g.onnx")
    assert [v.name for v in again.graph.input] == ["x"]
    feeds = {"x": normal(2, 512)}
    for name, value in run(inside, feeds).items():
        np.testing.assert_array_equal(run(again, feeds)[name], value)


def test_names_made_for_a_branch_are_not_those_outside() -> None:
    """onnx.version_converter counts anew in a nested graph, so that two Constants had one name and nothing loaded."""
    graph = onnx.parser.parse_graph(
        """m (float[3] x, bool c) => (float[3] y) {
        v = Sin (x)
        q = If (c) <
            then_branch = t () => (float[3] v) { v = Cos (x) },
            else_branch = e () => (float[3] o) { n = Exp (x) o = If (c) <
                then_branch = t2 () => (float[3] w) { n = Tanh (x) w = Neg (n) },
                else_branch = e2 () => (float[3] r) { r = Neg (n) }> }>
        y = Mul (q, v) }"""
    )
    separate_names(graph)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = normal(3)
    found = {taken: run(model, {"x": x, "c": np.array(taken)})["y"] for taken in (True, False)}
    np.testing.assert_allclose(found[True], np.sin(x) * np.cos(x), rtol=1e-5)
    np.testing.assert_allclose(found[False], -np.sin(x) * np.exp(x), rtol=1e-5)
