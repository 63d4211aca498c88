"""Where losses are emitted, how they add up, what they accept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxgrad import op
from onnxgrad.errors import InputError
from onnxgrad.ir.var import Var
from onnxgrad.train.losses import MSE, CrossEntropy, Custom, Output, Place, Sum
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.train.losses.common import found, labels_of, through, with_loss


def test_a_sum_is_the_weighted_sum_of_its_terms() -> None:
    z, labels = np.random.default_rng(0).standard_normal((4, 3)), np.array([0, 2, 1, 1])
    feeds = {"labels": labels, "target": z[::-1].copy()}
    a, da = found(CrossEntropy(), {"z": z}, {"labels": labels})
    b, db = found(MSE(), {"z": z}, {"target": feeds["target"]})
    both, gradient = found(2 * CrossEntropy() + MSE() * 0.5 + 0.25 * MSE(), {"z": z}, feeds)
    np.testing.assert_allclose(both, 2 * a + 0.75 * b, rtol=1e-12)
    np.testing.assert_allclose(gradient["z"], 2 * da["z"] + 0.75 * db["z"], rtol=1e-12)


def test_terms_of_two_precisions_add_up_in_the_wider_one() -> None:
    model = parse(
        "g (float16[N] a, double[N] b) => (float16[N] x, double[N] y) { x = Identity (a) y = Identity (b) }"
    )
    loss = MSE("x", "t") + MSE("y", "u")
    graph = with_loss(model, loss)
    assert labels_of(graph) == {"a": "f16[N]", "b": "f64[N]", "t": "f32[N]", "u": "f64[N]"}
    feeds = {
        "a": np.ones(2, np.float16),
        "b": np.ones(2),
        "t": np.zeros(2, np.float32),
        "u": np.full(2, 3.0),
    }
    ((value,),) = (list(run(graph, feeds).values()),)
    assert value.dtype == np.float64
    assert value == 5.0


def test_a_scalar_and_a_function() -> None:
    model = parse(
        "g (float[N, 3] z) => (float[N, 3] y, float l) { y = Exp (z) l = ReduceMax <keepdims = 0> (y) }"
    )
    feeds = {"z": np.zeros((2, 3), np.float32)}
    assert list(run(with_loss(model, Output("l")), feeds).values()) == [1.0]
    own = Custom(lambda v: op.ReduceSum(v["y"], keepdims=0))
    assert list(run(with_loss(model, own + 2 * Output("l")), feeds).values()) == [8.0]
    one = parse(
        "g (float[3] z) => (float[1, 1] y) { r = ReduceSum (z) a = Constant <value_ints = [0]> () y = Unsqueeze (r, a) }"
    )
    assert list(run(with_loss(one, Output()), {"z": np.ones(3, np.float32)}).values()) == [3.0]
    with pytest.raises(
        InputError, match=r"'y' is f32.N,3., not a scalar: .* loss=\"cross_entropy\""
    ):
        with_loss(model, Output("y"))
    with pytest.raises(InputError, match=r"returned 3"):
        with_loss(model, Custom(lambda v: 3))  # type: ignore[arg-type, return-value]


def test_a_function_may_ask_for_labels() -> None:
    def relative(v: dict[str, Var], place: Place) -> Var:
        target = place.labels("wanted", TensorProto.FLOAT, v["y"].shape or ())
        return op.ReduceMax(op.Abs(v["y"] - target) / target, keepdims=0)

    model = parse("g (float[N, 3] z) => (float[N, 3] y) { y = Exp (z) }")
    graph = with_loss(model, 3 * Custom(relative))
    assert labels_of(graph) == {"z": "f32[N,3]", "wanted": "f32[N,3]"}
    feeds = {"z": np.zeros((2, 3), np.float32), "wanted": np.full((2, 3), 2, np.float32)}
    assert list(run(graph, feeds).values()) == [1.5]


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), "0.5", MSE()])
def test_weights_of_terms_are_finite_numbers(weight: Any) -> None:
    with pytest.raises(InputError, match=r"weight must be a (finite )?number"):
        MSE() * weight


def test_terms_are_losses() -> None:
    with pytest.raises(InputError, match=r"cannot have 'mse', which is not a Loss"):
        MSE() + "mse"  # type: ignore[operator]
    z = {"z": np.ones((2, 3))}
    found_ = [
        found(w * MSE(), z, {"target": np.zeros((2, 3))})[0]
        for w in (2, 2.0, np.float32(2), np.int64(2))
    ]
    assert found_ == [2.0] * 4


def test_a_sum_of_nothing() -> None:
    with pytest.raises(InputError, match=r"a sum of losses needs at least one term"):
        with_loss(through({"y": [3]}), Sum(()))


@pytest.mark.parametrize("dims", [["N", 3], [None, 3], ["N", "C"], [0, 3]])
def test_the_mean_of_an_empty_batch_is_nan_as_in_pytorch(dims: list[Any]) -> None:
    model = with_loss(through({"y": dims}, TensorProto.FLOAT), MSE())
    empty = np.zeros((0, 3), np.float32)
    (value,) = run(model, {"y_in": empty, "target": empty}).values()
    assert np.isnan(value)


def test_a_function_has_labels_of_its_own_by_a_second_parameter() -> None:
    model = parse("g (float[N, 3] z) => (float[N, 3] y) { y = Exp (z) }")

    def of_one(values: dict[str, Any]) -> Any:
        return op.ReduceMean(values["y"] - values["tarjet"], keepdims=0)

    message = r"reads 'tarjet', which is not a value .*place.labels\('tarjet', dtype, shape\)"
    with pytest.raises(InputError, match=message):
        with_loss(model, Custom(of_one))

    def of_two(dtype: Any) -> Any:
        def own(values: dict[str, Any], place: Place, scale: float = 2.0) -> Any:
            t = place.labels("truth", dtype, values["y"].shape)
            return op.ReduceMean(op.Abs(values["y"] - op.Cast(t, to=1)) * scale, keepdims=0)

        return Custom(own)

    for dtype, expected in ((np.float32, "f32"), ("int64", "i64"), (TensorProto.DOUBLE, "f64")):
        assert labels_of(with_loss(model, of_two(dtype)))["truth"] == f"{expected}[N,3]"
    with pytest.raises(InputError, match="the labels 'truth' cannot be of dtype 'number'"):
        with_loss(model, of_two("number"))
