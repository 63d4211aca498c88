"""The loss over several batches does not depend on how the data is cut, and a batch without labels counts nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError, RunWarning
from onnxgrad.train import Trainer, training_step
from onnxgrad.train.divergence import Diverged
from onnxgrad.train.losses.sums import Sums
from tests.train.common import classifier, examples, step

WEIGHTED = "cross_entropy{weight=[1,2,0.5]}"
LOSSES = (
    "cross_entropy", WEIGHTED, "cross_entropy{weight=[1,2,0.5],sample_weight=w,label_smoothing=0.1}",
    "cross_entropy{reduction=sum}", "cross_entropy{probabilities=true,target=shares}",
    "mse{target=shares,sample_weight=w}", "kl_div{target=shares,reduction=batchmean}",
    "cosine{target=shares}", "cosine{target=shares,reduction=sum}",
    "cross_entropy + 0.5*mse{target=shares} + 0.1*l2_penalty{params=w*}",
    "0.5*l2_penalty{params=w*}", "2*cross_entropy{reduction=sum} + mse{target=shares,reduction=sum}",
)  # fmt: skip


def data(count: int = 40) -> dict[str, Any]:
    """Rows of which half have no label, among them the first nine."""
    rng = np.random.default_rng(3)
    found = examples(count)
    found["labels"] = np.where(rng.random(count) < 0.5, -100, found["labels"])
    found["labels"][:9] = -100
    shares = rng.random((count, 3)).astype(np.float32)
    shares /= shares.sum(1, keepdims=True)
    return {**found, "w": rng.random(count).astype(np.float32), "shares": shares}


def of(made: Any, rows: slice = slice(None)) -> dict[str, Any]:
    return {k: a[rows] for k, a in data().items() if k in made.manifest.batch}


@pytest.mark.covering
@pytest.mark.parametrize("loss", LOSSES)
def test_the_held_out_loss_is_that_of_all_rows(loss: str) -> None:
    made = training_step(classifier(), loss, "sgd")
    trainer = Trainer(made, threads=1)
    found = [trainer.evaluate(of(made), batch_size=n)["loss"] for n in (40, 1, 3, 32)]
    np.testing.assert_allclose(found, found[0], rtol=1e-6)
    if made.manifest.divisor is None:  # what a step computes for all rows at once
        assert found[0] == pytest.approx(trainer.step(of(made)), rel=1e-6)
    else:
        assert found[0] == pytest.approx(trainer.step(of(made)), rel=1e-6)
        before = trainer.vector
        assert np.isfinite(trainer.step(of(made, slice(9))))
        if "+" not in loss:
            np.testing.assert_array_equal(trainer.vector, before)


@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_micro_batches_by_labels_are_one_batch(engine: Any) -> None:
    runs = {}
    for accumulate, by in ((1, None), (4, None), (4, "batches")):
        made = training_step(
            classifier(), WEIGHTED, "adam", accumulate=accumulate, accumulate_by=by, clip_norm=0.5
        )
        assert made.manifest.accumulate_by == (by or (None if accumulate == 1 else "labels"))
        trainer = Trainer(made, 0.1, threads=1, engine=engine)
        history = trainer.fit(of(made), epochs=3, batch_size=40 // accumulate, seed=None)
        runs[accumulate, by] = (history.losses, trainer.vector)
    for whole, parts in zip(runs[1, None], runs[4, None], strict=True):
        np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=2e-6)
    assert np.abs(runs[1, None][1] - runs[4, "batches"][1]).max() > 0.01


def test_by_what_micro_batches_count() -> None:
    def by(loss: str, **options: Any) -> str | None:
        return training_step(
            classifier(), loss, "sgd", accumulate=2, **options
        ).manifest.accumulate_by  # type: ignore[no-any-return]

    assert (
        by("cross_entropy") == by("mse") == by("mse + cross_entropy{ignore_index=0}") == "batches"
    )
    assert by("cross_entropy{ignore_index=0} + 0.1*l2_penalty{params=w*}") == "labels"
    assert by("cross_entropy", accumulate_by="labels") == "labels"
    with pytest.raises(
        InputError, match="accumulate_by=: the loss mse is not one mean over labels"
    ):
        by("mse", accumulate_by="labels")


def test_a_batch_without_labels_is_counted_and_training_goes_on(tmp_path: Path) -> None:
    rows = of(step())
    log = tmp_path / "log.jsonl"
    history = Trainer(step(), threads=1).fit(rows, batch_size=8, seed=None, log=log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line.get("without_labels") for line in lines] == [1, None, None, None, None]
    assert lines[0]["loss"] == 0 and history.without_labels == 1


@pytest.mark.parametrize("patience", [2, None])
def test_a_held_out_loss_that_is_no_number_is_never_the_best(patience: int | None) -> None:
    rows = examples(64)
    none = {**rows, "labels": np.full(64, -100)}
    trainer = Trainer(step(), threads=1)
    with pytest.warns(RunWarning, match="no held-out loss is a number"):
        history = trainer.fit(rows, epochs=5, validation=none, patience=patience, keep="best")
    assert len(history.evaluations) == (patience or 5)
    assert (history.kept, trainer.progress.best) == ("last", None)
    trainer.export(classifier())
    # a number after it is the best
    assert trainer.fit(rows, epochs=6, validation=rows, keep="best").kept == "last"
    assert trainer.progress.best is not None


def test_the_message_says_that_all_labels_are_ignored() -> None:
    made = training_step(classifier(), "cross_entropy + mse{target=shares}", "sgd")
    trainer = Trainer(made, threads=1)
    bad = {**of(made, slice(4)), "x": np.full((4, 8), np.nan, np.float32)}
    with pytest.raises(
        Diverged,
        match=r"'x' of the batch is (nan|inf) at \[.*\]; all labels of the batch are ignored\. The",
    ):
        trainer.step(bad)


def test_the_sums_are_in_the_manifest() -> None:
    sums = training_step(classifier(), LOSSES[9], "sgd").manifest.sums
    assert sums == (
        Sums("loss.numerator", "loss.denominator"), Sums("loss.numerator_2", "loss.denominator_2"),
    )  # fmt: skip
    assert step().manifest.sums == (Sums("loss.numerator", "loss.denominator"),)
