"""The words that options choose from are those that there are."""

from __future__ import annotations

import pytest

from onnxgrad import surface, vocabulary
from onnxgrad.passes.pipeline import PASSES
from onnxgrad.passes.presets import PRESETS
from onnxgrad.train.losses import LOSSES
from onnxgrad.train.optimizers import OPTIMIZERS
from onnxgrad.train.schedules import SCHEDULES


@pytest.mark.parametrize(
    ("words", "registered"),
    [
        (vocabulary.PRESETS, PRESETS),
        (vocabulary.PASSES, sorted(PASSES)),
        (vocabulary.LOSSES, sorted(LOSSES)),
        (vocabulary.OPTIMIZERS, OPTIMIZERS),
        (vocabulary.SCHEDULES, SCHEDULES),
    ],
)
def test_words(words: tuple[str, ...], registered: object) -> None:
    assert surface.__all__ and words == tuple(registered)  # type: ignore[arg-type]  # the surface registers all
