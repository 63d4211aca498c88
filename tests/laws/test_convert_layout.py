"""The minimal cut, against every division there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from onnxgrad.laws.convert_layout import Network


def brute(nodes: int, edges: list[tuple[int, int, float]]) -> tuple[float, int]:
    """The least cost, and the fewest nodes beside the sink that a division of that cost has there."""
    best = (float("inf"), 0)
    for sides in product((False, True), repeat=nodes - 2):
        sink = [False, True, *sides]
        cost = sum(c for a, b, c in edges if not sink[a] and sink[b])
        best = min(best, (cost, sum(sides)))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_random_networks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 9))
    edges = [
        (int(a), int(b), float(rng.choice([1, 2, 3, 7])))
        for a, b in rng.integers(0, nodes, (int(rng.integers(0, 20)), 2))
        if a != b
    ]
    network = Network()
    for _ in range(nodes - 2):
        network.node()
    for a, b, c in edges:
        network.edge(a, b, c)
    cost, sink = network.cut()
    assert (cost, len(sink) - 1) == brute(nodes, edges)
    assert sum(c for a, b, c in edges if a not in sink and b in sink) == cost


def test_a_long_chain_needs_no_recursion() -> None:
    network, last = Network(), 0
    for i in range(20_000):
        at = network.node()
        network.edge(last, at, 5.0 if i != 12_345 else 2.0)
        last = at
    network.edge(last, 1, 5.0)
    cost, sink = network.cut()
    assert cost == 2.0 and len(sink) == 20_000 - 12_345 + 1
