"""Weights of zeros begin with draws that depend on a seed and on the product that reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.train.initialization import Kaiming, Xavier
from tests.helpers import parse

# inputs and outputs of the product that reads each weight
FANS = {
    "conv": (3 * 5 * 5, 64 * 5 * 5), "up": (24 * 3 * 3, 64 * 3 * 3), "gemm": (384, 200),
    "flipped": (200, 150), "moved": (150, 300), "left": (40, 50),
}  # fmt: skip
SHAPES = {
    "conv": (64, 3, 5, 5), "up": (64, 24, 3, 3), "gemm": (384, 200), "flipped": (150, 200),
    "moved": (300, 150), "left": (50, 40), "table": (40, 300), "bias": (200,),
}  # fmt: skip


def zeros(**others: Any) -> onnx.ModelProto:
    """A model that reads a weight of zeros in each way."""
    made = parse("""g (float[N,3,8,8] x, int64[40] ids) => (float[N,50,300] y) {
        c = Conv (x, conv)  u = ConvTranspose <strides=[2,2]> (c, up)
        p = AveragePool <kernel_shape=[2,2], strides=[2,2]> (u)  f = Flatten (p)
        a = Gemm (f, gemm, bias)  b = Gemm <transB=1> (a, flipped)
        t = Transpose <perm=[1,0]> (moved)  m = MatMul (b, t)
        e = Gather (table, ids)  one = Constant <value_ints=[1]> ()  r = Unsqueeze (m, one)
        h = Add (e, r)  y = MatMul (left, h) }""")
    arrays = {n: np.zeros(s, np.float32) for n, s in SHAPES.items()} | others
    for name, array in arrays.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def started(init: Any, model: onnx.ModelProto | None = None, **more: Any) -> Any:
    return onnxgrad.training_step(model or zeros(), "mse", init=init, **more)


@pytest.mark.parametrize("rule", [Kaiming, Xavier])
def test_the_bound_is_that_of_the_product(rule: Any) -> None:
    step = started(rule())
    for name, (inputs, outputs) in FANS.items():
        bound = np.sqrt(6 / (inputs if rule is Kaiming else inputs + outputs))
        drawn = step.initial[name]
        assert drawn.shape == SHAPES[name] and drawn.dtype == np.float32
        assert 0.99 * bound < np.abs(drawn).max() <= bound * (1 + 1e-6)
        assert abs(drawn.mean()) < 0.05 * bound
        assert abs(drawn.std() / bound - 3**-0.5) < 0.02
    assert not step.initial["table"].any() and not step.initial["bias"].any()
    name = rule().name
    assert any(note.startswith(f"{name}: 6 weights of zeros drawn: conv, ") for note in step.notes)
    assert any(note.endswith("as no product reads them: table") for note in step.notes)


def test_the_seed_decides_and_no_other_weight() -> None:
    one, same, other = (started(text).initial for text in ("xavier", "xavier", "xavier{seed=1}"))
    few = started("xavier", wrt=["gemm", "bias"]).initial
    assert np.array_equal(one["gemm"], same["gemm"]) and np.array_equal(one["gemm"], few["gemm"])
    assert not np.array_equal(one["gemm"], other["gemm"])
    assert not np.array_equal(one["gemm"][:40, :50].ravel(), one["left"].ravel())


def test_weights_that_are_not_zero_or_not_trained_stay() -> None:
    held = np.zeros((384, 200), np.float32)
    held[3, 4] = 1.0
    step = started("kaiming", zeros(gemm=held), wrt=["gemm", "left"], average=0.9)
    assert np.array_equal(step.initial["gemm"], held)
    assert np.array_equal(step.initial["left.average"], step.initial["left"])  # of the drawn ones
    assert "kaiming: 1 weight of zeros drawn: left" in step.notes
    model = zeros()
    trained = onnxgrad.Trainer(step).export(model)
    frozen = {t.name: onnx.numpy_helper.to_array(t) for t in trained.graph.initializer}
    assert not frozen["conv"].any() and frozen["left"].any()
    assert any("no trained matrix that" in note for note in started("kaiming", wrt=["bias"]).notes)


def test_what_is_no_initialisation() -> None:
    with pytest.raises(InputError, match="unknown initialisation 'he'"):
        started("he")
    with pytest.raises(InputError, match="xavier: seed must be"):
        started("xavier{seed=-1}")


@pytest.mark.torch
@pytest.mark.parametrize(("rule", "name"), [(Kaiming, "kaiming"), (Xavier, "xavier")])
def test_the_bounds_are_those_of_pytorch(rule: Any, name: str) -> None:
    import torch

    drawn = started(rule()).initial
    for weight in ("conv", "up", "flipped"):  # torch's weights have these layouts
        theirs = torch.zeros(SHAPES[weight])
        given = {"nonlinearity": "relu"} if name == "kaiming" else {}
        getattr(torch.nn.init, f"{name}_uniform_")(theirs, **given)
        assert np.abs(drawn[weight]).max() == pytest.approx(theirs.abs().max().item(), rel=0.01)
