"""A loss says how the loss of a batch follows from those of its parts: so it is, of every loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load_own
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.train.engines.data_parallel import shards
from onnxgrad.train.losses import LOSSES, Custom, Loss, Output, Place, parse_loss
from onnxgrad.train.update.emission import fed_of
from onnxgrad.verify.running.session import run
from tests.train.losses.common import through

RNG = np.random.default_rng(0)
Z, T = RNG.standard_normal((7, 3)), RNG.standard_normal((7, 3))
LABELS = np.array([0, 2, 1, 1, -100, 0, -100])
ALL = np.array([0, 2, 1, 1, 2, 0, 1])
P = np.abs(T) / np.abs(T).sum(1, keepdims=True)
TOKENS = np.where(np.arange(5) < np.array([5, 5, 2, 3, 4, 1, 2])[:, None], ALL[:, None], -100)
SIGNS = np.array([1, -1, 1, -1, -1, 1, 1])
ROWS = {"y": Z}
SPEECH = {"y": RNG.standard_normal((7, 6, 4))}
SPOKEN = {
    "labels": np.array([[1, 2], [3, 1], [2, 3], [1, 1], [3, 3], [2, 1], [1, 3]]),
    "input_lengths": np.array([6, 6, 5, 4, 6, 5, 6]),
    "target_lengths": np.array([2, 1, 2, 1, 2, 2, 1]),
}
WEIGHTED = "weight=[1,2,5]"

CASES: list[tuple[str, str | None, dict[str, Any], dict[str, Any]]] = [
    ("cross_entropy", "labels", ROWS, {"labels": LABELS}),
    ("cross_entropy{label_smoothing=0.2}", "labels", ROWS, {"labels": LABELS}),
    ("cross_entropy{reduction=sum," + WEIGHTED + "}", "sum", ROWS, {"labels": LABELS}),
    ("cross_entropy{" + WEIGHTED + "}", "labels", ROWS, {"labels": LABELS}),
    ("cross_entropy{" + WEIGHTED + ",label_smoothing=0.2}", "labels", ROWS, {"labels": ALL}),
    ("sequence_cross_entropy{" + WEIGHTED + "}", "labels", {"y": RNG.standard_normal((7, 5, 3))},
     {"labels": TOKENS}),
    ("cross_entropy{probabilities=true," + WEIGHTED + "}", "mean", ROWS, {"labels": P}),
    ("sequence_cross_entropy", "labels", {"y": RNG.standard_normal((7, 5, 3))}, {"labels": TOKENS}),
    ("bce_with_logits{pos_weight=2}", "mean", ROWS, {"labels": P}),
    ("kl_div", "mean", ROWS, {"target": P}),
    ("kl_div{reduction=batchmean}", "mean", ROWS, {"target": P}),
    ("kl_div{reduction=sum}", "sum", ROWS, {"target": P}),
    ("mse", "mean", ROWS, {"target": T}),
    ("mse{reduction=sum}", "sum", ROWS, {"target": T}),
    ("l1", "mean", ROWS, {"target": T}),
    ("huber", "mean", ROWS, {"target": T}),
    ("smooth_l1", "mean", ROWS, {"target": T}),
    ("cosine", "mean", ROWS, {"target": T}),
    ("cosine{dim=0}", None, ROWS, {"target": T}),
    ("cosine_embedding", "mean", ROWS, {"other": T, "labels": SIGNS}),
    ("triplet_margin", "mean", {"anchor": Z, "positive": T, "negative": P}, {}),
    ("ctc{batch_first=true}", "mean", SPEECH, SPOKEN),
    ("ctc{batch_first=true,reduction=sum}", "sum", SPEECH, SPOKEN),
    ("l1_penalty{params=one}", "constant", ROWS, {}),
    ("l2_penalty{params=one}", "constant", ROWS, {}),
    ("proximal_penalty{params=one}", "constant", ROWS, {"one.anchor": np.full((), 0.5)}),
    ("cross_entropy + 0.1*l2_penalty{params=one}", "labels", ROWS, {"labels": LABELS}),
    ("mse + 0.5*l1", "mean", ROWS, {"target": T}),
    ("mse{reduction=sum} + l1{reduction=sum}", "sum", ROWS, {"target": T}),
    ("cross_entropy + mse", "mixed", ROWS, {"labels": ALL, "target": T}),
    ("mse{reduction=sum} + l2_penalty{params=one}", None, ROWS, {"target": T}),
    ("mse{reduction=sum} + l1", None, ROWS, {"target": T}),
]  # fmt: skip


def losses_of(
    loss: Loss, values: dict[str, Any], labels: dict[str, Any], over_batch: Any
) -> tuple[float, float]:
    """The loss of all, and what data-parallel training would make of those of two parts."""
    sizes = {k: ["N", *v.shape[1:]] for k, v in values.items()}
    program = load_own(through(sizes))
    block, place = program.main, Place(program.main)
    with emitting(block, share=True):
        result = op.Identity(loss.emit(place))
    for v in list(block.outputs):
        block.remove_output(v)
    block.add_output(result)
    feds = []
    for v in block.inputs:
        _, ignored = place.classes.get(v.name, (None, None))
        feds.append(replace(fed_of(v, "batch"), ignored=ignored, unread=place.unread.get(v.name)))
        feds[-1] = replace(feds[-1], weights=place.weights.get(v.name))
    given = {**{f"{k}_in": v for k, v in values.items()}, **labels}
    cut, proto = shards(given, feds), to_proto(program)
    parts = [slice(0, 4), slice(4, 7)]
    each = [float(next(iter(run(proto, cut.part(p)).values()))) for p in parts]
    whole = float(next(iter(run(proto, given).values())))
    return whole, float(np.dot(cut.shares(parts, over_batch), each))


def test_every_loss_is_tried() -> None:
    tried = " ".join(text for text, *_ in CASES)
    assert [name for name in LOSSES if name not in tried and name != "output"] == []


@pytest.mark.parametrize(("text", "expected", "values", "labels"), CASES)
def test_what_a_loss_declares(
    text: str, expected: str | None, values: dict[str, Any], labels: dict[str, Any]
) -> None:
    loss = parse_loss(text)
    assert loss.over_batch == expected
    whole, parts = losses_of(loss, values, labels, expected)
    if expected is None:
        assert abs(whole - parts) > 1e-3 * abs(whole)
    else:
        assert parts == pytest.approx(whole, rel=1e-12)


def test_labels_that_are_ignored_or_weighted_beside_another_mean() -> None:
    loss = parse_loss("cross_entropy{" + WEIGHTED + "} + mse")
    with pytest.raises(InputError, match="'labels' has labels that are ignored or have weights"):
        losses_of(loss, ROWS, {"labels": ALL, "target": T}, loss.over_batch)
    loss = parse_loss("cross_entropy + mse")
    with pytest.raises(InputError, match="'labels' has labels that are ignored"):
        losses_of(loss, ROWS, {"labels": LABELS, "target": T}, loss.over_batch)


def test_what_nobody_knows_is_declared_by_the_user() -> None:
    for own in (Custom(lambda v: v["y"]), Output()):
        assert own.over_batch is None and (own + 0.1 * own).over_batch is None
        assert (2 * replace(own, over_batch="mean")).over_batch == "mean"
        with pytest.raises(InputError, match="over_batch must be one of mean, sum, not 'all'"):
            replace(own, over_batch="all")  # type: ignore[arg-type]
    assert parse_loss("output{output=loss,over_batch=sum}") == Output("loss", "sum")
