"""Losses as text."""

from __future__ import annotations

from dataclasses import MISSING, fields

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train.losses import (
    LOSSES,
    MSE,
    BCEWithLogits,
    CrossEntropy,
    L2Penalty,
    Loss,
    Output,
    Sum,
    TripletMargin,
    parse_loss,
)


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("mse", MSE()),
        (" cross_entropy{label_smoothing=0.1} ", CrossEntropy(label_smoothing=0.1)),
        ("cross_entropy{ weight=[1, 2.5], axis = -1 }", CrossEntropy(weight=[1, 2.5], axis=-1)),
        (
            "cross_entropy{probabilities=true,reduction=sum}",
            CrossEntropy(probabilities=True, reduction="sum"),
        ),
        ("mse{output=3,target=t.x}", MSE("3", "t.x")),
        ("bce_with_logits{pos_weight=2,output=none}", BCEWithLogits(pos_weight=2)),
        ("triplet_margin{p=inf}", TripletMargin(p=np.inf)),
        ("triplet_margin{anchor=a,positive=b,negative=c}", TripletMargin("a", "b", "c")),
        ("loss", Output("loss")),
        ("/head/Add_output_0", Output("/head/Add_output_0")),
        ("output{output=mse}", Output("mse")),
        ("mse + 0.5*cross_entropy", Sum(((1.0, MSE()), (0.5, CrossEntropy())))),
        ("2 * mse{reduction=sum}", Sum(((2.0, MSE(reduction="sum")),))),
        (
            "mse+1e-4*l2_penalty{params=*.w;!b[0-9].*}",
            Sum(((1.0, MSE()), (1e-4, L2Penalty("*.w;!b[0-9].*")))),
        ),
    ],
)
def test_text_to_loss(text: str, loss: Loss) -> None:
    assert parse_loss(text) == loss


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot read the loss at ''"),
        ("mse +", "cannot read the loss at ''"),
        ("mse{", "cannot read the loss at 'mse{'"),
        ("mse mse", "cannot read the loss at"),
        (
            "mes{reduction=sum}",
            r"unknown loss 'mes' \(did you mean 'mse'\?\): choose from bce_with_logits, cosine,",
        ),
        (
            "mse{reductoin=sum}",
            r"mse has no option 'reductoin' \(did you mean 'reduction'\?\); it has: output, target, reduction",
        ),
        ("mse{reduction}", "cannot read the options of mse at 'reduction'"),
        ("mse{reduction=none}", "reduction must be one of mean, sum, not None"),
        (
            "cross_entropy{label_smoothing=much}",
            "label_smoothing must be a number, not 'much'",
        ),
        ("cross_entropy{weight=heavy}", "weight must be finite numbers, not 'heavy'"),
        ("l2_penalty", "l2_penalty needs the option params: write l2_penalty{params=...}"),
    ],
)
def test_text_that_is_no_loss(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_loss(text)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_its_name_and_defaults(name: str) -> None:
    cls = LOSSES[name]
    assert cls.name == name
    needed = [f.name for f in fields(cls) if f.default is MISSING]  # type: ignore[arg-type]
    assert needed == (["params"] if "penalty" in name else [])


def test_the_defaults_are_those_of_pytorch() -> None:
    expected = {
        "cross_entropy": {"weight": None, "ignore_index": -100, "label_smoothing": 0.0},
        "bce_with_logits": {"weight": None, "pos_weight": None},
        "huber": {"delta": 1.0},
        "smooth_l1": {"beta": 1.0},
        "kl_div": {"log_target": False},
        "cosine": {"dim": 1, "eps": 1e-8},
        "cosine_embedding": {"margin": 0.0},
        "triplet_margin": {"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False},
        "ctc": {"blank": 0, "zero_infinity": False},
    }
    for name, cls in LOSSES.items():
        defaults = {f.name: f.default for f in fields(cls)}  # type: ignore[arg-type]
        assert defaults.items() >= expected.get(name, {}).items()
        assert defaults.get("reduction", "mean") == "mean"
