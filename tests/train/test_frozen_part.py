"""A model in two: what a step may leave out, and what it may not be asked for then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import Trainer, load, training_step
from onnxgrad.errors import InputError
from onnxgrad.train import SGD, AdamW, CrossEntropy, accuracy, features
from onnxgrad.train.frozen_part import cut, first_part
from tests.helpers import parse
from tests.train.common import TWO, arrays, classifier, examples, two_paths, write_model


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
    with pytest.raises(InputError, match=r"'w1' is read before 'h' too, .* exclude it from wrt"):
        training_step(two_paths(text), CrossEntropy("y"), SGD(), inputs_at="h")
    what = ["params", "!w1"]
    step = training_step(two_paths(text), CrossEntropy("y"), SGD(), what, inputs_at="h")
    assert {f.name for f in step.manifest.of_role("parameter")} == {"w2"}


@pytest.mark.parametrize("wrt", ["w1", ["params", "w1"], "w2,w1"])
def test_a_weight_that_is_frozen_cannot_be_asked_for(wrt: Any) -> None:
    with pytest.raises(InputError, match="wrt 'w1' comes before 'h' and is not part of the step"):
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
        ("nothing", "inputs_at 'nothing' is not a value of the model"),
        ("x", "inputs_at 'x' is an input or weight: name a tensor that the model computes"),
        ("w1", "inputs_at 'w1' is an input or weight"),
        ("y", "no node of the model comes after 'y', so there is no loss"),
        (["t", "c", "s"], "'t' is read only before the others: leave it out"),
        ([], "inputs_at names no value"),
    ],
)
def test_where_a_model_cannot_be_cut(at: Any, words: str) -> None:
    one = two_paths(TWO.replace(", float[N, 3] aside, float[N, 3] h", ""))
    model = one if isinstance(at, list) else two_paths()
    with pytest.raises(InputError, match=words):
        cut(load(model), at)


HEAD = ["w2", "b2"]


@pytest.mark.parametrize("at", ["h2", ["h2"], "h"])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1, "accumulate": 2, "average": 0.9}])
def test_the_head_learns_what_it_learns_in_the_whole_model(
    at: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    data, held_out = examples(96), examples(32, seed=2)
    wrt = HEAD if at != "h" else ["b1", *HEAD]
    whole = Trainer(training_step(classifier(), CrossEntropy(), AdamW(), wrt, **options), 0.01)
    step = training_step(classifier(), CrossEntropy(), AdamW(), inputs_at=at, **options)
    name = at if isinstance(at, str) else at[0]
    assert [f.name for f in step.manifest.of_role("batch")] == [name, "labels"]
    assert [f.name for f in step.manifest.of_role("parameter")] == wrt
    for program in (step.train, step.evaluation):
        names = {v.name for v in program.main.vars()}
        assert not names & {"x", "w1", *(["b1", "h1"] if at != "h" else [])}
    rest = Trainer(step, 0.01)
    found = features(classifier(), at, data, batch_size=20)
    assert set(found) == {name, "labels"}
    one = whole.fit(data, epochs=3).losses
    two = rest.fit(found, epochs=3).losses
    np.testing.assert_allclose(two, one, rtol=1e-5)
    metrics = {"accuracy": accuracy()}
    told = rest.evaluate(features(classifier(), at, held_out), metrics=metrics)
    assert told == pytest.approx(whole.evaluate(held_out, metrics=metrics), rel=1e-5)
    # the trained weights come back into the whole model
    a, b = whole.export(classifier()), rest.export(classifier())
    assert a.graph.node == b.graph.node
    for x, y in zip(a.graph.initializer, b.graph.initializer, strict=True):
        np.testing.assert_allclose(*map(onnx.numpy_helper.to_array, (x, y)), rtol=1e-4, atol=1e-6)


def test_an_input_that_is_read_behind_the_cut_stays() -> None:
    loss = CrossEntropy("y")
    step = training_step(two_paths(), loss, SGD(), inputs_at="h")
    assert {f.name for f in step.manifest.of_role("batch")} == {"mask", "h", "labels"}
    assert {f.name for f in step.manifest.of_role("parameter")} == {"w2", "w3"}
    assert [v.name for v in step.evaluation.main.outputs][:2] == ["y", "loss"]
    found = features(two_paths(), "h", arrays())
    assert set(found) == {"mask", "h", "labels"}
    whole = Trainer(training_step(two_paths(), loss, SGD(), ["w2", "w3"]), 0.1)
    rest = Trainer(step, 0.1)
    for _ in range(3):
        assert rest.step(found) == pytest.approx(whole.step(arrays()), rel=1e-6)
    for name, value in whole.parameters.items():
        np.testing.assert_allclose(rest.parameters[name], value, rtol=1e-5)


def test_several_values_at_once() -> None:
    found = features(two_paths(), ["s", "c"], arrays(), batch_size=4)
    assert set(found) == {"s", "c", "labels"}
    step = training_step(two_paths(), CrossEntropy("y"), SGD(), inputs_at=["s", "c"])
    assert {f.name for f in step.manifest.of_role("batch")} == {"s", "c", "labels"}
    assert {f.name for f in step.manifest.of_role("parameter")} == {"w2"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "the batch lacks 'x'"),
        ({"x": np.zeros((3, 4), np.float32)}, "the batch lacks 'mask'"),
        ({**arrays(), "x": np.zeros((10, 5), np.float32)}, "'x' of the batch has shape"),
        ({**arrays(), "x": np.zeros((9, 4), np.float32)}, "need the same number of examples"),
    ],
)
def test_data_that_does_not_fit(data: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        features(two_paths(), "h", data)


def test_a_value_without_a_row_for_each_example() -> None:
    model = parse("g (float[N, 4] x) => (float[4] y) { s = ReduceMean <axes = [0], keepdims = 0> (x)"
                  " y = Tanh (s) }", opset=17)  # fmt: skip
    with pytest.raises(InputError, match=r"'s' has shape \[4\] for 10 examples"):
        features(model, "s", {"x": arrays()["x"]})


def test_from_a_file_and_as_one_file(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    np.savez(tmp_path / "data.npz", **examples(40))
    found = features(path, "h2", tmp_path / "data.npz")
    np.testing.assert_array_equal(found["h2"], features(classifier(), "h2", examples(40))["h2"])
    step = training_step(path, CrossEntropy(), inputs_at="h2")
    with pytest.raises(InputError, match="input 'h2' is computed by the model"):
        onnxgrad.train.with_training_info(path, step)
