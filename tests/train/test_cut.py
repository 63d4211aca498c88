"""A model in two: what a step may leave out, and what it may not be asked for then."""

from __future__ import annotations

from typing import Any

import pytest

from onnxgrad import load, training_step
from onnxgrad.errors import InputError
from onnxgrad.train import SGD, CrossEntropy
from onnxgrad.train.cut import cut, first_part
from tests.helpers import parse
from tests.train.common import TWO, two_paths


def test_both_parts_are_whole_programs() -> None:
    first, rest = load(two_paths()), load(two_paths())
    first_part(first, ["h", "aside"])
    cut(rest, "h")
    for program in (first, rest):
        program.main.check()
    assert [v.name for v in first.main.inputs] == ["x", "mask"]
    assert [v.name for v in first.main.outputs] == ["h", "aside"]
    assert list(first.main.initializers) == ["w1"]
    assert [v.name for v in rest.main.inputs] == ["mask", "h"]
    assert [v.name for v in rest.main.outputs] == ["y"]
    assert sorted(rest.main.initializers) == ["w2", "w3"]


def test_a_weight_on_both_sides_is_not_trained_by_halves() -> None:
    text = TWO.replace("MatMul (mask, w3)", "MatMul (mask, w1)")
    with pytest.raises(InputError, match=r"'w1' is read before 'h' too, .* leave it out of wrt"):
        training_step(two_paths(text), CrossEntropy("y"), SGD(), inputs_at="h")
    what = ["params", "!w1"]
    step = training_step(two_paths(text), CrossEntropy("y"), SGD(), what, inputs_at="h")
    assert {f.name for f in step.manifest.of_role("parameter")} == {"w2"}


@pytest.mark.parametrize("wrt", ["w1", ["params", "w1"], "w2,w1"])
def test_a_weight_that_is_frozen_cannot_be_asked_for(wrt: Any) -> None:
    with pytest.raises(InputError, match="wrt 'w1' comes before 'h' and is no part of the step"):
        training_step(two_paths(), CrossEntropy("y"), SGD(), wrt, inputs_at="h")


NESTED = """g (float[N, 2] x, bool c) => (float[N, 2] y) {
    w = Constant <value = float[2] {1, 2}> ()
    h = If (c) <
      then_branch = a () => (float[N, 2] p) { v = Constant <value = float[2] {3, 4}> ()
        q = Mul (x, w) p = Add (q, v) },
      else_branch = b () => (float[N, 2] r) { r = Neg (x) }>
    k = Mul (h, w)  u = Constant <value = float[2] {5, 6}> ()  y = Mul (k, u)
}"""


def test_what_a_branch_reads_comes_before_too() -> None:
    with pytest.raises(InputError, match="'w' is read before 'h' too"):
        training_step(parse(NESTED), "mse", SGD(), ["w", "u"], inputs_at="h")
    step = training_step(parse(NESTED), "mse", SGD(), ["u"], inputs_at="h")
    assert [f.name for f in step.manifest.of_role("batch")] == ["h", "target"]


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("nothing", "inputs_at 'nothing' is no value of the model"),
        ("x", "inputs_at 'x' is an input or weight: name a tensor that the model computes"),
        ("w1", "inputs_at 'w1' is an input or weight"),
        ("y", "nothing of the model comes behind 'y': there is no loss"),
        (["t", "c", "s"], "'t' is read only before the others: leave it out"),
        ([], "inputs_at names no value"),
    ],
)
def test_where_a_model_cannot_be_cut(at: Any, words: str) -> None:
    one = two_paths(TWO.replace(", float[N, 3] aside, float[N, 3] h", ""))
    model = one if isinstance(at, list) else two_paths()
    with pytest.raises(InputError, match=words):
        cut(load(model), at)
