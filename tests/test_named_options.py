"""Text becomes an object, or one line says why not."""

from __future__ import annotations

import pytest

from onnxgrad.errors import InputError
from onnxgrad.named_options import read
from onnxgrad.train.optimizers import OPTIMIZERS, SGD, AdamW
from onnxgrad.train.schedules import SCHEDULES, Cosine


def test_options_are_those_of_the_class() -> None:
    assert read("adamw", OPTIMIZERS, "optimiser") == AdamW()
    written = "adamw{ betas=[0.8, 0.9], weight_decay = 0, eps=1e-6 }"
    assert read(written, OPTIMIZERS, "optimiser") == AdamW(
        betas=(0.8, 0.9), weight_decay=0.0, eps=1e-6
    )
    assert read("sgd{momentum=0.9,nesterov=true}", OPTIMIZERS, "optimiser") == SGD(
        momentum=0.9, nesterov=True
    )
    assert read("cosine{lr=0.1,T_max=10}", SCHEDULES, "schedule") == Cosine(0.1, T_max=10)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adamm", r"unknown optimiser 'adamm' \(did you mean 'adam"),
        ("adamw{beta=1}", r"no option 'beta' \(did you mean 'betas'\?\)"),
        ("adamw{eps}", "write option=value"),
        ("adamw{eps=1", "cannot read the optimiser"),
        ("", "cannot read the optimiser"),
        ("adamw{eps=nan}", "eps"),
        ("adamw{eps=hello}", "eps"),
    ],
)
def test_text_that_says_nothing(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(text, OPTIMIZERS, "optimiser")


def test_what_must_be_given() -> None:
    with pytest.raises(InputError, match="cosine needs the option lr"):
        read("cosine", SCHEDULES, "schedule")
