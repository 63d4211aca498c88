"""The root mean square normalisation by a division, which onnxruntime fuses with its scale."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.rewriting import apply, assert_same_results, model_of

PASSES = "divide-by-root,remove-unused"
AXES = {"-1": "-1", "2": "2"}


def text(
    *,
    opset: int = 20,
    axes: str = "-1",
    root: str = "i = Reciprocal(s)",
    power: float = 2.0,
    order: str = "x, i",
    keepdims: int = 1,
    more: str = "y = Mul(g, n)",
    results: str = "float[N,3,8] y",
    mean_of: str = "x",
) -> str:
    mean = (
        f"m = ReduceMean<axes = [{axes}], keepdims = {keepdims}>(p)"
        if opset < 18
        else f"m = ReduceMean<keepdims = {keepdims}>(p, a)"
    )
    given = "" if opset < 18 else f", int64[1] a = {{{axes}}}"
    return f"""g (float[N,3,8] x, float[N,3,8] z) => ({results})
        <float two = {{{power}}}, float e = {{0.001}}, float one = {{1.0}}{given}> {{
          p = Pow({mean_of}, two) {mean} v = Add(m, e) s = Sqrt(v) {root} n = Mul({order}) {more}
        }}"""


def done(**options: object):  # type: ignore[no-untyped-def]
    opset = int(str(options.get("opset", 20)))
    scale = {"g": np.linspace(0.5, 2, 8).astype(np.float32)}
    return apply(model_of(text(**options), scale, opset=opset), PASSES)  # type: ignore[arg-type]


@pytest.mark.covering(2)
@pytest.mark.parametrize("opset", [13, 14, 17, 18, 20, 21])
@pytest.mark.parametrize("axes", ["-1", "2"])
@pytest.mark.parametrize("order", ["x, i", "i, x"])
@pytest.mark.parametrize("root", ["i = Reciprocal(s)", "i = Div(one, s)"])
def test_divided(opset: int, axes: str, order: str, root: str) -> None:
    found = done(opset=opset, axes=axes, order=order, root=root)
    assert found.ops == ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]
    assert_same_results(found)


def test_onnxruntime_knows_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("fused") / "fused.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(
        done().after.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    assert [n.op_type for n in onnx.load(target).graph.node] == ["SimplifiedLayerNormalization"]


LEFT = {
    "no scale follows": {"more": "y = Neg(n)"},
    "it is an output": {"more": "y = Mul(g, n)", "results": "float[N,3,8] y, float[N,3,8] n"},
    "another axis": {"axes": "1"},
    "another power": {"power": 3.0},
    "the mean of something else": {"mean_of": "z"},
    "the reciprocal is read elsewhere": {
        "more": "y = Mul(g, n) w = Neg(i)",
        "results": "float[N,3,8] y, float[N,3,1] w",
    },
    "the root is read elsewhere": {
        "more": "y = Mul(g, n) w = Neg(s)",
        "results": "float[N,3,8] y, float[N,3,1] w",
    },
}


@pytest.mark.parametrize("why", LEFT)
def test_left_alone(why: str) -> None:
    found = done(**LEFT[why])
    assert "Reciprocal" in found.ops and "Div" not in found.ops


@pytest.mark.parametrize("made", ["r = Div(one, z)", "r = Reciprocal(z)"])
@pytest.mark.parametrize(
    ("z", "left"),
    [("N,3", ["Div"]), ("1,3", ["", "Mul"]), ("3", ["", "Mul"]), ("N,1", ["", "Mul"])],
)
def test_a_reciprocal_of_equal_shape_is_a_division(made: str, z: str, left: list[str]) -> None:
    """A smaller divisor stays: it is fewer divisions."""
    text = f"""g (float[N,3] x, float[{z}] z) => (float[N,3] o) <float one = {{1}}> {{
        {made} o = Mul(r, x) }}"""
    done = apply(model_of(text), PASSES)
    assert done.ops == [op or made.split()[2].partition("(")[0] for op in left]
    assert_same_results(done)


def test_a_reciprocal_that_is_read_elsewhere_stays() -> None:
    text = (
        "g (float[3] x, float[3] z) => (float[3] o, float[3] r) { r = Reciprocal(z) o = Mul(x, r) }"
    )
    assert apply(text, PASSES).ops == ["Reciprocal", "Mul"]
