"""Where groups lie in flat buffers, and gradients made ready there."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import SGD, AdamW
from onnxgrad.train.engines.flat_buffers import laid_out, made_ready, optimizer_of
from tests.train.common import step


def test_the_weights_of_a_group_lie_side_by_side() -> None:
    task = step(AdamW(lr=0.1), groups={"w*": SGD(lr=0.2), "b2": {"weight_decay": 0.0}})
    places, regions, size = laid_out(task.manifest)
    assert list(places) == ["w1", "w2", "b2", "b1"]
    assert [(r.part.start, r.part.stop) for r in regions] == [(0, 176), (176, 192), (192, 208)]
    assert [(r.rule.optimizer.name, r.rule.factor, len(r.slots)) for r in regions] == [
        ("sgd", 2.0, 0), ("adamw", 1.0, 2), ("adamw", 1.0, 2),
    ]  # fmt: skip
    assert size == 208


def test_a_gradient_is_averaged_clipped_and_measured() -> None:
    g = np.float32([3, -4, 12, 0])
    task = step(clip_norm=2.0, accumulate=2)
    factor, norm = made_ready(g, task.manifest, None)
    assert norm == pytest.approx(6.5)
    assert factor == pytest.approx(0.5 * 2 / 6.5, rel=1e-6)
    task = step(clip_value=1.0, accumulate=2, metrics=["gradient_norm"])
    factor, norm = made_ready(g, task.manifest, None)
    np.testing.assert_array_equal(g, [1, -1, 1, 0])
    assert (factor, norm) == (1.0, pytest.approx(np.sqrt(3)))
    assert made_ready(g, step().manifest, None) == (1.0, None)
    assert made_ready(g, step(accumulate=2).manifest, 0.25) == (0.25, None)


def test_an_optimiser_of_nobody() -> None:
    with pytest.raises(InputError, match="optimiser 'steam' is not one of"):
        optimizer_of({"name": "steam"})
