"""onnxgrad/grad/targets.py: parts of values as targets, against numpy and differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import check_gradient, gradient
from onnxgrad.errors import InputError
from onnxgrad.grad import differentiate
from onnxgrad.ir.load import load
from onnxgrad.verify.running.session import run
from tests.helpers import parse

TEXT = "g (float[2,3,4] x) => (float[2,3,4] y, int64[3] s) { y = Mul (x, x) s = Shape (x) }"
X = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4) / 8
PARTS = [
    "y[0]", "y[-1]", "y[:,2]", "y[1, 2, 3]", "y[...,-1]", "y[0,...,1:3]", "y[:, ::2]", "y[::-1, -2:]", "y[1:, :-1, 3:0:-2]",
    "y[:]", "y[...]", "y[-2:2]", "y[0:1]", "0[1]", "y[ 1 , : , 0 ]", "y[-1:]", "y[:5, 1:99]",
]  # fmt: skip


def index(part: str) -> Any:
    return eval(f"np.s_{part[1:]}", {"np": np})  # of this file's own text


@pytest.mark.parametrize("part", PARTS)
def test_the_gradient_of_the_sum_of_a_part(part: str) -> None:
    graph = gradient(parse(TEXT), "x", part)
    onnx.checker.check_model(graph, full_check=True)
    expected = np.zeros_like(X)
    expected[index(part)] = 2 * X[index(part)]
    np.testing.assert_array_equal(run(graph, {"x": X})["x_grad"], expected)
    assert [v.name for v in graph.graph.output] == ["y", "s", "x_grad"]


@pytest.mark.parametrize("part", PARTS)
def test_its_adjoint_is_an_input_of_its_shape(part: str) -> None:
    found = differentiate(load(parse(TEXT)), "x", part, adjoint="input")
    assert found.seeds == {part: "y_slice_grad"} and found.targets == (part,)
    seed = next(v for v in found.program.main.inputs if v.name == "y_slice_grad")
    assert seed.shape == X[index(part)].shape


@pytest.mark.parametrize("part", PARTS)
def test_against_differences(part: str) -> None:
    assert check_gradient(parse(TEXT), "x", part).ok


def test_a_class_of_a_batch_of_unknown_size() -> None:
    """The sum over the batch: one gradient for each sample, as samples do not mix."""
    text = """g (float[N,3] x) => (float[N,4] logits) <float[3,4] w = {1,2,3,4,5,6,7,8,9,1,2,3}> { logits = MatMul (x, w) }"""
    found = differentiate(load(parse(text)), "x", "logits[:,1]")
    assert found.notes == ("target 'logits[:,1]' is f32[N]: the gradient is that of its sum",)
    graph = gradient(parse(text), "x", "logits[:,1]")
    for n in (1, 5):
        x = np.ones((n, 3), np.float32)
        np.testing.assert_array_equal(run(graph, {"x": x})["x_grad"], np.tile([2, 6, 1], (n, 1)))
    assert check_gradient(parse(text), "x", "logits[:,1]").ok
    assert check_gradient(parse(text), "x", "logits[-1]").ok


def test_several_parts_add_up() -> None:
    found = run(gradient(parse(TEXT), "x", ["y[0,0,0]", "y[0,0,0]", "y[1]"]), {"x": X})["x_grad"]
    expected = np.zeros_like(X)
    expected[1] = 2 * X[1]
    expected[0, 0, 0] = 4 * X[0, 0, 0]
    np.testing.assert_array_equal(found, expected)


def test_a_part_of_a_value_between_and_a_scalar_beside_it() -> None:
    text = "g (float[4] x) => (float s) { h = Exp (x) s = ReduceSum <keepdims = 0> (h) }"
    found = run(gradient(parse(text), "x", ["s", "h[2]"]), {"x": np.zeros(4, np.float32)})
    np.testing.assert_array_equal(found["x_grad"], [1, 1, 2, 1])


def test_globs_do_not_mean_what_was_cut_out() -> None:
    assert list(differentiate(load(parse(TEXT)), "y*", "y[0]").adjoints) == ["y"]
    assert [v.name for v in check_gradient(parse(TEXT), "y*", "y[0]").values] == ["y"]


def test_a_name_with_brackets_is_a_name() -> None:
    model = parse("g (float x) => (float y) { y = Sin (x) }")
    model.graph.output[0].name = model.graph.node[0].output[0] = "y[0]"
    assert [v.name for v in gradient(model, "x", "y[0]").graph.output] == ["y[0]", "x_grad"]


def test_an_old_opset() -> None:
    """Slice had its bounds as attributes then."""
    model = parse("g (float[3] x) => (float[3] y) { y = Sin (x) }", opset=9)
    assert check_gradient(model, "x", "y[1:]").ok


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("y[2]", "axis 0 of 'y: f32\\[2,3,4\\]' has no such element"),
        ("y[-3]", "axis 0 of .* has no such element"),
        ("y[:,1:1]", "axis 1 of .* has no such element"),
        ("y[0,0,0,0]", "has 4 places, and 'y' is f32\\[2,3,4\\]"),
        ("y[0,0,0,...,0]", "has 5 places"),
        ("y[...,...]", "more than one"),
        ("y[a]", "'a' is not a place along an axis"),
        ("y[]", "'' is not a place along an axis"),
        ("y[1.5]", "'1.5' is not a place"),
        ("y[0,]", "'' is not a place"),
        ("y[1:2:3:4]", "'1:2:3:4' is not a place"),
        ("y[::0]", "step of '::0' is 0"),
        ("y[" + "9" * 30 + "]", "is not a place"),
        ("z[0]", "'z' is not a value of the model"),
        ("7[0]", "target index 7 is out of range"),
        ("s[0]", "is of i64\\[3\\], not of a floating-point tensor"),
        ("y[0", "'y\\[0' is not a value of the model"),
    ],
)
def test_bad_parts(part: str, message: str) -> None:
    for attempt in (gradient, check_gradient):
        with pytest.raises(InputError, match=message) as e:
            attempt(parse(TEXT), "x", part)
        assert "\n" not in str(e.value)
