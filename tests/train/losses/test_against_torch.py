"""Each loss and its gradient in float64 against torch.nn's of the same name, over drawn options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from onnxgrad.train.losses import (
    CTC,
    L1,
    LOSSES,
    MSE,
    BCEWithLogits,
    Cosine,
    CosineEmbedding,
    CrossEntropy,
    Huber,
    KLDiv,
    Loss,
    SequenceCrossEntropy,
    SmoothL1,
    TripletMargin,
)  # fmt: skip
from tests.train.losses.common import found

pytestmark = pytest.mark.torch
SEEDS = range(8)
Case = tuple[Loss, dict[str, Any], dict[str, Any], Callable[..., Any]]


def compare(case: Case, wrt: list[str] | None = None, zero_at_nan: bool = False) -> None:
    import torch

    loss, values, labels, of_torch = case
    got, gradients = found(loss, values, labels, wrt=wrt, symbolic=bool(len(str(case)) % 2))
    tensors = {
        k: torch.tensor(np.asarray(v), dtype=torch.float64, requires_grad=True)
        for k, v in values.items()
    }
    expected = of_torch(**tensors, **{k: torch.as_tensor(v) for k, v in labels.items()})
    np.testing.assert_allclose(got, expected.item(), rtol=1e-10, atol=1e-12)
    expected.backward()
    for name, gradient in gradients.items():
        wanted = tensors[name].grad.numpy()
        np.testing.assert_allclose(
            gradient, wanted, rtol=1e-10, atol=1e-12, err_msg=f"{loss}: {name}"
        )


@pytest.mark.parametrize("name", [n for n in LOSSES if "penalty" not in n and n != "output"])
def test_options_of_torch_nn_have_its_names_and_defaults(name: str) -> None:
    import torch

    ours = {f.name: f.default for f in fields(LOSSES[name])}  # type: ignore[arg-type]
    if name in ("cosine", "sequence_cross_entropy"):
        cls = {"cosine": torch.nn.CosineSimilarity}.get(name, torch.nn.CrossEntropyLoss)
    else:
        cls = getattr(torch.nn, f"{LOSSES[name].__name__}Loss")
    theirs = inspect.signature(cls).parameters
    old = {"size_average", "reduce"}  # deprecated there
    assert {k: p.default for k, p in theirs.items() if k not in old} == {
        k: ours[k] for k in theirs if k not in old
    }


def choice(rng: np.random.Generator, *options: Any) -> Any:
    return options[rng.integers(len(options))]


def drawn_cross_entropy(rng: np.random.Generator, shape: tuple[int, ...]) -> Mapping[str, Any]:
    axis = 0 if len(shape) == 1 else 1
    return {
        "weight": choice(rng, None, rng.uniform(0.1, 2, shape[axis]).tolist()),
        "reduction": choice(rng, "mean", "sum"),
        "label_smoothing": choice(rng, 0.0, 0.1, 0.7, 1.0),
    }


def of_torch(name: str, **options: Any) -> Callable[..., Any]:
    import torch

    options = {
        k: torch.tensor(v, dtype=torch.float64) if "weight" in k and v is not None else v
        for k, v in options.items()
    }
    return getattr(torch.nn, name)(**options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4), (2, 3, 2, 2)])
def test_cross_entropy_of_indices(shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng([seed, *shape])
    options = {**drawn_cross_entropy(rng, shape), "ignore_index": choice(rng, -100, 1, -1)}
    axis = 0 if len(shape) == 1 else 1
    rest = (*shape[:axis], *shape[axis + 1 :])
    labels = rng.integers(0, shape[axis], rest)
    labels = np.where(rng.random(rest) < 0.3, options["ignore_index"], labels) if rest else labels
    module = of_torch("CrossEntropyLoss", **options)
    values = {"z": 3 * rng.standard_normal(shape)}
    if np.all(labels == options["ignore_index"]):
        options = {**options, "reduction": "sum"}
        module.reduction = "sum"
    compare(
        (CrossEntropy(**options), values, {"labels": labels}, lambda z, labels: module(z, labels))
    )
    # the classes on any axis
    for to in range(len(shape)):
        moved = {"z": np.moveaxis(values["z"], axis, to)}

        def of_moved(z: Any, labels: Any, to: int = to) -> Any:
            return module(z.moveaxis(to, axis), labels)

        compare((CrossEntropy(**options, axis=to), moved, {"labels": labels}, of_moved))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4)])
def test_cross_entropy_of_distributions(shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng([seed, *shape])
    options = drawn_cross_entropy(rng, shape)
    labels = {"labels": rng.dirichlet(np.ones(shape[0]), shape[1:]).reshape(shape)}
    module = of_torch("CrossEntropyLoss", **options)
    values = {"z": 3 * rng.standard_normal(shape)}
    loss = CrossEntropy(**options, probabilities=True)
    compare((loss, values, labels, lambda z, labels: module(z, labels)))


@pytest.mark.parametrize("seed", SEEDS)
def test_sequence_cross_entropy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, length, words = rng.integers(2, 6, 3)
    labels = rng.integers(0, words, (batch, length))
    labels[0, -1], labels[-1, 0] = -100, -100
    values = {"z": rng.standard_normal((batch, length, words))}
    shift, options = choice(rng, 0, 1, 2), drawn_cross_entropy(rng, (batch, words))
    labels[0, shift:][:1] = 1  # one counts at least
    module = of_torch("CrossEntropyLoss", **options)

    def shifted(z: Any, labels: Any) -> Any:
        return module(z[:, : length - shift].reshape(-1, words), labels[:, shift:].reshape(-1))

    if length > shift:
        compare((SequenceCrossEntropy(**options, shift=shift), values, {"labels": labels}, shifted))


@pytest.mark.parametrize("seed", SEEDS)
def test_elementwise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = choice(rng, (), (3,), (4, 3), (2, 3, 2))
    values, reduction = {"y": 2 * rng.standard_normal(shape)}, choice(rng, "mean", "sum")
    target = {"target": rng.standard_normal(shape)}
    delta, beta = rng.uniform(0.1, 2), choice(rng, 0.0, 1.0, 0.3)
    for loss, module in (
        (MSE(reduction=reduction), of_torch("MSELoss", reduction=reduction)),
        (L1(reduction=reduction), of_torch("L1Loss", reduction=reduction)),
        (
            Huber(delta=delta, reduction=reduction),
            of_torch("HuberLoss", delta=delta, reduction=reduction),
        ),
        (
            SmoothL1(beta=beta, reduction=reduction),
            of_torch("SmoothL1Loss", beta=beta, reduction=reduction),
        ),
    ):
        compare((loss, values, target, lambda y, target, module=module: module(y, target)))
        compare(
            (
                loss,
                values,
                {"target": values["y"]},
                lambda y, target, module=module: module(y, target),
            )
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_binary_cross_entropy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = choice(rng, (3,), (4, 3), (2, 4, 3))
    options = {
        "weight": choice(rng, None, rng.random(shape).tolist(), rng.random(3).tolist()),
        "pos_weight": choice(rng, None, rng.random(3).tolist(), [2.5]),
        "reduction": choice(rng, "mean", "sum"),
    }
    z = 4 * rng.standard_normal(shape)
    z.reshape(-1)[:3] = 0.0, 800.0, -800.0
    module = of_torch("BCEWithLogitsLoss", **options)
    compare(
        (
            BCEWithLogits(**options),
            {"z": z},
            {"labels": rng.random(shape)},
            lambda z, labels: module(z, labels),
        )
    )


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("seed", SEEDS)
def test_kl_divergence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = {
        "reduction": ("mean", "sum", "batchmean")[seed % 3],
        "log_target": choice(rng, True, False),
    }
    target = rng.dirichlet(np.ones(3), 4)
    target = np.log(target) if options["log_target"] else np.where(target < 0.3, 0.0, target)
    module = of_torch("KLDivLoss", **options)
    values = {"y": np.log(rng.dirichlet(np.ones(3), 4))}
    compare((KLDiv(**options), values, {"target": target}, lambda y, target: module(y, target)))


@pytest.mark.parametrize("seed", SEEDS)
def test_angles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, reduction = choice(rng, (3,), (4, 3)), choice(rng, "mean", "sum")
    margin, labels = rng.uniform(-0.5, 0.5), rng.choice([1, -1], shape[:-1])
    values = {"a": rng.standard_normal(shape), "b": rng.standard_normal(shape)}
    module = of_torch("CosineEmbeddingLoss", margin=margin, reduction=reduction)
    loss = CosineEmbedding("a", other="b", margin=margin, reduction=reduction)
    compare((loss, values, {"labels": labels}, lambda a, b, labels: module(a, b, labels)))
    dim = choice(rng, -1, 0)
    similarity = of_torch("CosineSimilarity", dim=dim)

    def one_minus(y: Any, target: Any) -> Any:
        each = 1 - similarity(y, target)
        return each.mean() if reduction == "mean" else each.sum()

    y = values["a"].copy()
    compare((Cosine(dim=dim, reduction=reduction), {"y": y}, {"target": values["b"]}, one_minus))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 1.5, np.inf])
def test_triplets(p: float, seed: int) -> None:
    rng = np.random.default_rng([seed, 7])
    shape = choice(rng, (3,), (4, 3))
    options = {
        "margin": rng.uniform(0.1, 2),
        "swap": choice(rng, True, False),
        "reduction": choice(rng, "mean", "sum"),
        "p": p,
    }
    values = {k: rng.standard_normal(shape) for k in ("anchor", "positive", "negative")}
    module = of_torch("TripletMarginLoss", **options)
    compare(
        (
            TripletMargin(**options),
            values,
            {},
            lambda anchor, positive, negative: module(anchor, positive, negative),
        )
    )


@pytest.mark.parametrize("seed", range(16))
def test_ctc(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps, batch, classes, room = rng.integers([6, 1, 2, 1], [12, 4, 6, 5])
    blank = int(rng.integers(classes))
    others = [c for c in range(classes) if c != blank]
    options = {
        "blank": blank,
        "reduction": choice(rng, "mean", "sum"),
        "zero_infinity": bool(seed % 2),
    }
    labels = {
        "labels": rng.choice(others, (batch, room)),
        "input_lengths": rng.integers(
            2 if seed % 2 else 2 * room + 1 if 2 * room < steps else steps, steps + 1, batch
        ),
        "target_lengths": rng.integers(0, room + 1, batch),
    }
    if not seed % 2:  # finite all
        labels["labels"] = np.array([[others[i % len(others)] for i in range(room)]] * batch)
        labels["input_lengths"] = np.maximum(labels["input_lengths"], np.minimum(2 * room, steps))
    module = of_torch("CTCLoss", **options)

    def ctc(z: Any, labels: Any, input_lengths: Any, target_lengths: Any) -> Any:
        return module(z.log_softmax(-1), labels, input_lengths, target_lengths)

    compare((CTC(**options), {"z": 2 * rng.standard_normal((steps, batch, classes))}, labels, ctc))
    if seed == 1:
        z = rng.standard_normal((batch, steps, classes))
        first = CTC(**options, batch_first=True)
        compare((first, {"z": z}, labels, lambda z, **labels: ctc(z.transpose(0, 1), **labels)))
