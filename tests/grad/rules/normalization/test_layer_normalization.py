"""onnxgrad/grad/rules/normalization/layer_normalization.py"""

import pytest

from tests.grad.numeric import check_op, normal, positive


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax(name: str, axis: int) -> None:
    check_op(f"y = {name} <axis = {axis}> (x)", {"x": normal(2, 3, 4)})


def test_layer_normalization() -> None:
    check_op(
        "y = LayerNormalization (x, s, b)",
        {"x": normal(2, 3, 4), "s": normal(4), "b": normal(4, seed=1)},
    )
    check_op("y = LayerNormalization (x, s)", {"x": normal(2, 3, 4), "s": normal(1)})


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (1, 4), (2, 3, 1)])
@pytest.mark.parametrize("wrt", [["x"], ["s"], ["x", "s", "b"]])
def test_layer_normalization_by_products(shape: tuple[int, ...], wrt: list[str]) -> None:
    feeds = {"x": normal(*shape), "s": normal(shape[-1]), "b": normal(shape[-1], seed=1)}
    check_op("y = LayerNormalization (x, s, b)", feeds, wrt)
    check_op("y = LayerNormalization (x, s, b)", feeds, wrt, symbolic=True)
    check_op("y, m, i = LayerNormalization (x, s, b)", feeds, wrt)


def test_layer_normalization_with_all_outputs() -> None:
    feeds = {"x": normal(2, 3, 4), "s": normal(3, 4), "b": normal(3, 4, seed=1)}
    check_op("y, m, i = LayerNormalization <axis = 1> (x, s, b)", feeds)
    check_op("y, m, i = LayerNormalization <axis = 1> (x, s, b)", feeds, ["x"], outputs=["m", "i"])


def statistics() -> dict[str, object]:
    return {"s": positive(3), "b": normal(3), "m": normal(3, seed=1), "v": positive(3, seed=1)}


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 2, 5)])
def test_batch_normalization(shape: tuple[int, ...]) -> None:
    check_op("y = BatchNormalization (x, s, b, m, v)", {"x": normal(*shape), **statistics()})


def test_batch_normalization_in_training() -> None:
    node = "y, rm, rv = BatchNormalization <training_mode = 1, momentum = 0.7> (x, s, b, m, v)"
    check_op(node, {"x": normal(4, 3, 2, 5), **statistics()})
    check_op(node, {"x": normal(4, 3, 2, 5), **statistics()}, ["x", "s", "b"], outputs=["y"])


def test_instance_normalization() -> None:
    check_op(
        "y = InstanceNormalization (x, s, b)",
        {"x": normal(4, 3, 2, 5), "s": positive(3), "b": normal(3)},
    )
