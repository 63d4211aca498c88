from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.reference.moved_constants import MovedConstants, Roundings
from tests.helpers import parse

THIRD = Roundings(np.array([0.3]), np.array([1e-3]))


def moved(text: str, x: float, *, seed: int = 0, rounded: Roundings = THIRD) -> float:
    model = parse(text)
    for tensor in model.graph.initializer:  # 0.3 itself, not its float32
        tensor.CopyFrom(tensor.__class__(name=tensor.name, data_type=11, double_data=[0.3]))
    feeds = {"x": np.array(x)}
    usual = Reference(model).run(feeds)["y"]
    other = Reference(model).run(feeds, rounded=rounded, seed=seed)["y"]
    return float(np.asarray(other - usual))


@pytest.mark.parametrize(
    "body",
    [
        "<float k = {1}> { y = Mul (x, k) }",
        "<float k = {1}, bool c = {1}> { y = If (c) <then_branch = t () => (float u) { u = Mul (x, k) }, else_branch = e () => (float v) { v = Neg (x) }> }",
    ],
)
def test_a_rounded_constant_moves_by_its_unit(body: str) -> None:
    assert moved(f"g (float x) => (float y) {body}", 2.0) == pytest.approx(0.6e-3)
    assert abs(moved(f"g (float x) => (float y) {body}", 2.0, seed=3)) == pytest.approx(0.6e-3)
    others = Roundings(np.array([0.4]), np.array([1e-3]))
    assert moved(f"g (float x) => (float y) {body}", 2.0, rounded=others) == 0.0


@pytest.mark.parametrize("operator", ["LeakyRelu", "Elu"])
def test_attributes_move_in_kernels_of_both_kinds(operator: str) -> None:
    alpha = float(np.float32(0.3))
    rounded = Roundings(np.array([alpha]), np.array([1e-3]))
    text = f"g (float x) => (float y) {{ y = {operator} <alpha = 0.3> (x) }}"
    assert moved(text, -2.0, rounded=rounded) != 0.0
    assert moved(text, 2.0, rounded=rounded) == 0.0


def test_a_constant_is_the_same_in_every_turn_of_a_loop() -> None:
    text = """g (float x) => (float y) <int64 n = {4}, bool c = {1}, float z = {0}> {
      y = Loop (n, c, z) <body = b (int64 i, bool d, float s) => (bool e, float t) {
        e = Identity (d) k = Constant <value_float = 0.3> () m = Mul (x, k) t = Add (s, m) }> }"""
    alpha = float(np.float32(0.3))
    model, feeds = parse(text), {"x": np.array(1.0)}
    rounded = Roundings(np.array([alpha]), np.array([1e-3]))
    sums = [Reference(model).run(feeds, rounded=rounded, seed=s)["y"] for s in range(6)]
    steps = {round(float(np.asarray(y)) / (4 * alpha) - 1, 6) for y in sums}
    assert steps == {1e-3, -1e-3}


def test_small_elements_move_by_the_unit_of_the_usual_size() -> None:
    constants = Roundings(np.array([1e-6, 1.0]), np.array([1e-3, 1e-3]))
    found = MovedConstants(constants, 0).each({"w": np.array([1.0, 1e-6, 5.0])}, None)["w"]
    size = np.sqrt((1 + 1e-12) / 3)
    assert found == pytest.approx([1.001, 1e-6 + 1e-3 * size, 5.0])


@pytest.mark.parametrize("seed", [0, 1])
def test_results_that_are_computed_constants_move_once(seed: int) -> None:
    text = (
        "g (float x) => (float y) <float k = {0.3}> { s = Sqrt (k) t = Mul (x, s) y = Add (t, s) }"
    )
    rounded = Roundings(np.zeros(0), np.zeros(0), {"s": 1e-3})
    found = moved(text, 2.0, seed=seed, rounded=rounded)
    assert abs(found) == pytest.approx(3e-3 * 0.3**0.5) and (seed or found > 0)
    assert rounded and not Roundings(np.zeros(0), np.zeros(0))
