"""Optimisers of matrices after 20 steps of a small problem: PyTorch's numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from onnxgrad.train.optimizers import Adafactor, Muon, Optimizer
from tests.train.optimizers.problem import (
    START,
    Recorded,
    T,
    X,
    assert_follows,
    assert_recorded,
    by_graph,
    flat,
)

# fmt: off
RECORDED: list[Recorded] = [
    (Adafactor(), 0.0625, [1.121160078038, -0.8079276992262, 1.189981847004, 0.402388398727, -0.2117076712632, 0.1529035137213, 0.3557672448192, -0.7318759119389, 0.7357495109639]),
    (Adafactor(beta2_decay=-0.5, eps=(1e-2, 0.5), d=2.0, weight_decay=0.1), 0.0625, [1.010178695209, -0.7685009425828, 0.9904870887835, 0.2817264054779, -0.1858250910048, 0.03206768813144, 0.3938581053781, -0.7196239979878, 0.8536464100392]),
    (Adafactor(maximize=True), 0.00390625, [0.2466537759275, -0.1637249801478, 0.7247107360659, 0.5165036939892, -0.6351584890474, 0.9442762713756, 0.07799083746446, -0.3778663537841, 0.7567652830647]),
    (Muon(), 0.0625, [1.212829009303, -0.4897898867811, 1.230957677015, 0.7445859237682, -0.7815981703935, -0.1808844362035, 0.8227921009373, -0.7562099217761, 0.6483690450093]),
    (Muon(momentum=0.5, nesterov=False, weight_decay=0.2, adjust_lr_fn="match_rms_adamw", ns_steps=3, eps=1e-3, ns_coefficients=(3.0, -4.0, 2.0)), 0.0625, [0.5429805410205, -0.3298926575728, 0.8010401610466, 0.5153831221646, -0.5831172331993, 0.3947006453152, 0.8700116021881, -0.6737091932174, 0.4537830709438]),
]
# fmt: on


@pytest.mark.parametrize(("optimizer", "rate", "expected"), RECORDED)
def test_it_follows_pytorch(optimizer: Optimizer, rate: float, expected: list[float]) -> None:
    assert_follows(optimizer, rate, expected)


@pytest.mark.torch
@pytest.mark.parametrize(("optimizer", "rate", "expected"), RECORDED)
def test_the_record_is_what_pytorch_computes(
    optimizer: Optimizer, rate: float, expected: list[float]
) -> None:
    if isinstance(optimizer, Adafactor):
        assert_recorded(optimizer, rate, expected)
    else:
        np.testing.assert_allclose(muon_of_torch(optimizer, rate), expected, rtol=1e-12)


def muon_of_torch(optimizer: Any, rate: float) -> Any:
    """By torch.optim.Muon for the matrix, without its rounding to bfloat16, and AdamW for the
    others.
    """
    import torch

    options = {k: v for k, v in asdict(optimizer).items() if k not in ("lr", "maximize")}
    p = {k: torch.tensor(v, requires_grad=True) for k, v in START.items()}
    decay = optimizer.weight_decay
    each = [
        torch.optim.Muon([p["w"]], lr=rate, **options),
        torch.optim.AdamW([p["b"], p["s"]], lr=rate, weight_decay=decay),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
        for _ in range(20):
            y = p["s"] * (torch.tensor(X) @ p["w"]) + p["b"]
            for one in each:
                one.zero_grad()
            ((y - torch.tensor(T)) ** 2).mean().backward()
            for one in each:
                one.step()
    return flat({k: v.detach().numpy() for k, v in p.items()})


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (4, 4)])
def test_the_step_of_muon_is_nearly_orthogonal(shape: tuple[int, int]) -> None:
    """Its singular values are those of the polynomial: from 0.68 to 1.14 after five rounds."""
    g = np.random.default_rng(5).standard_normal(shape)
    rule = Muon(weight_decay=0.0, maximize=True)
    new, _ = rule.apply(np.zeros(shape), g, rule.state(g), step=1, rate=1.0)
    n, m = shape
    sizes = np.linalg.svd(new / np.sqrt(max(1, n / m)), compute_uv=False)
    assert sizes.min() > 0.6 and sizes.max() < 1.25
    u, _, v = np.linalg.svd(g, full_matrices=False)
    assert np.linalg.norm(u.T @ new @ v.T - np.diag(np.diag(u.T @ new @ v.T))) < 1e-10


def test_muon_decays_without_a_gradient() -> None:
    p = np.ones((2, 3))
    new, _ = Muon().apply(p, 0 * p, Muon().state(p), step=1, rate=0.5)
    assert np.array_equal(new, p * (1 - 0.5 * 0.1))


def test_adafactor_keeps_rows_and_columns() -> None:
    state = Adafactor().state(np.zeros((5, 300, 200), np.float32))
    assert {k: v.shape for k, v in state.items()} == {
        "row_var": (5, 300, 1),
        "col_var": (5, 1, 200),
    }
    states = {f.name: f.shape for f in by_graph(Adafactor(), 2**-6, 1)[1].manifest.of_role("state")}
    assert states == {
        "w.row_var": (3, 1),
        "w.col_var": (1, 2),
        "b.variance": (2,),
        "s.variance": (),
    }
