"""Lion against the paper's formula in float64."""

from __future__ import annotations

import numpy as np

from onnxgrad.train.optimizers import Lion
from tests.train.optimizers.problem import START, T, X, by_arrays, by_graph, flat


def test_it_follows_the_paper() -> None:
    for optimizer in (Lion(), Lion(betas=(0.5, 0.75), weight_decay=0.25, maximize=True)):
        (b1, b2), rate, up = optimizer.betas, 2**-6, -1 if optimizer.maximize else 1
        p, m = {k: v.copy() for k, v in START.items()}, {k: 0 * v for k, v in START.items()}
        for _ in range(20):
            d = 2 * (p["s"] * (X @ p["w"]) + p["b"] - T) / T.size
            g = {"w": p["s"] * (X.T @ d), "b": d.sum(0), "s": np.sum(d * (X @ p["w"]))}
            for k in p:
                c = b1 * m[k] + (1 - b1) * up * g[k]
                p[k] = p[k] - rate * (np.sign(c) + optimizer.weight_decay * p[k])
                m[k] = b2 * m[k] + (1 - b2) * up * g[k]
        np.testing.assert_allclose(flat(by_arrays(optimizer, rate)[0]), flat(p), rtol=1e-12)
        np.testing.assert_allclose(flat(by_graph(optimizer, rate)[0]), flat(p), atol=1e-5)
