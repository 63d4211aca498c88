"""What stands for a random node has the node's distribution."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.verify.draws import same_draws
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.subject import subject
from tests.helpers import parse

TEXT = "g (float[200,200] x) => (%s y) <float r = {0.3}, bool t = {1}> { y = %s }"
ONES = {"x": np.ones((200, 200), np.float32)}


@pytest.mark.parametrize(
    ("node", "kind", "mean", "deviation"),
    [
        ("RandomNormalLike (x)", "float[200,200]", 0.0, 1.0),
        (
            "RandomNormal <mean = 2.0, scale = 3.0, shape = [200, 200]> ()",
            "float[200,200]",
            2.0,
            3.0,
        ),
        ("RandomUniformLike <low = -1.0, high = 3.0> (x)", "float[200,200]", 1.0, 4 / 12**0.5),
        ("RandomNormalLike <dtype = 11> (x)", "double[200,200]", 0.0, 1.0),
        ("RandomUniformLike <dtype = 10> (x)", "float16[200,200]", 0.5, 12**-0.5),
        ("Dropout (x, r, t)", "float[200,200]", 1.0, (0.3 / 0.7) ** 0.5),
    ],
)
def test_mean_and_deviation(node: str, kind: str, mean: float, deviation: float) -> None:
    model = subject(parse(TEXT % (kind, node)))
    made = same_draws(model, model).original
    assert not any("Random" in n.op_type or n.op_type == "Dropout" for n in made.proto.graph.node)
    found = np.asarray(reference(made.proto, ONES)["y"], np.float64)
    assert found.shape == (200, 200)
    assert found.mean() == pytest.approx(mean, abs=0.03 * max(deviation, 1))
    assert found.std() == pytest.approx(deviation, rel=0.03)


@pytest.mark.parametrize("chance", [0.0, 0.2, 1.0])
def test_bernoulli_is_1_as_often_as_its_operand_says(chance: float) -> None:
    model = subject(parse(TEXT % ("float[200,200]", "Bernoulli (x)")))
    feeds = {"x": np.full((200, 200), chance, np.float32)}
    found = np.asarray(reference(same_draws(model, model).original.proto, feeds)["y"])
    assert set(np.unique(found)) <= {0.0, 1.0}
    assert found.mean() == pytest.approx(chance, abs=0.01)


def test_an_empty_shape_draws_nothing_and_a_scalar_one() -> None:
    model = subject(parse("g (float[a,b] x) => (float[a,b] y) { y = RandomNormalLike (x) }"))
    made = same_draws(model, model).original.proto
    for shape in ((0, 3), (3, 0)):
        assert np.asarray(reference(made, {"x": np.zeros(shape, np.float32)})["y"]).shape == shape
    model = subject(parse("g (float x) => (float y) { y = RandomNormalLike (x) }"))
    made = same_draws(model, model).original.proto
    assert np.asarray(reference(made, {"x": np.float32(0)})["y"]).shape == ()


def test_multinomial_draws_classes_as_often_as_their_logits_say() -> None:
    text = "g (float[50,2] x) => (int64[50,80] y) { y = Multinomial <sample_size = 80, dtype = 7> (x) }"
    model = subject(parse(text))
    feeds = {"x": np.log(np.tile(np.float32([0.25, 0.75]), (50, 1)))}
    found = np.asarray(reference(same_draws(model, model).original.proto, feeds)["y"])
    assert set(np.unique(found)) == {0, 1} and found.mean() == pytest.approx(0.75, abs=0.02)
